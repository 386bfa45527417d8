"""The listing of tokens by each kind of endpoint, with one row for it in ``DIALECTS``.

The row ``dialect`` of a profile's endpoint gives the name.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from blackbox_lb.api.wire.envelope import count, quoted, without
from blackbox_lb.api.wire.identity import REPLACEMENT, checked_bytes, checked_id
from blackbox_lb.api.wire.position import (
    AnswerDialect,
    Choice,
    Listing,
    PositionReader,
    UnsupportedLayout,
)
from blackbox_lb.errors import CorruptResponse, NoLogprobs
from blackbox_lb.providers.profile import Profile
from blackbox_lb.types import UNNAMED

__all__ = ["DIALECTS", "AnswerDialect"]


def listing(reader: PositionReader, choice: Choice) -> Listing:
    """The positions of ``choice``. A refusal's tokens have a list of their own,
    ``logprobs.refusal``, and count alike: they were sampled from the same model, and the user gets
    the refusal.
    """
    lists = [choice["logprobs"].get(name) for name in ("content", "refusal")]
    if lists == [None, None]:
        raise NoLogprobs(
            f"{reader.profile.name} returned `logprobs` without `content`; the model or server"
            " gives no token logprobs"
        )
    content, refusal = lists
    if isinstance(content, Listing):
        if refusal:
            raise UnsupportedLayout("two lists")
        return _with_sampled(reader, content, reader.sampled_ids(choice, len(content.ids)))
    entries = [entry for entries in lists for entry in entries or []]
    return _listing_of(reader, entries, reader.sampled_ids(choice, len(entries)))


def _with_sampled(
    reader: PositionReader, content: Listing, sampled: Sequence[int] | None
) -> Listing:
    """The listing with the sampled ids that stand beside it."""
    if sampled is None:
        return content
    for named, token in zip(content.ids.tolist(), sampled, strict=True):
        reader.identity.check(named, token)
    return replace(content, ids=np.array(sampled, np.int32))


def _listing_of(
    reader: PositionReader, entries: Sequence[dict[str, Any]], sampled: Sequence[int] | None
) -> Listing:
    """The positions of the entries of ``logprobs.content``; ``sampled``: the ids beside them."""
    identity = reader.identity
    tokens = []
    alternatives = []
    token_bytes: dict[int, bytes] = {}
    for entry in entries:
        tokens.append(identity.of_entry(entry))
        row = []
        for alternative in entry.get("top_logprobs") or []:
            token = identity.of_entry(alternative)
            row.append((token, alternative["logprob"]))
            # Not the sampled entry's: where fragments of a character were left out, it carries the
            # bytes of the whole character.
            if reader.profile.tokens.bytes_exact and token != UNNAMED and alternative.get("bytes"):
                token_bytes[token] = checked_bytes(reader.profile.name, alternative["bytes"])
        alternatives.append(row)
    logprobs = [entry["logprob"] for entry in entries]
    propensities = None
    if reader.profile.logprobs.propensity != "logprob":
        propensities = [reader.propensity_of(entry) for entry in entries]
    content = reader.listing(tokens, logprobs, alternatives, propensities, token_bytes)
    return _with_sampled(reader, content, sampled)


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


CONTENT = AnswerDialect(listing, spelled, scanned=True)
"""Chat completions: ``logprobs.content``, one entry a token with its alternatives inside.

llama.cpp answers in it on the legacy completions endpoint too, and the Responses API puts the same
entries elsewhere.
"""


def _legacy_listing(reader: PositionReader, choice: Choice) -> Listing:
    """The positions of ``choice``; a logprob of null, which only an echoed prompt's first token
    has, is refused.
    """
    lists = choice["logprobs"]
    provider = reader.profile.name
    entries = lists.get("content")
    if "tokens" not in lists and isinstance(entries, list):
        sampled_ids = reader.sampled_ids(choice, len(entries), required=False)
        return _listing_of(reader, entries, sampled_ids)
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
    alternatives = [
        _legacy_alternatives(reader, *row) for row in zip(tokens, ids, logprobs, tops, strict=True)
    ]
    return reader.listing(ids, logprobs, alternatives, reader.propensity_of(lists))


def _legacy_alternatives(
    reader: PositionReader, text: str, sampled: int, logprob: Any, top: dict[str, Any] | None
) -> list[tuple[int, Any]]:
    """The alternatives (id, logprob) at the position of a sampled token."""
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
    return [(token, top[alternative]) for alternative, token in named.items()]


def _legacy_spelled(profile: Profile, choice: Choice) -> bytes | None:
    """The bytes of the listed texts; None where one stands for other bytes than its own."""
    lists = choice.get("logprobs")
    texts = None
    if isinstance(lists, dict):
        texts = lists.get("tokens")
    if not isinstance(texts, list):
        return spelled(profile, choice)
    plain = all(
        isinstance(text, str) and not text.startswith(("bytes:", "<|")) and "\ufffd" not in text
        for text in texts
    )
    if not plain:
        return None
    return "".join(texts).encode("utf-8", "surrogatepass")


LEGACY = AnswerDialect(_legacy_listing, _legacy_spelled, in_order=False)
"""Legacy completions: parallel lists ``tokens``, ``token_logprobs`` and ``top_logprobs``, a mapping
a token.

