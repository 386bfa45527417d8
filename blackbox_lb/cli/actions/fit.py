"""What ``blb fit`` does: plan, collect, learn, choose, judge, write, print."""

from __future__ import annotations

import json
from collections.abc import Collection
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from blackbox_lb.api.limits.budget import Budget
from blackbox_lb.cli.commands.learning.fit import FitOptions
from blackbox_lb.cli.json_output import print_json
from blackbox_lb.cli.resources import load, open_trials, run_folder
from blackbox_lb.cli.run_limits import run
from blackbox_lb.cli.terminal import findings_list, print_table, settings_text, verdict_table
from blackbox_lb.errors import BiasError, InputError
from blackbox_lb.estimate.choice.goal import Goal
from blackbox_lb.estimate.choice.table import estimator
from blackbox_lb.estimate.inputs.sweep import Sweep
from blackbox_lb.jobs.fitting.list_fidelity import Fidelity
from blackbox_lb.jobs.fitting.plan import FitPlan
from blackbox_lb.jobs.fitting.result import FitResult
from blackbox_lb.jobs.fitting.run import fit
from blackbox_lb.jobs.forecast import fit_stages
from blackbox_lb.jobs.records.provenance import Remembering, provenance
from blackbox_lb.rollouts.judging.verdict import parse_setting
from blackbox_lb.rollouts.training import FitEngine
from blackbox_lb.tasks import Reward, Task

ALL = "all"


def execute(options: FitOptions) -> None:
    """Everything that the command does."""
    task, reward = load(options)
    plan = _plan(options)
    folder = run_folder(options, task)
    result, remarks = run(options, lambda budget: _run(options, task, reward, plan, budget))
    document = result.as_json() | {"bias": str(folder / "bias.json"), "uncompiled": str(folder / "learned.json")}
    document["provenance"] = provenance(remarks)
    unwritten = _write(result, document, folder)
    if options.as_json:
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


def _plan(options: FitOptions) -> FitPlan:
    settings = tuple(dict.fromkeys(parse_setting(spec) for spec in options.deploy)) or FitPlan().settings
    return FitPlan(
        samples=options.samples_per_prompt,
        limit=options.limit,
        validation_samples=options.validation_samples,
        test_samples=options.test_samples,
        sweep=Sweep(
            estimators=tuple(dict.fromkeys(options.estimator)),
            tau=options.tau,
            l2=options.l2,
            weights=options.weights,
            alpha=options.alpha,
            alpha_scale=options.alpha_scale,
            kappa=options.kappa,
            positions=options.positions,
            clip=options.clip,
            seed=options.seed or 0,
            unobserved=options.unobserved,
        ),
        goal=Goal(options.objective, options.kl_price),
        rounds=options.rounds,
        trust=options.trust,
        clusters=options.clusters,
        embedding=options.embedding,
        go_on=options.go_on,
        full_vocab=options.full_vocab or 0,
        entries=_entries(options.entries),
        integers=options.integers,
        settings=settings,
    )


def _entries(text: str) -> int | None:
    if text == ALL:
        return None
    if not text.isdecimal() or int(text) == 0:
        raise click.BadParameter(f"{text!r} is neither a number from 1 nor {ALL!r}", param_hint="--entries")
    return int(text)


async def _run(
    options: FitOptions, task: Task, reward: Reward, plan: FitPlan, budget: Budget
) -> tuple[FitResult, list[str]]:
    """The result, and every remark that was made on the way."""
    async with open_trials(
        options,
        task,
        reward,
        budget,
        stages=lambda trials: fit_stages(task, plan),
        elsewhere=options.rollouts,
        own_vocabulary=any(estimator(name).facts.clustered for name in options.estimator),
    ) as trials:
        heard = Remembering(trials.report)
        with _engine(options) as engine:
            return await fit(replace(trials, report=heard, engine=engine), task, plan), heard.remarks


def _engine(options: FitOptions) -> AbstractContextManager[FitEngine | None]:
    if options.engine == "here":
        if options.workers:
            raise InputError(f"--workers {options.workers} are those of --engine ray; give both, or neither")
        return nullcontext()
    from blackbox_lb.rollouts.ray_engine import Cluster

    return Cluster(options.workers)


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
