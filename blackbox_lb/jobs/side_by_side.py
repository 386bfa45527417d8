"""One prompt, answered without a bias and with it, and the tokens of the answer that it moved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from blackbox_lb.api.session import Session
from blackbox_lb.rollouts.phased import check_continues, drawn_by_phase
from blackbox_lb.types import AnyBias, Completion, Draw, Prompt, Sampling

MOVED = 0.01
"""Nats below which a token counts as not moved."""


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
        spelled = [biased.token_bytes.get(token, b"") for token in biased.token_ids.tolist()]
        phases = [*bias.phases.along(spelled)][:-1]
        of_phase = {phase: bias.at(prompt, phase) for phase in set(phases)}
        pairs = zip(biased.token_ids.tolist(), phases, strict=True)
        moved = [of_phase[phase].get(token, 0.0) for token, phase in pairs]
    else:
        values = bias if isinstance(bias, Mapping) else bias.at(prompt)
        biased = (await session.complete_many(prompt, replace(draw, bias=values)))[0]
        moved = [values.get(token, 0.0) for token in biased.token_ids.tolist()]
    return SideBySide(base, biased, pieces_of(biased, moved))


def pieces_of(completion: Completion, moved: Sequence[float]) -> tuple[MovedPiece, ...]:
    """The text of a completion in stretches of moved and other tokens; one stretch where the bytes
    of its tokens are not known or do not make up its text.

    moved: (t,) nats on each token.
    """
    tokens = completion.token_ids.tolist()
    spelled = [completion.token_bytes.get(token) for token in tokens]
    whole = b"".join(part for part in spelled if part is not None)
    if not whole.decode("utf-8", "replace").startswith(completion.text):
        return (MovedPiece(completion.text, None),)
    pieces: list[MovedPiece] = []
    left = len(completion.text.encode())
    for bias, part in zip(moved, spelled, strict=True):
        if part is None or left <= 0:
            continue
        text = part[:left].decode("utf-8", "replace")
        left -= len(part)
        if abs(bias) >= MOVED:
            pieces.append(MovedPiece(text, bias))
        elif pieces and pieces[-1].bias is None:
            pieces[-1] = MovedPiece(pieces[-1].text + text, None)
        else:
            pieces.append(MovedPiece(text, None))
    return tuple(pieces)
