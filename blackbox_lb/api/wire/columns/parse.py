"""The lists of chat answers from bytes to columns: no dictionary a token, and the same result as
the plain reader's.

An answer of 1,024 tokens with 20 alternatives is 1.3 MB, nearly all of it in ``logprobs.content``.
``AnswerReader`` cuts these lists out (``byte_spans``) and numbers their tokens (``token_cache``),
all entries of all answers at hand at once; the rest, a kilobyte each, is read normally. Anything
not of the plain kind (a key twice, an unknown field, a number that stands for "not given" among the
alternatives, an entry that the profile does not describe) raises ``UnsupportedLayout``, and
``wire.response`` reads the whole answer: that reader is the truth.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from blackbox_lb.api.wire.columns.arrays import LogprobColumns, sort
from blackbox_lb.api.wire.columns.byte_spans import Spans, UnsupportedLayout, spans_of
from blackbox_lb.api.wire.columns.token_cache import TokenSpellings
from blackbox_lb.api.wire.dialects import DIALECTS
from blackbox_lb.errors import BlbError
from blackbox_lb.providers.profile import Profile
from blackbox_lb.providers.schema import EndpointRules

if TYPE_CHECKING:
    from blackbox_lb.vocabulary import Vocabulary

_PLACE = secrets.token_hex(16)
"""Stands for a list in the rest of its answer; no server can know it."""
TOGETHER = 1 << 18
"""Bytes of answers that are read together; beyond it nothing is saved."""


def _columns(names: TokenSpellings, content: bytes, spans: Spans) -> list[LogprobColumns]:
    """The lists in columns. Raises UnsupportedLayout, ValueError, and what ``Identity`` raises."""
    numbers = names.numbers(content, spans)
    own = spans.own
    at = own.nonzero()[0]
    listed = numbers[~own]
    widths = np.concatenate([at[1:], [len(own)]]) - at - 1
    ids = names.ids[numbers[at]]
    logprobs = spans.logprobs[at]
    top_ids, top_logprobs = sort(widths, names.ids[listed], spans.logprobs[~own])
    firsts = [first for _, _, first in spans.lists]
    rows = [*at.searchsorted(firsts).tolist(), len(at)]
    found = []
    for first, begin, end in zip(firsts, rows, rows[1:], strict=False):
        some = slice(begin, end)
        told = names.bytes_of(listed[first - begin :][: int(widths[some].sum())])
        table = (
            top_ids[some, : int(widths[some].max())],
            top_logprobs[some, : int(widths[some].max())],
        )
        found.append(LogprobColumns(ids[some], logprobs[some], widths[some], table, told))
    return found


class ParsedAnswer(dict[str, Any]):
    """An answer whose lists are ``LogprobColumns``. ``content``: its bytes, for the plain
    reader.
    """

    content: bytes


class AnswerReader:
    """Reads the answers of one endpoint; remembers the tokens that they show. For one thread at a
    time.
    """

    def __init__(
        self, profile: Profile, rules: EndpointRules, vocabulary: Vocabulary | None
    ) -> None:
        self.vocabulary = vocabulary
        self._about = (profile, rules, vocabulary)
        kind = (rules.id or profile.tokens.id).partition(" ")[0]
        self._plain = (
            not DIALECTS[rules.dialect].columns
            or kind == "field"
            or profile.logprobs.propensity != "logprob"
        )
        self._names = TokenSpellings(*self._about)
        self._arrived: list[tuple[bytes, asyncio.Future[Any]]] = []

    async def read(self, content: bytes) -> Any:
        """``loads`` of an answer, together with those that arrive in the same turn of the event
        loop.
        """
        if self._plain:
            return loads(content)
        turn = asyncio.get_running_loop()
        if not self._arrived:
            turn.call_soon(turn.call_soon, self._read_all)
        self._arrived.append((content, done := turn.create_future()))
        return await done

    def _read_all(self) -> None:
        """Read what has arrived, ``TOGETHER`` bytes at a time."""
        arrived = self._arrived
        self._arrived = []
        while arrived:
            sizes = list(accumulate(len(content) for content, _ in arrived))
            part = max(1, bisect_right(sizes, TOGETHER))
            some = arrived[:part]
            arrived = arrived[part:]
            answers = self._cut_or_none([content for content, _ in some])
            for (content, done), answer in zip(some, answers, strict=True):
                if done.done():
                    continue
                try:
                    done.set_result(self.loads(content) if answer is None else answer)
                except Exception as error:  # noqa: BLE001  (raised where it is awaited)
                    done.set_exception(error)

    def loads(self, content: bytes) -> Any:
        """The JSON in ``content``, a ``ParsedAnswer`` where its lists are of the plain kind. Raises
        the errors of ``loads``.
        """
        answer = None if self._plain else self._cut_or_none([content])[0]
        return loads(content) if answer is None else answer

    def _cut_or_none(self, contents: Sequence[bytes]) -> Sequence[ParsedAnswer | None]:
        """The answers; None for each where one is not of the plain kind."""
        try:
            return self._cut(contents)
        except (
            UnsupportedLayout,
            BlbError,
            msgspec.MsgspecError,
            TypeError,
            ValueError,
            LookupError,
            OverflowError,
            RecursionError,
        ):
            return [None] * len(contents)

    def _cut(self, contents: Sequence[bytes]) -> list[ParsedAnswer]:
        if self._names.full:
            self._names = TokenSpellings(*self._about)
        content = b"\n".join(contents)
        spans = spans_of(content)
        answers = list[ParsedAnswer]()
        lists = list(zip(spans.lists, _columns(self._names, content, spans), strict=True))
        before = 0
        for each in contents:
            end = before
            rest = list[bytes]()
            own = list[LogprobColumns]()
            while lists and lists[0][0][0] < before + len(each):
                (begin, stop, _), columns = lists.pop(0)
                rest += [content[end:begin], f'"{_PLACE}{len(own)}"'.encode()]
                own.append(columns)
                end = stop
            before += len(each) + 1
            if not own:
                raise UnsupportedLayout("no list")
            answers.append(
                self._joined(loads(b"".join([*rest, content[end : before - 1]])), own, each)
            )
        return answers

    def _joined(self, found: Any, lists: list[LogprobColumns], content: bytes) -> ParsedAnswer:
        """The rest of an answer with its lists in their places."""
        choices = found.get("choices") if isinstance(found, dict) else None
        holders = [each.get("logprobs") for each in choices or () if isinstance(each, dict)]
        at = {
            holder["content"]: holder
            for holder in holders
            if isinstance(holder, dict) and isinstance(holder.get("content"), str)
        }
        for number, columns in enumerate(lists):
            if f"{_PLACE}{number}" not in at:
                raise UnsupportedLayout("a list that is none of a choice")
            at[f"{_PLACE}{number}"]["content"] = columns
        answer = ParsedAnswer(found)
        answer.content = content
        return answer


def loads(content: bytes) -> Any:
    """The JSON in ``content``. Raises ValueError where it is none or a key has two values;
    RecursionError.
    """
    return json.loads(content, object_pairs_hook=_unambiguous)


def _unambiguous(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object. Raises ValueError where a key has two values: a dict would silently keep the
    last.
    """
    table = dict(pairs)
    if len(table) < len(pairs) and any(table[name] != value for name, value in pairs):
        raise ValueError("one key of an object has two values")
    return table
