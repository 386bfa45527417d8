"""``blb collect``: fill the store, and nothing else."""

from __future__ import annotations

import asyncio
from typing import Any

import click

from blackbox_lb.cli.options import (
    count_option,
    load,
    model_options,
    open_trials,
    output_options,
    sampling_options,
    task_options,
)
from blackbox_lb.cli.terminal import print_json
from blackbox_lb.evaluate import SAMPLED
from blackbox_lb.fitting import FitPlan
from blackbox_lb.tasks import Reward, Task
from blackbox_lb.training import training_set

__all__ = ["command"]


@click.command("collect")
@model_options()
@task_options()
@count_option("--samples-per-prompt", FitPlan().samples, "Completions a prompt.")
@click.option("--limit", type=click.IntRange(1), help="Use only the first N training prompts.")
@sampling_options()
@output_options()
def command(**options: Any) -> None:
    """Sample completions of the training prompts into the store of --out, and nothing else.

    What is there is not asked for again, so a run that was cut off goes on where it stopped; blb fit with the same --out takes
    these completions as its own.
    """
    task, reward = load(options)
    summary = asyncio.run(_run(options, task, reward))
    if options["as_json"]:
        print_json(summary)
    else:
        click.echo(
            f"{summary['completions']} completions, {summary['tokens']} tokens in {summary['store']}; "
            f"mean {reward.label} {summary['mean']:.3f}"
        )


async def _run(options: dict[str, Any], task: Task, reward: Reward) -> dict[str, Any]:
    examples = task.train[: options["limit"]]
    async with open_trials(options, task, reward) as trials:
        keys = await trials.collect("training", examples, SAMPLED, options["samples_per_prompt"])
        training = training_set(trials.store, examples, keys, reward)
        values = [reward.value(r) for r in training.rollouts.rewards]
        return {
            "store": str(trials.store.path),
            "completions": len(values),
            "incomplete": training.incomplete,
            "tokens": len(training.rollouts.token_ids),
            "mean": sum(values) / len(values),
        }
