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
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import numpy.typing as npt

from blackbox_lb.api.wire.columns.byte_spans import (
    Spans,
    TokenSpellings,
    UnsupportedLayout,
    spans_of,
)
from blackbox_lb.api.wire.dialects import DIALECTS
from blackbox_lb.api.wire.position import LEAST, PositionReader
from blackbox_lb.errors import BlbError
from blackbox_lb.providers.profile import Profile
from blackbox_lb.providers.schema import EndpointRules
from blackbox_lb.types import NO_TOKEN, POSITIVE_TOLERANCE, UNNAMED, ListedBytes

if TYPE_CHECKING:
    from blackbox_lb.vocabulary import Vocabulary

Table = tuple[npt.NDArray[np.int32], npt.NDArray[np.float64]]


@dataclass(frozen=True, slots=True)
class LogprobColumns:
    """The contents of a list: t positions with ``widths`` (t,) alternatives each.

    ``ids`` (t,) and ``logprobs`` (t,) float64: of the sampled tokens, unchecked; ``listed``: the
    alternatives (see ``sort``).
    ``token_bytes``: id -> bytes of the alternatives, where the profile's are exact.
    """

    ids: Any
    logprobs: Any
    widths: Any
    listed: Table
    token_bytes: ListedBytes


def arrays_of(
    reader: PositionReader, choice: dict[str, Any], columns: LogprobColumns
) -> dict[str, Any]:
    """The fields of a ``Completion`` from the list ``columns`` of ``choice``, equal to those of
    ``position.Reader``.

    Raises UnsupportedLayout: the equality is not certain.
    """
    if choice["logprobs"].get("refusal"):
        raise UnsupportedLayout("two lists")
    try:
        ids = _sampled(reader, choice, columns.ids)
    except (BlbError, TypeError, ValueError, OverflowError) as error:
        raise UnsupportedLayout(str(error)[:200]) from error
    listed = columns.listed
    sure = _sure(reader, columns.widths)
    logprobs, bounded = _own(reader, ids, columns, listed, sure)
    top_ids, top_logprobs = _cut(listed, sure)
    return {
        "token_ids": ids,
        "logprobs": logprobs.astype(np.float32),
        "top_ids": top_ids,
        "top_logprobs": top_logprobs.astype(np.float32),
        "whole": not (ids == UNNAMED).any(),
        "token_bytes": columns.token_bytes,
        "propensities": None,
        "bounded": bounded if bounded.any() else None,
    }


def _sampled(reader: PositionReader, choice: dict[str, Any], named: Any) -> Any:
    """The sampled ids (t,), those of the choice where it lists them. Raises UnsupportedLayout: an
    entry names another token.
    """
    sampled = reader.sampled_ids(choice, len(named))
    if sampled is None:
        return named
    ids = np.array(sampled, dtype=np.int32)
    if ((named != ids) & (named != UNNAMED)).any():
        raise UnsupportedLayout("another token is named than was sampled")
    return ids


def _checked(values: Any) -> Any:
    """Logprobs of at most 0; none that stands for something else."""
    if len(values) and not (values.max() <= POSITIVE_TOLERANCE and values.min() > LEAST):
        raise UnsupportedLayout("a logprob that the plain reader has to judge")
    return np.where(values > 0, 0.0, values)


def sort(widths: Any, top_ids: Any, top_logprobs: Any) -> Table:
    """All alternatives (t, k), from the most likely, equal ones by id, padded with -1 and -inf.
    Raises UnsupportedLayout.
    """
    t = len(widths)
    k = int(widths.max(initial=0))
    if len(top_ids) == t * k:  # as wide everywhere
        ids = top_ids.reshape(t, k)
        logprobs = _checked(top_logprobs).reshape(t, k)
    else:
        ids = np.full((t, k), NO_TOKEN, np.int32)
        logprobs = np.full((t, k), -np.inf)
        is_listed = np.arange(k) < widths[:, None]
        ids[is_listed] = top_ids
        logprobs[is_listed] = _checked(top_logprobs)
    current = logprobs[:, :-1]
    after = logprobs[:, 1:]
    in_order = (current > after) | ((current == after) & (ids[:, :-1] <= ids[:, 1:]))
    rows = (~in_order.all(axis=1)).nonzero()[0]
    if len(rows):
        order = np.lexsort((ids[rows], -logprobs[rows]), axis=-1)
        ids[rows] = np.take_along_axis(ids[rows], order, axis=1)
        logprobs[rows] = np.take_along_axis(logprobs[rows], order, axis=1)
    by_id = np.sort(ids, axis=1)
    if ((by_id[:, 1:] == by_id[:, :-1]) & (by_id[:, 1:] >= 0)).any():
        raise UnsupportedLayout("a token is listed twice")
    return ids, logprobs


