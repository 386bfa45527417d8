"""What each provider accepts, lists and limits: paths, keys, models, fields, and the shape of
answers.
"""

from __future__ import annotations

import math
import re
import time
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np
from openai.types import completion_create_params as legacy_params
from openai.types.chat import completion_create_params as chat_params

from tests.support.gateway.batches import BatchLimits
from tests.support.gateway.engine import (
    NEUTRAL,
    Completion,
    Endpoint,
    Position,
    RequestSettings,
    UpstreamEngine,
    Want,
    propensity,
    sampling_of,
)
from tests.support.gateway.refusals import JSON, SAFE, refusal

PARAMS: Mapping[Endpoint, Any] = {
    "chat": chat_params.CompletionCreateParamsNonStreaming,
    "completions": legacy_params.CompletionCreateParamsNonStreaming,
}
"""OpenAI's official schema, as types of its package."""
FIELDS: Mapping[str, Any] = tomllib.loads(
    Path(__file__).with_name("fields.toml").read_text(encoding="utf-8")
)
Fields: TypeAlias = Mapping[str, list[float] | None]
"""Known fields -> lowest and highest value of a number, None for no limit."""
FAR_AWAY = -9999.0
"""The logprob told of a sampled token outside the 20 likeliest."""
SEEN = 20
LIE_ENTRIES = 64
BIAS = [-100.0, 100.0]
REFUSED_WHILE_REASONING = ("logit_bias", "logprobs", "max_tokens", "stop", "top_logprobs")
CLASSIC = re.compile(r"/openai/deployments/([^/]+)/(chat/completions|completions)")
SMALL = 4096
"""Tokens. Above this Fireworks' propensity is the engine's own: to list a vocabulary takes a second
and five megabytes a token.
"""


@dataclass(frozen=True, slots=True)
class Route:
    """Where a request went: ``rest`` is the path below files and batches. ``model``: a deployment
    in the path.
    """

    to: Literal["chat", "completions", "models", "batches"]
    model: str | None = None
    rest: str = ""


