"""Wishes: a request in a provider's words becomes what is asked of the engine."""

from __future__ import annotations

from collections.abc import Mapping

from tests.support.gateway.engine.settings import RequestSettings
from tests.support.gateway.engine.upstream import Want
from tests.support.gateway.fields import Endpoint
from tests.support.gateway.refusals import JSON

__all__ = ["DEFAULTS", "bias_of", "sampling_of", "stops_of", "want_of"]

DEFAULTS: Mapping[str, float] = {
    "temperature": 1.0,
    "top_k": 0,
    "top_p": 1.0,
    "min_p": 0.0,
    "typical_p": 1.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}
ENGINE_NAMES: Mapping[str, str] = {"repetition_penalty": "repeat_penalty"}
PATHS: Mapping[Endpoint, str] = {"chat": "/chat/completions", "completions": "/completions"}
LEGACY_TOKENS = 16
"""The default of max_tokens: schema CreateCompletionRequest.max_tokens.default."""
SECRET_TOP_P = 0.9


def sampling_of(body: JSON) -> dict[str, float]:
    """The sampling settings of a request: its own, then neutral ones."""
    own = {name: float(body[name]) for name in DEFAULTS if body.get(name) is not None}
    return {**DEFAULTS, **own}


def bias_of(body: JSON) -> dict[int, float]:
    """The bias of a checked request by token id, in nats."""
    return {int(token): float(value) for token, value in (body.get("logit_bias") or {}).items()}


def stops_of(body: JSON) -> list[str]:
    """The stop sequences; the gateway cuts the text itself, so that what was generated after one is
    known.
    """
    stop = body.get("stop") or []
    return [stop] if isinstance(stop, str) else list(stop)


def want_of(
    settings: RequestSettings, endpoint: Endpoint, body: JSON, *, whole: bool, post: bool
) -> Want:
    """What is asked of the engine for a checked request."""
    sampling = sampling_of(body)
    if settings.lie == "top_p 0.9":
        sampling["top_p"] = min(sampling["top_p"], SECRET_TOP_P)
    asked: JSON = {ENGINE_NAMES.get(name, name): value for name, value in sampling.items()}
    asked["top_k"] = int(sampling["top_k"])
    if endpoint == "chat":
        asked["messages"] = [_message(message) for message in body["messages"]]
    else:
        asked["prompt"] = body["prompt"][0] if _is_list_of_one(body["prompt"]) else body["prompt"]
    most = body.get("max_completion_tokens") or body.get("max_tokens")
    if most is None and endpoint == "completions":
        most = LEGACY_TOKENS
    if most is not None:
        asked["max_tokens"] = most
    return Want(
        path=PATHS[endpoint],
        body=asked,
        bias=settings.applied(bias_of(body)),
        n=body.get("n") or 1,
        seed=body.get("seed"),
        whole=whole,
        post=post,
    )


def _is_list_of_one(prompt: object) -> bool:
    return isinstance(prompt, list) and len(prompt) == 1 and not isinstance(prompt[0], int)


def _message(message: JSON) -> JSON:
    """Role and text; the developer of newer models is the system of chat templates."""
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(str(part.get("text", "")) for part in content)
    role = "system" if message.get("role") == "developer" else message.get("role")
    return {"role": role, "content": content}
