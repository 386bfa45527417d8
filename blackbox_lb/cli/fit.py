"""``blb fit``: the main job."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

import click

from blackbox_lb.cli.accounts import run
from blackbox_lb.cli.options import (
    count_option,
    limit_options,
    load,
    model_options,
    open_trials,
    output_options,
    rollouts_option,
    run_folder,
    sampling_options,
    task_options,
)
from blackbox_lb.cli.terminal import findings_list, print_json, print_table, settings_text, verdict_table
from blackbox_lb.errors import BiasError, InputError
from blackbox_lb.estimate.projection import Scale
from blackbox_lb.estimate.select import Goal, Objective
from blackbox_lb.estimate.statistics import Unobserved
from blackbox_lb.estimate.sweep import AlphaScale, EstimatorName, Sweep
from blackbox_lb.evaluate import parse_setting
from blackbox_lb.fitting.fidelity import Fidelity
from blackbox_lb.fitting.plan import FitPlan
from blackbox_lb.fitting.result import FitResult
from blackbox_lb.fitting.run import fit
from blackbox_lb.forecast import fit_stages
from blackbox_lb.provenance import Remembering, provenance
from blackbox_lb.reference import POSITIONS
from blackbox_lb.tasks import Reward, Task
from blackbox_lb.training import Engine

__all__ = ["command"]

F = TypeVar("F", bound=Callable[..., Any])

ALL = "all"
SWEEP, PLAN = Sweep(), FitPlan()


class _Strength(click.ParamType[Any]):
    """A number above 0, or cv."""

    name = "number or cv"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float | str:
        """The number, or "cv"."""
        if value == "cv":
            return "cv"
        return float(click.FloatRange(0, min_open=True).convert(value, param, ctx))


def _sweep(
    name: str, default: tuple[Any, ...], text: str, kind: click.ParamType[Any] | None = None
) -> Callable[[F], F]:
    kind = click.FloatRange(0, min_open=True) if kind is None else kind
    return click.option(name, type=kind, multiple=True, default=default, show_default=True, help=f"{text} Repeatable.")


@click.command("fit")
@model_options()
@task_options()
@count_option("--samples-per-prompt", PLAN.samples, "Training completions a prompt.")
@click.option("--limit", type=click.IntRange(1), help="Use only the first N training prompts.")
@sampling_options()
@_sweep(
    "--estimator",
    SWEEP.estimators,
    "projection; the paper's ips and its baseline clusters; snips; ratio, which needs no logprobs.",
    click.Choice(get_args(EstimatorName)),
)
@_sweep("--tau", SWEEP.tau, "A completion weighs exp(reward / tau).")
@_sweep("--l2", SWEEP.l2, "Shrinkage of projection; cv chooses it by cross-validation.", _Strength())
@click.option(
    "--weights",
    type=click.Choice(get_args(Scale)),
    default=SWEEP.weights,
    show_default=True,
    help="projection weighs completions over all prompts, or within each.",
)
@_sweep("--alpha", SWEEP.alpha, "Smoothing of ips and clusters.")
@click.option(
    "--alpha-scale",
    type=click.Choice(get_args(AlphaScale)),
    default=SWEEP.alpha_scale,
    show_default=True,
    help="alpha is a multiple of the mean weight, or absolute as in the paper.",
)
@_sweep("--kappa", SWEEP.kappa, "Shrinkage of snips and ratio, in rollouts and in tokens.")
@click.option("--positions", type=click.IntRange(1), help="Positions that are drawn of each completion. [default: all]")
@click.option(
    "--clip", type=click.FloatRange(1), help="Largest inverse propensity that counts. [default: any; 100 in snips]"
)
@click.option(
    "--unobserved",
    type=click.Choice(get_args(Unobserved)),
    default=SWEEP.unobserved,
    show_default=True,
    help="A sampled token without a logprob: bound takes the least listed one for it, drop leaves it out (not for projection).",
)
@click.option(
    "--clusters", type=click.IntRange(1), default=PLAN.clusters, show_default=True, help="Clusters of tokens."
)
@click.option(
    "--embedding",
    default=PLAN.embedding,
    show_default=True,
    help="Sentence embedding of clusters: a hub name or a folder.",
)
@click.option(
    "--rounds",
    type=click.IntRange(1),
    default=PLAN.rounds,
    show_default=True,
    help="Sample in so many rounds, each under the bias of those before; projection only.",
)
@click.option(
    "--trust",
    type=click.FloatRange(0, min_open=True),
    default=PLAN.trust,
    show_default=True,
    help="Most nats a completion (KL) between the policies of two rounds.",
)
@click.option(
    "--entries",
    default="300",
    show_default=True,
    help="Most tokens in the bias; all the provider takes; or cv, which chooses how many by cross-validation.",
)
@click.option("--integers", is_flag=True, help="Whole numbers only.")
@click.option(
    "--objective",
    type=click.Choice(get_args(Objective)),
    default=PLAN.goal.objective,
    show_default=True,
    help="Choose by reward, reward less --kl-price x KL, or fewest tokens that keep the base's accuracy (pareto).",
)
@click.option(
    "--kl-price",
    type=click.FloatRange(0, min_open=True),
    default=PLAN.goal.tau,
    show_default=True,
    help="Reward that a nat of KL a completion costs in reward-kl.",
)
@count_option("--validation-samples", PLAN.validation_samples, "Completions a validation prompt and candidate.")
@count_option("--test-samples", PLAN.test_samples, "Completions a test prompt and setting.")
@click.option(
    "--deploy",
    multiple=True,
    help="Setting that you deploy with, greedy or as in temperature=0.5: the bias is chosen for it and judged at it; repeatable. "
    "[default: temperature=1 and greedy]",
)
@click.option(
    "--full-vocab",
    type=click.IntRange(2),
    is_flag=False,
    flag_value=POSITIONS,
    metavar="[POSITIONS]",
    help=f"Check lists and compiles against all logprobs at so many training positions, {POSITIONS} unless told, and share what "
    "lists leave out accordingly. A position is 2 to 5 MB of JSON and about a second on a CPU. vllm, llamacpp and local only.",
)
@click.option(
    "--engine",
    type=click.Choice(("here", "ray")),
    default="here",
    show_default=True,
    help="Who reads and sums the training rollouts: this process, or the workers of a Ray cluster (RAY_ADDRESS, else workers on "
    "this machine).",
)
@click.option("--workers", type=click.IntRange(1), help="Workers of --engine ray. [default: one a core]")
@click.option("--go-on", is_flag=True, help="Collect on although the first prompts show nothing to learn.")
@rollouts_option()
@limit_options()
@output_options()
def command(**options: Any) -> None:
    """Learn a bias and prove on unseen prompts whether it helps.

    Collects completions of the training prompts, scores them, estimates one bias for each setting of the sweep, chooses on the
    validation prompts by the mean over the settings that you deploy with, and compares base and biased completions of the test
    prompts at each of those. Writes bias.json, result.json, the rollouts, and learned.json (the whole learned vector, for blb
    compile) into --out; a second run resumes there.
    """
    task, reward = load(options)
    plan = _plan(options)
    folder = run_folder(options, task)
    result, remarks = run(options, lambda: _run(options, task, reward, plan))
    document = result.as_json() | {"bias": str(folder / "bias.json"), "uncompiled": str(folder / "learned.json")}
    document["provenance"] = provenance(remarks)
    unwritten = _write(result, document, folder)
    if options["as_json"]:
        print_json(document)
    else:
        _print(result, folder, unwritten)
    if unwritten:
        raise BiasError(f"{'; '.join(unwritten.values())}; run the same command again: what was drawn is in the store")


def _write(result: FitResult, document: dict[str, Any], folder: Path) -> dict[str, str]:
    """Write the three files, the one that is wanted first of all first; name -> why, of those that could not be written."""
    unwritten = {}
    try:
        (folder / "result.json").write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        unwritten["result.json"] = f"{folder / 'result.json'}: cannot be written ({error.strerror or error})"
    for name, bias in (("bias.json", result.bias), ("learned.json", result.uncompiled)):
        try:
            bias.save(folder / name)
        except BiasError as error:
            unwritten[name] = str(error)
    return unwritten


def _plan(options: dict[str, Any]) -> FitPlan:
    settings = tuple(dict.fromkeys(parse_setting(spec) for spec in options["deploy"])) or PLAN.settings
    return FitPlan(
        samples=options["samples_per_prompt"],
        limit=options["limit"],
        validation_samples=options["validation_samples"],
        test_samples=options["test_samples"],
        sweep=Sweep(
            estimators=tuple(dict.fromkeys(options["estimator"])),
            tau=options["tau"],
            l2=options["l2"],
            weights=options["weights"],
            alpha=options["alpha"],
            alpha_scale=options["alpha_scale"],
            kappa=options["kappa"],
            positions=options["positions"],
            clip=options["clip"],
            seed=options["seed"] or 0,
            unobserved=options["unobserved"],
        ),
        goal=Goal(options["objective"], options["kl_price"]),
        rounds=options["rounds"],
        trust=options["trust"],
        clusters=options["clusters"],
        embedding=options["embedding"],
        go_on=options["go_on"],
        full_vocab=options["full_vocab"] or 0,
        entries=_entries(options["entries"]),
        integers=options["integers"],
        settings=settings,
    )


def _entries(text: str) -> int | Literal["cv"] | None:
    if text == ALL:
        return None
    if text == "cv":
        return "cv"
    if not text.isdecimal() or int(text) == 0:
        raise click.BadParameter(f"{text!r} is neither a number from 1 nor {ALL!r} nor 'cv'", param_hint="--entries")
    return int(text)


async def _run(options: dict[str, Any], task: Task, reward: Reward, plan: FitPlan) -> tuple[FitResult, list[str]]:
    """The result, and every remark that was made on the way."""
    async with open_trials(options, task, reward, stages=lambda trials: fit_stages(task, plan)) as trials:
        heard = Remembering(trials.report)
        with _engine(options) as engine:
            return await fit(replace(trials, report=heard, engine=engine), task, plan), heard.remarks


def _engine(options: dict[str, Any]) -> AbstractContextManager[Engine | None]:
    if options["engine"] == "here":
        if options["workers"]:
            raise InputError(f"--workers {options['workers']} are those of --engine ray; give both, or neither")
        return nullcontext()
    from blackbox_lb.cluster import Cluster

    return Cluster(options["workers"])


def _print(result: FitResult, folder: Path, unwritten: Collection[str]) -> None:
    bias = result.bias
    verdict_table(bias.verdict)
    click.echo(
        f"{bias.estimator} ({settings_text(bias.settings)}), {len(bias.entries)} entries, learned from {bias.rollouts} rollouts, "
        f"{result.kl_sentence}"
    )
    if bias.compiled:
        click.echo(f"compiled: {bias.compiled.sentence}")
    if bias.censoring and bias.sampling:
        click.echo(bias.censoring.sentence(bias.sampling.top_logprobs))
    findings_list(bias.findings)
    if result.fidelity is not None:
        _print_fidelity(result.fidelity)
    if "bias.json" not in unwritten:
        click.echo(f"wrote {folder / 'bias.json'}; look into it with: blb show {folder / 'bias.json'}")
    if "learned.json" not in unwritten:
        click.echo(
            f"wrote {folder / 'learned.json'}: all {len(result.uncompiled.entries):,} learned values, for blb compile"
        )


def _print_fidelity(found: Fidelity) -> None:
    if not found.rows:
        click.echo(
            f"exactness NOT CHECKED: distributions at {found.positions} reference positions do not agree with the logged lists "
            f"(total variation {found.distance:.2f} on average)"
        )
        return
    print_table(
        f"Exact at {found.positions} training positions with all {found.vocabulary:,} logprobs, and as the lists say of them "
        "(nats a token)",
        (
            "bias",
            "entries",
            "KL",
            "by lists",
            "KL lost",
            "by lists",
            "kept",
            "by lists",
            "log Z error",
            "sd",
            "largest",
        ),
        (
            (
                row.label,
                f"{row.entries:,}",
                *(f"{value:.4f}" for value in (row.kl.exact, row.kl.listed, row.lost.exact, row.lost.listed)),
                *(f"{value:.1%}" for value in (row.kept.exact, row.kept.listed)),
                f"{row.log_z[0]:+.4f}",
                *(f"{value:.4f}" for value in row.log_z[1:]),
            )
            for row in found.rows
        ),
    )
