"""The action of ``blb fit``: plan, collect, learn, choose, judge, write, print."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path

import click

from blackbox_lb.api.limits.budget import SpendLimit
from blackbox_lb.bias.document import Bias
from blackbox_lb.bias.features import DependsOn
from blackbox_lb.bias.phases import Phases
from blackbox_lb.bias.records import settings_text
from blackbox_lb.cli.commands.learning.fit import FitOptions
from blackbox_lb.cli.echo import echo
from blackbox_lb.cli.grouped import arguments_for
from blackbox_lb.cli.json_output import print_json
from blackbox_lb.cli.resources import (
    labels_of,
    load,
    note_old_report,
    open_trials,
    results_of,
    run_folder,
)
from blackbox_lb.cli.run_limits import run
from blackbox_lb.cli.terminal import findings_list, print_table, verdict_table
from blackbox_lb.errors import InputError
from blackbox_lb.estimate.choice.goal import Goal
from blackbox_lb.estimate.decisions.scores import DecisionScores
from blackbox_lb.estimate.inputs.sweep import Sweep
from blackbox_lb.jobs.fitting.plan import MOST_ENTRIES, FitPlan
from blackbox_lb.jobs.fitting.result import FitResult
from blackbox_lb.jobs.fitting.run import fit
from blackbox_lb.jobs.forecast import fit_stages
from blackbox_lb.jobs.records.provenance import Remembering, provenance
from blackbox_lb.jobs.records.run_record import work_in
from blackbox_lb.jobs.runs.files import check_written, result_document, write_result
from blackbox_lb.jobs.runs.names import FEW, FIT_FILES
from blackbox_lb.jobs.runs.plan import completed_plan
from blackbox_lb.rollouts.training import FitEngine
from blackbox_lb.safety.printable import printable
from blackbox_lb.tasks import Reward, Task

ALL = "all"


def execute(options: FitOptions) -> None:
    """Run the command."""
    task, reward = load(options)
    plan = _plan(options, task, reward)
    folder = run_folder(options, task)
    with work_in(folder):
        _fit(replace(options, out=folder), task, reward, plan, folder)


def _fit(options: FitOptions, task: Task, reward: Reward, plan: FitPlan, folder: Path) -> None:
    """Learn, write and print, while nobody else works in the folder."""
    result, notices = run(options, lambda budget: _run(options, task, reward, plan, budget))
    document = result_document(result, folder, provenance(notices))
    unwritten = write_result(result, document, folder)
    if options.as_json:
        print_json(document)
    else:
        _print(result, folder, unwritten)
        note_old_report(folder)
    check_written(unwritten)


def _plan(options: FitOptions, task: Task, reward: Reward) -> FitPlan:
    """The plan that the options ask for, completed by what suits the data."""
    depends_on = [DependsOn.parse(spec) for spec in dict.fromkeys(options.depends_on)]
    estimators = tuple(dict.fromkeys(options.estimator))
    plan = FitPlan(
        **arguments_for(FitPlan, options),
        sweep=Sweep(**arguments_for(Sweep, options) | {"estimators": estimators}),
        goal=Goal(**arguments_for(Goal, options)),
        entries=_entries(options.entries),
        few=options.entries == FEW,
        listed=options.top_logprobs,
        labels=labels_of(options.labels, task.train),
        depends_on=tuple(on for on in depends_on if on is not None),
        phases=Phases.parse(options.phases) if options.phases else None,
    )
    return completed_plan(
        plan,
        task,
        reward,
        learn_from=options.learn_from,
        deploy=options.deploy,
        labels_named=options.labels is not None,
        needs_samples=bool(
            options.engine != "here" or options.rollouts or options.phases or options.only_stored
        ),
    )


def _entries(text: str) -> int | None:
    if text == ALL:
        return None
    if text == FEW:
        return MOST_ENTRIES
    if not text.isdecimal() or int(text) == 0:
        raise click.BadParameter(
            f"{text!r} is neither a number from 1 nor {ALL!r} nor {FEW!r}",
            param_hint="--entries",
        )
    return int(text)


async def _run(
    options: FitOptions, task: Task, reward: Reward, plan: FitPlan, budget: SpendLimit
) -> tuple[FitResult, list[str]]:
    """The result, and all remarks on the way."""
    async with open_trials(
        options,
        task,
        reward,
        budget,
        stages=lambda trials: fit_stages(task, plan, reward),
        elsewhere=options.rollouts,
        results=results_of(options, reward, *FIT_FILES),
    ) as trials:
        heard = Remembering(trials.report)
        with _engine(options) as engine:
            return (
                await fit(replace(trials, report=heard, engine=engine), task, plan),
                heard.notices,
            )


def _engine(options: FitOptions) -> AbstractContextManager[FitEngine | None]:
    if options.engine == "here":
        if options.workers:
            raise InputError(
                f"--workers {options.workers} are those of --engine ray; give both, or neither"
            )
        return nullcontext()
    from blackbox_lb.extras.ray.engine import Cluster

    return Cluster(options.workers)


def _print(result: FitResult, folder: Path, unwritten: Collection[str]) -> None:
    bias = result.bias
    verdict_table(bias.verdict)
    for setting, (base, biased) in result.decisions.items():
        _print_decisions(setting, base, biased)
    if result.beside:
        print_table(
            f"This bias ({_kind(bias)}) against what else decides, same test prompts",
            (
                "setting",
                "against",
                result.beside[0][1].metric,
                "this bias",
                "diff",
                "95 % interval",
                "p",
            ),
            (
                (
                    row.setting,
                    name,
                    f"{row.base:.3f}",
                    f"{row.biased:.3f}",
                    f"{row.difference:+.3f}",
                    f"{row.low:+.3f} to {row.high:+.3f}",
                    f"{row.p:.3f}",
                )
                for name, row in result.beside
            ),
        )
    echo(
        f"{bias.estimator} ({printable(settings_text(bias.settings))}), {len(bias.entries)}"
        f" entries, learned from {bias.rollouts} rollouts, {result.kl_sentence}"
    )
    if bias.compiled:
        echo(f"compiled: {bias.compiled.sentence}")
    if bias.censoring and bias.sampling:
        echo(bias.censoring.sentence(bias.sampling.top_logprobs))
    findings_list(bias.findings)
    if "bias.json" not in unwritten:
        echo(f"wrote {folder / 'bias.json'}; look into it with: blb show {folder / 'bias.json'}")
    if "learned.json" not in unwritten:
        echo(
            f"wrote {folder / 'learned.json'}: all {len(result.uncompiled.entries):,} learned"
            " values, for blb compile"
        )


def _kind(bias: Bias) -> str:
    if bias.phases:
        return f"phases {Phases.of(bias.phases).spec}"
    return f"depends on {bias.settings.get('depends_on', 'nothing')}"


def _print_decisions(setting: str, base: DecisionScores, biased: DecisionScores) -> None:
    """Print the scores of the decisions and the table of labels: each cell without and with the
    bias.
    """
    told = (
        ("accuracy", base.accuracy, biased.accuracy),
        ("macro-F1", base.macro_f1, biased.macro_f1),
        ("no label", base.no_label, biased.no_label),
        ("calibration error", base.calibration_error, biased.calibration_error),
    )
    rates = ((base.precision, biased.precision), (base.recall, biased.recall), (base.f1, biased.f1))
    shown = [
        f"{name} {one:.3f} -> {two:.3f}"
        for name, one, two in told
        if one is not None and two is not None
    ]
    print_table(
        f"Decisions at {setting}, base -> biased: {'; '.join(shown)}; always saying"
        f" {printable(base.commonest)}: accuracy {base.majority:.3f}",
        (
            "label",
            "precision",
            "recall",
            "F1",
            *(f"said {name}" for name in base.names),
            "said none",
        ),
        (
            (
                name,
                *(f"{one[row]:.2f} -> {two[row]:.2f}" for one, two in rates),
                *(
                    f"{one} -> {two}"
                    for one, two in zip(base.confusion[row], biased.confusion[row], strict=True)
                ),
            )
            for row, name in enumerate(base.names)
        ),
    )
