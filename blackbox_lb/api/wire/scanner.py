"""The lists of chat answers from their bytes: no dictionary a token, and the same positions as the
plain reader's.

An answer of 1,024 tokens with 20 alternatives is 1.3 MB, nearly all of it in ``logprobs.content``.
``AnswerReader`` cuts these lists out (``spans``) and numbers their tokens (``spellings``). Of short
answers most of the time goes into the calls, so those of many answers are read together. The rest
of an answer, a kilobyte, is read normally. Anything not of the plain kind (a key twice, an unknown
field, an entry that the profile does not describe) raises ``UnsupportedLayout``, and the whole
answer is read as JSON: that reader is the truth.
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

from blackbox_lb.api.wire.dialects import DIALECTS
from blackbox_lb.api.wire.position import Listing, UnsupportedLayout
from blackbox_lb.api.wire.spans import spans_of
from blackbox_lb.api.wire.spellings import Spans, TokenSpellings
from blackbox_lb.errors import BlbError
from blackbox_lb.providers.profile import Profile
from blackbox_lb.providers.schema import EndpointRules

if TYPE_CHECKING:
    from blackbox_lb.vocabulary import Vocabulary

_PLACE = secrets.token_hex(16)
"""Stands for a list in the rest of its answer; no server can know it."""
TOGETHER = 1 << 18
"""Bytes of answers that are read together; beyond it nothing is saved."""


def _listings(names: TokenSpellings, content: bytes, spans: Spans) -> list[Listing]:
    """The lists of positions. Raises what ``TokenSpellings.numbers`` does."""
    numbers = names.numbers(content, spans)
    own = spans.own.nonzero()[0]
    is_alternative = ~spans.own
    ids = names.ids[numbers]
    widths = np.diff(own, append=len(ids)) - 1
    top_numbers = numbers[is_alternative]
    top_ids = ids[is_alternative]
    top_logprobs = spans.logprobs[is_alternative]
    ids = ids[own]
    logprobs = spans.logprobs[own]
    firsts = [first for _, _, first in spans.lists]
    bounds = [*own.searchsorted(firsts).tolist(), len(own)]
    listings = []
    for first, begin, end in zip(firsts, bounds[:-1], bounds[1:], strict=True):
        rows = slice(begin, end)
        before = first - begin
        listed = slice(before, before + int(widths[rows].sum()))
        listing = Listing(
            ids[rows],
            logprobs[rows],
            widths[rows],
            top_ids[listed],
            top_logprobs[listed],
            token_bytes=names.bytes_of(top_numbers[listed]),
        )
        listings.append(listing)
    return listings


class ParsedAnswer(dict[str, Any]):
    """An answer whose lists are read already, as ``Listing``. ``content``: its bytes, for the
    plain reader.
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
        kind, _ = profile.token_ids(rules)
        self._plain = (
            rules.ask_logprobs == "no"
            or not DIALECTS[rules.dialect].scanned
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
        lists = list(zip(spans.lists, _listings(self._names, content, spans), strict=True))
        before = 0
        for body in contents:
            end = before
            rest = list[bytes]()
            listings = list[Listing]()
            while lists and lists[0][0][0] < before + len(body):
                (begin, stop, _), listing = lists.pop(0)
                rest += [content[end:begin], f'"{_PLACE}{len(listings)}"'.encode()]
                listings.append(listing)
                end = stop
            before += len(body) + 1
            if not listings:
                raise UnsupportedLayout("no list")
            document = loads(b"".join([*rest, content[end : before - 1]]))
            answers.append(_joined(document, listings, body))
        return answers


def _joined(document: Any, listings: list[Listing], content: bytes) -> ParsedAnswer:
    """The rest of an answer with its lists in their places."""
    choices = None
    if isinstance(document, dict):
        choices = document.get("choices")
    places: dict[str, dict[str, Any]] = {}
    for choice in choices or ():
        logprobs = None
        if isinstance(choice, dict):
            logprobs = choice.get("logprobs")
        if isinstance(logprobs, dict) and isinstance(logprobs.get("content"), str):
            places[logprobs["content"]] = logprobs
    for number, listing in enumerate(listings):
        if f"{_PLACE}{number}" not in places:
            raise UnsupportedLayout("a list that is none of a choice")
        places[f"{_PLACE}{number}"]["content"] = listing
    answer = ParsedAnswer(document)
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
