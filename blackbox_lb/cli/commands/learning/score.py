"""``blb score``: what stored completions are worth under any reward."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import click

from blackbox_lb.cli.grouped import HelpGroup, LateChoice, command, option
from blackbox_lb.cli.option_classes import SpendingOptions, TaskOptions
from blackbox_lb.cli.options import spending_options, task_options

if TYPE_CHECKING:
    from blackbox_lb.types import Split


def _splits() -> tuple[str, ...]:
    from blackbox_lb.types import Split

    return get_args(Split)


@dataclass(frozen=True, kw_only=True)
class ScoreOptions(TaskOptions, SpendingOptions):
    """Options of ``blb score``; ``max_tokens`` None stands for the limit that each completion was drawn with.

    where: a store, or the folder of a run.
    split: only these; none: all.
    setting: only these, as in greedy; none: all.
    policy: base or biased; None: both.
    per_completion: file that gets a line for each completion.
    as_json: print the result as JSON.
    quiet: no progress and no remarks.
    """

    where: Path
    split: tuple[Split, ...]
    setting: tuple[str, ...]
    policy: str | None
    per_completion: Path | None
    as_json: bool
    quiet: bool


@command("score", ScoreOptions)
@click.argument("where", metavar="STORE_OR_RUN", type=click.Path(path_type=Path))
@task_options()
@option(
    HelpGroup.FIRST,
    "--max-tokens",
    type=click.IntRange(1),
    help="T of the reward. [default: the limit each was drawn with]",
)
@option(HelpGroup.STORED, "--split", multiple=True, type=LateChoice(_splits), help="Only this split; repeatable.")
@option(
    HelpGroup.STORED, "--setting", multiple=True, help="Only this setting, as in temperature=0.5 or greedy; repeatable."
)
@option(
    HelpGroup.STORED,
    "--policy",
    type=click.Choice(["base", "biased"]),
    help="Only completions without, or with, a bias.",
)
@option(
    HelpGroup.OUTPUT,
    "--per-completion",
    type=click.Path(path_type=Path),
    help="Write every completion with its reward, a JSON line each.",
)
@spending_options()
@option(HelpGroup.OUTPUT, "--json", "as_json", is_flag=True, help="Print the result as JSON on stdout.")
@option(HelpGroup.OUTPUT, "--quiet", is_flag=True, help="No progress and no remarks.")
def score_command(options: ScoreOptions) -> None:
    """Score the completions in STORE_OR_RUN, a rollout store or a run's folder, with --reward; nothing is sampled.

    A row for each split and way of drawing. Means are over prompts, with a 95 % bootstrap interval; differences to the base are
    paired by prompt and not adjusted for being many: a verdict is what blb eval gives.
    """
    from blackbox_lb.cli.actions.score import execute

    execute(options)
