"""The long lists of a chat answer from bytes to columns: no dictionary a token, and the same result as the plain reader's.

An answer of 1,024 tokens with 20 alternatives is 1.3 MB, nearly all of it in ``logprobs.content``. ``AnswerReader.loads`` cuts
these lists out (``spans``) and numbers their tokens (``names``), all entries at once; the rest, a kilobyte, is read normally.
Anything not of the plain kind (a key twice, an unknown field, a number that stands for "not given" among the alternatives, an
entry that the profile does not describe) raises ``Aside``, and ``wire.response`` reads the whole answer: that reader is the truth.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from blackbox_lb.api.wire.columns.byte_spans import Aside, Spans, lists_of
from blackbox_lb.api.wire.columns.token_cache import TokenSpellings
from blackbox_lb.api.wire.dialects import DIALECTS
from blackbox_lb.errors import BlbError
from blackbox_lb.providers.profile import Profile
from blackbox_lb.providers.schema import EndpointRules

if TYPE_CHECKING:
    from blackbox_lb.vocabulary import Vocabulary

_PLACE = secrets.token_hex(16)
"""Stands for a list in the rest of its answer; no server can know it."""


@dataclass(frozen=True, slots=True)
class LogprobColumns:
    """The contents of a list, before any check of its numbers: t positions with ``widths`` (t,) alternatives each, n in all.

    ``ids`` (t,) and ``logprobs`` (t,) float64: of the sampled tokens; ``top_ids`` (n,), ``top_logprobs`` (n,): of the alternatives.
    ``token_bytes``: id -> bytes of the alternatives, where the profile's are exact.
    """

    ids: Any
    logprobs: Any
    widths: Any
    top_ids: Any
    top_logprobs: Any
    token_bytes: dict[int, bytes]


def _columns(names: TokenSpellings, content: bytes, spans: Spans) -> LogprobColumns:
    """A list in columns. Raises Aside, ValueError, and what ``Identity`` raises."""
    numbers = names.numbers(content, spans)
    own = spans.own
    at, listed = np.flatnonzero(own), numbers[~own]
    return LogprobColumns(
        names.ids[numbers[at]],
        spans.logprobs[at],
        np.diff(at, append=len(own)) - 1,
        names.ids[listed],
        spans.logprobs[~own],
        names.bytes_of(listed),
    )


class Answer(dict[str, Any]):
    """An answer whose lists are ``LogprobColumns``. ``content``: its bytes, for the plain reader."""

    content: bytes


class AnswerReader:
    """Reads the answers of one endpoint; remembers the tokens that they show. For one thread at a time."""

    def __init__(self, profile: Profile, rules: EndpointRules, vocabulary: Vocabulary | None) -> None:
        self.vocabulary = vocabulary
        self._about = (profile, rules, vocabulary)
        kind = (rules.id or profile.tokens.id).partition(" ")[0]
        self._plain = not DIALECTS[rules.dialect].columns or kind == "field" or profile.logprobs.propensity != "logprob"
        self._names = TokenSpellings(*self._about)

    def loads(self, content: bytes) -> Any:
        """The JSON in ``content``, an ``Answer`` where its lists are of the plain kind. Raises the errors of ``loads``."""
        if self._plain:
            return loads(content)
        try:
            return self._cut(content)
        except (Aside, BlbError, msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError):
            return loads(content)

    def _cut(self, content: bytes) -> Answer:
        if self._names.full:
            self._names = TokenSpellings(*self._about)
        rest, end, lists = list[bytes](), 0, list[LogprobColumns]()
        for begin, stop, columns in self._lists(content):
            rest += [content[end:begin], f'"{_PLACE}{len(lists)}"'.encode()]
            lists.append(columns)
            end = stop
        if not lists:
            raise Aside("no list")
        return self._joined(loads(b"".join([*rest, content[end:]])), lists, content)

    def _lists(self, content: bytes) -> Iterator[tuple[int, int, LogprobColumns]]:
        """Begin and end of each list, and its columns."""
        return ((spans.begin, spans.end, _columns(self._names, content, spans)) for spans in lists_of(content))

    def _joined(self, found: Any, lists: list[LogprobColumns], content: bytes) -> Answer:
        """The rest of an answer with its lists in their places."""
        choices = found.get("choices") if isinstance(found, dict) else None
        holders = [each.get("logprobs") for each in choices or () if isinstance(each, dict)]
        at = {each["content"]: each for each in holders if isinstance(each, dict) and isinstance(each.get("content"), str)}
        for number, columns in enumerate(lists):
            if f"{_PLACE}{number}" not in at:
                raise Aside("a list that is none of a choice")
            at[f"{_PLACE}{number}"]["content"] = columns
        answer = Answer(found)
        answer.content = content
        return answer


def loads(content: bytes) -> Any:
    """The JSON in ``content``. Raises ValueError where it is none or a key has two values; RecursionError."""
    return json.loads(content, object_pairs_hook=_unambiguous)


def _unambiguous(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object. Raises ValueError where a key has two values: a dict would silently keep the last."""
    table = dict(pairs)
    if len(table) < len(pairs) and any(table[name] != value for name, value in pairs):
        raise ValueError("one key of an object has two values")
    return table
