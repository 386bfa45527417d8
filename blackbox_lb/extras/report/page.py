"""The page: one HTML file with everything in it, whose text can neither run, nor reverse a line,
nor ask the network.
"""

import base64
import hashlib
import importlib
import io
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any

from blackbox_lb._version import __version__
from blackbox_lb.bias.records import headline
from blackbox_lb.errors import InputError
from blackbox_lb.extras.report import decided, notes, tables, verdict_text
from blackbox_lb.extras.report.contents import tables_of
from blackbox_lb.extras.report.data import RunDocuments, read_run
from blackbox_lb.extras.report.drawing import COLOURS, Plot
from blackbox_lb.extras.report.examples import status_counts
from blackbox_lb.extras.report.figures import plots
from blackbox_lb.extras.report.page_text import named, tame
from blackbox_lb.extras.report.verdict_text import judged, rows_of
from blackbox_lb.jobs.runs.conclusion import level
from blackbox_lb.rollouts.progress import number, short
from blackbox_lb.safety.files import explained, write_whole
from blackbox_lb.safety.printable import printable
from blackbox_lb.safety.secrets import redaction

FONT = re.compile(r"font: ([\d.]+)px [^;\"]*")
IDENTITY = re.compile(r"(\bid=\"|url\(#|href=\"#)([^\")]+)")
DPI = 200


@dataclass(frozen=True, slots=True)
class WrittenReport:
    """The files of a report: its page, its plots, and its ``places``."""

    page: Path
    plots: tuple[Path, ...]
    places: tuple[tuple[str, str], ...]


def write_report(
    folder: Path,
    out: Path | None = None,
    plots_folder: Path | None = None,
    *,
    wording: Callable[[str], str] = str,
) -> WrittenReport:
    """Write the report of the run ``folder`` to ``out`` (``report.html`` in it), and its plots as
    files. ``wording`` rewrites the library's sentences for the page's readers.

    Raises InputError: the folder holds no run, a document is damaged, a package is missing, or a
    file cannot be written.
    """
    run = read_run(folder)
    plots_by_name = plots(run, _label(run))
    path = out or folder / "report.html"
    text = render(run, plots_by_name, wording)
    with explained(f"write the report {path}", "give another --out"):
        write_whole(path, text.encode())
    saved: list[Path] = []
    if plots_folder is not None:
        saved = [written for plot in plots_by_name.values() for written in save(plot, plots_folder)]
    return WrittenReport(path, tuple(saved), tuple(places(run)))


def places(run: RunDocuments) -> Iterator[tuple[str, str]]:
    """The id of an element of the page and the number that stands there, in the order of the page:
    every number that the terminal prints has one.
    """
    rows = rows_of(run)
    if not rows:
        yield "verdict", "UNVERIFIED"
    for row in rows:
        values = f"{level(row, row.base)} -> {level(row, row.biased)}"
        yield "numbers", f"{printable(row.metric)}  {values}  {row.setting}, {row.word}"
    decisions = {} if run.result is None else run.result.decisions
    for setting, pair in decisions.items():
        if pair.base.macro_f1 is not None and pair.biased.macro_f1 is not None:
            values = f"{number(pair.base.macro_f1)} -> {number(pair.biased.macro_f1)}"
            yield "decisions", f"macro-F1  {values}  {setting}, label by label"
    for question in run.decided:
        words = f"{question.changed_rows:,} of {question.test_rows:,} decisions change"
        yield "decisions", f"{printable(question.question)}  {words}"
    if run.evaluation is not None:
        names = {policy.name for policy in run.evaluation.policies}
        yield "alternatives", f"{len(names):,} policies"
    if run.examples:
        yield "examples", f"{len(run.examples):,} test prompts with their answers"
    for status, count in status_counts(run.examples).items():
        yield status, f"{count:,} of them {status}"
    if not run.bias.decisions:
        yield "tokens", f"{len(run.bias.entries):,} entries"
    usage = None if run.result is None else run.result.usage
    if usage is not None:
        words = f"{usage.prompt_tokens:,} + {usage.completion_tokens:,} tokens"
        yield "costs", f"{usage.completions:,} completions, {words}"
    yield "warnings", f"{len(run.bias.findings):,} checks of the fit"


