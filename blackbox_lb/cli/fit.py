"""``blb fit``: the main job."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, get_args

import click

from blackbox_lb.cli.options import (
    count_option,
    load,
    model_options,
    open_trials,
    output_options,
    run_folder,
    sampling_options,
    task_options,
)
from blackbox_lb.cli.terminal import print_json, verdict_table
from blackbox_lb.estimate.candidates import Sweep
from blackbox_lb.estimate.statistics import Unobserved
from blackbox_lb.evaluate import GREEDY, SAMPLED, parse_setting
from blackbox_lb.fitting import FitPlan, FitResult, fit
from blackbox_lb.tasks import Reward, Task

__all__ = ["command"]

F = TypeVar("F", bound=Callable[..., Any])

ALL = "all"


def _number(name: str, default: tuple[float, ...], text: str) -> Callable[[F], F]:
    kind = click.FloatRange(0, min_open=True)
    return click.option(name, type=kind, multiple=True, default=default, show_default=True, help=text)


@click.command("fit")
@model_options()
@task_options()
@count_option("--samples-per-prompt", FitPlan().samples, "Training completions a prompt.")
@click.option("--limit", type=click.IntRange(1), help="Use only the first N training prompts.")
@sampling_options()
@click.option(
    "--estimator",
    type=click.Choice(["projection", "ips"]),
    default="projection",
    show_default=True,
    help="ips is the paper's.",
)
@_number("--tau", Sweep().tau, "A completion weighs exp(reward / tau); repeat to sweep.")
@_number("--l2", Sweep().l2, "Shrinkage of projection; repeat to sweep.")
@_number("--alpha", Sweep().alpha, "Smoothing of ips, relative to the mean weight; repeat to sweep.")
@click.option("--positions", type=click.IntRange(1), help="Positions that ips draws of each completion. [default: all]")
@click.option(
    "--unobserved",
    type=click.Choice(get_args(Unobserved)),
    default=Sweep().unobserved,
    show_default=True,
    help="What ips does with a sampled token without a logprob: bound takes the least listed one, drop leaves it out.",
)
@click.option("--entries", default="300", show_default=True, help="Most tokens in the bias, or all.")
@click.option("--integers", is_flag=True, help="Whole numbers only.")
@count_option("--validation-samples", FitPlan().validation_samples, "Completions a validation prompt and candidate.")
@count_option("--test-samples", FitPlan().test_samples, "Completions a test prompt and setting.")
@click.option("--deploy", multiple=True, help="Judge at this setting too, as in temperature=0.5; repeatable.")
@output_options()
def command(**options: Any) -> None:
    """Learn a bias and prove on unseen prompts whether it helps.

    Collects completions of the training prompts, scores them, estimates one bias for each setting of the sweep, chooses on the
    validation prompts, and compares base and biased completions of the test prompts at temperature 1, greedy and at every --deploy
    setting. Writes bias.json, result.json and the rollouts into --out; a second run resumes there.
    """
    task, reward = load(options)
    plan = _plan(options)
    folder = run_folder(options, task)
    result = asyncio.run(_run(options, task, reward, plan))
    result.bias.save(folder / "bias.json")
    document = result.as_json() | {"bias": str(folder / "bias.json")}
    (folder / "result.json").write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    if options["as_json"]:
        print_json(document)
    else:
        _print(result, folder)


def _plan(options: dict[str, Any]) -> FitPlan:
    settings = dict.fromkeys([SAMPLED, GREEDY, *(parse_setting(spec) for spec in options["deploy"])])
    return FitPlan(
        samples=options["samples_per_prompt"],
        limit=options["limit"],
        validation_samples=options["validation_samples"],
        test_samples=options["test_samples"],
        sweep=Sweep(
            estimator=options["estimator"],
            tau=options["tau"],
            l2=options["l2"],
            alpha=options["alpha"],
            positions=options["positions"],
            seed=options["seed"] or 0,
            unobserved=options["unobserved"],
        ),
        entries=_entries(options["entries"]),
        integers=options["integers"],
        settings=tuple(settings),
    )


def _entries(text: str) -> int | None:
    if text == ALL:
        return None
    if not text.isdecimal() or int(text) == 0:
        raise click.BadParameter(f"{text!r} is neither a number from 1 nor {ALL!r}", param_hint="--entries")
    return int(text)


async def _run(options: dict[str, Any], task: Task, reward: Reward, plan: FitPlan) -> FitResult:
    async with open_trials(options, task, reward) as trials:
        return await fit(trials, task, plan)


def _print(result: FitResult, folder: Path) -> None:
    chosen = ", ".join(
        f"{name} {value:g}" for name, value in result.bias.settings.items() if isinstance(value, int | float)
    )
    verdict_table(result.bias.verdict)
    click.echo(
        f"{result.bias.estimator} ({chosen}), {len(result.bias.entries)} entries, learned from {result.bias.rollouts} rollouts, "
        f"{result.kl_sentence}"
    )
    if result.bias.censoring and result.bias.sampling:
        click.echo(result.bias.censoring.sentence(result.bias.sampling.top_logprobs))
    click.echo(f"wrote {folder / 'bias.json'}; look into it with: blb show {folder / 'bias.json'}")
