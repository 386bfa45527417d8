"""Where the numbers of a conclusion stand in the page."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from blackbox_lb.extras.report.data import RunDocuments
from blackbox_lb.extras.report.examples import status_counts
from blackbox_lb.extras.report.verdict_text import rows_of
from blackbox_lb.jobs.runs.conclusion import level
from blackbox_lb.rollouts.progress import number
from blackbox_lb.safety.printable import printable


@dataclass(frozen=True, slots=True)
class Place:
    """An element of the page by its id, and the number that stands there."""

    anchor: str
    text: str


def places(run: RunDocuments) -> Iterator[Place]:
    """The places of a page, in its order: every number that the terminal prints has one."""
    rows = rows_of(run)
    if not rows:
        yield Place("verdict", "UNVERIFIED")
    for row in rows:
        values = f"{level(row, row.base)} -> {level(row, row.biased)}"
        yield Place("numbers", f"{printable(row.metric)}  {values}  {row.setting}, {row.word}")
    decisions = {} if run.result is None else run.result.decisions
    for setting, pair in decisions.items():
        if pair.base.macro_f1 is not None and pair.biased.macro_f1 is not None:
            values = f"{number(pair.base.macro_f1)} -> {number(pair.biased.macro_f1)}"
            yield Place("decisions", f"macro-F1  {values}  {setting}, label by label")
    for question in run.decided:
        words = f"{question.changed_rows:,} of {question.test_rows:,} decisions change"
        yield Place("decisions", f"{printable(question.question)}  {words}")
    if run.evaluation is not None:
        names = {policy.name for policy in run.evaluation.policies}
        yield Place("alternatives", f"{len(names):,} policies")
    if run.examples:
        yield Place("examples", f"{len(run.examples):,} test prompts with their answers")
    for status, count in status_counts(run.examples).items():
        yield Place(status, f"{count:,} of them {status}")
    if not run.bias.decisions:
        yield Place("tokens", f"{len(run.bias.entries):,} entries")
    usage = None if run.result is None else run.result.usage
    if usage is not None:
        words = f"{usage.prompt_tokens:,} + {usage.completion_tokens:,} tokens"
        yield Place("costs", f"{usage.completions:,} completions, {words}")
    yield Place("warnings", f"{len(run.bias.findings):,} checks of the fit")
