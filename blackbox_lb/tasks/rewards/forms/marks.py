"""Marks that people made in completions.

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

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from blackbox_lb.errors import InputError
from blackbox_lb.safety.printable import shorten
from blackbox_lb.tasks.records.records import Record, read_records
from blackbox_lb.tasks.rewards.reward import Credit, Form, Reward, Score
from blackbox_lb.tasks.rewards.spans import checked_span, find_quote, sum_of
from blackbox_lb.types import Completion, Example, Span

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks(Reward):
    """The marked completions of a file, by their text."""

    label: ClassVar[str] = "sum of marks"
    credit: ClassVar[Credit] = "places"
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
        return cls(path=path, rows={text: tuple(marked) for text, marked in rows.items()})

    def check_fresh(self, title: str) -> None:
        """Raise InputError: nobody has marked them."""
        raise InputError(
            f"{self.name} knows the completions that people marked, and {title} draws fresh ones,"
            " which nobody has read: score stored completions with blb score, learn from them in"
            " Python (Positions.load), or let ``reward=avoid:FILE`` look for the marked passages in"
            " every text"
        )

    def score(self, example: Example, completion: Completion) -> Score:
        """The reward of a completion that is in the file. InputError: it is not."""
        for marked in self.rows.get(completion.text, ()):
            if marked.answers(example):
                return Score(sum_of(marked.spans), marked.spans)
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
    if isinstance(marks, str):
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
            spans.append(checked_span(row, len(text), f"the mark {shorten(mark)}"))
        except InputError as error:
            raise record.error(str(error)) from error
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


FORMS = (
    Form(
        "marks",
        "the sum of the marks that people made in it; stored completions only",
        Marks.load,
        takes="FILE",
        reaches="file",
    ),
)
