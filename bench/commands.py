"""Commands as tables of settings: TOML files with values, parts of commands, and loops.

In a command ``@name`` stands for the words of a part, ``$name`` for a value, and OUT and DATA for
the folders of a run. An option before a list is repeated for each of its items. A part that is a
table has the words of the current value of a loop, and none for other values.
"""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

__all__ = ["NAME", "Commands", "Place"]

NAME = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
"""A value's name, in braces where letters follow it."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where commands run.

    Attributes:
        model: options of ``blb`` that name the model.
        out: folder of the runs.
        data: folder of the public rows.
        small: fewer samples and prompts.
    """

    model: tuple[str, ...]
    out: Path
    data: Path
    small: bool = False


@dataclass(frozen=True, slots=True)
class Commands:
    """How the commands of a table are spelled out.

    Attributes:
        place: where they run.
        parts: name -> words, or a value of a loop -> words.
        values: name -> value.
        turn: the same of the loops that go on.
    """

    place: Place
    parts: Mapping[str, str | Mapping[str, str]]
    values: Mapping[str, Any]
    turn: Mapping[str, Any] = field(default_factory=dict)

    def loops(self, entry: Mapping[str, Any]) -> Iterator[Commands]:
        """The commands of each turn of an entry's loops: ``for`` has the names, and the values of
        NAME are the list NAMEs.
        """
        names: Sequence[str] = entry.get("for", ())
        for turn in itertools.product(*(self.values[f"{name}s"] for name in names)):
            yield self.having(**dict(zip(names, turn, strict=True)))

    def having(self, **turn: object) -> Commands:
        """The same in a turn of one more loop."""
        return replace(self, turn={**self.turn, **turn})

    def value(self, name: str) -> Any:
        """Of a loop, else a value, else a part. A value that is a table with a place for the
        current value of a loop is what stands there.
        """
        if name in self.turn:
            return self.turn[name]
        if name not in self.values:
            return self._part(name)
        value = self.values[name]
        for current in map(str, self.turn.values()):
            if isinstance(value, Mapping) and current in value:
                return value[current]
        return value

    def text(self, text: str) -> str:
        """``text`` with the values of the names in it."""
        return NAME.sub(lambda match: str(self.value(match[1] or match[2])), text)

    def words(self, command: str) -> tuple[str, ...]:
        """The words of a command."""
        spelled: list[str] = []
        for word in shlex.split(command):
            name = NAME.fullmatch(word)
            value = self.value(name[1] or name[2]) if name else None
            if word == "@model":
                spelled += self.place.model
            elif word.startswith("@"):
                spelled += self.words(self.value(word[1:]))
            elif isinstance(value, list):
                option = spelled.pop()
                for item in value:
                    spelled += [option, str(item)]
            else:
                spelled.append(self.located(self.text(word)))
        return tuple(spelled)

    def located(self, word: str) -> str:
        """``word`` with the folders of the run in place of OUT and DATA."""
        word = re.sub(r"(?<![\w./-])OUT(?=/|$)", lambda _: str(self.place.out), word)
        return re.sub(r"(?<![\w./-])DATA(?=/\S+$)", lambda _: str(self.place.data), word)

    def _part(self, name: str) -> str:
        part = self.parts[name]
        if isinstance(part, str):
            return part
        if "file" in part:
            return part["words"] if Path(self.located(part["file"])).exists() else ""
        current = {str(value) for value in self.turn.values()}
        return next((words for value, words in part.items() if value in current), "")
