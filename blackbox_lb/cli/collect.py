"""``blb collect``: fill the store, and nothing else."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import click

from blackbox_lb.cli.options import (
    STORE,
    load,
    model_options,
    output_options,
    run_folder,
    sampling_options,
    session_of,
    task_options,
)
from blackbox_lb.cli.terminal import print_json, reporter
from blackbox_lb.evaluate import SAMPLED
from blackbox_lb.store import RolloutStore
from blackbox_lb.tasks import Reward, Task
from blackbox_lb.training import training_set
from blackbox_lb.trials import Trials

__all__ = ["command"]


@click.command("collect")
@model_options()
@task_options()
@click.option(
    "--samples-per-prompt", type=click.IntRange(1), default=8, show_default=True, help="Training completions a prompt."
)
@click.option("--limit", type=click.IntRange(1), help="Use only the first N training prompts.")
@sampling_options()
@output_options()
def command(**options: Any) -> None:
    """Sample completions of the training prompts into the store of --out, and nothing else.

    What is there is not asked for again, so a run that was cut off goes on where it stopped; blb fit with the same --out takes
    these completions as its own.
    """
    task, reward, max_tokens = load(options)
    summary = asyncio.run(_run(options, task, reward, max_tokens, run_folder(options["out"], task)))
    if options["as_json"]:
        print_json(summary)
    else:
        click.echo(
            f"{summary['completions']} completions, {summary['tokens']} tokens in {summary['store']}; "
            f"mean {reward.label} {summary['mean']:.3f}"
        )


async def _run(options: dict[str, Any], task: Task, reward: Reward, max_tokens: int, folder: Path) -> dict[str, Any]:
    examples = task.train[: options["limit"]]
    async with session_of(options, max_tokens) as session:
        with RolloutStore(folder / STORE) as store:
            trials = Trials(
                session=session,
                store=store,
                tokenizer=await session.tokenizer(),
                reward=reward,
                report=reporter(options),
                max_tokens=max_tokens,
                top_logprobs=options["top_logprobs"],
                seed=options["seed"],
                concurrency=options["concurrency"],
            )
            keys = await trials.collect("training", examples, SAMPLED, options["samples_per_prompt"])
            training = training_set(store, examples, keys, reward)
            values = [reward.value(r) for r in training.rollouts.rewards]
            return {
                "store": str(store.path),
                "completions": len(values),
                "incomplete": training.incomplete,
                "tokens": len(training.rollouts.token_ids),
                "mean": sum(values) / len(values),
            }
