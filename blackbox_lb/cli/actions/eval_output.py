"""The printed form of an evaluation and of a decision's operating points: sorted tables, and the
conclusion.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from blackbox_lb.bias.document import Bias
from blackbox_lb.bias.operating import OperatingCurve, OperatingPoint, Promise
from blackbox_lb.bias.records import NOT_THE_TASK, overall
from blackbox_lb.cli.echo import echo
from blackbox_lb.cli.terminal import command_with_same, print_table
from blackbox_lb.jobs.evaluation.compare import figure, verdicts
from blackbox_lb.jobs.evaluation.document import Evaluation, PolicyResult
from blackbox_lb.jobs.evaluation.policies import BASE
from blackbox_lb.jobs.fitting.document import BothDecisions
from blackbox_lb.jobs.runs.answers import BeforeAfter
from blackbox_lb.jobs.runs.conclusion import (
    HELP_PAGE,
    SHARES,
    Conclusion,
    NextStep,
    chosen_rows,
    cut_caveat,
    decision_lines,
    effect_lines,
    headline,
)
from blackbox_lb.records import Decisions, SharesOfGroup
from blackbox_lb.safety.printable import printable, shell_line

LONGEST_NAME = 20
"""Characters of a policy's name in the table; a longer one stands in the legend."""
OPPOSITE = {"HELPS": "worse", "HURTS": "better", "NO EVIDENCE": "level"}
"""Verdict on the reference against a policy -> what the policy is against the reference."""
SAME_SIDE = {"HELPS": "better", "HURTS": "worse", "NO EVIDENCE": "level"}


def print_policies(evaluation: Evaluation) -> None:
    """One table a setting, the policy with the highest reward first, and a legend."""
    names = short_names(evaluation.policies)
    for setting in dict.fromkeys(row.setting for row in evaluation.policies):
        _print_setting(evaluation, setting, names)
    for name, short in names.items():
        if short != printable(name) and " + " not in short:
            echo(f"{short}: {printable(name)}")


def print_shares(evaluation: Evaluation) -> None:
    """One table a setting: the wanted share of each label and that of every policy, of all prompts
    and of each group; nothing where the reward compares with no wanted shares.
    """
    names = short_names(evaluation.policies)
    for setting in dict.fromkeys(row.setting for row in evaluation.policies):
        rows = [row for row in evaluation.policies if row.setting == setting and row.shares]
        if rows:
            shares_table(
                setting,
                rows[0].shares,
                {names[row.name]: row.shares for row in rows},
            )


def shares_table(
    setting: str,
    target: Sequence[SharesOfGroup],
    sampled: Mapping[str, Sequence[SharesOfGroup]],
) -> None:
    """The shares by label, a row for the wanted ones and each policy of ``sampled``, group after
    group; with the total variation, the Jensen-Shannon divergence and what chance alone gives.
    """
    labels = list(target[0].wanted)
    lines = []
    for place, group in enumerate(target):
        name = printable(group.group) or "all"
        shares = [f"{group.wanted[label]:.2f}" for label in labels]
        lines.append([name, "wanted", *shares, "", f"{group.chance_level:.2f}", ""])
        for policy, groups in sampled.items():
            if place >= len(groups):
                continue
            drawn_here = groups[place]
            lines.append(
                [
                    name,
                    policy,
                    *(f"{drawn_here.drawn[label]:.2f}" for label in labels),
                    f"{drawn_here.no_label:.2f}",
                    f"{drawn_here.total_variation:.2f}",
                    f"{drawn_here.jensen_shannon:.3f}",
                ]
            )
    print_table(
        f"{setting.capitalize()}, shares of the labels; TV: total variation, beside the wanted"
        " shares that of as many draws from them; JS: Jensen-Shannon, nats",
        ["group", "policy", *map(printable, labels), "no label", "TV", "JS"],
        lines,
        left_aligned=2,
    )


def short_names(policies: Sequence[PolicyResult]) -> dict[str, str]:
    """Name of a policy -> a name of at most ``LONGEST_NAME`` characters: itself where it is short
    enough, else its kind with a number. A single bias beside an alternative is "bias".
    """
    names: dict[str, str] = {}
    instructions: dict[str, str] = {}
    biases = {row.bias for row in policies if row.bias is not None}
    for row in policies:
        if row.name in names:
            continue
        short = printable(row.name)
        if row.instruction is not None:
            number = len(instructions) + 1
            short = instructions.setdefault(row.instruction, f"prompt {number}")
        if row.bias is not None and row.bias != row.name:
            kind = short.removesuffix(f" and {printable(row.bias)}")
            bias = printable(row.bias)
            if len(f"{kind} + {bias}") > LONGEST_NAME and len(biases) == 1:
                bias = "bias"
            short = f"{kind} + {bias}"
        if len(short) > LONGEST_NAME:
            short = f"policy {len(names) + 1}"
        names[row.name] = short
    return names