class OpenAIRules:
    """What OpenAI would say. Other providers differ in some of its methods and rows."""

    name: ClassVar[str] = "openai"
    prefix: ClassVar[str] = "/v1"
    fields: ClassVar[str] = "openai"
    official_schema: ClassVar[bool] = True
    batches: ClassVar[BatchLimits | None] = BatchLimits()
    defaults: ClassVar[RequestSettings] = RequestSettings(
        models=("gpt-4o-mini",),
        legacy_models=("gpt-3.5-turbo-instruct",),
        reasoning_models=("gpt-5-mini", "o4-mini"),
        entries=300,
        quantise=1 / 16,
    )
    headers: ClassVar[Mapping[str, str]] = {
        "x-ratelimit-limit-requests": "30000",
        "x-ratelimit-remaining-requests": "29999",
        "x-ratelimit-reset-requests": "2ms",
        "x-ratelimit-limit-tokens": "150000000",
        "x-ratelimit-remaining-tokens": "149999968",
        "x-ratelimit-reset-tokens": "0s",
    }
    """Of every answer: a budget of which little is used."""

    def __init__(self, settings: RequestSettings, upstream: UpstreamEngine) -> None:
        self.settings = settings
        self.engine = upstream
        self.largest = upstream.size - 1 if settings.largest is None else settings.largest

    def route(self, path: str, query: Mapping[str, str]) -> Route:
        """Where ``path`` leads; Refusal where it leads nowhere."""
        rest = path.removeprefix(self.prefix) if path.startswith(self.prefix) else ""
        routes = {
            "/chat/completions": Route("chat"),
            "/completions": Route("completions"),
            "/models": Route("models"),
        }
        if rest in routes:
            return routes[rest]
        if self.batches is not None and rest.startswith(("/files", "/batches")):
            return Route("batches", rest=rest)
        raise refusal(self.name, "url", path=path)

    def authorise(self, headers: Mapping[str, str]) -> None:
        """Refusal without the right key."""
        if headers.get("authorization") != f"Bearer {self.settings.key}":
            raise refusal(self.name, "key")

    def model(self, route: Route, body: JSON) -> str:
        """The model that is asked; Refusal where there is none of that name for that endpoint."""
        name = route.model or body.get("model")
        settings = self.settings
        chat = (*settings.models, *settings.reasoning_models)
        if name not in (chat if route.to == "chat" else settings.legacy_models):
            raise refusal(self.name, "model", name=name)
        return str(name)

    def listing(self) -> JSON:
        """The answer to GET models."""
        settings = self.settings
        names = (*settings.models, *settings.legacy_models, *settings.reasoning_models)
        data = [{"id": name, "object": "model"} for name in dict.fromkeys(names)]
        return {"object": "list", "data": data}

    def known_fields(self, endpoint: Endpoint) -> Fields:
        """The fields that this provider knows at an endpoint."""
        rows = FIELDS[self.fields]
        known: dict[str, list[float] | None] = {}
        if rows.get("types"):
            known |= dict.fromkeys(PARAMS[endpoint].__annotations__)
        for table in (FIELDS["common"], rows.get("both", {}), rows.get(endpoint, {})):
            known |= {name: row for name, row in table.items() if name != "other"}
            known |= dict.fromkeys(table.get("other", []))
        return known

    def check(self, endpoint: Endpoint, model: str, body: JSON) -> None:
        """Refusal with the first rule that a request breaks."""
        known = self.known_fields(endpoint)
        for name in sorted(set(body) - set(known)):
            raise refusal(self.name, "unknown field", name=name, value=body[name])
        for name, value in sorted(body.items()):
            if model in self.settings.reasoning_models and name in REFUSED_WHILE_REASONING:
                raise refusal(self.name, "reasoning", name=name)
            if name == "logit_bias":
                self._check_bias(value)
            else:
                self._check_range(name, value, known[name])

    def _check_range(self, name: str, value: object, bounds: list[float] | None) -> None:
        if bounds is None or isinstance(value, bool) or not isinstance(value, int | float):
            return
        low, high = bounds
        if low <= value <= high:
            return
        facts: JSON = {"edge": "above_max", "side": "above maximum", "bound": f"<= {high:g}"}
        if value < low:
            facts = {"edge": "below_min", "side": "below minimum", "bound": f">= {low:g}"}
        facts["number"] = "integer" if isinstance(value, int) else "decimal"
        raise refusal(self.name, "range", name=name, value=value, **facts)

    def _check_bias(self, bias: JSON) -> None:
        most = LIE_ENTRIES if self.settings.lie == "64 entries" else self.settings.entries
        for key, value in bias.items():
            if not (key.isascii() and key.isdigit()):
                raise refusal(self.name, "bias keys", key=key)
            if int(key) > self.largest:
                raise refusal(self.name, "bias largest id", token=int(key), largest=self.largest)
            self._check_range(f"logit_bias.{key}", value, BIAS)
        if most is not None and len(bias) > most:
            raise refusal(self.name, "bias entries", entries=len(bias), most=most)

    def routed(self, body: JSON) -> JSON:
        """The request as the engine reads it."""
        return body

    def whole(self, body: JSON) -> bool:
        """Whether the answer needs the logprobs of the whole vocabulary."""
        lies = self.settings.lie == "after bias" and bool(body.get("logit_bias"))
        return lies and alternatives(body) is not None

    def post(self, body: JSON) -> bool:
        """Whether the answer needs what each token was drawn with, from the engine."""
        return False

    def answer(
        self,
        endpoint: Endpoint,
        model: str,
        body: JSON,
        want: Want,
        completions: Sequence[Completion],
    ) -> JSON:
        """The whole answer to an accepted request."""
        prompt = completions[0].prompt_tokens
        generated = sum(completion.tokens for completion in completions)
        choices = []
        for index, completion in enumerate(completions):
            logprobs = None
            k = alternatives(body)
            if k is not None:
                logprobs = self.logprobs(endpoint, completion, body, want, k)
            spoken: JSON = {"text": completion.text}
            if endpoint == "chat":
                spoken = {"message": {"role": "assistant", "content": completion.text}}
            choice = {"index": index, "finish_reason": completion.finish, "logprobs": logprobs}
            choices.append({**spoken, **choice})
        return {
            "id": "chatcmpl-gateway",
            "object": "chat.completion" if endpoint == "chat" else "text_completion",
            "created": int(time.time()),
            "model": model,
            "choices": choices,
            "usage": {
                "prompt_tokens": prompt,
                "completion_tokens": generated,
                "total_tokens": prompt + generated,
            },
            **self.envelope(body),
        }

    def envelope(self, body: JSON) -> JSON:
        """Fields beside the choices of the answer to ``body``."""
        return {"service_tier": "default", "system_fingerprint": "fp_gateway"}

    def logprobs(
        self, endpoint: Endpoint, completion: Completion, body: JSON, want: Want, k: int
    ) -> JSON:
        """What a choice tells of its tokens, with ``k`` alternatives each."""
        if endpoint == "chat":
            told = completion.told[: completion.kept]
            return {"content": [self.entry(position, k) for position in told], "refusal": None}
        return self.lists(completion, k)

    def entry(self, position: Position, k: int) -> JSON:
        """One token of ``logprobs.content``."""
        own = f32(position.logprob)
        if position.rank() >= min(SEEN, len(position.ids)):
            own = FAR_AWAY
        others = [self.alternative(token, f32(logprob)) for token, logprob in position.top(k)]
        return {**self.alternative(position.id, own, position.raw), "top_logprobs": others}

    def alternative(self, token: int, logprob: float, printed: bytes = b"") -> JSON:
        """One token without its alternatives; ``bytes`` is null for a special token."""
        raw = list(self.engine.raw(token, printed)) or None
        return {"token": self.engine.text(token, printed), "logprob": logprob, "bytes": raw}

    def lists(self, completion: Completion, k: int) -> JSON:
        """Parallel lists; text keys, so that two tokens of one text become one entry."""
        tops = []
        for position in completion.told:
            listed = {self.engine.key(token): f32(logprob) for token, logprob in position.top(k)}
            tops.append(dict(sorted(listed.items())))
        return {
            "tokens": [self.engine.key(position.id, position.raw) for position in completion.told],
            "token_logprobs": [f32(position.logprob) for position in completion.told],
            "top_logprobs": tops if k else None,
        }


