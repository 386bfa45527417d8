"""The dialect of chat completions: ``logprobs.content``, one entry a token with its alternatives inside.

llama.cpp answers in it on the legacy completions endpoint too.
"""

from __future__ import annotations

from typing import Any

from blackbox_lb.errors import NoLogprobs
from blackbox_lb.profiles import EndpointRules, Profile
from blackbox_lb.wire.position import Position, checked_logprob, likeliest, token_id

__all__ = ["positions"]


def positions(profile: Profile, rules: EndpointRules, choice: dict[str, Any], asked: int) -> list[Position]:
    """Every token position of ``choice``; ``asked`` is the number of alternatives in the request."""
    entries = choice["logprobs"].get("content")
    if entries is None:
        raise NoLogprobs(
            f"{profile.name} returned `logprobs` without `content`; the model or server gives no token logprobs"
        )
    return [_position(profile, rules, entry, asked) for entry in entries]


def _position(profile: Profile, rules: EndpointRules, entry: dict[str, Any], asked: int) -> Position:
    alternatives = entry.get("top_logprobs") or []
    listed = [
        (token_id(profile, other), checked_logprob(profile, other["logprob"], sampled=False)) for other in alternatives
    ]
    position = Position(
        id=token_id(profile, entry),
        logprob=checked_logprob(profile, entry["logprob"], sampled=True),
        top=likeliest(rules, listed, asked),
    )
    if profile.tokens.bytes_exact:
        # Not the sampled entry's: where fragments of a character were left out, it carries the bytes of the whole character.
        position.bytes = {token_id(profile, each): bytes(each["bytes"]) for each in alternatives if each.get("bytes")}
    return position