def reference_of(evaluation: Evaluation) -> str:
    """The policy that the others are compared with: the first bias alone, else the base."""
    biases = [row.name for row in evaluation.policies if row.bias == row.name]
    if biases:
        return biases[0]
    return BASE


def _print_setting(evaluation: Evaluation, setting: str, names: Mapping[str, str]) -> None:
    label = evaluation.label
    reference = reference_of(evaluation)
    rows = [row for row in evaluation.policies if row.setting == setting]
    rows.sort(key=lambda row: -row.metrics[label].mean)
    priced = any(row.cost is not None for row in rows)
    cells = []
    for row in rows:
        mean = row.metrics[label]
        line = [
            names[row.name],
            with_interval(label, mean.mean, mean.low, mean.high),
            *against(evaluation, row, reference),
            f"{row.prompt_tokens:.0f} + {row.completion_tokens:.1f}",
        ]
        if priced:
            line.append("" if row.cost is None else f"{row.cost:.4f}")
        cells.append(line)
    header = ["policy", printable(label), f"against {names[reference]}", "that is", "tokens"]
    if priced:
        header.append("$ for 1,000")
    print_table(
        f"{setting.capitalize()}, {rows[0].prompts} test prompts, 95 % intervals; tokens: prompt +"
        " completion",
        header,
        cells,
    )


def against(evaluation: Evaluation, policy: PolicyResult, reference: str) -> tuple[str, str]:
    """The policy's reward less that of the reference with its interval, and better, level or
    worse; empty where the two were not compared.
    """
    for row in evaluation.comparisons:
        if row.metric != evaluation.label or row.setting != policy.setting:
            continue
        if (row.against, row.policy) == (reference, policy.name):
            difference = with_interval(row.metric, row.difference, row.low, row.high, sign=True)
            return difference, SAME_SIDE[row.verdict]
        if (row.against, row.policy) == (policy.name, reference):
            difference = with_interval(row.metric, -row.difference, -row.high, -row.low, sign=True)
            return difference, OPPOSITE[row.verdict]
    return "", ""


def with_interval(metric: str, mean: float, low: float, high: float, *, sign: bool = False) -> str:
    """A mean or a difference with its interval, in per cent or points where the metric is a
    share.
    """
    if metric in SHARES:
        form = ".0f"
        unit = " %"
        if sign:
            form = "+.0f"
            unit = ""
        return f"{100 * mean:{form}}{unit} ({100 * low:{form}} to {100 * high:{form}})"
    values = [figure(value, sign=sign) for value in (mean, low, high)]
    return f"{values[0]} ({values[1]} to {values[2]})"


def eval_conclusion(
    evaluation: Evaluation, paths: Mapping[str, Path], saved: Path, spent: str
) -> Conclusion:
    """The conclusion of an evaluation: the first bias against the base and against its rivals.

    paths: name -> file of each bias.
    """
    label = evaluation.label
    subject = reference_of(evaluation)
    if subject == BASE:
        rival_names = [row.name for row in evaluation.policies if row.name != BASE]
        subject = rival_names[0] if rival_names else BASE
    verdict_rows = verdicts(evaluation, subject)
    rows = chosen_rows(verdict_rows, label)
    rewards = [row for row in rows if row.metric == label]
    verdict = overall(rewards)
    decisions = decisions_of(evaluation, subject)
    if decisions:
        rows = [row for row in rows if row.metric != "tokens"]
    statements = [
        *headline(rewards),
        *effect_lines(rows, label),
        *decision_lines(decisions, verdict_rows),
    ]
    names = short_names(evaluation.policies)
    prompts = evaluation.policies[0].prompts
    settings = ", ".join(dict.fromkeys(row.setting for row in evaluation.policies))
    statements.append(f"{names[subject]} against the base: {prompts:,} test prompts, {settings}")
    statements += rival_lines(evaluation, names)
    why = ""
    helps = verdict in ("HELPS", NOT_THE_TASK)
    if not helps:
        why = next(iter(evaluation.summary), "")
    return Conclusion(
        verdict,
        tuple(statements),
        why=why,
        caveat=cut_caveat(rows, label),
        examples=_examples(evaluation, subject),
        spent=spent,
        saved=str(saved),
        steps=_steps(helps, paths, saved.parent),
    )


