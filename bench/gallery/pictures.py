"""The picture of a page: every policy with its interval, and curves by the number of examples."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.gallery.results import Evaluation, PageResults, Policy, cut_name, rival_name

__all__ = ["Curve", "curves", "draw", "label_of"]

COLOURS = {"base": "#252525", "bias": "#2171b5", "rival and bias": "#2171b5", "rival": "#969696"}
WIDTH, PANEL_HEIGHT, LINE_HEIGHT = 9.0, 3.2, 0.24
LONGEST = 30
"""Characters of an instruction in a picture."""


@dataclass(frozen=True, slots=True)
class Curve:
    """Rewards by the number of examples.

    unit: labels, completions or prompts.
    lines: name of a policy -> number of examples -> the policy. One that is the same for every
        number has a single point, and is a line across.
    """

    title: str
    setting: str
    reward: str
    unit: str
    lines: Mapping[str, Mapping[int, Policy]]

    @property
    def numbers(self) -> list[int]:
        """All numbers of examples."""
        return sorted({number for points in self.lines.values() for number in points if number})


def label_of(name: str) -> str:
    """A policy's name in a picture, whose font has Latin letters alone."""
    return re.sub(r' ".*[^\x00-\u024f…].*"', "", cut_name(name, LONGEST))


def curves(results: PageResults) -> list[Curve]:
    """The curves of a page, each at the first setting of its evaluation."""
    page_curves: list[Curve] = []
    for title, evaluations in results.labelled.items():
        first = evaluations[0]
        lines: dict[str, dict[int, Policy]] = {}
        for evaluation in evaluations:
            for policy in evaluation.at(first.settings[0], "base", "bias", "rival"):
                number = evaluation.labels or 0
                lines.setdefault(policy.name, {})[number] = policy
        page_curves.append(Curve(title, first.settings[0], first.reward, "labels", _flat(lines)))
    for evaluation in results.evaluations:
        if not evaluation.learned_from:
            continue
        setting = evaluation.settings[0]
        lines = {"learned bias": results.by_examples(evaluation, setting)}
        for judged in results.judged:
            if judged.title == evaluation.title:
                for policy in judged.at(setting, "base", "rival"):
                    lines[policy.name] = {0: policy}
        page_curves.append(
            Curve(evaluation.title, setting, evaluation.reward, evaluation.examples, lines)
        )
    return page_curves


def _flat(lines: Mapping[str, dict[int, Policy]]) -> dict[str, dict[int, Policy]]:
    """The lines, with one point for a policy whose reward is the same for every number."""
    flat = {}
    for name, points in lines.items():
        means = {policy.mean for policy in points.values()}
        if len(points) > 1 and len(means) == 1:
            points = {0: next(iter(points.values()))}
        flat[name] = points
    return flat


def draw(results: PageResults, path: Path) -> str:
    """Write the picture of a page and return its file's name, "" where there is nothing to draw."""
    panels = [
        (evaluation, setting) for evaluation in results.judged for setting in evaluation.settings
    ]
    page_curves = curves(results)
    if not panels and not page_curves:
        return ""
    matplotlib = importlib.import_module("matplotlib")
    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "blackbox-lb"  # the same picture has the same ids
    pyplot = importlib.import_module("matplotlib.pyplot")
    heights = [LINE_HEIGHT * (len(_scored(*panel)) + 2.5) for panel in panels]
    curve_rows = -(-len(page_curves) // 2)
    parts = []
    if panels:
        parts.append(sum(heights))
    if page_curves:
        parts.append(PANEL_HEIGHT * curve_rows + 0.6)
    figure = pyplot.figure(figsize=(WIDTH, sum(parts)), layout="constrained")
    subfigures = iter(figure.subfigures(len(parts), 1, height_ratios=parts, squeeze=False).flat)
    if panels:
        axes = next(subfigures).subplots(len(panels), 1, height_ratios=heights, squeeze=False)
        for axis, panel in zip(axes.flat, panels, strict=True):
            _draw_intervals(axis, *panel)
    if page_curves:
        _draw_curves(next(subfigures), curve_rows, page_curves)
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
    return path.name


def _scored(evaluation: Evaluation, setting: str) -> list[Policy]:
    return [policy for policy in evaluation.at(setting) if policy.mean is not None]


def _draw_intervals(axis: Any, evaluation: Evaluation, setting: str) -> None:
    """A point with its interval for each policy, the highest reward on top."""
    policies = sorted(_scored(evaluation, setting), key=lambda policy: policy.mean or 0.0)
    for line, policy in enumerate(policies):
        colour = COLOURS[policy.kind]
        axis.plot([policy.low, policy.high], [line, line], color=colour, linewidth=1.5)
        axis.plot([policy.mean], [line], "o", color=colour, markersize=5)
    names = [label_of(policy.name) for policy in policies]
    axis.set_yticks(range(len(policies)), names, fontsize=8)
    axis.set_title(f"{evaluation.title}, {setting}", fontsize=9, loc="left")
    axis.set_xlabel(evaluation.reward, fontsize=8)
    axis.tick_params(axis="x", labelsize=8)
    axis.grid(axis="x", linewidth=0.3)


def _draw_curves(figure: Any, rows: int, page_curves: Sequence[Curve]) -> None:
    """A panel for each curve; a policy that is the same for every number is a dashed line."""
    axes = figure.subplots(rows, min(len(page_curves), 2), squeeze=False).flat
    handles: dict[str, Any] = {}
    colours: dict[str, str] = {}
    for curve in page_curves:
        axis = next(axes)
        numbers = curve.numbers
        for place, (name, points) in enumerate(curve.lines.items()):
            kind = rival_name(name)
            default = f"C{len(colours)}"
            if kind == "base":
                default = COLOURS["base"]
            colour = colours.setdefault(kind, default)
            if 0 in points:
                style = {"color": colour, "linewidth": 1, "linestyle": "--"}
                handles[kind] = axis.axhline(points[0].mean, **style)
                continue
            shift = 1.035 ** (place - len(curve.lines) / 2)
            for number, policy in _located(points):
                position = [number * shift, number * shift]
                axis.plot(position, [policy.low, policy.high], color=colour, linewidth=0.7)
            moved = [number * shift for number, _ in _located(points)]
            means = [policy.mean for _, policy in _located(points)]
            style = {"color": colour, "linewidth": 2 if _is_bias(points) else 1}
            handles[kind] = axis.plot(moved, means, "o-", markersize=3.5, **style)[0]
        axis.set_xscale("log")
        axis.set_xticks(numbers, [str(number) for number in numbers], fontsize=8)
        axis.minorticks_off()
        axis.set_title(f"{curve.title}, {curve.setting}", fontsize=9, loc="left")
        axis.set_xlabel(curve.unit, fontsize=8)
        axis.set_ylabel(curve.reward, fontsize=8)
        axis.tick_params(axis="y", labelsize=8)
        axis.grid(axis="y", linewidth=0.3)
    for axis in axes:
        axis.set_axis_off()
    figure.legend(
        handles.values(), handles, loc="outside lower center", ncols=4, fontsize=8, frameon=False
    )


def _located(points: Mapping[int, Policy]) -> Iterator[tuple[int, Policy]]:
    return ((number, policy) for number, policy in points.items() if policy.mean is not None)


def _is_bias(points: Mapping[int, Policy]) -> bool:
    return next(iter(points.values())).kind == "bias"
