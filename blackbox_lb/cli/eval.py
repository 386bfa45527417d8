"""``blb eval``: judge a bias file again, on any task and at any setting."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import click

from blackbox_lb.bias import Bias
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
from blackbox_lb.cli.terminal import print_json, reporter, verdict_table
from blackbox_lb.compile import check_limits
from blackbox_lb.evaluate import GREEDY, SAMPLED, parse_setting
from blackbox_lb.store import RolloutStore
from blackbox_lb.tasks import Reward, Task
from blackbox_lb.trials import Trials

__all__ = ["command"]


@click.command("eval")
@click.argument("bias_file", metavar="BIAS", type=click.Path(path_type=Path))
@model_options()
@task_options()
@sampling_options()
@click.option(
    "--test-samples",
    type=click.IntRange(1),
    default=4,
    show_default=True,
    help="Completions a test prompt and setting.",
)
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
    task, reward, max_tokens = load(options)
    judged = asyncio.run(_run(bias, options, task, reward, max_tokens, run_folder(options["out"], task)))
    if options["save"]:
        judged.save(bias_file)
    if options["as_json"]:
        print_json({"status": judged.status, "verdict": [row.model_dump() for row in judged.verdict]})
    else:
        verdict_table(judged.verdict)


async def _run(bias: Bias, options: dict[str, Any], task: Task, reward: Reward, max_tokens: int, folder: Path) -> Bias:
    settings = [parse_setting(spec) for spec in options["deploy"]] or [SAMPLED, GREEDY]
    async with session_of(options, max_tokens) as session:
        tokenizer = await session.tokenizer()
        bias.check_tokenizer(tokenizer.fingerprint)
        check_limits(bias.logit_bias, session.profile)
        with RolloutStore(folder / STORE) as store:
            trials = Trials(
                session=session,
                store=store,
                tokenizer=tokenizer,
                reward=reward,
                report=reporter(options),
                max_tokens=max_tokens,
                top_logprobs=options["top_logprobs"],
                seed=options["seed"],
                concurrency=options["concurrency"],
            )
            verdicts = [
                row
                for setting in settings
                for row in await trials.judge(task.test, setting, options["test_samples"], bias.logit_bias)
            ]
    return bias.verified(verdicts)