class AzureRules(OpenAIRules):
    """OpenAI's behind a gate of its own, with deployments, two kinds of keys and a content filter.

    Both generations of paths: ``/openai/deployments/{name}/...?api-version=`` and
    ``/openai/v1/...``.
    """

    name: ClassVar[str] = "azure"
    prefix: ClassVar[str] = "/openai/v1"
    batches: ClassVar[BatchLimits | None] = BatchLimits(
        requests=100_000, expires=False, slow_files=2, endpoints=("/chat/completions",)
    )

    def route(self, path: str, query: Mapping[str, str]) -> Route:
        """The classic paths need an api-version."""
        versioned = re.fullmatch(r"\d{4}-\d{2}-\d{2}(-preview)?", query.get("api-version", ""))
        classic = CLASSIC.fullmatch(path)
        rest = path.removeprefix("/openai")
        if versioned and classic is not None:
            return Route("chat" if "chat" in classic[2] else "completions", classic[1])
        if versioned and rest.startswith(("/files", "/batches")):
            return Route("batches", rest=rest)
        return super().route(path, query)

    def authorise(self, headers: Mapping[str, str]) -> None:
        """A key in ``api-key``, or a key or an Entra token as bearer."""
        given = {headers.get("api-key"), headers.get("authorization", "").removeprefix("Bearer ")}
        if not given & {self.settings.key, self.settings.token}:
            raise refusal(self.name, "key")

    def check(self, endpoint: Endpoint, model: str, body: JSON) -> None:
        """And the content filter, before anything is generated."""
        super().check(endpoint, model, body)
        withheld = self.settings.filter_prompts
        if withheld is not None and withheld in str(body.get("messages") or body.get("prompt")):
            raise refusal(self.name, "prompt filter")

    def envelope(self, body: JSON) -> JSON:
        """With what the filter found in the prompt."""
        kinds = dict.fromkeys(("hate", "self_harm", "sexual", "violence"), SAFE)
        results = [{"prompt_index": 0, "content_filter_results": kinds}]
        return {"prompt_filter_results": results, "system_fingerprint": "fp_gateway"}


class OpenRouterRules(OpenAIRules):
    """One address before several hosts: the first in ``hosts`` answers; with
    ``require_parameters`` the first that lacks no field of the request.
    """

    name: ClassVar[str] = "openrouter"
    prefix: ClassVar[str] = "/api/v1"
    fields: ClassVar[str] = "openrouter"
    official_schema: ClassVar[bool] = False
    batches: ClassVar[BatchLimits | None] = None
    defaults: ClassVar[RequestSettings] = RequestSettings(
        models=("openai/gpt-4o-mini",),
        entries=300,
        quantise=1 / 16,
        hosts={"Bare": ("logit_bias",), "Full": ()},
    )

    def routed(self, body: JSON) -> JSON:
        """Without the fields that the host lacks, and with the host's name in ``provider``."""
        wanted = body.get("provider") or {}
        for host, lacks in self.settings.hosts.items():
            if not wanted.get("require_parameters") or not set(lacks) & set(body):
                kept = {name: value for name, value in body.items() if name not in lacks}
                return {**kept, "provider": host}
        raise refusal(self.name, "no host")

    def envelope(self, body: JSON) -> JSON:
        """With the host that answered."""
        return {"provider": body["provider"], "system_fingerprint": "fp_gateway"}


