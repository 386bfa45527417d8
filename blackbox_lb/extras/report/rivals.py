"""The picture of what one could do instead: every policy with its interval, the best above."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

from blackbox_lb.extras.report.drawing import COLOURS, SIZE, TEXT, Plot, empty_figure, name_axes
from blackbox_lb.extras.report.page_text import drawn
from blackbox_lb.extras.report.tables import policies_table
from blackbox_lb.extras.report.verdict_text import amount, axis_of
from blackbox_lb.jobs.evaluation.conclusion import against, reference_of
from blackbox_lb.jobs.evaluation.document import Evaluation, PolicyResult
from blackbox_lb.jobs.evaluation.policies import BASE

LINE = 26
"""Characters of a policy's name in one line."""


def rivals_plot(evaluation: Evaluation) -> Plot | None:
    """The reward of every policy; None where one policy alone has it."""
    metric = evaluation.label
    policies = [policy for policy in evaluation.policies if metric in policy.metrics]
    if len(policies) < 2:
        return None
    is_higher_better = all(
        row.better == "higher" for row in evaluation.comparisons if row.metric == metric
    )
    policies.sort(key=lambda policy: policy.metrics[metric].mean, reverse=is_higher_better)
    names = [_name(evaluation, policy) for policy in policies]
    reference = reference_of(evaluation)
    outcomes = [
        "" if reference == BASE else against(evaluation, policy, reference)[1]
        for policy in policies
    ]
    sentences = [
        f"{name} {amount(metric, policy.metrics[metric].mean)}"
        f" ({amount(metric, policy.metrics[metric].low)} to"
        f" {amount(metric, policy.metrics[metric].high)}){outcome and ', ' + outcome}"
        for name, policy, outcome in zip(names, policies, outcomes, strict=True)
    ]
    labels = [
        f"{name} · {outcome}" if outcome else name
        for name, outcome in zip(names, outcomes, strict=True)
    ]
    note = "Means on the same prompts with 95 % intervals, the best above."
    if any(outcomes):
        note += " Behind a name: what the comparison with the bias shows, prompt by prompt."
    return Plot(
        "rivals",
        f"{metric[:1].upper()}{metric[1:]} of every way to answer",
        note,
        f"{metric} with 95 % intervals: {'; '.join(sentences)}.",
        policies_table(evaluation),
        _picture(metric, policies, labels),
    )


def _name(evaluation: Evaluation, policy: PolicyResult) -> str:
    """The policy's name, with its setting where there are several."""
    if len({judged.setting for judged in evaluation.policies}) == 1:
        return policy.name
    return f"{policy.name}, {policy.setting}"


def _picture(metric: str, policies: Sequence[PolicyResult], labels: Sequence[str]) -> Any:
    """The figure."""
    figure = empty_figure()
    lines = [textwrap.fill(drawn(label), LINE) for label in labels]
    height = sum(0.16 + 0.2 * (1 + line.count("\n")) for line in lines)
    figure.set_size_inches(SIZE[0], 0.8 + height)
    axis = figure.subplots()
    scale, axis_name = axis_of(metric)
    for place, policy in enumerate(policies):
        mean = policy.metrics[metric]
        colour = COLOURS["second"]
        if policy.bias is not None:
            colour = COLOURS["first"]
        elif policy.name == "base":
            colour = COLOURS["base"]
        axis.plot(
            [scale * mean.low, scale * mean.high],
            [place, place],
            color=colour,
            linewidth=3,
            solid_capstyle="round",
        )
        axis.plot([scale * mean.mean], [place], "o", color=colour, markersize=7)
    axis.set_yticks(range(len(lines)), lines)
    axis.set_ylim(len(lines) - 0.5, -0.5)
    axis.tick_params(colors=COLOURS["ink"], labelsize=TEXT, length=0)
    axis.grid(axis="x", color=COLOURS["grid"], linewidth=0.8)
    axis.set_axisbelow(True)
    axis.set_facecolor("none")
    for spine in axis.spines.values():
        spine.set_visible(False)
    name_axes(axis, axis_name, "")
    return figure