A host that lists some models so lists others as chat completions do, in ``logprobs.content``
(Together's gpt-oss). Each answer is read by what it holds.
"""


ENDED = {"max_output_tokens": "length", None: "length"}
"""``incomplete_details.reason`` -> the finish reason of a chat completion, where their names
differ.
"""


def _response_choices(profile: Profile, answer: Any) -> list[Choice]:
    """The one choice that a chat completion would have."""
    output = None
    if isinstance(answer, Mapping):
        output = answer.get("output")
    if not isinstance(output, list) or not all(isinstance(entry, dict) for entry in output):
        raise without(profile, answer, "output")
    status = answer.get("status", "completed")
    if status not in ("completed", "incomplete"):
        provider_error = quoted(answer.get("error"))
        raise CorruptResponse(
            f"{profile.name} answered with status {status!r:.40}, neither completed nor incomplete:"
            f" {provider_error}"
        )
    reason = (answer.get("incomplete_details") or {}).get("reason")
    parts = [part for item in output if item.get("type") == "message" for part in item["content"]]
    total = count(answer, "output_tokens")
    if status == "completed" and not parts and total:
        raise without(profile, answer, "a message, although it is complete and has tokens")
    texts = [part for part in parts if part.get("type") == "output_text"]
    # A refusal never has logprobs in this API; a text without them lacks those that were asked for.
    silent = any(part["text"] and not part.get("logprobs") for part in texts)
    entries = [entry for part in texts for entry in part.get("logprobs") or []]
    if 0 < (total or 0) < len(entries):
        raise CorruptResponse(
            f"{profile.name} lists {len(entries)} tokens of a response and counts {total} in"
            " `usage`; one of the two is wrong"
        )
    choice = {
        "finish_reason": "stop" if status == "completed" else ENDED.get(reason, reason),
        "message": {
            "content": "".join(
                part["text"] if part in texts else part.get("refusal", "") for part in parts
            )
        },
        "logprobs": None if silent else {"content": entries},
    }
    return [choice]


RESPONSES = AnswerDialect(listing, spelled, choices=_response_choices, several=False)
"""The Responses API: one completion, in the parts of its messages, with entries as those of chat
completions.

https://platform.openai.com/docs/api-reference/responses/object
"""


Pairs = list[tuple[int, Any]]


def _meta_listing(reader: PositionReader, choice: Choice) -> Listing:
    """The positions of ``choice``, from triples (logprob, id, text) or from flat arrays of logprobs
    and ids.
    """
    meta = choice.get("meta_info") or {}
    sampled = meta.get("output_token_logprobs")
    if sampled is None:
        raise NoLogprobs(
            f"{reader.profile.name} returned no `meta_info.output_token_logprobs`; the server is"
            " too old for return_meta_info"
        )
    provider = reader.profile.name
    tops = (_flat if "output_top_logprobs_shape" in meta else _nested)(provider, meta, len(sampled))
    if len(tops) != len(sampled):
        raise CorruptResponse(
            f"{provider} returned {len(sampled)} tokens and {len(tops)} lists of alternatives"
        )
    tokens = [checked_id(provider, token) for _, token, *_ in sampled]
    logprobs = [logprob for logprob, *_ in sampled]
    return reader.listing(tokens, logprobs, tops, reader.propensity_of(meta))


def _nested(provider: str, meta: dict[str, Any], n: int) -> list[Pairs]:
    rows = meta.get("output_top_logprobs") or [[]] * n
    return [
        [(checked_id(provider, token), value) for value, token, *_ in row or []] for row in rows
    ]


def _flat(provider: str, meta: dict[str, Any], n: int) -> list[Pairs]:
    """Rows of ``shape[1]`` alternatives; the first ``null_prefix`` positions have none."""
    ids = meta["output_top_logprobs_idx_flat"]
    values = meta["output_top_logprobs_val_flat"]
    (rows, width) = meta["output_top_logprobs_shape"]
    without = meta.get("output_top_logprobs_null_prefix") or 0
    if not len(ids) == len(values) == rows * width:
        raise CorruptResponse(
            f"{provider} returned {len(ids)} ids and {len(values)} logprobs of alternatives for"
            f" {rows} x {width}"
        )
    if without + rows != n:
        raise CorruptResponse(
            f"{provider} returned {n} tokens and {rows + without} lists of alternatives"
        )
    pairs = [(checked_id(provider, token), value) for token, value in zip(ids, values, strict=True)]
    return [[] for _ in range(without)] + [
        pairs[row * width : (row + 1) * width] for row in range(rows)
    ]


META = AnswerDialect(_meta_listing, spelled)
"""SGLang's own answers: ``meta_info``, which names every token by its id.

Chat returns it with ``return_meta_info``; ``return_flat_raw_output_top_logprobs`` lays the
alternatives end to end instead of one list a position (SGLang 0.5.23,
``entrypoints/openai/protocol.py``).
"""


DIALECTS: Mapping[str, AnswerDialect] = {
    "content": CONTENT,
    "legacy": LEGACY,
    "meta": META,
    "responses": RESPONSES,
}
