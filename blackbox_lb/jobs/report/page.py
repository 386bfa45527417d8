"""The page: one HTML file with everything in it, whose text can neither run, nor reverse a line, nor ask the network."""

from __future__ import annotations

import base64
import hashlib
import importlib
import unicodedata
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any

from blackbox_lb._version import __version__
from blackbox_lb.errors import InputError
from blackbox_lb.jobs.report import notes, tables
from blackbox_lb.jobs.report.data import Run, read_run
from blackbox_lb.jobs.report.figures import Plot, plots
from blackbox_lb.jobs.report.inline_svg import inline, save
from blackbox_lb.jobs.report.verdict_text import (
    GLOSSES,
    Judged,
    VerdictRow,
    amount,
    changed,
    headline,
    judged,
    measured,
    of_comparison,
    plain,
    rows_of,
    setting_words,
)
from blackbox_lb.rollouts.progress import short
from blackbox_lb.safety.secrets import redacted, redaction

UNSAFE = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Unicode categories that a reader cannot see or that move what he sees: control, bidirectional, surrogate, private, unassigned."""
OF_TOKENS = ("delta", "score")
"""Plots that show tokens; the others show how the strength was chosen."""
ORDER = ("HURTS", "HELPS", "NO EVIDENCE")


def tame(value: Any, masking: Callable[[str], str] = redacted) -> Any:
    """Text without secrets, every character of UNSAFE but line ends and tabs named as ⟨U+202E⟩; no text, or our HTML, as it is."""
    if type(value) is not str:
        return value
    text = masking(value).replace("\r\n", "\n")
    return text if text.isprintable() else "".join(_named(character) for character in text)


def _named(character: str) -> str:
    unsafe = unicodedata.category(character) in UNSAFE and character not in "\n\t"
    return f"⟨U+{ord(character):04X}⟩" if unsafe else character


def write_report(folder: Path, out: Path | None = None, plots_folder: Path | None = None) -> list[Path]:
    """Write the report of the run ``folder`` to ``out`` (``report.html`` in it), and its plots as files; returns what was written.

    Raises:
        InputError: the folder holds no run, a document is damaged, a package is missing, or a file cannot be written.
    """
    run = read_run(folder)
    drawn = plots(run, _label(run))
    path = out or folder / "report.html"
    text = render(run, drawn)
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path}: the report cannot be written ({error.strerror}); give another --out") from error
    saved = [] if plots_folder is None else [each for plot in drawn.values() for each in save(plot, plots_folder)]
    return [path, *saved]


def render(run: Run, drawn: dict[str, Plot] | None = None) -> str:
    """The page as HTML.

    Raises:
        InputError: jinja2 or matplotlib is missing.
    """
    environment, markup = _jinja()
    drawn = plots(run, _label(run)) if drawn is None else drawn
    script = _asset("page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    rows = rows_of(run)
    view = {
        **_top(run, rows),
        **_tables(run, rows, "pareto" in drawn),
        "strength_plots": [_shown(plot, markup) for name, plot in drawn.items() if name not in OF_TOKENS],
        "token_plots": [_shown(plot, markup) for name, plot in drawn.items() if name in OF_TOKENS],
        "examples": run.examples,
        "examples_from": run.examples_from,
        "same": sum(each.unchanged for each in run.examples),
        "chosen_by": notes.chosen_by(run),
        "learned": notes.learned(run),
        "costs": notes.costs(run),
        "counts": notes.counts(run),
        "findings": run.bias.findings,
        "remarks": [(name, each["remarks"]) for name, each in run.provenances.items() if each.get("remarks")],
        "missing": notes.missing(run),
        "origin": notes.origin(run),
        "provenances": notes.origins(run),
        "eval_command": notes.eval_command(run),
        "style": markup(_asset("style.css")),
        "script": markup(script),
        "script_hash": f"sha256-{digest}",
        "footer": f"Made by blackbox_lb {__version__} on {datetime.now(UTC):%Y-%m-%d %H:%M} UTC.",
    }
    view["sections"] = _sections(view)
    text: str = environment.from_string(_asset("page.html.j2")).render(view)
    return text


def _jinja() -> tuple[Any, Any]:
    try:
        jinja = importlib.import_module("jinja2")
        markup = importlib.import_module("markupsafe").Markup
    except ModuleNotFoundError as error:
        raise InputError("blb report needs jinja2: pip install 'blackbox-lb[report]'") from error
    environment = jinja.Environment(
        autoescape=True, undefined=jinja.StrictUndefined, finalize=partial(tame, masking=redaction()), trim_blocks=False
    )
    environment.filters["short"] = lambda value: short(value).replace("-", "−")
    return environment, markup


def _asset(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _label(run: Run) -> str:
    """What the reward is read as."""
    rows = rows_of(run)
    if rows:
        return rows[0].metric
    return "reward" if run.evaluation is None else run.evaluation.label


def _shown(plot: Plot, markup: Any) -> dict[str, Any]:
    return {
        "name": plot.name,
        "title": plot.title,
        "note": plot.note,
        "alternative": plot.alternative,
        "table": plot.table,
        "svg": markup(inline(plot)),
    }


def _top(run: Run, rows: Sequence[VerdictRow]) -> dict[str, Any]:
    parts = judged(rows)
    found = {part.word for part in parts}
    bias = run.bias
    return {
        "title": f"{bias.task or 'a bias'} on {bias.model}",
        "subtitle": f"{bias.provider} · reward {bias.reward} · {len(bias.entries):,} biased tokens · {bias.created:%d %B %Y}",
        "words": [word for word in ORDER if word in found] or ["UNVERIFIED"],
        "headline": headline(parts),
        "cards": [_card(part, len(rows)) for part in parts],
        "callouts": (*run.outdated, *(() if run.evaluation is None else run.evaluation.summary[:1])),
    }


def _card(part: Judged, compared: int) -> dict[str, Any]:
    row, *others = part.rows
    widest = max(abs(row.low), abs(row.high), abs(row.difference))
    return {
        "word": row.verdict,
        "setting": setting_words(part.setting),
        "metric": row.metric,
        "gloss": GLOSSES.get(row.metric, ""),
        "base": amount(row.metric, row.base),
        "other": amount(row.metric, row.other),
        "bar": tables.Bar.of(row, widest),
        "difference": changed(row),
        "plain": plain(row, compared),
        "others": [{"word": each.verdict, "metric": each.metric, "measured": measured(each)} for each in others],
    }


def _tables(run: Run, rows: Sequence[VerdictRow], pareto: bool) -> dict[str, Any]:
    evaluation, analysis, result = run.evaluation, run.analysis, run.result
    of_analysis = [] if analysis is None else [
        tables.scores_table(analysis), tables.bands_table(analysis), tables.families_table(analysis),
        tables.pairs_table(analysis), tables.delta_table(analysis),
    ]  # fmt: skip
    alone = result is not None and result.validation.tried and not pareto
    return {
        "verdict": tables.verdict_table(rows) if rows else None,
        "policies": None if evaluation is None else tables.policies_table(evaluation),
        "comparisons": None
        if evaluation is None
        else tables.comparisons_table([of_comparison(row) for row in evaluation.comparisons]),
        "evaluation_notes": () if evaluation is None else evaluation.notes,
        "summary": () if evaluation is None else evaluation.summary,
        "tried_alone": tables.tried_table(result.validation.tried) if alone and result is not None else None,
        "analysis_summary": () if analysis is None else analysis.summary,
        "token_tables": [tables.entries_table(run.bias), *(each for each in of_analysis if each.rows)],
    }


def _sections(view: dict[str, Any]) -> list[tuple[str, str]]:
    known = (
        ("numbers", "In numbers", view["verdict"]),
        ("alternatives", "Alternatives", view["policies"]),
        ("examples", "Before and after", view["examples"]),
        ("strength", "Strength", view["chosen_by"]),
        ("tokens", "Words", True),
        ("costs", "Costs", True),
        ("warnings", "Checks and counts", True),
        ("missing", "Not here", view["missing"]),
        ("origin", "Origin", True),
    )
    return [(place, name) for place, name, there in known if there]
