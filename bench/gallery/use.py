"""A page of the gallery as a table of settings (``pages/NAME.toml``), and its commands at a place.

The tables: ``title`` and ``intro``; ``files`` that the folder of tasks must hold; ``second_model``,
where the page is made for Qwen2.5-Coder-0.5B; ``values``, with ``full`` and ``small`` for the two
sizes; ``parts`` of commands; ``rows`` for the data that are made (``bench.gallery.rows``); and
``steps``, the commands in their order; ``tables`` of others' numbers, which stand below. ``like``
names a page whose tables are taken where this one has none; ``apart`` keeps a page from ``--all``.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.commands import Commands, Place, data_file
from bench.gallery.rows import made

__all__ = ["COMPLETIONS", "USES", "Step", "Use"]

COMPLETIONS = "completions"
PAGES = Path(__file__).with_name("pages")
NAMES = (
    *("decisions", "labels", "records", "news", "openers", "script", "shorter", "school", "slop"),
    *("tools", "margins", "limits", "paper_accuracy", "paper_compression"),
)


@dataclass(frozen=True, slots=True)
class Step:
    """A command of ``blb``, or of another program.

    Attributes:
        name: of its result.
        words: of the command.
        title: of an evaluation, under which the page shows it.
        program: a module of ``bench.gallery`` that is run instead of ``blb``.
        labels: labelled examples that the policies of an evaluation had; evaluations of one title
            that have them make a curve.
        learned_from: bias of an evaluation -> number of examples that it was learned from; they are
            a curve beside the evaluation of the same title.
        examples: what ``learned_from`` counts: completions, labels or prompts.
        repeats: the command is like an earlier one, and a page does not show it.
    """

    name: str
    words: tuple[str, ...]
    title: str = ""
    program: str = ""
    labels: int | None = None
    learned_from: Mapping[str, int] = field(default_factory=dict)
    examples: str = COMPLETIONS
    repeats: bool = False


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
        return self._commands(Place((), Path())).text(self.table["intro"]).strip()

    @property
    def files(self) -> tuple[str, ...]:
        """What the folder of tasks must hold."""
        return tuple(self.table.get("files", ()))

    @property
    def second_model(self) -> bool:
        """Whether the page is made for Qwen2.5-Coder-0.5B."""
        return bool(self.table.get("second_model"))

    def lacks(self, place: Place) -> tuple[str, ...]:
        """The files that the folder of tasks does not hold."""
        return tuple(name for name in self.files if data_file(place, name) is None)

    def steps(self, place: Place) -> list[Step]:
        """Write the page's own data, and return its commands."""
        commands = self._commands(place)
        for entry in self.table.get("rows", ()):
            for turn in commands.loops(entry):
                made(turn, entry)
        return [
            step
            for group in self.table["steps"]
            for turn in commands.loops(group)
            for entry in group.get("steps", [group])
            for step in _steps(turn, entry)
        ]

    def _commands(self, place: Place) -> Commands:
        size = "small" if place.small else "full"
        values = {**self.table.get("values", {}), **self.table.get(size, {})}
        values["model_file"] = "".join(place.model[-1:])
        return Commands(place, self.table.get("parts", {}), values)


def _steps(commands: Commands, entry: Mapping[str, Any]) -> Iterator[Step]:
    """The step of an entry, or those of a curve; none where it is for the other size, for other
    values of the loops, or lacks its file.
    """
    is_other_size = entry.get("size") == ("full" if commands.place.small else "small")
    is_other_turn = any(
        commands.value(name) not in kept for name, kept in entry.get("where", {}).items()
    )
    file = entry.get("file", "")
    lacks_file = file and data_file(commands.place, commands.text(file)) is None
    if is_other_size or is_other_turn or lacks_file:
        return
    if "curve" in entry:
        yield from _curve(commands, entry)
        return
    shown = entry.get("shown", True)
    if isinstance(shown, Mapping):
        shown = all(commands.value(name) == value for name, value in shown.items())
    yield Step(
        commands.text(entry["name"]),
        commands.words(entry["run"]),
        commands.text(entry.get("title", "")),
        entry.get("program", ""),
        commands.value("number") if entry.get("labelled") else None,
        repeats=not shown,
    )


def _curve(commands: Commands, entry: Mapping[str, Any]) -> Iterator[Step]:
    """The curve by examples: a fit (``run``) of fewer of them for each pair of ``curve`` but the
    last, which is what ``bias`` of the evaluation ``title`` learned from, and one evaluation
    (``judged``) of these fits.

    A pair is ``$first`` and ``$second``: prompts and completions of each, or training and
    validation rows.
    """
    examples = entry["examples"]
    pairs = entry["curve"]
    if isinstance(pairs, str):
        pairs = commands.value(pairs)
    learned_from = {}
    for first, second in pairs:
        number = first * second if examples == COMPLETIONS else first + second
        learned_from[f"of {number}"] = number
    *fewer, whole = learned_from
    biases = []
    for name, (first, second) in zip(fewer, pairs, strict=False):
        number = learned_from[name]
        run = f"{entry['run']} --out OUT/few-{number}"
        yield Step(
            f"few-{number}",
            commands.having(first=first, second=second).words(run),
            repeats=examples != COMPLETIONS or name != fewer[0],
        )
        biases.append(f"'{name}=OUT/few-{number}/bias.json'")
    learned_from[entry["bias"]] = learned_from.pop(whole)
    judged = commands.words(f"eval {' '.join(biases)} {entry['judged']} --out OUT/few-eval")
    yield Step(
        "few-eval",
        judged,
        commands.text(entry["title"]),
        learned_from=learned_from,
        examples=examples,
        repeats=True,
    )


def _table(name: str) -> dict[str, Any]:
    table = tomllib.loads((PAGES / f"{name}.toml").read_text(encoding="utf-8"))
    if "like" in table:
        return {**_table(table["like"]), **table}
    return table


USES: Mapping[str, Use] = {name: Use(_table(name)) for name in NAMES}
"""The pages by name; all settings are fixed in their tables before any run."""
