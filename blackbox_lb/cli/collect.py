"""``blb collect``: fill the store, and nothing else."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import click

from blackbox_lb.bias import legible
from blackbox_lb.cli.accounts import run
from blackbox_lb.cli.options import (
    COLLECTING,
    count_option,
    limit_options,
    load,
    model_options,
    open_trials,
    output_options,
    sampling_options,
    task_options,
)
from blackbox_lb.cli.terminal import print_json
from blackbox_lb.evaluate import SAMPLED
from blackbox_lb.fitting.run import FitPlan
from blackbox_lb.forecast import Stage
from blackbox_lb.tasks import Reward, Task
from blackbox_lb.training import censored, training_set
from blackbox_lb.trials import Trials

__all__ = ["command"]


@click.command("collect")
@model_options()
@task_options()
@count_option("--samples-per-prompt", FitPlan().samples, "Completions a prompt.")
@click.option("--limit", type=click.IntRange(1), help="Use only the first N training prompts.")
@sampling_options()
@limit_options()
@output_options()
def command(**options: Any) -> None:
    """Sample completions of the training prompts into the store of --out, and nothing else.

    What is there is not asked for again, so a run that was cut off goes on where it stopped; blb fit with the same --out takes
    these completions as its own.
    """
    task, reward = load(options)
    summary, remarks = run(options, lambda: _run(options, task, reward))
    if options["as_json"]:
        print_json(summary)
        return
    click.echo(
        f"{summary['completions']} completions, {summary['tokens']} tokens in {summary['store']}; "
        f"mean {reward.label} {summary['mean']:.3f}"
    )
    click.echo(legible("\n".join(remarks)))


async def _run(options: dict[str, Any], task: Task, reward: Reward) -> tuple[dict[str, Any], list[str]]:
    """What was collected, for a program and in sentences."""
    examples = task.train[: options["limit"]]

    def stages(trials: Trials) -> Iterable[Stage]:
        return [Stage(examples, options["samples_per_prompt"])]

    async with open_trials(options, task, reward, needs=COLLECTING, stages=stages) as trials:
        keys = await trials.collect("training", examples, SAMPLED, options["samples_per_prompt"])
        training = training_set(trials.store, examples, keys, reward, trials.end_tokens)
        kept_back = censored(training.rollouts, training.next_token)
        values = [reward.value(r) for r in training.rollouts.rewards]
        summary = {
            "store": str(trials.store.path),
            "completions": len(values),
            "incomplete": training.incomplete,
            "filtered": training.filtered,
            "tokens": len(training.rollouts.token_ids),
            "censoring": kept_back.model_dump(exclude={"unobserved"}),
            "mean": sum(values) / len(values),
        }
        return summary, [kept_back.sentence(trials.top_logprobs), *training.remarks]
