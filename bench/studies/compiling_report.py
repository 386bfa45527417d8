"""Tables, goals and the plot of what a limit leaves of a learned bias's gain."""

from __future__ import annotations

import importlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.exact import markdown
from bench.studies.compiled import BASE, COMPILED, FULL, KINDS, NAIVE, REFITTED, Row
from bench.studies.compiling_exact import PROBLEMS, Case
from bench.studies.coupled import Drawn, Kept
from bench.studies.pooling import WILD, Pooled

__all__ = [
    "Measured",
    "Series",
    "draw_panels",
    "exact_series",
    "exact_text",
    "local_series",
    "local_text",
    "save",
    "shares",
]

GOALS = ((30, False, 0.90), (300, False, 0.95), (30, True, 0.80), (300, True, 0.80))
"""Entries, integers, and the share of the full vector's gain that they should keep."""
COLOURS = {COMPILED: "#2171b5", REFITTED: "#238b45", NAIVE: "#d94801"}
Series = dict[tuple[str, bool], list[tuple[int, float, float, float]]]
"""By kind and integers: (entries, share, low, high)."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A row on the real model, its completions, and the share of the gain kept: by them alone (None
    without), and by all.
    """

    row: Row
    drawn: Drawn
    direct: Kept | None
    pooled: Kept


def local_text(found: Sequence[Measured], pool: Pooled, label: str) -> str:
    """Markdown: a row a bias, then what is met."""
    head = [
        "bias",
        "sent",
        "KL kept, expected",
        "completions",
        label,
        "accuracy",
        "tokens",
        "KL (nats)",
        "gain kept",
    ]
    head += [f"{label}, pooled", "gain kept, pooled", "effective completions"]
    lines = [_line(each, pool, index) for index, each in enumerate(found)]
    weights = pool.mean_weight
    said = (
        f"Pool: {pool.completions} completions of {pool.policies} biases that the store holds"
        f" ({pool.left_out} left out: tokens without an id; {pool.wild} biases of more than"
        f" {WILD:g} nats left out); mean weights {weights.min():.2f} to {weights.max():.2f} (1 in"
        " truth)."
    )
    shares = {(each.row.kind, each.row.entries, each.row.integers): each for each in found}
    goals = [
        f"- {_word(kept, least)}: {kind} to {entries} entries{', integers,' if integers else ''}"
        f" keeps {_share(kept)} of the gain, {how}; goal {least:.0%}"
        for entries, integers, least in GOALS
        for kind in (COMPILED, REFITTED)
        for how, kept in _two(shares[kind, entries, integers])
    ]
    return "\n\n".join([markdown(head, lines), said, "\n".join(goals)])


def _two(each: Measured) -> list[tuple[str, Kept]]:
    pairs = (("by its own completions", each.direct), ("by all completions", each.pooled))
    return [(how, kept) for how, kept in pairs if kept is not None]


def _line(each: Measured, pool: Pooled, index: int) -> list[str]:
    row, drawn = each.row, each.drawn
    alone = row.kind in (BASE, FULL)
    return [
        row.name,
        str(len(row.bias)),
        f"{row.kept:.1%}",
        str(drawn.reward.size),
        *_means(drawn),
        "" if alone or each.direct is None else _share(each.direct),
        f"{pool.reward[index].mean():.2f}",
        "" if alone else _share(each.pooled),
        f"{pool.effective_sample_size[index]:.0f}",
    ]


def _means(drawn: Drawn) -> list[str]:
    """Reward, accuracy, tokens and KL; nothing where nothing was drawn."""
    if not drawn.reward.size:
        return [""] * 4
    parts = ((drawn.reward, 2), (drawn.correct, 3), (drawn.tokens, 1))
    return [*(f"{np.nanmean(values):.{digits}f}" for values, digits in parts), f"{drawn.kl:.2f}"]


def _share(kept: Kept) -> str:
    return f"{kept.share:.0%} [{kept.low:.0%}, {kept.high:.0%}]"


def _word(kept: Kept, least: float) -> str:
    """MET and NOT MET where the interval lies on one side of the goal."""
    if kept.low >= least:
        return "MET"
    if kept.high < least:
        return "NOT MET"
    return "WITHIN NOISE, above" if kept.share >= least else "WITHIN NOISE, below"


def local_series(found: Sequence[Measured]) -> Series:
    """Shares by all completions, with their intervals."""
    return {
        (kind, integers): [
            (each.row.entries, each.pooled.share, each.pooled.low, each.pooled.high)
            for each in found
            if (each.row.kind, each.row.integers) == (kind, integers)
            and each.row.entries is not None
        ]
        for kind in KINDS
        for integers in (False, True)
    }


def exact_series(cases: Sequence[Case]) -> Series:
    """Mean, smallest and largest share over all cases."""
    series: Series = {}
    for kind in KINDS:
        for integers in (False, True):
            points = []
            for entries in sorted(
                {row.entries for case in cases for row in case.rows if row.entries is not None}
            ):
                some = shares(cases, kind, entries, integers)
                points.append((entries, float(np.mean(some)), min(some), max(some)))
            series[kind, integers] = points
    return series


