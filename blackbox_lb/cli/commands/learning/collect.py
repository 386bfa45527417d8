"""``blb collect``: sample completions into the store, and learn nothing."""

from __future__ import annotations

from blackbox_lb.cli.grouped import COUNT, command, option
from blackbox_lb.cli.options import TrialOptions
from blackbox_lb.jobs.plan.setting import HelpGroup
from blackbox_lb.jobs.plan.shared import CollectionSettings, TaskSettings


class CollectOptions(TaskSettings, CollectionSettings, TrialOptions):
    shard: str | None = option(
        HelpGroup.SAMPLING,
        "Part I of N of the prompts, from 1/N to N/N: a machine each.",
        metavar="I/N",
    )
    batch: bool = option(
        HelpGroup.BATCHES, "Ask in files, by the provider's batch API or vllm run-batch."
    )
    batch_requests: int | None = option(
        HelpGroup.BATCHES, "Most requests in one file. [default: the provider's]", type=COUNT
    )
    no_wait: bool = option(
        HelpGroup.BATCHES, "With --batch: one look at each job, and no waiting for its end."
    )
    cancel: bool = option(
        HelpGroup.BATCHES, "With --batch: end the open jobs, and keep what they answered."
    )


@command(
    "collect",
    CollectOptions,
    example="blb collect --provider vllm --data train.jsonl --reward length --out runs/train",
)
def collect_command(options: CollectOptions) -> None:
    """Sample completions of the training prompts into the store of --out, and nothing else.

    Stored completions are not asked for again, so a run that was cut off goes on where it stopped;
    blb fit with the same --out uses these completions as its own.

    With --batch the requests go out in files, at the provider's price for batches. The command
    waits for the answers, which may take a day; stopped at any moment, the same command goes on.
    """
    from blackbox_lb.cli.actions.collect import execute

    execute(options)
