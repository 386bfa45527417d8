"""The dialect of legacy completions: parallel lists ``tokens``, ``token_logprobs`` and
``top_logprobs``, a mapping a token.

A host that lists some models so lists others as chat completions do, in ``logprobs.content``
(Together's gpt-oss): each answer is read by what it holds.
"""

from typing import Any

from blackbox_lb.api.wire.dialects import chat
from blackbox_lb.api.wire.dialects.position import AnswerDialect, Choice, Position, PositionReader
from blackbox_lb.errors import CorruptResponse
from blackbox_lb.providers.profile import Profile
from blackbox_lb.types import UNNAMED


def _positions(reader: PositionReader, choice: Choice) -> list[Position]:
    """Every token position of ``choice``; a logprob of null, which only an echoed prompt's first
    token has, is refused.
    """
    lists = choice["logprobs"]
    provider = reader.profile.name
    entries = lists.get("content")
    if "tokens" not in lists and isinstance(entries, list):
        sampled_ids = reader.sampled_ids(choice, len(entries), required=False)
        return chat.positions_of(reader, entries, sampled_ids)
    tokens = lists["tokens"]
    logprobs = lists["token_logprobs"]
    tops = lists.get("top_logprobs") or [{}] * len(tokens)
    if not len(tokens) == len(logprobs) == len(tops):
        raise CorruptResponse(
            f"{provider} returned {len(tokens)} tokens, {len(logprobs)} logprobs and {len(tops)}"
            " lists of alternatives"
        )
    if None in logprobs:
        raise CorruptResponse(
            f"{provider} returned the logprob null for token {logprobs.index(None)} of"
            f" {len(tokens)}, as for the first token of an echoed prompt; only completions without"
            " their prompt are read, so leave out echo"
        )
    ids = reader.sampled_ids(choice, len(tokens)) or [
        reader.identity.of_text(token) for token in tokens
    ]
    propensities = reader.propensity_of(lists) or [None] * len(tokens)
    rows = zip(tokens, ids, logprobs, tops, propensities, strict=True)
    return [_position(reader, *row) for row in rows]


def _position(
    reader: PositionReader,
    text: str,
    sampled: int,
    logprob: Any,
    top: dict[str, Any] | None,
    propensity: Any,
) -> Position:
    identity = reader.identity
    top = top or {}
    if reader.rules.sampled_ids is not None:
        identity.check(identity.of_text(text), sampled)
    named = {alternative: identity.of_text(alternative) for alternative in top}
    if len(top) < reader.asked and UNNAMED in named.values():
        # Fewer than asked for: a text of two tokens is a key once, with the logprob of the less
        # likely one, and hides the other, which may be more likely than any that is listed.
        named = {}
    if named.get(text) == UNNAMED and top[text] == logprob:
        # Its text alone names no token, but this is the sampled one: the same text with the same
        # logprob to the last digit.
        named[text] = sampled
    return reader.position(
        sampled,
        logprob,
        [(token, top[alternative]) for alternative, token in named.items()],
        propensity,
    )


def _spelled(profile: Profile, choice: Choice) -> bytes | None:
    """The bytes of the listed texts; None where one stands for other bytes than its own."""
    lists = choice.get("logprobs")
    texts = None
    if isinstance(lists, dict):
        texts = lists.get("tokens")
    if not isinstance(texts, list):
        return chat.spelled(profile, choice)
    plain = all(
        isinstance(text, str) and not text.startswith(("bytes:", "<|")) and "\ufffd" not in text
        for text in texts
    )
    if not plain:
        return None
    return "".join(texts).encode("utf-8", "surrogatepass")


LEGACY = AnswerDialect(_positions, _spelled, in_order=False)