def decisions_of(evaluation: Evaluation, subject: str) -> dict[str, BothDecisions]:
    """Setting -> the decisions of the base and of ``subject``, where the task has labels."""
    scores: dict[tuple[str, str], Decisions] = {}
    for row in evaluation.policies:
        if row.decisions is not None:
            scores[row.setting, row.name] = row.decisions
    settings = dict.fromkeys(row.setting for row in evaluation.policies)
    return {
        setting: BothDecisions(base=scores[setting, BASE], biased=scores[setting, subject])
        for setting in settings
        if (setting, BASE) in scores and (setting, subject) in scores
    }


def rival_lines(evaluation: Evaluation, names: Mapping[str, str]) -> list[str]:
    """Whom the first bias wins over, is level with and loses to, at the last setting."""
    reference = reference_of(evaluation)
    last = evaluation.policies[-1].setting
    groups: dict[str, list[str]] = {"loses to": [], "level with": [], "wins over": []}
    words = {"better": "loses to", "level": "level with", "worse": "wins over"}
    for row in evaluation.policies:
        if row.setting != last or row.bias is not None or row.name == BASE:
            continue
        _, word = against(evaluation, row, reference)
        if word and reference != BASE:
            groups[words[word]].append(names[row.name])
    parts = [f"{verb} {', '.join(members)}" for verb, members in groups.items() if members]
    if parts:
        return ["; ".join(parts)]
    return []


def _examples(evaluation: Evaluation, subject: str) -> tuple[BeforeAfter, ...]:
    """Two prompts with the base's answer and the subject's, different ones first."""
    examples = []
    for answered in evaluation.examples:
        texts = {completion.policy: completion.text for completion in answered.completions}
        if BASE in texts and subject in texts:
            examples.append(BeforeAfter(answered.prompt, texts[BASE], texts[subject]))
    examples.sort(key=lambda example: example.before == example.after)
    return tuple(examples[:2])


def _steps(helps: bool, paths: Mapping[str, Path], folder: Path) -> tuple[NextStep, ...]:
    report = NextStep(shell_line("blb", "report", folder), "look at every answer")
    if not paths:
        return report, NextStep(command_with_same(["blb", "fit"]), "learn a bias")
    if helps:
        path = next(iter(paths.values()))
        return report, NextStep(shell_line("blb", "export", path, "--format", "openai"), "use it")
    return report, NextStep(HELP_PAGE, "what helps, by kind of task")


MOST_ROWS = 15
"""Points of a curve that are printed; the JSON and the bias file hold all of them."""


def at_point(bias: Bias, at: str | None) -> Bias:
    """``bias`` at the point that --at names, as it is without one."""
    if at is None:
        return bias
    return bias.at_promise(Promise.parse(at))


def print_curve(curve: OperatingCurve) -> None:
    """Print the curve: precision, recall and rate with their 95 % intervals, the chosen point
    marked.
    """
    points = shown_points(curve)
    print_table(
        f"Operating points for {printable(curve.positive)}, on"
        f" {curve.validation.prompts} validation prompts"
        f" ({curve.validation.positives} have it); AUC {curve.auc:.2f}"
        f" ({curve.auc_low:.2f} to {curve.auc_high:.2f})",
        ("shift (nats)", "precision", "recall", "rate", ""),
        (_row(curve, point) for point in points),
    )


def shown_points(curve: OperatingCurve, most: int = MOST_ROWS) -> list[OperatingPoint]:
    """At most ``most`` points of different decisions, evenly spread, and the chosen one."""
    distinct: list[OperatingPoint] = []
    for point in curve.points:
        if not distinct or point.validation != distinct[-1].validation:
            distinct.append(point)
    step = max((len(distinct) - 1) / max(most - 1, 1), 1.0)
    places = {round(number * step) for number in range(most)}
    points = [point for place, point in enumerate(distinct) if place in places]
    if curve.chosen not in points:
        points.append(curve.chosen)
    return sorted(points, key=lambda point: point.shift)


def _row(curve: OperatingCurve, point: OperatingPoint) -> tuple[Any, ...]:
    shares = (share.text for share in curve.measured(point))
    mark = ""
    if point.shift == curve.shift:
        mark = "chosen"
    return (f"{point.shift:+.2f}", *shares, mark)
