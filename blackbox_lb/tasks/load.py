"""From what the user named, a built-in task or files of their own, to a Task."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from blackbox_lb.errors import DataError, InputError
from blackbox_lb.tasks import capitals
from blackbox_lb.tasks.base import DEFAULT_FRACTIONS, SPLITS, Task, divide
from blackbox_lb.tasks.files import Columns, Row, read_rows
from blackbox_lb.tasks.text import shorten
from blackbox_lb.types import Split

__all__ = ["BUILT_IN", "load_task"]

BUILT_IN: dict[str, Callable[[], Task]] = {"capitals": capitals.load}
"""The tasks that come with the package, by name."""


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
    require_answers: bool = True,
) -> Task:
    """The built-in task ``spec``, or the task in the file ``data``, named after it.

    ``data`` alone is split three ways. ``validation`` and ``test`` are files used whole for their split; what is left of
    ``fractions`` then divides ``data``. InputError: an unknown name, both a name and files, or neither. DataError: see
    :func:`load_examples`, and one prompt or id in two splits.
    """
    if spec is not None:
        if data or validation or test:
            raise InputError(f"a built-in task ({shorten(spec)}) and data files were both given; give one of them")
        return _built_in(spec)
    if data is None:
        raise InputError(
            f"no task: name a built-in one ({', '.join(BUILT_IN)}) or give a data file of prompts to learn from"
        )
    columns = Columns(prompt_column, answer_column, messages_column)
    given: dict[Split, str | Path] = {}
    if validation is not None:
        given["validation"] = validation
    if test is not None:
        given["test"] = test
    whole = {split: _whole(path, split, columns, require_answers) for split, path in given.items()}
    rows = read_rows(data, columns, require_answers=require_answers)
    return Task.from_splits(Path(data).stem, _rest(str(data), rows, seed, fractions, set(given)) | whole)


def _built_in(spec: str) -> Task:
    if spec not in BUILT_IN:
        raise InputError(
            f"unknown task {shorten(spec)}; the built-in tasks are: {', '.join(BUILT_IN)}; or give a data file"
        )
    return BUILT_IN[spec]()


def _whole(path: str | Path, split: Split, columns: Columns, require_answers: bool) -> list[Row]:
    rows = read_rows(path, columns, require_answers=require_answers)
    for row in rows:
        if row.split not in (None, split):
            raise DataError(
                f"{row.source} says split {row.split}, but the file was given as {split} data; remove the column or the row"
            )
    return rows


def _rest(
    name: str, rows: list[Row], seed: int, fractions: Sequence[float], given: set[Split]
) -> dict[Split, list[Row]]:
    """``rows`` divided over the splits that have no file of their own, their shares scaled to sum to 1."""
    for row in rows:
        if row.split in given:
            raise DataError(
                f"{row.source} says split {row.split}, which has a file of its own; remove the row or that file"
            )
    left = [split for split in SPLITS if split not in given]
    if not given or len(fractions) != len(SPLITS):
        return divide(name, rows, seed, fractions)
    shares = [share for split, share in zip(SPLITS, fractions, strict=True) if split in left]
    total = sum(shares)
    return divide(name, rows, seed, [share / total for share in shares] if total > 0 else shares, left)
