"""A verdict in words for newcomers: the change, its certainty, and the conclusion."""

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import TypeAlias

from blackbox_lb.bias import records
from blackbox_lb.bias.records import Verdict
from blackbox_lb.extras.report.data import RunDocuments
from blackbox_lb.jobs.evaluation.compare import verdicts
from blackbox_lb.jobs.evaluation.conclusion import reconciled, reference_of, rival_lines
from blackbox_lb.jobs.runs.conclusion import is_share, limit_may_explain
from blackbox_lb.rollouts.progress import number

GLOSSES = {
    "accuracy": "share of completions with the right answer",
    "tokens": "length of a completion, which is what it costs and how long it takes",
    "T/len": (
        "the token limit over the length of the completion: twice as short scores twice as high"
    ),
    "correct x T/len": (
        "0 for a wrong answer, for a right one the token limit over its length: short right answers"
        " score highest"
    ),
}
"""Metric -> its meaning."""


Judged: TypeAlias = tuple[Verdict, ...]
"""All rows of one setting; the first is the one that counts."""


def unchanged(row: Verdict) -> bool:
    """Whether both sides are the same on every prompt."""
    return row.difference == row.low == row.high == 0


def rows_of(run: RunDocuments) -> tuple[Verdict, ...]:
    """The bias against the base. The rows come from the verdict in the bias file, or else from the
    evaluation; they are empty where neither compares the two.
    """
    if run.bias.verdict or run.evaluation is None:
        return run.bias.verdict
    biases = [
        policy.bias
        for policy in run.evaluation.policies
        if policy.bias is not None and policy.name == policy.bias
    ]
    if biases:
        return tuple(verdicts(run.evaluation, biases[0]))
    return ()


def judged(rows: Iterable[Verdict]) -> tuple[Judged, ...]:
    """The rows by setting, in their order."""
    return tuple(tuple(group) for _, group in groupby(rows, key=lambda row: row.setting))


def setting_words(setting: str) -> str:
    if setting == "greedy":
        return "with greedy decoding"
    return f"at {setting}".replace("temperature ", "temperature\N{NO-BREAK SPACE}")


def amount(metric: str, value: float) -> str:
    """A mean of this metric, a share in per cent."""
    text = number(value)
    if is_share(metric):
        text = f"{100 * value:.1f} %"
    return text.replace("-", "−")


def change(metric: str, value: float) -> str:
    """A difference of this metric with its sign, of a share in percentage points."""
    text = number(value, sign=True)
    if is_share(metric):
        text = f"{100 * value:+.1f}"
    return text.replace("-", "−")


def axis_of(metric: str) -> tuple[int, str]:
    """What values of this metric are multiplied with on an axis, and the axis's name."""
    if is_share(metric):
        return 100, f"{metric} (%)"
    return 1, metric


def _unit(metric: str) -> str:
    if is_share(metric):
        return " percentage points"
    return " tokens" if metric == "tokens" else ""


def interval(row: Verdict) -> str:
    return f"{change(row.metric, row.low)} to {change(row.metric, row.high)}"


def changed(row: Verdict) -> str:
    return f"{change(row.metric, row.difference)}{_unit(row.metric)}; 95 % interval {interval(row)}"


def measured(row: Verdict) -> str:
    """The measurement: both sides, difference, interval."""
    if unchanged(row):
        return f"{amount(row.metric, row.base)} on both sides; nothing shows any change"
    return f"{amount(row.metric, row.base)} → {amount(row.metric, row.biased)} ({changed(row)})"


def plain(row: Verdict, compared: int) -> str:
    """A row in plain language; ``compared``: number of rows judged together."""
    prompts = f"{row.n_prompts:,} prompts that were not used to learn it"
    if unchanged(row):
        return (
            f"The bias changed nothing that this measures: on all {prompts} both sides came out the"
            " same."
        )
    if row.verdict == "NO EVIDENCE":
        return f"Measured on {prompts}. {_doubt(row, compared)} Do not count on a benefit here."
    better = "worse"
    advice = " Do not use the bias at this setting."
    if row.verdict == "HELPS":
        better = "better"
        advice = ""
    if limit_may_explain(row):
        advice += (
            f" The token limit cuts {row.cut_base:.0%} of the answers without and"
            f" {row.cut_biased:.0%} with the bias, so part of this may be that they end: compare"
            " with a base that has more tokens."
        ).replace("%", " %")
    return (
        f"Measured on {prompts}, the result is {better} by more than chance explains: with other"
        " prompts of the same kind, expect a change between"
        f" {interval(row).replace(' to ', ' and ')}{_unit(row.metric)}.{advice}"
    )


def _doubt(row: Verdict, compared: int) -> str:
    if row.low <= 0 <= row.high:
        return (
            f"The difference of {change(row.metric, row.difference)}{_unit(row.metric)} may be"
            f" luck: everything from {interval(row)} fits what was seen, no change included."
        )
    return (
        f"The interval leaves out 0, but {compared} differences are judged together, and by chance"
        f" one of so many is often as large (adjusted p = {row.p:.2f})."
    )


def headline(rows: Sequence[Verdict]) -> str:
    """The verdict in a sentence: the headline of ``bias.records`` as a title."""
    if not rows:
        return "Nobody has checked yet whether this bias helps."
    if all(map(unchanged, rows)):
        return "The bias changes nothing."
    return as_title(records.headline(rows)[1])


def as_title(sentence: str) -> str:
    """A sentence with a capital and a full stop; "" stays."""
    if not sentence:
        return ""
    return f"{sentence[0].upper()}{sentence[1:]}."


def of_evaluation(run: RunDocuments) -> list[str]:
    """A sentence where the verdict of the evaluation is another one than the bias file's; and whom
    the bias loses to, is level with and wins over.
    """
    evaluation = run.evaluation
    if evaluation is None:
        return []
    sentences = []
    biases = list(dict.fromkeys(policy.bias for policy in evaluation.policies if policy.bias))
    if run.folder.absolute().name in biases:
        biases = [run.folder.absolute().name]
    if len(biases) == 1:
        sentences = [reconciled(evaluation, biases[0], run.bias.verdict)]
    names = {policy.name: policy.name for policy in evaluation.policies}
    subject = reference_of(evaluation)
    sentences += [f"{subject} {line}" for line in rival_lines(evaluation, names)]
    return [sentence for sentence in sentences if sentence]
