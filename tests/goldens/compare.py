"""Stored facts, and what differs from them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path

from tests.goldens.facts import Facts, Value

VALUES = Path(__file__).parent / "values"
RELATIVE = 1e-6
ABSOLUTE = 1e-9


def load(name: str) -> Facts:
    """The stored facts of a scene; none where it has none yet."""
    path = VALUES / f"{name}.json"
    if not path.exists():
        return {}
    facts: Facts = json.loads(path.read_bytes())
    return facts


def store(name: str, facts: Mapping[str, Value]) -> None:
    """Store the facts of a scene, one a line."""
    path = VALUES / f"{name}.json"
    path.write_text(json.dumps(facts, indent=0, sort_keys=True, ensure_ascii=False) + "\n")


def differences(stored: Mapping[str, Value], facts: Mapping[str, Value]) -> list[str]:
    """A line for each fact that is new, missing, or another value; numbers are the same within a
    millionth.
    """
    lines = []
    for name in sorted(stored.keys() | facts.keys()):
        if name not in facts:
            lines.append(f"{name}: missing, was {stored[name]!r}")
        elif name not in stored:
            lines.append(f"{name}: new, {facts[name]!r}")
        elif not _is_same(stored[name], facts[name]):
            lines.append(f"{name}: {stored[name]!r} -> {facts[name]!r}")
    return lines


def _is_same(stored: Value, value: Value) -> bool:
    if isinstance(stored, float) and isinstance(value, int | float):
        return math.isclose(stored, value, rel_tol=RELATIVE, abs_tol=ABSOLUTE)
    return stored == value and type(stored) is type(value)
