"""``blb collect``: fill the store, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass

import click

from blackbox_lb.cli.grouped import HelpGroup, command, option
from blackbox_lb.cli.option_classes import TaskOptions, TrialOptions
from blackbox_lb.cli.options import (
    count_option,
    limit_options,
    model_options,
    output_options,
    sampling_options,
    task_options,
)


def _samples() -> int:
    from blackbox_lb.jobs.fitting.plan import FitPlan

    return FitPlan().samples


@dataclass(frozen=True, kw_only=True)
class CollectOptions(TaskOptions, TrialOptions):
    """Options of ``blb collect``.

    samples_per_prompt: completions a prompt.
    limit: how many training prompts; None: all.
    shard: I/N, the part of the prompts.
    batch: ask in files.
    batch_requests: most requests in one file; None: as many as the provider takes.
    no_wait: look once at each job.
    cancel: end the open jobs.
    """

    samples_per_prompt: int
    limit: int | None
    shard: str | None
    batch: bool
    batch_requests: int | None
    no_wait: bool
    cancel: bool


@command("collect", CollectOptions)
@model_options()
@task_options()
@count_option("--samples-per-prompt", _samples, "Completions a prompt.", HelpGroup.FIRST)
@option(HelpGroup.SAMPLING, "--limit", type=click.IntRange(1), help="Use only the first N training prompts.")
@option(
    HelpGroup.SAMPLING,
    "--shard",
    metavar="I/N",
    help="Part I of N of the prompts, from 1/N to N/N: a machine each.",
)
@option(
    HelpGroup.BATCHES,
    "--batch",
    is_flag=True,
    help="Ask in files, by the provider's batch API or vllm run-batch.",
)
@option(
    HelpGroup.BATCHES,
    "--batch-requests",
    type=click.IntRange(1),
    help="Most requests in one file. [default: the provider's]",
)
@option(
    HelpGroup.BATCHES,
    "--no-wait",
    is_flag=True,
    help="With --batch: one look at each job, and no waiting for its end.",
)
@option(
    HelpGroup.BATCHES,
    "--cancel",
    is_flag=True,
    help="With --batch: end the open jobs, and keep what they answered.",
)
@sampling_options()
@limit_options()
@output_options()
def collect_command(options: CollectOptions) -> None:
    """Sample completions of the training prompts into the store of --out, and nothing else.

    What is there is not asked for again, so a run that was cut off goes on where it stopped; blb fit with the same --out takes
    these completions as its own.

    With --batch the requests go out in files, at the provider's price for batches. The command waits until they are answered,
    which may take a day; stopped at any moment, the same command goes on.
    """
    from blackbox_lb.cli.actions.collect import execute

    execute(options)
