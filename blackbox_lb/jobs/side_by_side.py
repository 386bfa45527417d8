"""One prompt answered without a bias and with it, and the tokens of an answer that a bias moves."""

from __future__ import annotations

import codecs
from collections.abc import Mapping
from dataclasses import dataclass, replace

from blackbox_lb.api.session import Session
from blackbox_lb.rollouts.phased import check_continues, drawn_by_phase
from blackbox_lb.types import AnyBias, Completion, Draw, Prompt, Sampling

MOVED = 0.01
"""Nats below which a token counts as not moved."""


@dataclass(frozen=True, slots=True)
class MovedToken:
    """A token of a text that a bias moves. start, end: its characters. bias: nats."""

    start: int
    end: int
    bias: float


@dataclass(frozen=True, slots=True)
class MovedPiece:
    """A stretch of the biased answer. bias: nats on its token, None where it is not moved, or where
    the answer does not tell its tokens apart.
    """

    text: str
    bias: float | None


@dataclass(frozen=True, slots=True)
class SideBySide:
    """Both answers to one prompt; ``pieces`` make up the biased one."""

    base: Completion
    biased: Completion
    pieces: tuple[MovedPiece, ...]


async def side_by_side(
    session: Session, bias: AnyBias, prompt: Prompt, sampling: Sampling
) -> SideBySide:
    """Ask twice, at the endpoint that takes a bias.

    Raises:
        ProviderError: the API failed.
    """
    endpoint = session.biased_endpoint
    base = (await session.complete_many(prompt, Draw(sampling, None, endpoint)))[0]
    draw = Draw(sampling, endpoint=endpoint)
    if not isinstance(bias, Mapping) and "prefix" in bias.scopes:
        check_continues(session, bias.phases)
        biased = await drawn_by_phase(session, prompt, draw, bias)
    else:
        values = bias if isinstance(bias, Mapping) else bias.at(prompt)
        biased = (await session.complete_many(prompt, replace(draw, bias=values)))[0]
    return SideBySide(base, biased, pieces_of(biased, bias, prompt))


def pieces_of(completion: Completion, bias: AnyBias, prompt: Prompt) -> tuple[MovedPiece, ...]:
    """The text of a completion in stretches of moved and other tokens."""
    text = completion.text
    pieces = []
    place = 0
    for token in moved_tokens(completion, completion.token_bytes, bias, prompt):
        if place < token.start:
            pieces.append(MovedPiece(text[place : token.start], None))
        pieces.append(MovedPiece(text[token.start : token.end], token.bias))
        place = token.end
    if place < len(text):
        pieces.append(MovedPiece(text[place:], None))
    return tuple(pieces)


def moved_tokens(
    completion: Completion, spelled: Mapping[int, bytes], bias: AnyBias, prompt: Prompt
) -> tuple[MovedToken, ...]:
    """The tokens of a completion whose bias is at least ``MOVED``, up or down, in their order.

    A character of several tokens belongs to the last of them. Nothing where the bytes of the tokens
    do not make up the text.

    Args:
        spelled: token id -> bytes; a token without bytes, as an end token, has no place in the
            text.
        bias: it need not be the bias that the completion was drawn with.
    """
    ids = completion.token_ids.tolist()
    parts = [spelled.get(token, b"") for token in ids]
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    texts = [decoder.decode(part) for part in parts]
    rest = decoder.decode(b"", final=True)
    length = len(completion.text)
    if not "".join([*texts, rest]).startswith(completion.text):
        return ()
    moved = []
    start = 0
    for token, text, values in zip(ids, texts, _values_at(bias, prompt, parts), strict=True):
        end = min(start + len(text), length)
        value = values.get(token, 0.0)
        if abs(value) >= MOVED and start < end:
            moved.append(MovedToken(start, end, value))
        start = end
    return tuple(moved)


def _values_at(bias: AnyBias, prompt: Prompt, parts: list[bytes]) -> list[Mapping[int, float]]:
    """Token id -> nats at the position of each token."""
    if isinstance(bias, Mapping):
        return [bias] * len(parts)
    if "prefix" not in bias.scopes:
        return [bias.at(prompt)] * len(parts)
    phases = list(bias.phases.along(parts))[: len(parts)]
    of_phase = {phase: bias.at(prompt, phase) for phase in set(phases)}
    return [of_phase[phase] for phase in phases]
