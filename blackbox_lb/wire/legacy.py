"""The dialect of legacy completions: parallel lists ``tokens``, ``token_logprobs`` and ``top_logprobs``, a mapping a token."""

from __future__ import annotations

from typing import Any

from blackbox_lb.errors import CorruptResponse
from blackbox_lb.profiles import EndpointRules, Profile
from blackbox_lb.wire.position import Position, checked_logprob, id_in_string, likeliest

__all__ = ["positions"]


def positions(profile: Profile, rules: EndpointRules, choice: dict[str, Any], asked: int) -> list[Position]:
    """Every token position of ``choice``; ``asked`` is the number of alternatives in the request."""
    lists = choice["logprobs"]
    tokens, logprobs = lists["tokens"], lists["token_logprobs"]
    tops = lists.get("top_logprobs") or [{}] * len(tokens)
    if not len(tokens) == len(logprobs) == len(tops):
        raise CorruptResponse(
            f"{profile.name} returned {len(tokens)} tokens, {len(logprobs)} logprobs and {len(tops)} lists of alternatives"
        )
    return [_position(profile, rules, *each, asked) for each in zip(tokens, logprobs, tops, strict=True)]


def _position(
    profile: Profile, rules: EndpointRules, token: str, logprob: Any, top: dict[str, Any] | None, asked: int
) -> Position:
    listed = [
        (id_in_string(profile, text), checked_logprob(profile, value, sampled=False))
        for text, value in (top or {}).items()
    ]
    return Position(
        id=id_in_string(profile, token),
        logprob=checked_logprob(profile, logprob, sampled=True),
        top=likeliest(rules, listed, asked),
    )
