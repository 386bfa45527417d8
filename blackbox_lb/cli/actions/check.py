"""The action of ``blb check``: look at a few prompts, and say whether a bias can help."""

from __future__ import annotations

import time

from blackbox_lb.api.limits.budget import SpendLimit, Spent
from blackbox_lb.cli.commands.learning.check import CheckOptions
from blackbox_lb.cli.echo import echo, print_json
from blackbox_lb.cli.resources import labels_of, load, open_trials, run
from blackbox_lb.cli.terminal import command_with_same, print_conclusion, reporter
from blackbox_lb.errors import InputError
from blackbox_lb.estimate.decisions.feasibility import Answer
from blackbox_lb.jobs.check import LOOKED_AT, Checked, check
from blackbox_lb.jobs.forecast import ForecastStage
from blackbox_lb.jobs.runs.answers import BeforeAfter
from blackbox_lb.jobs.runs.conclusion import (
    HELP_PAGE,
    Conclusion,
    NextStep,
    spent_words,
    understood,
)
from blackbox_lb.tasks import Reward, Task
from blackbox_lb.tasks.sets.labels import Labels


def execute(options: CheckOptions) -> None:
    task, reward = load(options)
    labels = labels_of(options, task)
    if labels is None:
        if reward.of_shares:
            raise InputError(
                "blb check looks at decisions with a right label, and rows with wanted shares have"
                " none; blb fit predicts the shares from one token a prompt before it draws"
            )
        raise InputError(
            "blb check looks at decisions between few labels, and the answers of this data are not;"
            " name the labels with --labels"
        )
    started = time.monotonic()
    reporter(quiet=options.quiet).notice(understood(task, reward, labels))
    checked, spent, priced = run(
        options, lambda budget: _run(options, task, reward, labels, budget)
    )
    if options.as_json:
        print_json(checked.as_json())
        return
    if options.verbose:
        echo(checked.found.sentence)
        echo(checked.read)
    words = spent_words(spent, time.monotonic() - started, priced)
    print_conclusion(check_conclusion(checked, words))


VERDICTS: dict[Answer, tuple[str, str]] = {
    "fixed": ("YES", "a fixed bias can mend this decision"),
    "depends on the prompt": ("BY PROMPT", "only a bias that depends on the prompt can mend it"),
    "already right": ("NOT NEEDED", "there is little left to mend"),
    "not listed": ("NO", "the lists hardly hold the right answers, so none can be learned"),
    "no skill": ("NO", "the model separates the labels no better than the commonest label alone"),
}
"""Answer of the check -> its verdict and what it means."""


def check_conclusion(checked: Checked, spent: str) -> Conclusion:
    """The conclusion of a check: whether a bias can mend the decision, by how much, and what then.

    The two examples are wrong greedy answers with their right labels.
    """
    decision = checked.found
    verdict, meaning = VERDICTS[decision.answer]
    lines = [
        meaning,
        f"right now {decision.base:.0%}, always saying the commonest label {decision.majority:.0%}",
    ]
    harms = decision.after is not None and decision.after.harms
    if harms and decision.answer == "fixed":
        verdict = "PERHAPS"
        lines.append(
            f"a bias can begin {decision.predicted:.0%} of the answers right; whether it ends them"
            " is not predicted"
        )
    elif decision.answer == "fixed":
        lines.append(
            f"predicted with a bias {decision.predicted:.0%} (standard error {decision.error:.0%})"
        )
        lines.append(
            f"it mends {decision.repaired:.0%} of the wrong ones and breaks {decision.broken:.0%}"
            " of the right ones"
        )
    if decision.answer == "no skill":
        lines.append(f"best decision from its lists: {decision.informed:.0%} right")
    lines.append(
        f"{len(decision.margins)} training prompts looked at; wrong answers -> right ones:"
    )
    caveat = ""
    if decision.after is not None:
        caveat = decision.after.sentence.removeprefix("; ")
    if verdict in ("NO", "NOT NEEDED"):
        steps = [NextStep(HELP_PAGE, "what helps, by kind of task")]
    else:
        options = []
        if decision.answer == "depends on the prompt":
            options = ["--depends-on", "words"]
        steps = [NextStep(command_with_same("blb fit", options), "learn it and judge it")]
    if harms and decision.after is not None:
        steps.insert(0, NextStep(decision.after.remedy))
    examples = tuple(BeforeAfter(*answer) for answer in checked.answers[:2])
    return Conclusion(
        verdict, tuple(lines), caveat=caveat, examples=examples, spent=spent, steps=tuple(steps)
    )


async def _run(
    options: CheckOptions, task: Task, reward: Reward, labels: Labels, budget: SpendLimit
) -> tuple[Checked, Spent, bool]:
    """The findings, what was spent, and whether the price of a token is known."""
    looked = task.train[:LOOKED_AT]
    stages = [ForecastStage(looked, 1), ForecastStage(looked, 1, 1)]
    async with open_trials(options, task, reward, budget, stages=lambda trials: stages) as trials:
        if task.note:
            trials.report.notice(task.note)
        checked = await check(trials, task.train, labels, options.top_logprobs)
        return checked, budget.spent, budget.prices is not None
