"""``blb score``: the scores of stored completions under any reward."""

from __future__ import annotations

from pathlib import Path

import click

from blackbox_lb.cli.grouped import COUNT, PATH, argument, command, option
from blackbox_lb.cli.options import PrintOptions
from blackbox_lb.jobs.plan.setting import HelpGroup
from blackbox_lb.jobs.plan.shared import OpeningSettings, SpendingSettings, TaskSettings
from blackbox_lb.literals import Split

STORED_DECISIONS = "blackbox_lb.jobs.deciding:stored_decisions"


class ScoreOptions(TaskSettings, OpeningSettings, SpendingSettings, PrintOptions):
    where: Path = argument(metavar="STORE_OR_RUN", type=PATH)
    max_tokens: int | None = option(
        HelpGroup.FIRST, "T of the reward. [default: the limit each was drawn with]", type=COUNT
    )
    split: tuple[Split, ...] = option(HelpGroup.STORED, "Only this split; repeatable.")
    setting: tuple[str, ...] = option(
        HelpGroup.STORED, "Only this setting, as in temperature=0.5 or greedy; repeatable."
    )
    policy: str | None = option(
        HelpGroup.STORED,
        "Only completions without, or with, a bias.",
        type=click.Choice(["base", "biased"]),
    )
    examples: int | None = option(
        HelpGroup.FIRST,
        "Print the best and the worst N completions, for writing a reward.",
        type=COUNT,
        metavar="N",
    )
    decisions: bool = option(
        HelpGroup.STORED,
        "Calibrated probabilities of the labels instead, from the stored first lists of the model"
        " without a bias, by bias.json beside the store.",
    )
    abstain_below: float = option(
        HelpGroup.STORED,
        "Of --decisions: the probability below which a decision abstains.",
        type=click.FloatRange(0, 1),
        sets=STORED_DECISIONS,
    )
    per_completion: Path | None = option(
        HelpGroup.OUTPUT,
        "Write every completion with its reward, and where it was earned, a JSON line each.",
    )


@command(
    "score",
    ScoreOptions,
    example="blb score runs/train --data train.jsonl --reward rewards:mine --examples 3",
)
def score_command(options: ScoreOptions) -> None:
    """Score the completions in STORE_OR_RUN, a rollout store or a run's folder, with --reward;
    nothing is sampled.

    Prints a row for each split and way of drawing. Means are over prompts, with a 95 % bootstrap
    interval; differences to the base are paired by prompt and not adjusted for their number: only
    blb eval gives a verdict.

    With --decisions, prints for each split how often the likeliest label is right, how far its
    calibrated probability is off, and how many decisions abstain; --json and --per-completion hold
    each prompt with the probability of every label.
    """
    from blackbox_lb.cli.actions.score import execute

    execute(options)
