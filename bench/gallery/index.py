"""The gallery's first page: who is ahead by class of rival, and each use in a row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import click
from pydantic import ValidationError

from bench.gallery.results import PageResults, Policy, rival_name

__all__ = ["COLUMNS", "by_examples", "index", "number", "rows"]

HEAD = Path(__file__).with_name("pages") / "index.md"
EXAMPLES = """
## How many examples?

The reward of a bias that was learned from so many examples; labels: of the best one.

| use | setting | examples | base | reward |
|---|---|---|---|---|
"""
COLUMNS = ("use", "setting", "base", "bias", "best rival", "bias against it", "minutes")


def number(value: float | None) -> str:
    """A mean for a table."""
    return "" if value is None else f"{value:.2f}"


def rows(results: PageResults) -> list[tuple[str, ...]]:
    """The rows of a use: ``COLUMNS`` for each title at its first setting."""
    lines: list[tuple[str, ...]] = []
    for evaluation in results.last:
        setting = evaluation.settings[0]
        bias, rival, verdict = evaluation.ahead(setting)
        cells = [evaluation.title, setting, number(evaluation.base(setting).mean)]
        cells.append(number(bias.mean) if bias.name == "bias" else _named(bias))
        cells.append("" if rival is None else _named(rival))
        lines.append((*cells, verdict, f"{results.run.minutes:.0f}"))
    return lines


def _named(policy: Policy) -> str:
    """A policy's name in short and its mean."""
    return f"{rival_name(policy.name)} {number(policy.mean)}"


def counts(results: PageResults, *, hand_made: bool) -> Counter[str]:
    """How often biases win over the rivals of a class, are level with them, and lose to them."""
    return Counter(
        verdict
        for evaluation in results.evaluations
        for policy in evaluation.policies
        if policy.kind == "rival" and policy.hand_made == hand_made
        for verdict in policy.verdicts.values()
    )


def index(pages: Path) -> str:
    """The first page, from the results of all pages in the folder."""
    uses = _load(pages)
    text = HEAD.read_text(encoding="utf-8")
    total = [Counter[str](), Counter[str]()]
    for results in uses:
        by_class = [counts(results, hand_made=True), counts(results, hand_made=False)]
        if not any(by_class):
            continue
        text += _counted(f"[{results.title}]({results.use}.md)", by_class)
        total = [total[0] + by_class[0], total[1] + by_class[1]]
    text += _counted("**all**", total)
    text += (
        "\n## Each use\n\nThe best bias and the best rival by reward; labels: with most of them.\n"
    )
    text += f"\n| {' | '.join(('model', *COLUMNS))} |\n|{'---|' * (len(COLUMNS) + 1)}\n"
    for results in uses:
        for title, *cells in rows(results):
            linked = (f"[{title}]({results.use}.md)", *cells)
            text += f"| {' | '.join((', '.join(results.models), *linked))} |\n"
    text += EXAMPLES
    for results in uses:
        for title, *cells in by_examples(results):
            text += f"| {' | '.join((f'[{title}]({results.use}.md)', *cells))} |\n"
    older = sorted({path.stem for path in pages.glob("*.json")} - {use.use for use in uses})
    if older:
        links = ", ".join(f"[{name}]({name}.md)" for name in older)
        text += (
            "\nPages that were made before fits searched as they do now, and are not counted above:"
            f" {links}.\n"
        )
    return text


def by_examples(results: PageResults) -> list[tuple[str, str, str, str, str]]:
    """A row for each curve of a use: title, setting, what is counted, the model's own reward, and
    the reward by the number.
    """
    lines = []
    for title, evaluations in results.labelled.items():
        setting = evaluations[0].settings[0]
        best = {
            evaluation.labels or 0: evaluation.best(setting, "bias") for evaluation in evaluations
        }
        base = evaluations[0].base(setting).mean
        lines.append((title, setting, "labels", number(base), _points(best)))
    for curve in results.evaluations:
        if curve.learned_from:
            setting = curve.settings[0]
            base = curve.base(setting).mean
            points = _points(results.by_examples(curve, setting))
            lines.append((curve.title, setting, curve.examples, number(base), points))
    return lines


def _points(points: Mapping[int, Policy | None]) -> str:
    """Rewards by the number of examples, in words."""
    return ", ".join(
        f"{count}: {number(policy.mean)}" for count, policy in points.items() if policy is not None
    )


def _counted(name: str, by_class: Sequence[Counter[str]]) -> str:
    cells = [str(count[verdict]) for count in by_class for verdict in ("wins", "level", "loses")]
    return f"| {' | '.join((name, *cells))} |\n"


def _load(pages: Path) -> list[PageResults]:
    """The results of all pages in a folder; those of an older form are named and left out."""
    uses = []
    for path in sorted(pages.glob("*.json")):
        try:
            uses.append(PageResults.model_validate_json(path.read_text(encoding="utf-8")))
        except ValidationError:
            click.echo(f"{path.name} has an older form and is left out of the index", err=True)
    return uses
