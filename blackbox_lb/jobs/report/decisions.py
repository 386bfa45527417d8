"""Decisions between labels in the page: the confusion matrix before and after as a picture, and each label's scores as a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from blackbox_lb.jobs.evaluation.document import Decisions, LabelScores
from blackbox_lb.jobs.report.data import DecisionsPair
from blackbox_lb.jobs.report.tables import Cell, PageTable, count, number, numbers_table, table

NONE = "no label"
FAINTEST, STRONGEST = 0.04, 0.85
"""Opacity of a cell with none, or with all, of its row."""


def confusion(figure: Any, setting: str, pair: DecisionsPair, colours: dict[str, str]) -> tuple[str, PageTable]:
    """Draw both matrices side by side into ``figure``; return a text alternative, and their numbers."""
    names = [row.label for row in pair.base.labels]
    figure.set_size_inches(1.6 + 1.15 * len(names) + 2.2, 1.5 + 0.42 * len(names))
    axes = figure.subplots(1, 2, sharey=True)
    for axis, told, title in zip(axes, (pair.base, pair.biased), ("without the bias", "with the bias"), strict=True):
        _matrix(axis, told.confusion, [*names, NONE], names, colours)
        axis.set_title(f"{title}: {_share(told.accuracy)} right", fontsize=10, color=colours["ink"])
    alternative = (
        f"Confusion matrices at {setting}: {_share(pair.base.accuracy)} right and {_share(pair.base.no_label)} without a label "
        f"before, {_share(pair.biased.accuracy)} and {_share(pair.biased.no_label)} after."
    )
    rows: list[list[str | float]] = [
        [side, name, said, number]
        for side, told in (("without", pair.base), ("with", pair.biased))
        for name, cells in zip(names, told.confusion, strict=True)
        for said, number in zip([*names, NONE], cells, strict=True)
    ]
    columns = ("bias", "right label", "said", "completions")
    return alternative, numbers_table("confusion-numbers", "How often each label was said for each", columns, rows)


def _matrix(axis: Any, cells: Sequence[Sequence[int]], said: Sequence[str], right: Sequence[str], colours: dict[str, str]) -> None:
    for y, row in enumerate(cells):
        whole = sum(row) or 1
        for x, value in enumerate(row):
            colour = colours["second"] if x == len(row) - 1 or x != y else colours["first"]
            shade = FAINTEST + (STRONGEST - FAINTEST) * value / whole
            axis.barh(y, 0.94, left=x - 0.47, height=0.9, color=colour, alpha=shade, linewidth=0)
            axis.text(x, y, f"{value:,}", ha="center", va="center", fontsize=9, color=colours["ink"])
    axis.set_xlim(-0.5, len(said) - 0.5)
    axis.set_ylim(len(right) - 0.5, -0.5)
    axis.set_xticks(range(len(said)), [each.replace("$", r"\$") for each in said], rotation=30, ha="right", fontsize=9)
    axis.set_yticks(range(len(right)), [each.replace("$", r"\$") for each in right], fontsize=9)
    axis.tick_params(colors=colours["muted"], length=0)
    axis.set_facecolor("none")
    for spine in axis.spines.values():
        spine.set_visible(False)


def labels_table(setting: str, pair: DecisionsPair) -> PageTable:
    """Precision, recall and F1 of each label, without and with the bias."""
    columns = (
        "label",
        "completions",
        *(f"{name}, {side}" for name in ("precision", "recall", "F1") for side in ("without", "with")),
    )
    rows = [
        [
            Cell(base.label),
            count(base.count),
            *(_score(each, name) for name in ("precision", "recall", "f1") for each in (base, biased)),
        ]
        for base, biased in zip(pair.base.labels, pair.biased.labels, strict=True)
    ]
    caption = f"Decisions at {setting}: {_summary(pair.base)} without the bias, {_summary(pair.biased)} with it"
    return table(f"labels-{setting.replace(' ', '-')}", caption, columns, rows)


def _score(row: LabelScores, name: str) -> Cell:
    value = getattr(row, name)
    return number(value, None if value is None else f"{value:.2f}")


def _summary(told: Decisions) -> str:
    error = "" if told.calibration_error is None else f", calibration error {told.calibration_error:.2f}"
    return f"macro-F1 {'unknown' if told.macro_f1 is None else f'{told.macro_f1:.2f}'}{error}"


def _share(value: float | None) -> str:
    return "unknown" if value is None else f"{100 * value:.1f} %"
