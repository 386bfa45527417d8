"""One token position as every dialect reads it: the sampled token, and the alternatives that are sure to be the likeliest."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from blackbox_lb.errors import CorruptResponse
from blackbox_lb.profiles import EndpointRules, Profile

__all__ = ["Position", "checked_logprob", "likeliest", "token_id"]

ROUNDING = 1e-3
"""Largest positive logprob, in nats, that is float rounding rather than a broken answer; it is read as 0."""
LEAST = -1000.0
"""A sampled token below this many nats cannot have been sampled: such numbers stand for "not computed"."""


@dataclass(slots=True)
class Position:
    """``top``: (id, logprob) from most likely; ``bytes``: what is known of the bytes of tokens seen here."""

    id: int
    logprob: float
    top: list[tuple[int, float]]
    bytes: dict[int, bytes] = field(default_factory=dict)


def checked_logprob(profile: Profile, value: Any, *, sampled: bool) -> float:
    """``value`` in nats, at most 0. Raises CorruptResponse on NaN, a positive number or one that cannot be a logprob."""
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value or value > ROUNDING:
        raise CorruptResponse(f"{profile.name} returned the logprob {value!r}; a logprob is a number at most 0")
    if sampled and value < LEAST:
        raise CorruptResponse(
            f"{profile.name} returned the logprob {value!r} for a token that it sampled; that is a placeholder, not a logprob"
        )
    return min(float(value), 0.0)


def token_id(profile: Profile, where: dict[str, Any]) -> int:
    """The id in an entry of a logprob list, found as the profile's row ``tokens.id`` says."""
    kind, name = profile.tokens.id.split(" ", 1)
    value = where[name] if kind == "field" else id_in_string(profile, where["token"])
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise CorruptResponse(f"{profile.name} returned the token id {value!r}; an id is a whole number from 0")
    return value


def id_in_string(profile: Profile, text: str) -> int:
    """The number behind the profile's prefix, as in ``token_id:271``."""
    prefix = profile.tokens.id.removeprefix("string ")
    digits = text.removeprefix(prefix)
    if digits == text or not digits.isdecimal():
        raise CorruptResponse(f"{profile.name} returned the token {text[:40]!r} where {prefix}N was asked for")
    return int(digits)


def likeliest(rules: EndpointRules, listed: Iterable[tuple[int, float]], asked: int) -> list[tuple[int, float]]:
    """The alternatives, most likely first, of which it is sure that no unlisted token is more likely.

    Where the sampled token replaces the last of the ``asked`` alternatives, only the first ``asked - 1`` are sure.
    ``asked`` of -1 means the whole vocabulary.
    """
    top = sorted(listed, key=lambda pair: -pair[1])
    if len({token for token, _ in top}) != len(top):
        raise CorruptResponse("one token is listed twice among the alternatives of a position")
    if asked < 0:
        return top
    sure = asked - 1 if rules.sampled_in_list == "replaces the last" else asked
    return top[: max(sure, 0)]