def _sure(reader: PositionReader, widths: Any) -> Any:
    """The number of a position's alternatives that are surely more likely than all unlisted tokens;
    see ``position.likeliest``.
    """
    if reader.asked < 0:
        return widths
    replaced = reader.rules.sampled_in_list == "replaces the last"
    return np.maximum(np.minimum(widths, reader.asked) - int(replaced), 0)


def _own(
    reader: PositionReader, ids: Any, columns: LogprobColumns, listed: Table, sure: Any
) -> tuple[Any, Any]:
    """The sampled tokens' logprobs (t,), and where they are only bounds; see
    ``position.Reader.position``.
    """
    logprobs = columns.logprobs
    censored = reader.profile.logprobs.censored
    hidden = np.zeros(len(ids), np.bool_) if censored is None else logprobs == censored
    if censored is not None and (listed[1] == censored).any():
        raise UnsupportedLayout("an alternative without a logprob")
    bounded = hidden.copy()
    if hidden.any():
        logprobs = logprobs.copy()
        for t in np.flatnonzero(hidden):
            matches = np.flatnonzero((listed[0][t] == ids[t]) & (ids[t] != UNNAMED))
            bounded[t] = not len(matches)
            last = listed[1][t, sure[t] - 1] if sure[t] else 0.0
            logprobs[t] = listed[1][t, matches[0]] if len(matches) else last
    return _checked(logprobs), bounded


def _cut(listed: Table, sure: Any) -> Table:
    """The certain alternatives, as narrow as the longest row of them."""
    width = int(sure.max(initial=0))
    ids = listed[0][:, :width]
    logprobs = listed[1][:, :width]
    if len(sure) and sure.min() == ids.shape[1]:
        return ids.copy(), logprobs
    beyond = np.arange(ids.shape[1]) >= sure[:, None]
    return np.where(beyond, np.int32(NO_TOKEN), ids), np.where(beyond, -np.inf, logprobs)


_PLACE = secrets.token_hex(16)
"""Stands for a list in the rest of its answer; no server can know it."""
TOGETHER = 1 << 18
"""Bytes of answers that are read together; beyond it nothing is saved."""


def _columns(names: TokenSpellings, content: bytes, spans: Spans) -> list[LogprobColumns]:
    """The lists in columns. Raises UnsupportedLayout, ValueError, and what ``Identity`` raises."""
    numbers = names.numbers(content, spans)
    is_own = spans.own
    at = is_own.nonzero()[0]
    listed = numbers[~is_own]
    widths = np.concatenate([at[1:], [len(is_own)]]) - at - 1
    ids = names.ids[numbers[at]]
    logprobs = spans.logprobs[at]
    top_ids, top_logprobs = sort(widths, names.ids[listed], spans.logprobs[~is_own])
    firsts = [first for _, _, first in spans.lists]
    rows = [*at.searchsorted(firsts).tolist(), len(at)]
    lists = []
    for first, begin, end in zip(firsts, rows, rows[1:], strict=False):
        some = slice(begin, end)
        token_bytes = names.bytes_of(listed[first - begin :][: int(widths[some].sum())])
        table = (
            top_ids[some, : int(widths[some].max())],
            top_logprobs[some, : int(widths[some].max())],
        )
        lists.append(LogprobColumns(ids[some], logprobs[some], widths[some], table, token_bytes))
    return lists


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
        for body in contents:
            end = before
            rest = list[bytes]()
            answer_columns = list[LogprobColumns]()
            while lists and lists[0][0][0] < before + len(body):
                (begin, stop, _), columns = lists.pop(0)
                rest += [content[end:begin], f'"{_PLACE}{len(answer_columns)}"'.encode()]
                answer_columns.append(columns)
                end = stop
            before += len(body) + 1
            if not answer_columns:
                raise UnsupportedLayout("no list")
            answers.append(
                self._joined(
                    loads(b"".join([*rest, content[end : before - 1]])), answer_columns, body
                )
            )
        return answers

    def _joined(self, found: Any, lists: list[LogprobColumns], content: bytes) -> ParsedAnswer:
        """The rest of an answer with its lists in their places."""
        choices = found.get("choices") if isinstance(found, dict) else None
        holders = [choice.get("logprobs") for choice in choices or () if isinstance(choice, dict)]
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
