"""Answers with a wanted distribution: an object of label -> share, or of label -> count.

Shares and counts are the same thing here: the numbers of a row are divided by their sum.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from blackbox_lb.errors import DataError
from blackbox_lb.safety.printable import shorten
from blackbox_lb.tasks.records.records import Record
from blackbox_lb.tasks.rewards.normalising import normalise
from blackbox_lb.types import Example

MOST_COUNT = 1e100
"""Largest share or count of a label."""
MOST_SHARES = 1.05
"""Largest sum of rounded shares. A smaller one than 1 leaves out who did not answer."""
LEAST_PERCENT = 90.0
MOST_PERCENT = 105.0
"""Sums of rounded per cent, less who did not answer."""


ANSWER_NAMES = (
    "answers",
    "label",
    "output",
    "target",
    "gold",
    "response",
    "category",
    "class",
)
"""What data sets call the answer instead, the likeliest first."""
ANSWER_FIELDS = ("text", "value", "answer", *ANSWER_NAMES)
"""Fields that hold the answer in objects that are no shares, the likeliest first."""
_MEASURES = frozenset(
    ["answer_start", "confidence", "end", "logprob", "prob", "probability", "score", "start"]
)
"""Fields that say something of such an answer."""


def answer_field(value: Mapping[str, Any]) -> str:
    """The field with the answer, in an object such as {"label": 1, "score": 0.9}; "" where the
    object can be shares of labels.
    """
    fields = {name.strip().lower(): name for name in value}
    likely = [fields[name] for name in ANSWER_FIELDS if name in fields]
    is_numeric = all(
        isinstance(number, int | float) for number in value.values() if number is not None
    )
    if likely and (not is_numeric or _MEASURES & set(fields)):
        return likely[0]
    return ""


def shares_of(
    record: Record, column: str, value: Mapping[str, Any]
) -> tuple[tuple[str, ...], tuple[float, ...]]:
    """The labels (l,) in the object ``value`` of ``column``, in its order, and their wanted shares
    (l,), with sum 1; a null counts as absent.

    Raises DataError: an object of something else; fewer than two labels, two of one spelling, or
    an empty one; a share that is no finite number from 0; numbers that are neither shares nor
    counts; or a sum that is 0.
    """
    field = answer_field(value)
    if field:
        raise record.error(
            f"{column} is the object {shorten(value)}, which has no shares of labels; name the"
            f" field with the answer, ``answer_column={column}.{field}``"
        )
    labels = [label for label, share in value.items() if share is not None]
    _check_labels(record, column, labels)
    numbers = {label.strip(): value[label] for label in labels}
    for label, share in numbers.items():
        is_number = isinstance(share, int | float) and not isinstance(share, bool)
        if not is_number or not 0 <= share <= MOST_COUNT:
            raise record.error(
                f"{column} gives {shorten(label)} the share {shorten(share)}; a share or count must"
                f" be a number from 0 to {MOST_COUNT:g}; if the object has none, name the field of"
                f" the answer, as ``answer_column={column}.{label}``"
            )
    _refuse_other_numbers(record, column, numbers)
    total = math.fsum(numbers.values())
    if total == 0:
        raise record.error(
            f"the shares in {column} sum to {total:g}; at least one label must have a share above 0"
        )
    shares = tuple(share / total for share in numbers.values())
    return tuple(numbers), shares


def _refuse_other_numbers(record: Record, column: str, numbers: Mapping[str, float]) -> None:
    """Raise DataError for numbers that are no counts and do not sum to 1 or 100."""
    is_counts = all(number == int(number) for number in numbers.values())
    if is_counts:
        return
    largest = max(numbers.values())
    total = math.inf
    if largest <= MOST_PERCENT:
        total = math.fsum(numbers.values())
    if total <= MOST_SHARES or LEAST_PERCENT <= total <= MOST_PERCENT:
        return
    raise record.error(
        f"the numbers in {column}, {shorten(dict(numbers))}, are neither whole counts nor shares"
        " with a sum of 1 or 100; divide them by their sum, or name the field with the answer if"
        f" the object has one, as ``answer_column={column}.{next(iter(numbers))}``"
    )


def _check_labels(record: Record, column: str, labels: list[str]) -> None:
    if len(labels) < 2:
        raise record.error(
            f"{column} has shares of {shorten(', '.join(labels) or 'no label')} alone; a"
            " distribution has at least two labels: give the others, too, with share 0 where none"
            " is wanted"
        )
    labels_by_spelling: dict[str, str] = {}
    for label in labels:
        spelling = normalise(label)
        if not spelling:
            raise record.error(
                f"{column} has the label {shorten(label)}, in which no word is to be found; name it"
                " with letters, digits or signs"
            )
        if spelling in labels_by_spelling:
            raise record.error(
                f"{column} has the labels {shorten(labels_by_spelling[spelling])} and"
                f" {shorten(label)}, which are read as one in a completion, where case, white space"
                " and punctuation do not count; add their shares up if they are one label, or"
                " rename one of them"
            )
        labels_by_spelling[spelling] = label


def check_alike(examples: Iterable[Example]) -> None:
    """Refuse rows of one task that have different labels, or of which some have no shares.

    Raises DataError: it names the first row that differs from the first of all.
    """
    first: Example | None = None
    labels: frozenset[str] = frozenset()
    for example in examples:
        spellings: frozenset[str] = frozenset()
        if example.weights:
            spellings = frozenset(map(normalise, example.answers))
        if first is None:
            first = example
            labels = spellings
        elif bool(example.weights) != bool(first.weights):
            with_shares = first
            without = example
            if example.weights:
                with_shares = example
                without = first
            raise DataError(
                f"{without.place} has no shares of labels, and {with_shares.place} has; give every"
                f" row shares, as in {{{_shown(with_shares)}}}, or none"
            )
        elif spellings != labels:
            raise DataError(
                f"{example.place} has shares of {', '.join(example.answers)}, and {first.place} of"
                f" {', '.join(first.answers)}; give every row the same labels, with share 0 where"
                " none is wanted"
            )


def _shown(example: Example) -> str:
    """The shares of an example as they stand in a row."""
    pairs = zip(example.answers, example.weights, strict=True)
    return ", ".join(f'"{label}": {share:.3g}' for label, share in pairs)
