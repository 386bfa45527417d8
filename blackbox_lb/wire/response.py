"""One answer: choices become completions, in arrays, with every number checked on the way in."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from blackbox_lb.errors import BlbError, CorruptResponse, NoLogprobs
from blackbox_lb.profiles import Profile
from blackbox_lb.types import NO_TOKEN, UNNAMED, BoolArray, Completion, Endpoint, FloatArray, Sampling
from blackbox_lb.wire import content, legacy, meta
from blackbox_lb.wire.answer import choices_of, count, is_filtered, lengths, text_of
from blackbox_lb.wire.identity import Identity
from blackbox_lb.wire.position import Position, Reader

if TYPE_CHECKING:
    from blackbox_lb.vocabulary import Vocabulary

__all__ = ["parse_response"]

DIALECTS: dict[str, Callable[[Reader, dict[str, Any]], list[Position]]] = {
    "content": content.positions,
    "legacy": legacy.positions,
    "meta": meta.positions,
    "responses": content.positions,
}


def parse_response(
    profile: Profile, endpoint: Endpoint, answer: Any, sampling: Sampling, vocabulary: Vocabulary | None = None
) -> list[Completion]:
    """All completions of one answer, in the order of its choices.

    A sampled token that nothing names is ``UNNAMED`` in ``token_ids``, and its completion is not whole. A completion that a content
    filter withheld, and any of an endpoint that gives no logprobs, has no positions and is not whole.

    Raises:
        NoLogprobs: a choice without token logprobs.
        CorruptResponse: no choices, a NaN or positive logprob, a missing id, a list out of step with the tokens.
        ProfileError: tokens are told by their bytes or text and ``vocabulary`` is missing, or not the model's.
    """
    rules = profile.endpoint(endpoint)
    try:
        choices = choices_of(profile, rules, answer)
        read = _positions(profile, endpoint, choices, sampling, vocabulary)
        reasons = [str(choice.get("finish_reason")) for choice in choices]
        # A withheld choice's tokens are counted and not listed: the sum then says nothing of the other choices.
        withheld = len(choices) > 1 and any(is_filtered(choice) for choice in choices)
        total = None if withheld else count(answer, "completion_tokens", "output_tokens")
        sizes = lengths(
            total, [len(each or []) for each in read], reasons, end_token_listed=profile.logprobs.end_token_listed
        )
        prompt_tokens, model = count(answer, "prompt_tokens", "input_tokens") or 0, str(answer.get("model") or "")
        return [
            _completion(choice, positions, size, prompt_tokens, model)
            for choice, positions, size in zip(choices, read, sizes, strict=True)
        ]
    except BlbError:
        raise
    except (KeyError, TypeError, IndexError, AttributeError, OverflowError, ValueError) as error:
        raise CorruptResponse(
            f"{profile.name} answered in a shape that its profile does not describe ({type(error).__name__}: {error}): "
            f"{str(answer)[:200]}"
        ) from error


def _positions(
    profile: Profile,
    endpoint: Endpoint,
    choices: Sequence[dict[str, Any]],
    sampling: Sampling,
    vocabulary: Vocabulary | None,
) -> list[list[Position] | None]:
    """Every token position of each choice; None where there can be none."""
    rules = profile.endpoint(endpoint)
    if rules.ask_logprobs == "no":
        return [None for _ in choices]
    reader = Reader(profile, rules, Identity(profile, rules, vocabulary), sampling.top_logprobs)
    return [None if is_filtered(choice) else _read(reader, endpoint, choice) for choice in choices]


def _read(reader: Reader, endpoint: Endpoint, choice: dict[str, Any]) -> list[Position]:
    if not isinstance(choice.get("logprobs"), dict):
        others = [
            name for name, rules in reader.profile.endpoints.items() if rules.ask_logprobs != "no" and name != endpoint
        ]
        raise NoLogprobs(
            f"{reader.profile.name} returned no logprobs on its {endpoint} endpoint; learning needs the logprobs of sampled "
            f"tokens: choose a model or server that returns them{', or --endpoint ' + ' or '.join(others) if others else ''}"
        )
    return DIALECTS[reader.rules.dialect](reader, choice)


def _completion(
    choice: dict[str, Any], read: list[Position] | None, size: tuple[int | None, bool], prompt_tokens: int, model: str
) -> Completion:
    positions = read or []
    generated, complete = size
    top_ids, top_logprobs = _table([position.top for position in positions])
    return Completion(
        text=text_of(choice),
        finish_reason=str(choice.get("finish_reason")),
        token_ids=np.array([position.id for position in positions], dtype=np.int32),
        logprobs=np.array([position.logprob for position in positions], dtype=np.float32),
        top_ids=top_ids,
        top_logprobs=top_logprobs,
        prompt_tokens=prompt_tokens,
        model=model,
        whole=complete and read is not None and all(position.id != UNNAMED for position in positions),
        token_bytes={token: raw for position in positions for token, raw in position.bytes.items()},
        propensities=_propensities(positions),
        bounded=_bounded(positions),
        generated=generated,
    )


def _propensities(positions: Sequence[Position]) -> FloatArray | None:
    values = [position.propensity for position in positions if position.propensity is not None]
    return np.array(values, dtype=np.float32) if values else None


def _bounded(positions: Sequence[Position]) -> BoolArray | None:
    bounded = np.array([position.bounded for position in positions], dtype=np.bool_)
    return bounded if bounded.any() else None


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
