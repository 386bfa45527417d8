"""Fireworks' rules: token ids in every entry, the model's logprob beside that of what was sampled
from, five alternatives.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

from tests.support.gateway import fields
from tests.support.gateway.engine.completion_view import CompletionView, f32
from tests.support.gateway.engine.from_request import DEFAULTS, sampling_of
from tests.support.gateway.engine.logprobs import EnginePosition, propensity
from tests.support.gateway.engine.settings import RequestSettings
from tests.support.gateway.engine.upstream import Want
from tests.support.gateway.refusals import JSON, refusal
from tests.support.gateway.rules.open_weights import OpenWeightsRules
from tests.support.gateway.rules.openai import OpenAIRules, Route, asked

__all__ = ["FireworksRules"]

SMALL = 4096
"""Tokens. Above this a vocabulary is not listed whole for a propensity."""
COMPUTED = ("temperature", "top_k", "top_p", "min_p")
"""Sampling settings whose effect on the propensity is computed; with any other changed, it is told
as null.
"""


class FireworksRules(OpenWeightsRules):
    """Chat and completions answer alike: entries with ids, or legacy lists where ``logprobs`` is a
    number.
    """

    prefix: ClassVar[str] = "/inference/v1"
    name: ClassVar[str] = "fireworks"
    headers: ClassVar[Mapping[str, str]] = {
        name: value for name, value in OpenAIRules.headers.items() if "reset" not in name
    }
    """Without the time of a reset."""
    tables: ClassVar[Mapping[fields.Endpoint, fields.Fields]] = fields.fields_of("fireworks")
    defaults: ClassVar[RequestSettings] = RequestSettings(
        models=("accounts/fireworks/models/gateway",)
    )

    def _of_endpoint(self, route: Route, name: str) -> str:
        if name not in self.settings.models:
            raise refusal(self.name, "model", name=name)
        return name

    def whole(self, body: JSON) -> bool:
        """A small vocabulary is listed whole, and the propensity computed."""
        return super().whole(body) or (self._tilts(body) and self._size <= SMALL)

    def post(self, body: JSON) -> bool:
        """Of a large one the engine tells the propensity itself: to list it takes a second and five
        megabytes a token.
        """
        return self._tilts(body) and self._size > SMALL

    def _tilts(self, body: JSON) -> bool:
        """Whether tokens are drawn from anything but the model itself, and logprobs are asked
        for.
        """
        changed = sampling_of(body) != DEFAULTS or bool(body.get("logit_bias"))
        return asked(body) is not None and changed

    def rest(self, reading: CompletionView, body: JSON, want: Want) -> JSON:
        """With the ids of a whole completion where they are asked for."""
        rest = super().rest(reading, body, want)
        if body.get("return_token_ids"):
            whole = len(reading.drawn) == reading.tokens
            rest["token_ids"] = [each.id for each in reading.drawn] if whole else None
        return rest

    def has_entries(self, body: JSON) -> bool:
        """``logprobs`` is true, and not a number."""
        return body["logprobs"] is True

    def entries(self, reading: CompletionView, body: JSON, want: Want, k: int) -> list[JSON]:
        """Each with the model's logprob and that of what was sampled from."""
        told, drawn = reading.told[: reading.kept], reading.drawn[: reading.kept]
        offsets = self.shown.offsets(told)
        posts = (*reading.post, *[None] * len(drawn))[: len(drawn)]
        return [
            {
                **self.alternative(each.id, f32(each.logprob), each.raw),
                "sampling_logprob": self._propensity(source, post, body, want),
                "text_offset": offset,
                "top_logprobs": [
                    self.alternative(token, f32(logprob)) for token, logprob in each.top(k)
                ],
            }
            for each, source, offset, post in zip(told, drawn, offsets, posts, strict=True)
        ]

    def _propensity(
        self, position: EnginePosition, post: float | None, body: JSON, want: Want
    ) -> float | None:
        sampling = sampling_of(body)
        if not self._tilts(body):
            return f32(position.logprob)
        if self.post(body):
            return None if post is None else f32(post)
        if any(sampling[name] != DEFAULTS[name] for name in set(DEFAULTS) - set(COMPUTED)):
            return None
        value = propensity(position, want.bias, sampling)
        return f32(value) if math.isfinite(value) else None

    def alternative(self, token: int, logprob: float, printed: bytes = b"") -> JSON:
        """One token without its alternatives."""
        raw = self.shown.raw(token, printed)
        return {
            "token": self.shown.text(token, printed),
            "bytes": list(raw),
            "logprob": logprob,
            "token_id": token,
        }
