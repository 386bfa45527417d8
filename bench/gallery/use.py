"""A page of the gallery as a table of settings (``pages/NAME.toml``), and its commands at a place.

The tables: ``title`` and ``intro``; ``files`` that the folder of tasks must hold; ``second_model``,
where the page is made for Qwen2.5-Coder-0.5B; ``values``, with ``full`` and ``small`` for the two
sizes; ``parts`` of commands; ``rows`` for the data that are made (``bench.gallery.rows``); and
``steps``, the commands in their order (``bench.steps``); ``tables`` of others' numbers, which stand
below. ``like`` names a page whose tables are taken where this one has none; ``apart`` keeps a page
from ``--all``.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.commands import Place
from bench.gallery.rows import made
from bench.steps import Step, commands_of, steps_of

__all__ = ["USES", "Use"]

PAGES = Path(__file__).with_name("pages")
FIRST = (
    *("decisions", "labels", "endpoints", "records", "news", "openers", "script", "shorter"),
    *("school", "slop", "phrases", "tools", "margins", "limits"),
)
"""The order of the pages; those that are not named follow."""


@dataclass(frozen=True, slots=True)
class Use:
    """A page of the gallery. table: its settings."""

    table: Mapping[str, Any]

    @property
    def title(self) -> str:
        """Of the page."""
        return str(self.table["title"])

    @property
    def intro(self) -> str:
        """At most five sentences: data, reward, rivals, settings."""
        nowhere = Place((), Path(), Path())
        return commands_of(self.table, nowhere).text(self.table["intro"]).strip()

    @property
    def second_model(self) -> bool:
        """Whether the page is made for Qwen2.5-Coder-0.5B."""
        return bool(self.table.get("second_model"))

    def lacks(self, place: Place) -> tuple[str, ...]:
        """The files that the folder of tasks does not hold."""
        files = self.table.get("files", ())
        return tuple(name for name in files if not (place.data / name).exists())

    def steps(self, place: Place) -> list[Step]:
        """Write the page's own data, and return its commands."""
        commands = commands_of(self.table, place, model_file="".join(place.model[-1:]))
        for entry in self.table.get("rows", ()):
            for turn in commands.loops(entry):
                made(turn, entry)
        return list(steps_of(commands, self.table["steps"]))


def _table(name: str) -> dict[str, Any]:
    table = tomllib.loads((PAGES / f"{name}.toml").read_text(encoding="utf-8"))
    if "like" in table:
        return {**_table(table["like"]), **table}
    return table


NAMES = dict.fromkeys([*FIRST, *sorted(path.stem for path in PAGES.glob("*.toml"))])
USES: Mapping[str, Use] = {name: Use(_table(name)) for name in NAMES}
"""The pages by name; all settings are fixed in their tables before any run."""
