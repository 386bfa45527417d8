"""The steps of a table of settings: commands of ``blb``, or of other programs, in their order.

A group of ``steps`` may have loops (``for``) and steps of its own; without these it is a step
itself. A step has a ``name`` and what it runs (``run``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.commands import Commands, Place

__all__ = ["COMPLETIONS", "Step", "commands_of", "steps_of"]

COMPLETIONS = "completions"


@dataclass(frozen=True, slots=True)
class Step:
    """A command of ``blb``, or of another program.

    Attributes:
        name: of its result.
        words: of the command.
        module: what Python runs instead of ``blb``.
        title: of an evaluation, under which a page shows it.
        learned_from: bias of an evaluation -> number of examples that it was learned from; they are
            a curve beside the evaluation of the same title.
        examples: what ``learned_from`` counts: completions, labels or prompts.
        repeats: the command is like an earlier one, and a page does not show it.
        variables: of its environment.
    """

    name: str
    words: tuple[str, ...]
    module: str = ""
    title: str = ""
    learned_from: Mapping[str, int] = field(default_factory=dict)
    examples: str = COMPLETIONS
    repeats: bool = False
    variables: Mapping[str, str] = field(default_factory=dict)


def commands_of(table: Mapping[str, Any], place: Place, **values: str) -> Commands:
    """The parts and values of a table at a place; ``values``: more of them."""
    sized = table.get("small" if place.small else "full", {})
    known = {**table.get("values", {}), **sized, **values}
    return Commands(place, table.get("parts", {}), known)


def steps_of(commands: Commands, groups: Sequence[Mapping[str, Any]]) -> Iterator[Step]:
    """The steps of groups of steps."""
    for group in groups:
        for turn in commands.loops(group):
            if "steps" not in group:
                yield from _steps(turn, group)
            for entry in group.get("steps", ()):
                for inner in turn.loops(entry):
                    yield from _steps(inner, entry)


def _steps(commands: Commands, entry: Mapping[str, Any]) -> Iterator[Step]:
    """The step of an entry, or those of a curve; none where it is for the other size, or for other
    values of the loops.
    """
    is_other_size = entry.get("size") == ("full" if commands.place.small else "small")
    is_other_turn = any(
        commands.value(name) not in kept for name, kept in entry.get("where", {}).items()
    )
    if is_other_size or is_other_turn:
        return
    if "curve" in entry:
        yield from _curve(commands, entry)
        return
    shown = entry.get("shown", True)
    if isinstance(shown, Mapping):
        shown = all(commands.value(name) == value for name, value in shown.items())
    variables = entry.get("variables", {})
    yield Step(
        commands.text(entry["name"]),
        commands.words(entry["run"]),
        entry.get("module", ""),
        commands.text(entry.get("title", "")),
        repeats=not shown,
        variables={key: commands.located(commands.text(value)) for key, value in variables.items()},
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
    learned_from = {}
    for first, second in pairs:
        number = first * second if examples == COMPLETIONS else first + second
        learned_from[f"of {number}"] = number
    *fewer, last = learned_from
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
    learned_from[entry["bias"]] = learned_from.pop(last)
    yield Step(
        "few-eval",
        commands.words(f"eval {' '.join(biases)} {entry['judged']} --out OUT/few-eval"),
        title=commands.text(entry["title"]),
        learned_from=learned_from,
        examples=examples,
        repeats=True,
    )
