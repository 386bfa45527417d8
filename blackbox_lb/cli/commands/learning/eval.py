"""``blb eval``: judge biases on fresh completions, beside what a user would try instead."""

from __future__ import annotations

from dataclasses import dataclass

import click

from blackbox_lb.cli.completers import bias_files
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
    from blackbox_lb.jobs.evaluation.plan import EvalPlan

    return EvalPlan().samples


@dataclass(frozen=True, kw_only=True)
class EvalOptions(TaskOptions, TrialOptions):
    """Options of ``blb eval``.

    biases: files, each as FILE or NAME=FILE.
    test_samples: completions a test prompt, setting and policy.
    deploy: settings to judge at; none: temperature 1 and greedy.
    baseline_prompt, baseline_temperature, baseline_max_tokens, best_of: what is tried instead of a bias.
    effect: difference of the reward whose sample size is wanted.
    save: write the verdicts into the files.
    """

    biases: tuple[str, ...]
    test_samples: int
    deploy: tuple[str, ...]
    baseline_prompt: tuple[str, ...]
    baseline_temperature: tuple[float, ...]
    baseline_max_tokens: tuple[int, ...]
    best_of: tuple[int, ...]
    effect: float | None
    save: bool


@command("eval", EvalOptions)
@click.argument("biases", metavar="[[NAME=]BIAS]...", nargs=-1, shell_complete=bias_files)
@model_options()
@task_options()
@sampling_options()
@count_option("--test-samples", _samples, "Completions a test prompt, setting and policy.", HelpGroup.JUDGING)
@option(
    HelpGroup.JUDGING,
    "--deploy",
    multiple=True,
    help="Judge at this setting, as in temperature=0.5 or greedy. Repeatable. [default: temperature=1 and greedy]",
)
@option(
    HelpGroup.JUDGING,
    "--baseline-prompt",
    multiple=True,
    help="Try this instruction, added to the prompt, instead. Repeatable.",
)
@option(
    HelpGroup.JUDGING,
    "--baseline-temperature",
    type=float,
    multiple=True,
    help="Try this lower temperature instead. Repeatable.",
)
@option(
    HelpGroup.JUDGING,
    "--baseline-max-tokens",
    type=int,
    multiple=True,
    help="Try completions this short instead. Repeatable.",
)
@option(
    HelpGroup.JUDGING,
    "--best-of",
    type=int,
    multiple=True,
    help="Try the likeliest of N completions (mean logprob under the base model) instead. Repeatable.",
)
@option(
    HelpGroup.JUDGING,
    "--effect",
    type=click.FloatRange(0, min_open=True),
    help="Tell how many prompts would show such a difference of the reward.",
)
@option(HelpGroup.FIRST, "--save", is_flag=True, help="Write each bias's verdict into its file.")
@limit_options()
@output_options()
def eval_command(options: EvalOptions) -> None:
    """Judge bias files on fresh completions of the test prompts, all on the same prompts as the base.

    What you would try instead of a bias goes into the same table, alone and together with each BIAS: an instruction, a lower
    temperature, fewer tokens, the best of several completions. Without BIAS, these are compared with the base, before a fit is
    paid for. NAME is what the tables call a bias; unless told it is the file's, or the folder's of a bias.json. A bias may come
    from another server of the same model: what must be the same is the tokenizer. Writes evaluation.json into --out; a second run
    resumes there.
    """
    from blackbox_lb.cli.actions.eval import execute

    execute(options)