def shares(cases: Sequence[Case], kind: str, entries: int, integers: bool) -> list[float]:
    """The share of the gain in each case that has such a row."""
    return [
        case.kept(index)
        for case in cases
        for index, row in enumerate(case.rows)
        if (row.kind, row.entries, row.integers) == (kind, entries, integers)
    ]


def exact_text(cases: Sequence[Case]) -> str:
    """Markdown: a table a problem and one of all, then what is met."""
    names = list(dict.fromkeys(case.problem for case in cases))
    parts = []
    for name in names:
        some = [case for case in cases if case.problem == name]
        gains = ", ".join(
            f"{case.rewards[0]:.3f} to {case.rewards[1]:.3f} (V = {case.vocabulary}, seed"
            f" {case.seed})"
            for case in some
        )
        parts.append(
            f"### {name}: {PROBLEMS[name].title}\n\nFull vector: {gains}.\n\n{_exact_table(some)}"
        )
    there = {row.entries for case in cases for row in case.rows}
    goals = "\n".join(_goal(cases, *goal) for goal in GOALS if goal[0] in there)
    return "\n\n".join([*parts, f"### all {len(cases)}\n\n{_exact_table(cases)}", goals])


def _exact_table(cases: Sequence[Case]) -> str:
    kinds = [(kind, integers) for integers in (False, True) for kind in KINDS]
    head = ["entries", *(f"{kind}{', integers' if integers else ''}" for kind, integers in kinds)]
    found = exact_series(cases)
    lines = [
        [str(found[kinds[0]][place][0]), *(_range(found[each][place]) for each in kinds)]
        for place in range(len(found[kinds[0]]))
    ]
    return markdown(head, lines)


def _range(point: tuple[int, float, float, float]) -> str:
    return f"{point[1]:.0%} ({point[2]:.0%} to {point[3]:.0%})"


def _goal(cases: Sequence[Case], entries: int, integers: bool, least: float) -> str:
    parts = []
    for kind in KINDS:
        some = shares(cases, kind, entries, integers)
        word = "MET" if np.mean(some) >= least else "NOT MET"
        parts.append(
            f"{kind} {np.mean(some):.1%} {word}, in {sum(s >= least for s in some)} of {len(some)}"
            " cases"
        )
    return (
        f"- {entries} entries{', integers' if integers else ''}, goal {least:.0%}:"
        f" {'; '.join(parts)}"
    )


def draw_panels(documents: Sequence[Path], path: Path) -> None:
    """Share of the gain against entries, a panel for each of the series that ``save`` wrote.

    RuntimeError where matplotlib is missing.
    """
    try:
        importlib.import_module("matplotlib").use("Agg")
        pyplot = importlib.import_module("matplotlib.pyplot")
    except ModuleNotFoundError as error:
        raise RuntimeError(
            "the plot needs matplotlib: run with uv run --group bench, or give --no-plot"
        ) from error
    figure, axes = pyplot.subplots(
        1, len(documents), figsize=(5.4 * len(documents), 4.4), squeeze=False
    )
    for axis, document in zip(axes.flat, documents, strict=True):
        read = json.loads(document.read_text(encoding="utf-8"))
        for number, (kind, integers, points) in enumerate(read["series"]):
            entries, share, low, high = (
                np.array(column, dtype=float) for column in zip(*points, strict=True)
            )
            at = entries * 1.05 ** (
                number - (len(read["series"]) - 1) / 2
            )  # side by side, for the intervals to be told apart
            style = {"color": COLOURS[kind], "linewidth": 1.4, "capsize": 2, "elinewidth": 0.8}
            label = f"{kind}{', integers' if integers else ''}"
            spread = [np.maximum(share - low, 0), np.maximum(high - share, 0)]
            axis.errorbar(
                at,
                share,
                spread,
                linestyle="--" if integers else "-",
                marker=".",
                label=label,
                **style,
            )
        axis.axhline(1.0, color="grey", linewidth=0.8)
        axis.set(
            title=read["title"],
            xlabel="entries allowed",
            ylabel="share of the full vector's gain",
            xscale="log",
        )
        axis.set_ylim(-0.25, 1.6)
        axis.set_xticks(entries, [f"{int(each)}" for each in entries])
        axis.minorticks_off()
        axis.grid(alpha=0.3)
    handles, labels = axes.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncol=3, frameon=False, fontsize=9)
    figure.tight_layout(rect=(0, 0.11, 1, 1))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)
    pyplot.close(figure)


def save(title: str, series: Series, path: Path) -> None:
    """What ``draw_panels`` reads."""
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {"title": title, "series": [[*key, points] for key, points in series.items()]}
    path.write_text(json.dumps(document) + "\n", encoding="utf-8")
