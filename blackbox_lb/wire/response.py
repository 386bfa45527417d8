"""One answer: choices become completions, in arrays, with every number checked on the way in."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from blackbox_lb.errors import CorruptResponse, NoLogprobs
from blackbox_lb.profiles import EndpointRules, Profile
from blackbox_lb.types import NO_TOKEN, Completion, Endpoint, Sampling
from blackbox_lb.wire import content, legacy
from blackbox_lb.wire.position import Position
from blackbox_lb.wire.request import endpoint_rules

__all__ = ["parse_response"]

DIALECTS: dict[str, Callable[[Profile, EndpointRules, dict[str, Any], int], list[Position]]] = {
    "content": content.positions,
    "legacy": legacy.positions,
}


def parse_response(profile: Profile, endpoint: Endpoint, answer: Any, sampling: Sampling) -> list[Completion]:
    """All completions of one answer, in the order of its choices.

    Raises:
        NoLogprobs: a choice without token logprobs.
        CorruptResponse: no choices, a NaN or positive logprob, a missing id, a list out of step with the tokens.
    """
    choices = answer.get("choices") if isinstance(answer, Mapping) else None
    if not isinstance(choices, list) or not choices:
        raise CorruptResponse(f"{profile.name} answered without choices: {str(answer)[:200]}")
    rules = endpoint_rules(profile, endpoint)
    return [_completion(profile, rules, answer, choice, len(choices), sampling) for choice in choices]


def _completion(
    profile: Profile,
    rules: EndpointRules,
    answer: dict[str, Any],
    choice: dict[str, Any],
    n_choices: int,
    sampling: Sampling,
) -> Completion:
    if not isinstance(choice.get("logprobs"), dict):
        raise NoLogprobs(
            f"{profile.name} returned no logprobs for model {answer.get('model')!r}; learning needs the logprobs of sampled "
            "tokens: choose a model or server that returns them"
        )
    try:
        positions = DIALECTS[rules.dialect](profile, rules, choice, sampling.top_logprobs)
        message = choice.get("message")
        text = choice["text"] if message is None else message["content"]
        usage = answer.get("usage") or {}
        generated = usage.get("completion_tokens") if n_choices == 1 else None
        top_ids, top_logprobs = _table([position.top for position in positions])
        return Completion(
            text=str(text or ""),
            finish_reason=str(choice.get("finish_reason")),
            token_ids=np.array([position.id for position in positions], dtype=np.int32),
            logprobs=np.array([position.logprob for position in positions], dtype=np.float32),
            top_ids=top_ids,
            top_logprobs=top_logprobs,
            prompt_tokens=int(usage.get("prompt_tokens") or 0),
            model=str(answer.get("model") or ""),
            whole=generated is None or generated == len(positions),
            token_bytes={token: raw for position in positions for token, raw in position.bytes.items()},
        )
    except (KeyError, TypeError, IndexError, AttributeError, OverflowError) as error:
        raise CorruptResponse(
            f"{profile.name} answered in a shape that its profile does not describe ({type(error).__name__}: {error}): "
            f"{str(choice)[:200]}"
        ) from error


def _table(rows: Iterable[list[tuple[int, float]]]) -> tuple[Any, Any]:
    """Ragged rows of (id, logprob) as two (t, k) arrays, padded with -1 and -inf."""
    rows = list(rows)
    width = max((len(row) for row in rows), default=0)
    ids = np.full((len(rows), width), NO_TOKEN, dtype=np.int32)
    logprobs = np.full((len(rows), width), -np.inf, dtype=np.float32)
    for t, row in enumerate(rows):
        if row:
            ids[t, : len(row)], logprobs[t, : len(row)] = zip(*row, strict=True)
    return ids, logprobs
