"""Rewards that are a sum over places: the amount of each place, rules that read the text alone, and
marks that people made in completions.

A reward such as "every stock word costs 1" is earned at places of the text. Its spans name those
places, and their amounts add up to the reward. A fit then weighs each token by what was earned from
it on (``RewardToGo``), and a report marks the places.

A file of marks has a line for each completion:

```jsonl
{"id": "17", "completion": "A tapestry of ...", "marks": ["tapestry", {"quote": "A", "amount": -2}]}
{"completion": "It rained.", "marks": []}
{"completion": "A lone lamp.", "marks": [{"start": 2, "end": 6, "amount": -0.5}]}
```

``completion`` is the text that was read, as ``blb score --per-completion`` writes it; ``id`` or
``prompt`` say of which example it is, where the same text may answer several. A mark costs 1 unless
it says its amount. The reward is the sum of the amounts.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import regex

from blackbox_lb.errors import InputError
from blackbox_lb.safety.printable import shorten
from blackbox_lb.tasks.records.records import Record, read_records
from blackbox_lb.types import Completion, Example, FloatArray, Span

ROUNDING = 1e-6
"""Share of the largest number by which the sum of the amounts may differ from the reward."""
_SPELLINGS = {"'": "['’‘]", "’": "['’‘]", "‘": "['’‘]", '"': '["“”„]', "“": '["“”„]', "”": '["“”„]'}


@dataclass(frozen=True, slots=True)
class LocatedReward:
    """The reward of one completion, and its places.

    reward: nats, possibly -inf.
    spans: the places whose amounts add up to it; None where it is no sum over places.
    """

    reward: float
    spans: tuple[Span, ...] | None = None


class TextRule(Protocol):
    """A reward that reads nothing but the text of a completion, and is a sum over its places."""

    def spans(self, text: str) -> tuple[Span, ...]:
        """The places of ``text`` in their order; their amounts add up to its reward in nats."""

    def token_costs(self, texts: Sequence[str], typical: Sequence[str]) -> FloatArray:
        """What the text of each token earns by itself.

        Args:
            texts: n texts of tokens, such as " Deeply".
            typical: texts of completions. A reward by the hundred words (or letters) depends on
                the length of the text, and a token is counted in one of their mean length.

        Returns:
            (n,) nats of the reward; 0 where the rule says nothing of the token's own text, as of
            a piece of a word.
        """


def sum_of(spans: Iterable[Span]) -> float:
    """The reward in nats that ``spans`` add up to."""
    return math.fsum(span.amount for span in spans)


def checked_spans(raw_spans: Any, reward: float, text: str, source: str) -> tuple[Span, ...]:
    """The spans that somebody else's code gave with its reward.

    Args:
        raw_spans: rows of start, end and amount, or ``Span`` objects.
        reward: nats that they must add up to.
        text: of the completion, in which they are counted in characters.
        source: who gave them, to begin a message with.

    Raises:
        InputError: a row that is no such triple, a place outside the text, an amount that is not
            finite, or amounts that add up to another number than the reward.
    """
    if isinstance(raw_spans, str) or not isinstance(raw_spans, Iterable):
        raise InputError(
            f"{source} gave the spans {shorten(raw_spans)}; give a list of (start, end,"
            " amount), with"
            " start and end in characters of the text and the amount in nats"
        )
    spans = tuple(_checked_span(row, len(text), source) for row in raw_spans)
    total = sum_of(spans)
    largest = max(1.0, abs(reward), *(abs(span.amount) for span in spans))
    if not math.isfinite(reward) or abs(total - reward) > ROUNDING * largest:
        raise InputError(
            f"{source} gave the reward {reward:.9g}, and its {len(spans)} spans add up to"
            f" {total:.9g}; the amounts of the spans must add up to the reward, or give no spans"
        )
    return spans


def _checked_span(row: Any, length: int, source: str) -> Span:
    try:
        start, end, amount = (
            (row.start, row.end, row.amount) if isinstance(row, Span) else tuple(row)
        )
        span = Span(operator.index(start), operator.index(end), float(amount))
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(
            f"{source} gave the span {shorten(row)}; a span is (start, end, amount), two whole"
            " numbers of characters and a number of nats"
        ) from error
    if not 0 <= span.start <= span.end <= length:
        raise InputError(
            f"{source} gave a span from {span.start} to {span.end} in a text of {length}"
            f" characters; start and end must be in order and from 0 to {length}"
        )
    if not math.isfinite(span.amount):
        raise InputError(
            f"{source} gave a span from {span.start} to {span.end} the amount {span.amount}; an"
            " amount must be finite"
        )
    return span


def find_quote(text: str, quote: str, after: int = 0) -> tuple[int, int] | None:
    """The characters of ``text`` that ``quote`` repeats, from ``after`` on: its start and end.

    White space and the spelling of quotation marks may differ, and so may the case where the exact
    one does not occur. None: the quote does not occur, or holds nothing but white space.
    """
    words = quote.split()
    if not words:
        return None
    pattern = r"\s+".join(_spelled(word) for word in words)
    for flags in (0, regex.IGNORECASE):
        match = regex.compile(pattern, flags).search(text, after)
        if match is not None:
            return match.start(), match.end()
    return None


def _spelled(word: str) -> str:
    """The pattern of a word with its quotation marks and apostrophes in any spelling."""
    return "".join(_SPELLINGS.get(letter) or regex.escape(letter) for letter in word)


MARK = -1.0
"""Amount of a mark that does not say its own, in nats."""


@dataclass(frozen=True, slots=True)
class MarkedText:
    """One completion that people read.

    Attributes:
        id, prompt: of its example, None where the row does not say it.
        spans: its marks.
    """

    id: str | None
    prompt: str | None
    spans: tuple[Span, ...]

    def answers(self, example: Example) -> bool:
        """Whether it may be a completion of ``example``."""
        return self.id in (None, example.id) and self.prompt in (None, example.prompt.text)


@dataclass(frozen=True, slots=True)
class Marks:
    """The marked completions of a file, by their text."""

    path: Path
    rows: Mapping[str, tuple[MarkedText, ...]] = field(repr=False, compare=False)

    @classmethod
    def load(cls, name: str) -> Marks:
        """Read the rows of ``name``, JSON lines or a table.

        Raises:
            DataError: unreadable; a row without ``completion`` or ``marks``; a mark that is no
                quote of its text and no place in it.
        """
        path = Path(name)
        rows: dict[str, list[MarkedText]] = {}
        for record in read_records(path):
            text = record.get("completion")
            if not isinstance(text, str):
                raise record.error(
                    "marks belong to the text that was read, and the row has no text in"
                    " completion; give the completion, as blb score --per-completion writes it"
                )
            marked = MarkedText(_text(record, "id"), _text(record, "prompt"), _marks(record, text))
            rows.setdefault(text, []).append(marked)
        return cls(path, {text: tuple(marked) for text, marked in rows.items()})

    def score(self, example: Example, completion: Completion) -> LocatedReward:
        """The reward of a completion that is in the file. InputError: it is not."""
        for marked in self.rows.get(completion.text, ()):
            if marked.answers(example):
                return LocatedReward(sum_of(marked.spans), marked.spans)
        raise InputError(
            f"{self.path} has no marks of the completion {shorten(completion.text)} of"
            f" {example.place}: marks judge the completions that people read, and no others; add"
            ' its row (with "marks": [] where nothing is wrong), or let avoid:FILE look for the'
            " marked passages in every text"
        )


def _text(record: Record, column: str) -> str | None:
    value = record.get(column)
    return None if value is None else str(value)


def _marks(record: Record, text: str) -> tuple[Span, ...]:
    """The marks of a row, in the order of their places."""
    marks = record.get("marks")
    if record.textual:
        marks = record.parsed_json("marks")
    if not isinstance(marks, list):
        raise record.error(
            f"marks is {shorten(marks)}; give a list of quotes or of places, as in"
            ' ["tapestry", {"start": 3, "end": 9, "amount": -2}], and [] where nothing is marked'
        )
    spans: list[Span] = []
    ends: dict[str, int] = {}
    for mark in marks:
        fields = {"quote": mark} if isinstance(mark, str) else mark
        if not isinstance(fields, dict) or not set(fields) <= {"quote", "start", "end", "amount"}:
            raise record.error(
                f"the mark {shorten(mark)} is no quote and no place; give a text, or an object with"
                " quote, or start and end, and perhaps amount"
            )
        start, end = _place(record, text, fields, ends)
        row = (start, end, fields.get("amount", MARK))
        try:
            spans += checked_spans([row], row[2], text, f"{record.source}: the mark")
        except (InputError, TypeError) as error:
            raise record.error(f"the mark {shorten(mark)}: {error}") from error
    return tuple(sorted(spans, key=lambda span: (span.start, span.end)))


def _place(
    record: Record, text: str, fields: Mapping[str, Any], ends: dict[str, int]
) -> tuple[Any, Any]:
    """Start and end of a mark; ``ends``: the end of the last place of each quote, so that a quote
    that stands twice marks the next place.
    """
    quote = fields.get("quote")
    if quote is None:
        return fields.get("start"), fields.get("end")
    place = find_quote(text, str(quote), ends.get(str(quote), 0))
    if place is None:
        raise record.error(
            f"the quote {shorten(quote)} does not occur in its completion (or not as often as it is"
            " marked); copy it from there"
        )
    ends[str(quote)] = place[1]
    return place
