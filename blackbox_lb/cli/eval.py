"""``blb eval``: judge a bias file again, on any task and at any setting."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import click

from blackbox_lb.bias import Bias
from blackbox_lb.cli.options import (
    count_option,
    load,
    model_options,
    open_trials,
    output_options,
    sampling_options,
    task_options,
)
from blackbox_lb.cli.terminal import print_json, verdict_table
from blackbox_lb.evaluate import GREEDY, SAMPLED, parse_setting
from blackbox_lb.fitting import FitPlan
from blackbox_lb.tasks import Reward, Task

__all__ = ["command"]


@click.command("eval")
@click.argument("bias_file", metavar="BIAS", type=click.Path(path_type=Path))
@model_options()
@task_options()
@sampling_options()
@count_option("--test-samples", FitPlan().test_samples, "Completions a test prompt and setting.")
@click.option(
    "--deploy",
    multiple=True,
    help="Judge at this setting, as in temperature=0.5 or greedy; repeatable. [default: temperature=1 and greedy]",
)
@click.option("--save", is_flag=True, help="Write the verdict into the bias file.")
@output_options()
def command(bias_file: Path, **options: Any) -> None:
    """Judge the bias file BIAS on fresh completions of the test prompts.

    The bias may come from another server of the same model: what must be the same is the tokenizer.
    """
    bias = Bias.load(bias_file)
    task, reward = load(options)
    judged = asyncio.run(_run(bias, options, task, reward))
    if options["save"]:
        judged.save(bias_file)
    if options["as_json"]:
        print_json({"status": judged.status, "verdict": [row.model_dump() for row in judged.verdict]})
    else:
        verdict_table(judged.verdict)


async def _run(bias: Bias, options: dict[str, Any], task: Task, reward: Reward) -> Bias:
    settings = [parse_setting(spec) for spec in options["deploy"]] or [SAMPLED, GREEDY]
    async with open_trials(options, task, reward, bias) as trials:
        return bias.verified(await trials.judge(task.test, settings, options["test_samples"], bias.logit_bias))