def render(
    run: RunDocuments, figures: dict[str, Plot] | None = None, wording: Callable[[str], str] = str
) -> str:
    """The page as HTML. Raises InputError: jinja2 or matplotlib is missing."""
    environment, markup = _jinja()
    environment.filters["worded"] = wording
    script = _asset("page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    rows = rows_of(run)
    mends = bool(run.bias.decisions)
    if figures is None:
        figures = plots(run, _label(run))
    if mends:
        parts = decided.judged_questions(run)
        words = [decided.verdict_of(run)] if parts else []
    else:
        parts = judged(rows)
        words = [headline(rows)[0]]
    text: str = environment.from_string(_asset("page.html.j2")).render(
        run=run,
        rows=rows,
        parts=parts,
        words=words or ["UNVERIFIED"],
        figures=figures,
        mends=mends,
        decided=decided,
        questions=decided.question_parts(run, figures),
        notes=notes,
        status_counts=status_counts,
        tables=tables,
        contents=tables_of(run),
        say=verdict_text,
        style=markup(_asset("style.css")),
        script=markup(script),
        script_hash=f"sha256-{digest}",
        footer=f"Made by blackbox_lb {__version__} on {datetime.now(UTC):%Y-%m-%d %H:%M} UTC.",
    )
    return text


def _jinja() -> tuple[Any, Any]:
    try:
        jinja = importlib.import_module("jinja2")
        markup = importlib.import_module("markupsafe").Markup
    except ModuleNotFoundError as error:
        raise InputError(
            "blb report needs jinja2: pip install '.[report]' in the checkout"
        ) from error
    environment = jinja.Environment(
        autoescape=True,
        undefined=jinja.StrictUndefined,
        finalize=partial(tame, masking=redaction()),
        trim_blocks=False,
    )
    environment.filters["tone"] = lambda text: re.sub(r"[^a-z]+", "-", text.lower())
    environment.filters["svg"] = lambda plot: markup(inline(plot.figure, plot.name))
    environment.filters["short"] = lambda value: short(value).replace("-", "−")
    return environment, markup


def _asset(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _label(run: RunDocuments) -> str:
    """The displayed name of the reward."""
    rows = rows_of(run)
    if rows:
        return rows[0].metric
    if run.evaluation is None:
        return "reward"
    return run.evaluation.label


def inline(figure: Any, name: str) -> str:
    """The figure as an ``<svg>`` element, whose ids begin with ``name``, hidden from screen
    readers: its text alternative stands beside it.
    """
    text = _svg(figure)
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r"<title>.*?</title>|<!--.*?-->", "", text, flags=re.DOTALL)
    for role, colour in COLOURS.items():
        text = text.replace(colour, f"var(--plot-{role})")
    text = FONT.sub(r"font-size: \1px; font-family: inherit", text)
    text = IDENTITY.sub(rf"\g<1>{name}-\g<2>", text)
    start, rest = text.split(">", 1)
    start = re.sub(r' (width|height)="[^"]*"', "", start)
    return f'{start} aria-hidden="true" focusable="false">{rest}'


def save(plot: Plot, folder: Path) -> list[Path]:
    """Write the figure as NAME.png and NAME.svg into ``folder``. Raises InputError: they cannot be
    written.
    """
    paths = [folder / f"{plot.name}.png", folder / f"{plot.name}.svg"]
    with explained(f"write plots into {folder}", "give another --plots"):
        folder.mkdir(parents=True, exist_ok=True)
        plot.figure.savefig(paths[0], dpi=DPI)
        paths[1].write_text(_svg(plot.figure), encoding="utf-8")
    return paths


def _svg(figure: Any) -> str:
    buffer = io.StringIO()
    rules = {"svg.fonttype": "none", "svg.hashsalt": "blackbox-lb"}
    with importlib.import_module("matplotlib").rc_context(rules):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return named(buffer.getvalue())
