"""Rows of data whose prompts are ``question 0``, ``question 1`` and so on."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any


def questions(train: int, validation: int, test: int, **fields: object) -> list[dict[str, Any]]:
    """That many rows a split, numbered on from split to split; all have the same other fields."""
    splits = ["train"] * train + ["validation"] * validation + ["test"] * test
    return [
        {"prompt": f"question {number}", **fields, "split": split}
        for number, split in enumerate(splits)
    ]


def write_questions(path: Path, number: int) -> Path:
    """That many rows with one answer, of no split, in a file, which is returned."""
    return write_rows(path, ({"prompt": f"question {n}", "answer": "a"} for n in range(number)))


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> Path:
    """The rows as JSON Lines in a file, which is returned."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path
