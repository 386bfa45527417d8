"""A task is three sets of examples that share no prompt: one to learn from, one to choose on, one
to judge by.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from blackbox_lb.errors import DataError, InputError
from blackbox_lb.literals import Split
from blackbox_lb.tasks.records.files import SPLIT_NAMES, ExampleRow, words_of
from blackbox_lb.tasks.rewards.matching import Matcher
from blackbox_lb.types import Example, Message


@dataclass(frozen=True, slots=True)
class HarnessOptions:
    """Departures from the harness's defaults.

    ``data_dir``: a folder with a file for each split, instead of the hub. ``num_fewshot``: examples
    before each question. ``filter`` and ``metric``: those that decide, by default the task's first.
    ``validation_size``: documents sampled of train.
    """

    data_dir: Path | None = None
    num_fewshot: int | None = None
    filter: str | None = None
    metric: str | None = None
    validation_size: int | None = None


SPLITS = tuple(SPLIT_NAMES.values())
DEFAULT_FRACTIONS = (0.5, 0.2, 0.3)
"""Shares of train, validation and test: fitting, choosing and judging all need completions of their
own.
"""
DEFAULT_MAX_TOKENS = 256
_EMPTY_RISK = 0.01


@dataclass(frozen=True, slots=True, repr=False)
class Task:
    """Examples in three splits, with the correctness matcher and the token limit that suit them.

    ``correct`` is a matcher spec (exact-match, contains, math, regex:PATTERN), a matcher, or None
    for the default of ``parse_reward``; ``max_tokens`` is in tokens.
    ``stop``: a completion ends before the first of these texts. ``note``: for a report, on the
    source of prompts and matcher. ``unlabelled``: training prompts of a labelled file whose rows
    have no answer: the model's mean answer is known from them, too. ``divided``: whether the
    validation rows were drawn from the same rows as the training rows, so that both may be used for
    both.
    """

    name: str
    train: tuple[Example, ...]
    validation: tuple[Example, ...]
    test: tuple[Example, ...]
    correct: str | Matcher | None = None
    max_tokens: int = DEFAULT_MAX_TOKENS
    stop: tuple[str, ...] = ()
    note: str = ""
    unlabelled: tuple[Example, ...] = ()
    divided: bool = False

    @classmethod
    def from_splits(
        cls,
        name: str,
        splits: dict[Split, list[ExampleRow]],
        *,
        correct: str | Matcher | None = None,
        max_tokens: int = DEFAULT_MAX_TOKENS,
        stop: tuple[str, ...] = (),
        note: str = "",
        unlabelled: Sequence[ExampleRow] = (),
        divided: bool = False,
    ) -> Task:
        """Make a task of given splits. Raises DataError where one prompt or id is in two of
        them.
        """
        _refuse_leaks(splits)
        train, validation, test = (tuple(row.example for row in splits[split]) for split in SPLITS)
        prompts = tuple(row.example for row in unlabelled)
        return cls(name, train, validation, test, correct, max_tokens, stop, note, prompts, divided)

    def __repr__(self) -> str:
        counts = ", ".join(f"{len(self.split(split))} {split}" for split in SPLITS)
        return f"<Task {self.name}: {counts}>"

    def split(self, name: Split) -> tuple[Example, ...]:
        """The examples of the split called train, validation or test."""
        return {"train": self.train, "validation": self.validation, "test": self.test}[name]

    def first(self, *, validation: int | None = None, test: int | None = None) -> Task:
        """The task with only the first so many examples of validation and test."""
        return replace(
            self,
            validation=self.validation[:validation],
            test=self.test[:test],
            divided=self.divided and validation is None,
        )

    def pooled(self) -> Task:
        """The task with its validation rows among the training rows."""
        return replace(self, train=(*self.train, *self.validation), validation=())

    def with_system(self, text: str) -> Task:
        """The task with a system message before each prompt.

        Raises InputError: the text is empty, or a prompt has a system message already.
        """
        if not text.strip():
            raise InputError("``system`` is empty; give the system message, or leave it out")
        system = Message("system", text)
        return self._each(lambda example: _led_by(system, example))

    def with_tools(self, tools: str) -> Task:
        """The task with the same tools for each prompt, the JSON text of :func:`tools_text`.

        Raises InputError: a prompt has tools of its own.
        """

        def equipped(example: Example) -> Example:
            if example.prompt.tools:
                raise InputError(
                    f"{example.place} has tools of its own; leave out ``tools``, or that column"
                )
            return replace(example, prompt=replace(example.prompt, tools=tools))

        return self._each(equipped)

    def _each(self, changed: Callable[[Example], Example]) -> Task:
        """The task with each of its examples ``changed``."""
        return replace(
            self,
            train=tuple(map(changed, self.train)),
            validation=tuple(map(changed, self.validation)),
            test=tuple(map(changed, self.test)),
            unlabelled=tuple(map(changed, self.unlabelled)),
        )

    @property
    def longest_prompt(self) -> int:
        """Characters of the longest prompt of all splits, its tools counted."""
        prompts = [example.prompt for split in SPLITS for example in self.split(split)]
        return max((sum(map(len, prompt.sent_texts)) for prompt in prompts), default=0)

    @property
    def data_hash(self) -> str:
        """64 hex digits over ids, prompts, answers, their shares and the tools of all rows: the
        same rows to learn and choose from, and the same to judge by, the same hash.
        """
        seen = sorted((*self.train, *self.validation), key=lambda example: example.id)
        content = [
            [
                use,
                example.id,
                [list(message.fields.values()) for message in example.prompt.messages],
                list(example.answers),
                *([list(example.weights)] if example.weights else []),
                *([example.prompt.tools] if example.prompt.tools else []),
            ]
            for use, examples in (("learn", seen), ("test", self.test))
            for example in examples
        ]
        content += [["unlabelled", example.id] for example in self.unlabelled]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def _led_by(system: Message, example: Example) -> Example:
    """``example`` with a system message. Raises InputError: it has one."""
    messages = example.prompt.messages
    if any(message.role in ("system", "developer") for message in messages):
        raise InputError(
            f"{example.place} has a system message of its own, so ``system`` would be a second one;"
            " leave out ``system``, or take the message out of the data"
        )
    return replace(example, prompt=replace(example.prompt, messages=(system, *messages)))


def divide(
    name: str,
    rows: Sequence[ExampleRow],
    seed: int,
    fractions: Sequence[float],
    splits: Sequence[Split] = SPLITS,
) -> dict[Split, list[ExampleRow]]:
    """Rows by split: their own where they carry one, else by hash in the shares ``fractions`` of
    ``splits``; where rows have a label, each label by itself.
    """
    if (
        len(fractions) != len(splits)
        or not all(share > 0 for share in fractions)
        or not math.isclose(sum(fractions), 1)
    ):
        raise InputError(
            f"fractions are {tuple(fractions)}; give {len(splits)} positive shares that sum to 1"
        )
    _refuse_partial_splits(rows)
    divided: dict[Split, list[ExampleRow]] = {split: [] for split in SPLITS}
    places = _places(rows, seed, fractions, splits)
    for row in rows:
        divided[row.split or places[_identity(row)]].append(row)
    _refuse_empty(name, divided, len(rows), fractions, splits)
    return divided


def rest(
    name: str, rows: list[ExampleRow], seed: int, fractions: Sequence[float], named: set[Split]
) -> dict[Split, list[ExampleRow]]:
    """``rows`` divided over the splits that have no file of their own, their shares scaled to sum
    to 1.
    """
    for row in rows:
        if row.split in named:
            raise DataError(
                f"{row.example.place} says split {row.split}, which has a file of its own; remove"
                " the row or that file"
            )
    remaining = [split for split in SPLITS if split not in named]
    if not named or len(fractions) != len(SPLITS):
        return divide(name, rows, seed, fractions)
    shares = [share for split, share in zip(SPLITS, fractions, strict=True) if split in remaining]
    total = sum(shares)
    if total > 0:
        shares = [share / total for share in shares]
    return divide(name, rows, seed, shares, remaining)


def chosen_on(
    name: str, splits: Mapping[Split, Sequence[ExampleRow]], size: int, seed: int
) -> dict[Split, list[ExampleRow]]:
    """The splits with ``size`` rows of train and validation in validation, and the others in train:
    drawn by hash, of each label its share.

    Raises InputError: fewer than two rows remain to learn from.
    """
    rows = [*splits["train"], *splits["validation"]]
    if size > len(rows) - 2:
        raise InputError(
            f"``validation_size={size}`` of the {len(rows)} rows of {name} that are no test rows"
            f" leaves fewer than 2 to learn from; give at most {max(len(rows) - 2, 1)}"
        )
    counts = Counter(row.label for row in rows)
    ranks: Counter[str] = Counter()
    order = []
    for row in sorted(rows, key=lambda row: _position(row.example.id, seed)):
        order.append(((ranks[row.label] + 0.5) / counts[row.label], row))
        ranks[row.label] += 1
    order.sort(key=lambda pair: pair[0])
    is_chosen_on = {row.example.id for _, row in order[:size]}
    validation = [row for row in rows if row.example.id in is_chosen_on]
    train = [row for row in rows if row.example.id not in is_chosen_on]
    return {"train": train, "validation": validation, "test": [*splits["test"]]}


def _position(identity: str, seed: int) -> float:
    """A number from 0 to 1, as if drawn."""
    digest = hashlib.sha256(f"{seed}:{identity}".encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8]) / 2**64


def _identity(row: ExampleRow) -> str:
    """What the rows of one prompt share."""
    return row.split_id or row.example.id


def _places(
    rows: Sequence[ExampleRow], seed: int, fractions: Sequence[float], splits: Sequence[Split]
) -> dict[str, Split]:
    """Identity -> its split, in the order of their hashes, which are even over 0 to 1.

    Without a label, the shares cut the numbers from 0 to 1, so further rows move none. The rows of
    a label are cut at its own quotas, which are near the same numbers: further rows move those
    few whose hashes lie at a cut.
    """
    labels: dict[str, str] = {}
    for row in rows:
        labels.setdefault(_identity(row), row.label)
    by_label: dict[str, list[tuple[float, str]]] = {}
    for identity, label in labels.items():
        by_label.setdefault(label, []).append((_position(identity, seed), identity))
    places = {}
    for label, members in by_label.items():
        members.sort()
        ends = [sum(fractions[: place + 1]) for place in range(len(fractions))]
        if label:
            counts = quotas(len(members), fractions)
            ends = [sum(counts[: place + 1]) for place in range(len(counts))]
        for rank, (position, identity) in enumerate(members):
            value = rank if label else position
            place = sum(value >= end for end in ends[:-1])
            places[identity] = splits[place]
    return places


def quotas(rows: int, fractions: Sequence[float]) -> list[int]:
    """The rows of each split, by largest remainders of ``rows * fractions``; at least one each
    where there are enough (Balinski and Young 2001, "Fair Representation", chapter 3).
    """
    shares = [round(rows * fraction, 9) for fraction in fractions]
    counts = [math.floor(share) for share in shares]
    by_remainder = sorted(range(len(shares)), key=lambda place: counts[place] - shares[place])
    for place in by_remainder[: rows - sum(counts)]:
        counts[place] += 1
    if rows >= len(counts):
        while 0 in counts:
            counts[counts.index(max(counts))] -= 1
            counts[counts.index(0)] += 1
    return counts


def _refuse_partial_splits(rows: Sequence[ExampleRow]) -> None:
    without = [row for row in rows if row.split is None]
    if without and len(without) < len(rows):
        raise DataError(
            f"{without[0].example.place} names no split although other rows do; give every row a"
            " split, or none"
        )


def _refuse_empty(
    name: str,
    divided: dict[Split, list[ExampleRow]],
    count: int,
    fractions: Sequence[float],
    splits: Sequence[Split],
) -> None:
    empty = [split for split in splits if not divided[split]]
    if empty:
        rows = f"{count} row{'s' * (count != 1)}"
        raise DataError(
            f"{name} has {rows} and none of them in {' and '.join(empty)}; every split needs at"
            f" least one: give {_rows_needed(fractions)} rows or more, a split column with all"
            " splits, or a file for each split"
        )


def _rows_needed(fractions: Sequence[float]) -> int:
    """A number of rows for which some split stays empty with probability below 1 % (union bound
    over the splits).
    """
    least = min(fractions)
    if least == 1:
        return 1
    return math.ceil(math.log(_EMPTY_RISK / len(fractions)) / math.log1p(-least))


def _refuse_leaks(splits: dict[Split, list[ExampleRow]]) -> None:
    prompts: dict[object, tuple[Split, ExampleRow]] = {}
    ids: dict[str, tuple[Split, ExampleRow]] = {}
    for split, rows in splits.items():
        for row in rows:
            example = row.example
            first_split, first = prompts.setdefault(words_of(row), (split, row))
            if first_split != split:
                raise DataError(
                    f"{example.place} ({split}) has the prompt of {first.example.place}"
                    f" ({first_split}), so {split} would judge what {first_split} has seen; delete"
                    " one, or join both into one row with a list of answers"
                )
            first_split, first = ids.setdefault(example.id, (split, row))
            if first is not row:
                raise DataError(
                    f"{example.place} ({split}) has the id {example.id!r} of {first.example.place}"
                    f" ({first_split}); ids must be unique"
                )
