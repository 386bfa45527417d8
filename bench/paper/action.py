"""What ``python -m bench.paper`` does: plan, run each benchmark, print our numbers beside the
paper's.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bench.paper.configuration import Configuration, load_configuration
from bench.paper.notes import differences, plan_sentences
from bench.paper.problems import load_problems
from bench.paper.results import BenchmarkResult, Reproduction
from bench.paper.run import BenchmarkRun, rewards_of, run
from bench.paper.scaling import Scaled, scaled
from bench.paper.tables import TextTable, comparison, details, markdown
from blackbox_lb.api.limits.budget import SpendLimit
from blackbox_lb.api.local.engine import resolve_model
from blackbox_lb.cli.echo import print_json
from blackbox_lb.cli.resources import open_trials
from blackbox_lb.cli.resources import run as run_within_limits
from blackbox_lb.cli.terminal import print_table, reporter
from blackbox_lb.errors import InputError
from blackbox_lb.jobs.forecast import Forecast
from blackbox_lb.jobs.records.run_record import Remembering, provenance
from blackbox_lb.jobs.runs.opening import run_folder
from blackbox_lb.literals import Endpoint
from blackbox_lb.providers.profile import load_profile
from blackbox_lb.rollouts.judging.trials import Trials

if TYPE_CHECKING:
    from bench.paper.__main__ import PaperOptions


def execute(options: PaperOptions) -> None:
    """Everything that the command does."""
    configuration = load_configuration(options.table)
    parts = _parts(configuration, options)
    plan = plan_sentences(configuration, parts, options.scale)
    if options.dry_run:
        _print_plan(plan, parts, configuration, as_json=options.as_json)
        return
    options = options.replacing(
        out=options.out or Path("runs") / f"reproduce-{configuration.table}",
        endpoint=options.endpoint or _endpoint(options.provider),
    )
    remembering = Remembering(reporter(quiet=options.quiet))
    for sentence in plan:
        remembering.notice(sentence)
    folder = run_folder(options, parts[0].task)
    (results, model, endpoint), _ = run_within_limits(
        options, lambda budget: _run(options, configuration, parts, folder, remembering, budget)
    )
    notes = differences(
        configuration,
        parts,
        results,
        scale=options.scale,
        model=model,
        provider=options.provider,
        endpoint=endpoint,
    )
    document = Reproduction(
        table=configuration.table,
        model=model,
        provider=options.provider,
        scale=options.scale,
        benchmarks=tuple(results),
        notes=tuple(notes),
        provenance=provenance(remembering.notices),
    )
    tables = [
        comparison(configuration, results, Path(model).name),
        *(details(configuration, result) for result in results),
    ]
    (folder / "reproduction.json").write_text(
        document.model_dump_json(indent=2) + "\n", encoding="utf-8"
    )
    (folder / "reproduction.md").write_text(markdown(document, tables), encoding="utf-8")
    if options.as_json:
        print_json(document.model_dump())
    else:
        _print(tables, notes, folder)


def _parts(configuration: Configuration, options: PaperOptions) -> list[Scaled]:
    names = list(dict.fromkeys(options.benchmark)) or list(configuration.benchmarks)
    unknown = [name for name in names if name not in configuration.benchmarks]
    if unknown:
        raise InputError(
            f"the paper's table of {configuration.table} has no benchmark {unknown[0]}; it has "
            f"{', '.join(configuration.benchmarks)}"
        )
    own = [name for name in ("data", "data_dir") if getattr(options, name) is not None]
    if own and len(names) > 1:
        option = own[0].replace("_", "-")
        raise InputError(
            f"--{option} has the problems of one benchmark, and {', '.join(names)} would be run;"
            " give one --benchmark"
        )
    return [_part(configuration, name, options) for name in names]


def _part(configuration: Configuration, name: str, options: PaperOptions) -> Scaled:
    benchmark = configuration.benchmarks[name]
    task = load_problems(benchmark, options.data, options.data_dir)
    return scaled(name, benchmark, task, options.scale, configuration.projection.share)


def _endpoint(provider: str) -> Endpoint | None:
    """Where a prompt goes as it is, without a chat template, as lm-evaluation-harness sends it;
    None where there is none.
    """
    return "completions" if "completions" in load_profile(provider).endpoints else None


def _spelled(options: PaperOptions) -> PaperOptions:
    """With the vocabulary of an embedded model, which its file has: for whoever needs the text of
    every token.
    """
    if options.tokenizer is not None or not load_profile(options.provider).connection.embedded:
        return options
    return options.replacing(tokenizer=str(resolve_model(options.model)))


async def _run(
    options: PaperOptions,
    configuration: Configuration,
    parts: Sequence[Scaled],
    folder: Path,
    remembering: Remembering,
    budget: SpendLimit,
) -> tuple[list[BenchmarkResult], str, str]:
    """The results, and the model and endpoint as the server has them."""
    results, served = [], ("", "")

    def expected(trials: Trials) -> Forecast:
        return sum((each.forecast for p in parts for each in p.stages(configuration)), Forecast())

    for part in parts:
        _, reward = rewards_of(configuration, part)

        @asynccontextmanager
        async def opened(spelled: bool) -> AsyncIterator[Trials]:
            nonlocal served
            async with open_trials(
                _spelled(options) if spelled else options,
                part.task,  # noqa: B023
                reward,  # noqa: B023
                budget,
                expected=expected,
                part=part.name,  # noqa: B023
            ) as trials:
                served = (trials.session.model, trials.session.endpoint)
                yield replace(trials, report=remembering)

        results.append(
            await run(BenchmarkRun(configuration, part, folder, options.seed or 0), opened)
        )
    return results, *served


def _print_plan(
    plan: Sequence[str], parts: Sequence[Scaled], configuration: Configuration, *, as_json: bool
) -> None:
    if not as_json:
        click.echo("\n".join(plan))
        return
    stages = {
        part.name: [
            {
                "stage": stage.title,
                "completions": stage.completions,
                "tokens": stage.tokens,
                "prompt_tokens": stage.prompt_tokens,
            }
            for stage in part.stages(configuration)
        ]
        for part in parts
    }
    print_json({"plan": stages, "sentences": list(plan)})


def _print(tables: Sequence[TextTable], notes: Sequence[str], folder: Path) -> None:
    for table in tables:
        print_table(table.title, table.header, table.rows)
    click.echo("What differs from the paper:")
    for note in notes:
        click.echo(f"- {note}")
    click.echo(f"wrote {folder / 'reproduction.md'} and {folder / 'reproduction.json'}")