class TogetherRules(OpenAIRules):
    """Lists side by side on both endpoints, with the ids of the sampled tokens; ``logprobs`` is a
    number on chat too, and no logprob is withheld.
    """

    name: ClassVar[str] = "together"
    fields: ClassVar[str] = "together"
    official_schema: ClassVar[bool] = False
    batches: ClassVar[BatchLimits | None] = None
    defaults: ClassVar[RequestSettings] = RequestSettings(
        models=("Qwen/Qwen3.5-9B",), legacy_models=("Qwen/Qwen3.5-9B",)
    )

    def logprobs(
        self, endpoint: Endpoint, completion: Completion, body: JSON, want: Want, k: int
    ) -> JSON:
        """Alike at both endpoints."""
        ids = [position.id for position in completion.told]
        return {**self.lists(completion, k), "token_ids": ids}

    def envelope(self, body: JSON) -> JSON:
        """Nothing beside the choices."""
        return {}


class FireworksRules(TogetherRules):
    """Entries with ids, the model's logprob beside that of what was sampled from."""

    name: ClassVar[str] = "fireworks"
    prefix: ClassVar[str] = "/inference/v1"
    fields: ClassVar[str] = "fireworks"
    defaults: ClassVar[RequestSettings] = RequestSettings(
        models=("accounts/fireworks/models/gateway",),
        legacy_models=("accounts/fireworks/models/gateway",),
    )

    def whole(self, body: JSON) -> bool:
        """A small vocabulary is listed whole, and the propensity computed."""
        return super().whole(body) or (self._tilts(body) and self.engine.size <= SMALL)

    def post(self, body: JSON) -> bool:
        """Of a large one the engine tells the propensity itself."""
        return self._tilts(body) and self.engine.size > SMALL

    def _tilts(self, body: JSON) -> bool:
        """Whether logprobs are asked for, and tokens drawn from anything but the model itself."""
        changed = sampling_of(body) != NEUTRAL or bool(body.get("logit_bias"))
        return alternatives(body) is not None and changed

    def logprobs(
        self, endpoint: Endpoint, completion: Completion, body: JSON, want: Want, k: int
    ) -> JSON:
        """Entries at both endpoints."""
        if body["logprobs"] is not True:
            return super().logprobs(endpoint, completion, body, want, k)
        posts = completion.post or (None,) * len(completion.told)
        entries = []
        for number, position in enumerate(completion.told[: completion.kept]):
            drawn = completion.drawn[number]
            entries.append(
                {
                    **self.alternative(position.id, f32(position.logprob), position.raw),
                    "sampling_logprob": self._propensity(drawn, posts[number], body, want),
                    "top_logprobs": [
                        self.alternative(token, f32(logprob)) for token, logprob in position.top(k)
                    ],
                }
            )
        return {"content": entries}

    def _propensity(
        self, position: Position, post: float | None, body: JSON, want: Want
    ) -> float | None:
        """None where it is not known: where the engine did not tell it, or a setting other than
        the temperature is not neutral.
        """
        sampling = sampling_of(body)
        if not self._tilts(body):
            return f32(position.logprob)
        if self.post(body):
            return None if post is None else f32(post)
        if {**sampling, "temperature": 1.0} != NEUTRAL:
            return None
        value = propensity(position, want.bias, sampling["temperature"])
        return f32(value) if math.isfinite(value) else None

    def alternative(self, token: int, logprob: float, printed: bytes = b"") -> JSON:
        """With the token's id."""
        raw = list(self.engine.raw(token, printed))
        return {**super().alternative(token, logprob, printed), "bytes": raw, "token_id": token}


PROVIDERS: Mapping[str, type[OpenAIRules]] = {
    rules.name: rules
    for rules in (OpenAIRules, AzureRules, OpenRouterRules, TogetherRules, FireworksRules)
}


def alternatives(body: JSON) -> int | None:
    """How many alternatives a token are asked for; None for no logprobs at all."""
    value = body.get("logprobs")
    if value is None or value is False:
        return None
    return int(body.get("top_logprobs") or 0) if value is True else int(value)


def f32(value: float) -> float:
    """Logprobs travel as 32-bit floats."""
    return float(np.float32(value))
