"""The dialect of chat completions: ``logprobs.content``, one entry a token with its alternatives
inside.

llama.cpp answers in it on the legacy completions endpoint too, and the Responses API puts the same
entries elsewhere.
"""

from collections.abc import Sequence
from typing import Any

from blackbox_lb.api.wire.dialects.position import (
    REPLACEMENT,
    AnswerDialect,
    Choice,
    Position,
    PositionReader,
    checked_bytes,
)
from blackbox_lb.errors import NoLogprobs
from blackbox_lb.providers.profile import Profile
from blackbox_lb.types import UNNAMED


def positions(reader: PositionReader, choice: Choice) -> list[Position]:
    """Every token position of ``choice``. A refusal's tokens have a list of their own,
    ``logprobs.refusal``, and count alike: they were sampled from the same model, and the user gets
    the refusal."""
    lists = [choice["logprobs"].get(name) for name in ("content", "refusal")]
    if lists == [None, None]:
        raise NoLogprobs(
            f"{reader.profile.name} returned `logprobs` without `content`; the model or server"
            " gives no token logprobs"
        )
    entries = [entry for listed in lists for entry in listed or []]
    return positions_of(reader, entries, reader.sampled_ids(choice, len(entries)))


def positions_of(
    reader: PositionReader, entries: Sequence[dict[str, Any]], sampled: Sequence[int] | None
) -> list[Position]:
    """The position of each entry of ``logprobs.content``; ``sampled``: the ids beside them."""
    if sampled is None:
        return [_position(reader, entry, None) for entry in entries]
    return [_position(reader, entry, token) for entry, token in zip(entries, sampled, strict=True)]


def _position(reader: PositionReader, entry: dict[str, Any], sampled: int | None) -> Position:
    identity = reader.identity
    token = identity.of_entry(entry)
    if sampled is not None:
        identity.check(token, sampled)
        token = sampled
    alternatives = entry.get("top_logprobs") or []
    named = [identity.of_entry(alternative) for alternative in alternatives]
    listed = [
        (token_id, alternative["logprob"])
        for token_id, alternative in zip(named, alternatives, strict=True)
    ]
    position = reader.position(token, entry["logprob"], listed, reader.propensity_of(entry))
    if reader.profile.tokens.bytes_exact:
        # Not the sampled entry's: where fragments of a character were left out, it carries the
        # bytes of the whole character.
        position.bytes = {
            token_id: checked_bytes(reader.profile.name, alternative["bytes"])
            for token_id, alternative in zip(named, alternatives, strict=True)
            if token_id != UNNAMED and alternative.get("bytes")
        }
    return position


def spelled(profile: Profile, choice: Choice) -> bytes | None:
    """The bytes that the listed tokens spell; None where an entry has none, or those of the printed
    text.
    """
    lists = choice.get("logprobs")
    if not isinstance(lists, dict):
        return None
    entries = [entry for name in ("content", "refusal") for entry in lists.get(name) or []]
    if not all(isinstance(entry.get("bytes"), list) for entry in entries):
        return None
    raw = b"".join(bytes(entry["bytes"]) for entry in entries)
    if profile.tokens.bytes_exact or REPLACEMENT not in raw:
        return raw
    return None


CONTENT = AnswerDialect(positions, spelled, columns=True)
