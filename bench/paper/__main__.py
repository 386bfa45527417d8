"""``python -m bench.paper``: the paper's tables, ours beside its own numbers."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from bench.paper.plan import TABLES, Part, Table, load_table, part_of, plan_sentences
from bench.paper.run import Place, results_of
from bench.paper.tables import comparison, details, differences, page
from blackbox_lb import BlbError, Task, load_profile, load_task

# The problems come from lm-evaluation-harness, as the paper used it.
from blackbox_lb.extras.harness import HarnessOptions, load_harness

__all__ = ["main"]


class _Refused(click.ClickException):
    exit_code = 2


def load_problems(benchmark: Table, data: Path | None, data_dir: Path | None) -> Task:
    """The benchmark's problems in three splits, from the hub or from the files in ``data_dir``; or
    those of the file ``data``.
    """
    if data is not None:
        return replace(load_task(data=data), note=f"problems from {data.name}, not the paper's")
    sampled = benchmark["validation"] if benchmark["validation_from_train"] else None
    options = HarnessOptions(data_dir=data_dir, validation_size=sampled)
    return load_harness(benchmark["harness"], options)


@click.command()
@click.option("--table", "name", type=click.Choice(TABLES), required=True)
@click.option(
    "--benchmark",
    "benchmarks",
    multiple=True,
    type=click.Choice(["math", "gsm8k", "gpqa"]),
    help="Only this one; repeatable. [default: all of the table]",
)
@click.option(
    "--scale",
    default=0.01,
    show_default=True,
    type=click.FloatRange(0, 1, min_open=True),
    help="Share of the paper's rollouts; problems and rollouts of each shrink by its square root.",
)
@click.option("--dry-run", is_flag=True, help="Say what would be asked for at most, ask nothing.")
@click.option("--provider", default="local", show_default=True)
@click.option("--model")
@click.option("--base-url")
@click.option("--tokenizer", help="The model's tokenizer.json or .gguf file, for the clusters.")
@click.option("--concurrency", type=click.IntRange(1))
@click.option("--top-logprobs", type=click.IntRange(1), help="[default: 20, or the limit]")
@click.option("--seed", default=0, show_default=True)
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path),
    help="Folder with the benchmark's data, for a machine without the hub.",
)
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    help="JSONL or CSV of your own problems, in place of the benchmark's.",
)
@click.option("--out", type=click.Path(path_type=Path), help="[default: runs/reproduce-TABLE]")
@click.option("--json", "as_json", is_flag=True)
def main(
    name: str,
    benchmarks: tuple[str, ...],
    scale: float,
    dry_run: bool,
    provider: str,
    model: str | None,
    base_url: str | None,
    tokenizer: str | None,
    concurrency: int | None,
    top_logprobs: int | None,
    seed: int,
    data_dir: Path | None,
    data: Path | None,
    out: Path | None,
    as_json: bool,
) -> None:
    """Run a table of the paper on your model, scaled down, and print it beside the paper's own
    numbers.

    Rollouts, positions, token caps, the grids of alpha and tau and the rules of selection are the
    paper's; a row of projection from a tenth of the rollouts is added. Prints what it will ask for
    first. Writes reproduction.json, reproduction.md and every bias into --out; a second run resumes
    there, and a larger --scale goes on from a smaller one.
    """
    table = load_table(name)
    names = benchmarks or tuple(table["benchmarks"])
    unknown = [own for own in names if own not in table["benchmarks"]]
    if unknown:
        known = ", ".join(table["benchmarks"])
        raise _Refused(f"the table of {name} has no benchmark {unknown[0]}; it has {known}")
    if (data or data_dir) and len(names) > 1:
        option = "--data" if data else "--data-dir"
        raise _Refused(
            f"{option} has the problems of one benchmark, and {', '.join(names)} would be run; give"
            " one --benchmark"
        )
    try:
        parts = [
            part_of(own, table, load_problems(table["benchmarks"][own], data, data_dir), scale)
            for own in names
        ]
        plan = plan_sentences(parts, scale)
        if dry_run:
            click.echo(_plan(parts, plan) if as_json else "\n".join(plan))
            return
        click.echo("\n".join(plan), err=True)
        # A prompt goes as it is, without a chat template, as lm-evaluation-harness sends it.
        has_plain = "completions" in load_profile(provider).endpoints
        server = {
            "provider": provider,
            "model": model,
            "base_url": base_url,
            "endpoint": "completions" if has_plain else None,
            "tokenizer": tokenizer,
        }
        folder = out or Path("runs") / f"reproduce-{name}"
        for part in parts:
            (folder / part.name).mkdir(parents=True, exist_ok=True)
        place = Place(server, folder, top_logprobs, seed, concurrency)
        results = asyncio.run(_results(parts, place))
    except BlbError as error:
        # Errors name the parameters of Python.
        raise _Refused(re.sub(r"``(\w+)``", _option, str(error))) from error
    served = f"{model or 'the default model'} through {provider} ({server['endpoint'] or 'chat'})"
    notes = differences(table, parts, results, scale, served)
    shown = Path(model).name if model else provider
    tables = [comparison(table, results, shown), *(details(table, own) for own in results)]
    document = {"table": name, "scale": scale, "server": server, "benchmarks": results}
    text = json.dumps({**document, "notes": notes}, indent=2)
    (folder / "reproduction.json").write_text(f"{text}\n", encoding="utf-8")
    markdown = page(table, shown, tables, notes)
    (folder / "reproduction.md").write_text(markdown, encoding="utf-8")
    click.echo(text if as_json else markdown)


def _option(match: re.Match[str]) -> str:
    return f"--{match[1].replace('_', '-')}"


async def _results(parts: list[Part], place: Place) -> list[dict[str, Any]]:
    return [await results_of(part, place) for part in parts]


def _plan(parts: list[Part], sentences: list[str]) -> str:
    stages = {
        part.name: [
            {"stage": stage.title, "completions": stage.completions, "tokens": stage.tokens}
            for stage in part.stages()
        ]
        for part in parts
    }
    return json.dumps({"plan": stages, "sentences": sentences})


if __name__ == "__main__":
    main()
