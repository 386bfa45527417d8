"""A task from a data set of the hub or a folder: its own splits where it has them, repeated rows left out and counted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from blackbox_lb.errors import DataError
from blackbox_lb.tasks.records.files import ColumnNames, SourcedExample, row_of
from blackbox_lb.tasks.records.hub_data import HUB, dataset_records
from blackbox_lb.tasks.sets.task import Task, rest, words_of
from blackbox_lb.types import Split

NAMES: dict[str, Split] = {
    "train": "train",
    "validation": "validation",
    "valid": "validation",
    "val": "validation",
    "dev": "validation",
    "test": "test",
}
"""The names of splits in data sets."""
_JUDGED_FIRST: tuple[Split, ...] = ("test", "validation", "train")


def load_dataset(
    spec: str,
    whole: dict[Split, list[SourcedExample]],
    columns: ColumnNames,
    *,
    seed: int,
    fractions: Sequence[float],
    require_answers: bool,
) -> Task:
    """The task in ``spec``, hf:NAME[/CONFIG][@SPLIT] or a folder; ``whole`` are splits that have files of their own.

    Splits called train, validation (valid, val, dev) and test are used as they are, others are left out; a missing one is divided
    off train, and a single split is divided three ways. Unlike in a user's own file, id and split columns are ignored,
    and of rows with one prompt only the first is kept, test's before validation's before train's. DataError: no train split
    beside others.
    """
    records = dataset_records(spec)
    found: dict[Split, list[SourcedExample]] = {}
    single = len(records) == 1
    for name, rows in records.items():
        split = "train" if single else NAMES.get(name)
        if split is not None and split not in whole:
            for row in rows:
                values = {key: value for key, value in row.values.items() if key not in ("id", "split")}
                found.setdefault(split, []).append(row_of(replace(row, values=values), columns, require_answers))
    if not found.get("train"):
        raise DataError(f"{spec} has the splits {', '.join(records)} and none called train; choose one to divide with @SPLIT")
    unused = [name for name in records if not single and name not in NAMES]
    found, dropped = _without_repeats(found, whole)
    given = {**found, **whole}
    del given["train"]
    parts = rest(spec, found["train"], seed, fractions, set(given)) | given
    note = f"{spec}: splits {', '.join(records)}"
    note += f"; not used: {', '.join(unused)}" if unused else ""
    note += f"; {dropped} rows dropped that repeat another's prompt" if dropped else ""
    return Task.from_splits(_name(spec), parts, note=note)


def _without_repeats(
    found: dict[Split, list[SourcedExample]], whole: dict[Split, list[SourcedExample]]
) -> tuple[dict[Split, list[SourcedExample]], int]:
    seen = {words_of(row) for rows in whole.values() for row in rows}
    kept: dict[Split, list[SourcedExample]] = {}
    for split in _JUDGED_FIRST:
        for row in found.get(split, []):
            if words_of(row) not in seen:
                seen.add(words_of(row))
                kept.setdefault(split, []).append(row)
    if not kept.get("train"):
        raise DataError("every prompt of train stands in validation or test too; give other data")
    return kept, sum(map(len, found.values())) - sum(map(len, kept.values()))


def _name(spec: str) -> str:
    """OWNER/NAME/CONFIG@SPLIT in a form for the name of a folder."""
    return spec.removeprefix(HUB).replace("/", "-").replace("@", "-") if spec.startswith(HUB) else Path(spec).name
