"""``blb fit``: the main job."""

from __future__ import annotations

from typing import Literal

from blackbox_lb.cli.grouped import COUNT, command, option
from blackbox_lb.cli.options import TrialOptions, VerboseOptions
from blackbox_lb.jobs.plan.plan import Plan
from blackbox_lb.jobs.plan.setting import HelpGroup


class FitOptions(Plan, TrialOptions, VerboseOptions):
    """The plan of a fit, and how the command runs it."""

    dry_run: bool = option(
        HelpGroup.FIRST,
        "Print splits, smallest effect that shows, requests, tokens and dollars; ask nothing.",
    )
    engine: Literal["here", "ray"] = option(
        HelpGroup.LEARNING,
        "Who reads and sums the training rollouts: this process, or the workers of a Ray cluster"
        " (RAY_ADDRESS, else workers on this machine).",
        default="here",
    )
    workers: int | None = option(
        HelpGroup.LEARNING, "Workers of --engine ray. [default: one a core]", type=COUNT
    )


@command(
    "fit",
    FitOptions,
    example="blb fit --provider vllm --data train.jsonl --reward accuracy --out runs/train",
)
def fit_command(options: FitOptions) -> None:
    """Learn a bias and prove on unseen prompts whether it helps.

    Collects completions of the training prompts, scores them, estimates one bias for each setting
    of the sweep, chooses on the validation prompts by the mean over the settings that you deploy
    with, and compares base and biased completions of the test prompts at each of those. Writes
    bias.json, result.json, the rollouts, and learned.json (the whole learned vector, for blb
    compile) into --out; a second run resumes there.
    """
    from blackbox_lb.cli.actions.fit import execute

    execute(options)
