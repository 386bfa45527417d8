"""From the user's choice, a built-in task or files of their own, to a Task."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from blackbox_lb.errors import DataError, InputError
from blackbox_lb.safety.printable import shorten
from blackbox_lb.tasks.harness import HarnessOptions, load_harness
from blackbox_lb.tasks.records.files import ColumnNames, SourcedExample, read_rows
from blackbox_lb.tasks.records.hub_data import HUB
from blackbox_lb.tasks.sets.countries import capitals, continents
from blackbox_lb.tasks.sets.dataset import load_dataset
from blackbox_lb.tasks.sets.task import DEFAULT_FRACTIONS, Task, rest
from blackbox_lb.types import Split

HARNESS = "lm-eval:"
"""The prefix of a task of lm-evaluation-harness."""

BUILT_IN: dict[str, Callable[[], Task]] = {"capitals": capitals, "continents": continents}
"""The built-in tasks, by name."""


def load_task(
    spec: str | None = None,
    data: str | Path | None = None,
    validation: str | Path | None = None,
    test: str | Path | None = None,
    *,
    seed: int = 0,
    fractions: Sequence[float] = DEFAULT_FRACTIONS,
    prompt_column: str = "prompt",
    answer_column: str = "answer",
    messages_column: str = "messages",
    prompt_template: str | None = None,
    require_answers: bool = True,
    harness: HarnessOptions | None = None,
) -> Task:
    """A task by its name in ``spec``, or the task in ``data``, named after it.

    ``spec``: a built-in one, or lm-eval:NAME of lm-evaluation-harness, read as ``harness`` says (:func:`load_harness`). ``data``: a
    file, a folder that the library ``datasets`` reads, or hf:NAME[/CONFIG][@SPLIT] of the hub. It keeps the splits that it has, and
    is otherwise split three ways. ``validation`` and ``test`` are files used whole for their split; the rest of ``fractions``
    then divides ``data``. InputError: an unknown name, both a name and files, or neither. DataError: see :func:`load_examples`, and
    one prompt or id in two splits.
    """
    columns = ColumnNames(prompt_column, answer_column, messages_column, prompt_template)
    if spec is not None:
        if data or validation or test or columns != ColumnNames():
            raise InputError(f"a task by name ({shorten(spec)}) and data or its columns were both given; give one of them")
        if spec.startswith(HARNESS):
            return load_harness(spec.removeprefix(HARNESS), harness)
    if harness not in (None, HarnessOptions()):
        raise InputError(
            "--data-dir, --num-fewshot, --filter, --metric and --validation-size are for --task lm-eval:NAME; leave them out"
        )
    if spec is not None:
        return _built_in(spec)
    if data is None:
        raise InputError(f"no task: name a built-in one ({', '.join(BUILT_IN)}) or give a data file of prompts to learn from")
    given: dict[Split, str | Path | None] = {"validation": validation, "test": test}
    whole = {split: _whole(path, split, columns, require_answers) for split, path in given.items() if path is not None}
    if str(data).startswith(HUB) or Path(data).is_dir():
        return load_dataset(str(data), whole, columns, seed=seed, fractions=fractions, require_answers=require_answers)
    rows = read_rows(data, columns, require_answers=require_answers)
    return Task.from_splits(Path(data).stem, rest(str(data), rows, seed, fractions, set(whole)) | whole)


def _built_in(spec: str) -> Task:
    if spec not in BUILT_IN:
        raise InputError(
            f"unknown task {shorten(spec)}; the built-in tasks are: {', '.join(BUILT_IN)}; or name one of lm-evaluation-harness "
            "(lm-eval:gsm8k), or give a data file"
        )
    return BUILT_IN[spec]()


def _whole(path: str | Path, split: Split, columns: ColumnNames, require_answers: bool) -> list[SourcedExample]:
    rows = read_rows(path, columns, require_answers=require_answers)
    for row in rows:
        if row.split not in (None, split):
            raise DataError(
                f"{row.source} says split {row.split}, but the file was given as {split} data; remove the column or the row"
            )
    return rows
