"""The action of ``blb check``: look at a few prompts, and say whether a bias can help."""

from __future__ import annotations

from blackbox_lb.api.limits.budget import SpendLimit
from blackbox_lb.cli.commands.learning.check import CheckOptions
from blackbox_lb.cli.echo import echo
from blackbox_lb.cli.json_output import print_json
from blackbox_lb.cli.resources import labels_of, load, open_trials
from blackbox_lb.cli.run_limits import run
from blackbox_lb.errors import InputError
from blackbox_lb.jobs.check import LOOKED_AT, Checked, check
from blackbox_lb.jobs.forecast import ForecastStage
from blackbox_lb.tasks import Reward, Task
from blackbox_lb.tasks.sets.labels import Labels


def execute(options: CheckOptions) -> None:
    task, reward = load(options)
    labels = labels_of(options.labels, task.train)
    if labels is None:
        raise InputError(
            "blb check looks at decisions between few labels, and the answers of this data are not;"
            " name the labels with --labels"
        )
    found = run(options, lambda budget: _run(options, task, reward, labels, budget))
    if options.as_json:
        print_json(found.as_json())
        return
    echo(found.found.sentence)
    echo(found.read)


async def _run(
    options: CheckOptions, task: Task, reward: Reward, labels: Labels, budget: SpendLimit
) -> Checked:
    looked = task.train[:LOOKED_AT]
    stages = [ForecastStage(looked, 1), ForecastStage(looked, 1, 1)]
    async with open_trials(options, task, reward, budget, stages=lambda trials: stages) as trials:
        if task.note:
            trials.report.notice(task.note)
        return await check(trials, task.train, labels, options.top_logprobs)
