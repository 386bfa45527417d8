"""Answers with a wanted distribution: an object of label -> share, or of label -> count.

Shares and counts are the same thing here: the numbers of a row are divided by their sum.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from blackbox_lb.errors import DataError
from blackbox_lb.safety.printable import shorten
from blackbox_lb.tasks.records.records import Record
from blackbox_lb.tasks.rewards.normalising import normalise
from blackbox_lb.types import Example

LARGE = 2.0**900
"""Shares above it are divided by it, because their sum may be beyond the range of a double."""


@dataclass(frozen=True, slots=True)
class AnswerShares:
    """The wanted distribution of a row.

    labels: (l,) in the order of the row. shares: (l,) at least 0, with sum 1.
    """

    labels: tuple[str, ...] = ()
    shares: tuple[float, ...] = ()


def shares_of(record: Record, column: str, value: Mapping[str, Any]) -> AnswerShares:
    """The distribution in the object ``value`` of ``column``; a null counts as absent.

    Raises DataError: fewer than two labels, two of one spelling, or an empty one; a share that is
    no finite number from 0; or a sum that is 0.
    """
    labels = [label for label, share in value.items() if share is not None]
    _check_labels(record, column, labels)
    numbers = {label.strip(): value[label] for label in labels}
    for label, share in numbers.items():
        is_number = isinstance(share, int | float) and not isinstance(share, bool)
        if not is_number or not 0 <= share <= sys.float_info.max:
            raise record.error(
                f"{column} gives {shorten(label)} the share {shorten(share)}; a share or count must"
                " be a finite number from 0"
            )
    if numbers and max(numbers.values()) > LARGE:
        numbers = {label: share / LARGE for label, share in numbers.items()}
    total = math.fsum(numbers.values())
    if total == 0:
        raise record.error(
            f"the shares in {column} sum to {total:g}; at least one label must have a share above 0"
        )
    shares = tuple(share / total for share in numbers.values())
    return AnswerShares(tuple(numbers), shares)


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
        elif first.weights and spellings != labels:
            raise DataError(
                f"{example.place} has shares of {', '.join(example.answers)}, and {first.place} of"
                f" {', '.join(first.answers)}; give every row the same labels, with share 0 where"
                " none is wanted"
            )


def _shown(example: Example) -> str:
    """The shares of an example as they stand in a row."""
    pairs = zip(example.answers, example.weights, strict=True)
    return ", ".join(f'"{label}": {share:.3g}' for label, share in pairs)
