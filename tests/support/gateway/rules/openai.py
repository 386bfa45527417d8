"""OpenAI's rules: paths, keys, models, limits, and the shape of answers. Each rule's source is in
``sources``.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from tests.support.gateway import fields
from tests.support.gateway.batches import BatchLimits
from tests.support.gateway.checks import ModelLimits, broken_rules
from tests.support.gateway.engine.completion_view import CompletionView, TokenPrinting, f32
from tests.support.gateway.engine.logprobs import EnginePosition
from tests.support.gateway.engine.settings import RequestSettings
from tests.support.gateway.engine.upstream import UpstreamEngine, Want
from tests.support.gateway.refusals import JSON, Refusal, refusal

__all__ = ["OpenAIRules", "Route", "asked", "bearer"]

FAR_AWAY = -9999.0
"""The logprob told of a sampled token outside the 20 likeliest."""
SEEN = 20
LIE_ENTRIES = 64


@dataclass(frozen=True, slots=True)
class Route:
    """Where a request went. ``name``: a deployment or model in the path, ``version``: api-version
    of Azure's classic paths.
    """

    to: Literal["chat", "completions", "models"]
    name: str | None = None
    version: str = ""


class OpenAIRules:
    """What OpenAI would say. Other providers differ in some of its methods and tables."""

    prefix: ClassVar[str] = "/v1"
    name: ClassVar[str] = "openai"
    tables: ClassVar[Mapping[fields.Endpoint, fields.Fields]] = fields.fields_of("openai")
    official_schema: ClassVar[bool] = True
    defaults: ClassVar[RequestSettings] = RequestSettings(
        models=("gpt-4o-mini",),
        legacy_models=("gpt-3.5-turbo-instruct",),
        reasoning_models=("gpt-5-mini", "o4-mini"),
        entries=300,
        quantise=1 / 16,
    )
    properties: ClassVar[int | None] = 1024
    batches: ClassVar[BatchLimits | None] = BatchLimits()
    usage_details: ClassVar[JSON] = {
        "prompt_tokens_details": {"cached_tokens": 0, "audio_tokens": 0},
        "completion_tokens_details": {
            "reasoning_tokens": 0,
            "audio_tokens": 0,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        },
    }
    headers: ClassVar[Mapping[str, str]] = {
        "x-ratelimit-limit-requests": "30000",
        "x-ratelimit-remaining-requests": "29999",
        "x-ratelimit-reset-requests": "2ms",
        "x-ratelimit-limit-tokens": "150000000",
        "x-ratelimit-remaining-tokens": "149999968",
        "x-ratelimit-reset-tokens": "0s",
    }
    """Of every answer: a budget of which little is used."""
    beside: ClassVar[JSON] = {"service_tier": "default", "system_fingerprint": "fp_gateway"}
    """Fields beside the choices."""

    def __init__(self, settings: RequestSettings, upstream: UpstreamEngine) -> None:
        self.settings, self.shown = settings, TokenPrinting(upstream)
        self._size = upstream.size
        self._largest = upstream.size - 1 if settings.largest is None else settings.largest

    def route(self, method: str, path: str, query: Mapping[str, str]) -> Route:
        """Where ``path`` leads; Refusal where it leads nowhere."""
        posts: dict[str, Literal["chat", "completions"]] = {
            f"{self.prefix}/chat/completions": "chat",
            f"{self.prefix}/completions": "completions",
        }
        if method == "POST" and path in posts:
            return Route(posts[path])
        if method == "GET" and path == f"{self.prefix}/models":
            return Route("models")
        if method == "GET" and path.startswith(f"{self.prefix}/models/"):
            return Route("models", path.removeprefix(f"{self.prefix}/models/"))
        raise refusal(self.name, "url", method=method, path=path)

    def batch_path(self, path: str, query: Mapping[str, str]) -> str | None:
        """What stands behind the prefix where ``path`` leads to files or batches, which this
        provider has; else None.
        """
        rest = path.removeprefix(self.prefix)
        return rest if rest != path and rest.split("/")[1] in ("files", "batches") else None

    def authorise(self, route: Route, headers: Mapping[str, str]) -> None:
        """Refusal without the right key."""
        given = bearer(headers)
        if not given:
            raise refusal(self.name, "no key")
        if given != self.settings.key:
            raise refusal(self.name, "key", shown=given[:8] + "*" * max(len(given) - 8, 0))

    def model(self, route: Route, body: JSON) -> str:
        """The model that is asked; Refusal where there is none of that name for that endpoint."""
        name = body.get("model")
        if name is None:
            raise refusal(self.name, "required", name="model")
        if not isinstance(name, str):
            raise refusal(self.name, "type", name="model", expected="a string", value=name)
        return self._of_endpoint(route, name)

    def _of_endpoint(self, route: Route, name: str) -> str:
        settings = self.settings
        chat = {*settings.models, *settings.reasoning_models}
        if name not in chat | {*settings.legacy_models}:
            raise refusal(self.name, "model", name=name)
        if name not in (chat if route.to == "chat" else settings.legacy_models):
            raise refusal(self.name, "legacy model" if route.to == "chat" else "chat model")
        return name

    def listing(self, route: Route) -> JSON:
        """The answer to GET models."""
        settings = self.settings
        names = dict.fromkeys(settings.models + settings.legacy_models + settings.reasoning_models)
        data = {
            name: {"id": name, "object": "model", "created": 1721172741, "owned_by": "system"}
            for name in names
        }
        if route.name is None:
            return {"object": "list", "data": list(data.values())}
        if route.name not in data:
            raise refusal(self.name, "model", name=route.name)
        return data[route.name]

    def faults(self, endpoint: fields.Endpoint, model: str, body: JSON) -> Iterator[Refusal]:
        """The rules that a request breaks."""
        settings = self.settings
        entries = LIE_ENTRIES if settings.lie == "64 entries" else settings.entries
        limits = ModelLimits(
            largest=self._largest,
            entries=entries,
            properties=self.properties,
            reasoning=model in settings.reasoning_models,
        )
        return broken_rules(self.name, self.tables[endpoint], limits, body)

    def routed(self, body: JSON) -> JSON:
        """The request as the engine reads it."""
        return body

    def check_prompt(self, body: JSON) -> Refusal | None:
        """What is refused for the text of a well-formed request."""
        return None

    def whole(self, body: JSON) -> bool:
        """Whether the answer needs the logprobs of the whole vocabulary."""
        return (
            bool(body.get("logit_bias"))
            and self.settings.lie == "after bias"
            and asked(body) is not None
        )

    def post(self, body: JSON) -> bool:
        """Whether the answer needs what each token was drawn with, from the engine."""
        return False

    def cost(self, endpoint: fields.Endpoint, body: JSON) -> int:
        """Tokens that a prompt costs before anything is generated."""
        texts = (
            [m.get("content") for m in body.get("messages") or [] if isinstance(m, dict)]
            if endpoint == "chat"
            else []
        )
        return -(-sum(len(str(text)) for text in texts or [body.get("prompt")]) // 4) + 2

    def answer(
        self,
        endpoint: fields.Endpoint,
        model: str,
        body: JSON,
        want: Want,
        readings: Sequence[CompletionView],
        number: int,
    ) -> JSON:
        """The whole answer to an accepted request."""
        make = self.chat_choice if endpoint == "chat" else self.legacy_choice
        prompt_tokens, generated = (
            readings[0].prompt_tokens,
            sum(reading.tokens for reading in readings),
        )
        return {
            "id": f"{'chatcmpl' if endpoint == 'chat' else 'cmpl'}-gateway{number:08d}",
            "object": "chat.completion" if endpoint == "chat" else "text_completion",
            "created": int(time.time()),
            "model": model,
            "choices": [make(index, reading, body, want) for index, reading in enumerate(readings)],
            "usage": self.usage(prompt_tokens, generated),
            **self.envelope(body),
        }

    def usage(self, prompt_tokens: int, generated: int) -> JSON:
        """What is paid for."""
        return {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": generated,
            "total_tokens": prompt_tokens + generated,
            **self.usage_details,
        }

    def envelope(self, body: JSON) -> JSON:
        """Fields beside the choices of the answer to ``body``."""
        return self.beside

    def chat_choice(self, index: int, reading: CompletionView, body: JSON, want: Want) -> JSON:
        """One choice of the chat endpoint."""
        k = asked(body)
        told = reading.told[: reading.kept]
        return {
            "index": index,
            "message": {
                "role": "assistant",
                "content": reading.text,
                "refusal": None,
                "annotations": [],
            },
            "logprobs": (
                None
                if k is None
                else {"content": [self.entry(each, k) for each in told], "refusal": None}
            ),
            "finish_reason": reading.finish,
        }

    def entry(self, position: EnginePosition, k: int) -> JSON:
        """One token of ``logprobs.content``."""
        own = FAR_AWAY if position.rank() >= min(SEEN, len(position.ids)) else f32(position.logprob)
        others = [self.alternative(token, f32(logprob)) for token, logprob in position.top(k)]
        return {**self.alternative(position.id, own, position.raw), "top_logprobs": others}

    def alternative(self, token: int, logprob: float, printed: bytes = b"") -> JSON:
        """One token without its alternatives; ``bytes`` is null for a special token."""
        raw = self.shown.raw(token, printed)
        return {
            "token": self.shown.text(token, printed),
            "logprob": logprob,
            "bytes": list(raw) or None,
        }

    def legacy_choice(self, index: int, reading: CompletionView, body: JSON, want: Want) -> JSON:
        """One choice of the completions endpoint."""
        k = asked(body)
        return {
            "text": reading.text,
            "index": index,
            "logprobs": (
                None if k is None else self.legacy_lists(reading, k, len(str(body.get("prompt"))))
            ),
            "finish_reason": reading.finish,
        }

    def legacy_lists(self, reading: CompletionView, k: int, start: int) -> dict[str, Any]:
        """Parallel lists; text keys, so that two tokens of one text become one entry. ``start``:
        characters of the prompt.
        """
        last = start + len(reading.text)
        tops = [self._by_text(each, k) for each in reading.told]
        return {
            "tokens": [self.shown.key(each.id, each.raw) for each in reading.told],
            "token_logprobs": [f32(each.logprob) for each in reading.told],
            "top_logprobs": tops if k else None,
            "text_offset": [
                min(start + offset, last) for offset in self.shown.offsets(reading.told)
            ],
        }

    def _by_text(self, position: EnginePosition, k: int) -> dict[str, float]:
        listed = {self.shown.key(token): f32(logprob) for token, logprob in position.top(k)}
        return dict(sorted(listed.items()))


def bearer(headers: Mapping[str, str]) -> str:
    """The token of the Authorization header, empty if there is none."""
    kind, _, given = headers.get("authorization", "").partition(" ")
    return given.strip() if kind.lower() == "bearer" else ""


def asked(body: JSON) -> int | None:
    """How many alternatives a token are asked for; None for no logprobs at all."""
    value = body.get("logprobs")
    if value is None or value is False:
        return None
    return int(body.get("top_logprobs") or 0) if value is True else int(value)
