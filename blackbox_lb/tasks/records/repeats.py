"""Rows of one prompt: they become one example, and they stay in one split."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from blackbox_lb.errors import DataError
from blackbox_lb.types import Example, Split

LastTurn: TypeAlias = Literal["none", "answer", "beginning"]
Words: TypeAlias = tuple[tuple[str, str], ...]
JUDGED_FIRST: tuple[Split, ...] = ("test", "validation", "train")
"""Of a prompt in several splits, the rows of the first of these stay."""


@dataclass(frozen=True, slots=True)
class SourcedExample:
    """An example with its origin.

    source: its row for messages, as "train.jsonl, line 3".
    split: the split that the row names, if any.
    last_turn: what a last turn of the assistant in its messages was taken for.
    copies: further rows of the same prompt that are in the example.
    split_id: the id whose hash decides the split; "" for the example's own.
    """

    example: Example
    source: str
    split: Split | None = None
    last_turn: LastTurn = "none"
    copies: int = 0
    split_id: str = ""


def words_of(row: SourcedExample) -> tuple[Words, str]:
    """The prompt's words without regard to white space, and its tools, for comparing prompts."""
    words = tuple(
        (message.role, " ".join(message.content.split())) for message in row.example.prompt.messages
    )
    return words, row.example.prompt.tools


def join_repeats(rows: Iterable[SourcedExample]) -> list[SourcedExample]:
    """Rows of equal prompts and tools in one split as one, in the place of the first.

    It has the id of the first row and the answers of all, the commonest first, as equally accepted
    answers. Prompts that differ in white space alone stay apart, and share their ``split_id``.

    Raises DataError: rows of one prompt want different distributions.
    """
    groups: dict[object, list[SourcedExample]] = {}
    for row in rows:
        key = (row.example.prompt, row.split)
        groups.setdefault(key, []).append(row)
    first_ids: dict[object, str] = {}
    joined = []
    for group in groups.values():
        row = _joined(group)
        split_id = first_ids.setdefault(words_of(row), row.example.id)
        joined.append(replace(row, split_id=split_id))
    return joined


def _joined(rows: Sequence[SourcedExample]) -> SourcedExample:
    first = rows[0]
    if len(rows) == 1:
        return first
    if first.example.weights:
        _refuse_other_shares(rows)
        return replace(first, copies=len(rows) - 1)
    counts = Counter(row.example.answers for row in rows if row.example.answers)
    variants = tuple(answers for answers, _ in counts.most_common())
    answers = tuple(dict.fromkeys(answer for variant in variants for answer in variant))
    if len(variants) < 2:
        variants = ()
    return replace(
        first,
        example=replace(first.example, answers=answers, variants=variants),
        copies=len(rows) - 1,
    )


def _refuse_other_shares(rows: Sequence[SourcedExample]) -> None:
    first = rows[0].example
    wanted = dict(zip(first.answers, first.weights, strict=True))
    for row in rows[1:]:
        example = row.example
        if dict(zip(example.answers, example.weights, strict=True)) != wanted:
            raise DataError(
                f"{row.source} has the prompt of {rows[0].source} and other shares; the model is"
                " shown the same text, so join them into one row with the shares of both, or say in"
                " the prompt what tells them apart"
            )


def keep_apart(
    splits: Mapping[Split, Sequence[SourcedExample]],
) -> tuple[dict[Split, list[SourcedExample]], Counter[tuple[Split, Split]]]:
    """Leave rows out of a split whose prompt stands in another one that is judged by.

    Returns:
        The splits, and the number of rows left out by (their split, the split that keeps the
        prompt).
    """
    owners: dict[object, Split] = {}
    kept: dict[Split, list[SourcedExample]] = {split: [] for split in splits}
    left_out: Counter[tuple[Split, Split]] = Counter()
    for split in JUDGED_FIRST:
        for row in splits.get(split, ()):
            owner = owners.setdefault(words_of(row), split)
            if owner == split:
                kept[split].append(row)
            else:
                left_out[split, owner] += 1 + row.copies
    return kept, left_out


def remarks_on(
    rows: Sequence[SourcedExample], left_out: Mapping[tuple[Split, Split], int]
) -> list[str]:
    """What was done to the rows of a task that its user would not see otherwise, in sentences."""
    several = [row for row in rows if row.example.variants]
    differing = sum(len(row.example.variants) - 1 for row in several)
    equal = sum(row.copies for row in rows) - differing
    notices = []
    if equal:
        notices.append(f"{_counted(equal, 'row')} equal to another, which counts once")
    if several:
        notices.append(
            f"{_counted(len(several), 'prompt')} with different answers in several rows, all of"
            " which are accepted"
        )
    for (split, owner), count in sorted(left_out.items()):
        notices.append(
            f"{_counted(count, 'row')} left out of {split}, whose prompts are in {owner} too"
        )
    answers = sum(row.last_turn == "answer" for row in rows)
    if answers:
        notices.append(
            f"{_counted(answers, 'row')} without an answer column, where the last turn of the"
            " assistant is the answer and is not sent (``prefill`` sends it)"
        )
    begun = sum(row.last_turn == "beginning" for row in rows)
    if begun:
        notices.append(
            f"{_counted(begun, 'row')} with a last turn of the assistant, which is sent as the"
            " beginning of the completion (``prefill`` says that this is meant)"
        )
    return notices


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
