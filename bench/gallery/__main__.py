"""``python -m bench.gallery NAME``: a use of a learned bias beside its rivals, from its commands to
its page in ``docs/gallery``.

Every completion stays in OUT, so that a run that was cut off goes on, and a page is written again
without a request. The settings stand in the use's module, before the run; a command that fails is
on the page with what it said.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from click.testing import CliRunner, Result

from bench.commands import Place
from bench.gallery.data import FOLDER
from bench.gallery.data import MODEL as SECOND_MODEL
from bench.gallery.index import COLUMNS, index, rows
from bench.gallery.page import portable, write_page
from bench.gallery.results import (
    Evaluation,
    Outcome,
    PageResults,
    Run,
    Table,
    evaluation_of,
    fit_of,
    reading_table,
    texts_table,
)
from bench.gallery.use import USES, Use
from bench.measuring import machine, markdown, today
from bench.steps import Step
from blackbox_lb.cli import main as blb

__all__ = ["collect_results", "main", "model_options", "run", "why_not"]


def run(step: Step, place: Place) -> Outcome:
    """What a command printed. A command that ended well is not run again with the same words."""
    path = place.out / f"{step.name}.step.json"
    words = tuple(portable(word, place) for word in step.words)
    if path.exists():
        stored = Outcome.model_validate_json(path.read_text(encoding="utf-8"))
        stored_words = tuple(portable(word, place) for word in stored.words)
        if stored_words == words and stored.code == 0:
            return stored
    click.echo(f"$ {step.module or 'blb'} {' '.join(step.words)}", err=True)
    started = time.monotonic()
    ended = _call(step)
    seconds = time.monotonic() - started
    if ended.exit_code == 0:
        # A library may print before the program's last line, which is its JSON.
        text = ended.stdout.splitlines()[-1] if step.module else ended.stdout
        outcome = Outcome(words=words, code=0, seconds=seconds, document=json.loads(text))
    else:
        said = ended.stderr
        if not isinstance(ended.exception, SystemExit):  # a program has no sentences of blb's
            said = f"{type(ended.exception).__name__}: {ended.exception}"
        last = tuple(said.strip().splitlines()[-1:])
        outcome = Outcome(words=words, code=ended.exit_code, seconds=seconds, error=last)
    path.write_text(outcome.model_dump_json(), encoding="utf-8")
    click.echo(f"  {seconds:.0f} s, exit code {outcome.code} {' '.join(outcome.error)}", err=True)
    return outcome


def _call(step: Step) -> Result:
    """Run the command in this process.

    Raises SystemExit: it was interrupted. What else ``blb`` raises is a fault and is raised, too.
    """
    program = blb
    words = [*step.words, "--json"]
    if step.module:
        program = importlib.import_module(step.module).main
        words = list(step.words)
    ended = CliRunner(env=step.variables).invoke(program, words)
    if ended.exit_code == 130 or ended.stderr.endswith("Aborted!\n"):
        raise SystemExit(130)
    fault = ended.exception
    if fault is not None and not isinstance(fault, SystemExit) and not step.module:
        raise fault
    return ended


def collect_results(
    name: str, use: Use, place: Place, outcomes: Sequence[tuple[Step, Outcome]]
) -> PageResults:
    """Everything that the commands of a use measured."""
    documents = [(step, outcome.document or {}) for step, outcome in outcomes]
    fits = [fit_of(step, outcome) for step, outcome in outcomes]
    return PageResults(
        use=name,
        title=use.title,
        run=Run(
            date=today(),
            cores=machine()["cores"],
            minutes=sum(outcome.seconds for _, outcome in outcomes) / 60,
            small=place.small,
            **_spent(place.out),
        ),
        evaluations=tuple(
            evaluation
            for step, document in documents
            for evaluation in _evaluations(step, document)
        ),
        fits=tuple(fit for fit in fits if fit is not None),
        tables=(
            *(
                table
                for _, document in documents
                for table in (texts_table(document), reading_table(document))
                if table is not None
            ),
            *(
                Table.model_validate(table)
                for document in (*(document for _, document in documents), use.table)
                for table in document.get("tables", ())
            ),
        ),
    )


def _evaluations(step: Step, document: Mapping[str, Any]) -> list[Evaluation]:
    """Those of a command: the one of ``blb eval`` that a page shows, or those that a program
    printed.
    """
    printed = document.get("evaluations", ())
    if step.module:
        return [Evaluation.model_validate(evaluation) for evaluation in printed]
    if not step.title or not document:
        return []
    evaluation = evaluation_of(
        document,
        step.title,
        learned_from=step.learned_from,
        examples=step.examples,
    )
    return [evaluation]


def _spent(folder: Path) -> Counter[str]:
    """The requests and tokens that are recorded in the folders of fits and evaluations."""
    total: Counter[str] = Counter()
    for path in folder.rglob("run.json"):
        for record in json.loads(path.read_text(encoding="utf-8"))["runs"].values():
            for name in ("requests", "prompt_tokens", "completion_tokens"):
                total[name] += int(record.get("spent", {}).get(name, 0))
    return total


def why_not(name: str, use: Use, place: Place, *, has_model: bool) -> str:
    """A sentence why a use cannot run; "" where it can.

    has_model: the model that the use is made for is there, or another was named.
    """
    if use.second_model and not has_model:
        return (
            f"{name} is left out: it is made for Qwen2.5-Coder-0.5B, which is not in"
            f" {place.data}; fetch it with python -m bench.gallery.data --model, or give"
            " --second-model FILE."
        )
    if use.lacks(place):
        lacking = ", ".join(use.lacks(place))
        return (
            f"{name} is left out: {lacking} not found in {place.data}; write them with"
            " python -m bench.gallery.data, or give --data FOLDER."
        )
    return ""


@click.command(help=__doc__)
@click.argument("names", nargs=-1, type=click.Choice(list(USES)))
@click.option("--all", "is_all", is_flag=True, help="Every use whose model and data are given.")
@click.option("--provider", default="local", show_default=True)
@click.option(
    "--model", help="A GGUF file, or a name on the server. [default: SmolLM2-135M-Instruct]"
)
@click.option(
    "--second-model",
    help="The model of the uses that were made for Qwen2.5-Coder-0.5B-Instruct. [default: the file"
    " that python -m bench.gallery.data --model wrote; else, for uses that are named, --model]",
)
@click.option("--base-url", help="A server instead of the embedded engine.")
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    default=FOLDER,
    show_default=True,
    help="Folder that python -m bench.gallery.data wrote.",
)
@click.option("--small", is_flag=True, help="Fewer samples and prompts where a use takes long.")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("runs/gallery"),
    show_default=True,
)
@click.option(
    "--pages",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("docs/gallery"),
    show_default=True,
)
def main(
    names: tuple[str, ...],
    is_all: bool,
    provider: str,
    model: str | None,
    second_model: str | None,
    base_url: str | None,
    data: Path,
    small: bool,
    out: Path,
    pages: Path,
) -> None:
    """Run the uses one after the other; exit code 1 where one of their commands failed."""
    if is_all == bool(names):
        raise click.UsageError(f"give names of uses ({', '.join(USES)}), or --all")
    is_usual = provider == "local" and model is None and base_url is None
    if second_model is None and is_usual and (data / SECOND_MODEL).exists():
        second_model = str(data / SECOND_MODEL)
    has_model = second_model is not None or not (is_all or is_usual)
    at_model = Place(model_options(provider, model, base_url), out, data, small)
    at_second = replace(at_model, model=model_options(provider, second_model or model, base_url))
    pages.mkdir(parents=True, exist_ok=True)
    failed = False
    lines: list[tuple[str, ...]] = []
    skipped = []
    for name in names or [name for name in USES if not USES[name].table.get("apart")]:
        use = USES[name]
        place = replace(at_second if use.second_model else at_model, out=out / name)
        reason = why_not(name, use, place, has_model=has_model)
        if reason and not is_all:
            raise click.UsageError(reason)
        if reason:
            skipped.append(reason)
            continue
        place.out.mkdir(parents=True, exist_ok=True)
        steps = use.steps(place)
        outcomes = [(step, run(step, place)) for step in steps]
        failed |= any(outcome.code for _, outcome in outcomes)
        results = collect_results(name, use, place, outcomes)
        write_page(results, use, steps, place, pages)
        lines += rows(results)
    (pages / "index.md").write_text(index(pages), encoding="utf-8")
    click.echo(markdown(COLUMNS, lines))
    for reason in skipped:
        click.echo(reason)
    sys.exit(int(failed))


def model_options(provider: str, model: str | None, base_url: str | None) -> tuple[str, ...]:
    words = ["--provider", provider]
    if model:
        words += ["--model", model]
    if base_url:
        words += ["--base-url", base_url]
    return tuple(words)


if __name__ == "__main__":
    main()
