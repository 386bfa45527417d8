"""The stored values of a scene, and how they differ from others."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TypeGuard

from tests.goldens.facts import Facts, Value

FOLDER = Path(__file__).parent / "values"
REL = 1e-6
"""Relative change of a number up to which it is the same."""
ABS = 1e-9
"""Absolute change of a number up to which it is the same."""
ABSENT = "absent"


@dataclass(frozen=True)
class Change:
    """A fact that is not as it was; ``ABSENT`` stands for a fact that there is not."""

    record: str
    field: str
    old: Value
    new: Value

    def __str__(self) -> str:
        return f"{self.record}: {self.field}: {self.old!r} -> {self.new!r}"


def stored(name: str) -> Facts:
    """The stored facts of a scene, none where there is no file."""
    path = FOLDER / f"{name}.json"
    if not path.is_file():
        return {}
    facts: Facts = json.loads(path.read_text(encoding="utf-8"))
    return facts


def stored_names() -> set[str]:
    """The scenes that have stored facts."""
    return {path.stem for path in FOLDER.glob("*.json")}


def store(name: str, facts: Facts) -> None:
    """Write the facts of a scene, a record a line."""
    lines = [
        f"{json.dumps(record)}: {json.dumps(facts[record], sort_keys=True)}"
        for record in sorted(facts)
    ]
    text = "{\n" + ",\n".join(lines) + "\n}\n"
    (FOLDER / f"{name}.json").write_text(text, encoding="utf-8")


def changes(old: Facts, new: Facts) -> list[Change]:
    """Every fact that differs, by record and field."""
    different = []
    for record in sorted(old.keys() | new.keys()):
        before = old.get(record, {})
        after = new.get(record, {})
        for field in sorted(before.keys() | after.keys()):
            change = Change(record, field, before.get(field, ABSENT), after.get(field, ABSENT))
            if not is_same(change.old, change.new):
                different.append(change)
    return different


def is_same(old: Value, new: Value) -> bool:
    """Numbers are the same up to ``REL`` and ``ABS`` where one of them is a fraction; counts and
    words are the same or not.
    """
    if is_number(old) and is_number(new) and float in (type(old), type(new)):
        return math.isclose(old, new, rel_tol=REL, abs_tol=ABS)
    return type(old) is type(new) and old == new


def is_number(value: Value) -> TypeGuard[float | int]:
    """Whether a value is a number; True and False are words."""
    return isinstance(value, float | int) and not isinstance(value, bool)
