"""The layout of the paper's tables: its numbers as printed, ours beside them, and what has to be
known to compare them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench.paper.configuration import Configuration, PaperRow
from bench.paper.results import BenchmarkResult, MethodResult, Reproduction
from blackbox_lb.jobs.evaluation.document import Mean

NONE = ""


@dataclass(frozen=True, slots=True)
class TextTable:
    """Cells of text; all columns but the first are numbers."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def offsets(mean: float, low: float, high: float) -> str:
    """``33.14 ± 1.30`` as in the paper; ``33.14 +1.31 -1.29`` where the two offsets of the interval
    do not print alike.
    """
    up, down = f"{high - mean:.2f}", f"{mean - low:.2f}"
    return f"{mean:.2f} ± {up}" if up == down else f"{mean:.2f} +{up} -{down}"


def comparison(
    configuration: Configuration,
    results: Sequence[BenchmarkResult],
    model: str,
) -> TextTable:
    """The paper's table with our columns: beside each benchmark that was run, or, where its columns
    are models, after them.
    """
    places = _places(configuration, results)
    header = ["Method", "Trained params", "ours"]
    for key, result in places:
        header.append(f"{configuration.columns[key]}, paper" if key else f"{model}, ours")
        if key and result:
            header.append(f"{configuration.columns[key]}, ours")
    rows = [_row(configuration, row, places, results) for row in configuration.rows]
    ours = _projection(configuration, places, results)
    return TextTable(configuration.caption, tuple(header), (*rows, *ours))


def _places(
    configuration: Configuration, results: Sequence[BenchmarkResult]
) -> list[tuple[str, BenchmarkResult | None]]:
    """The paper's columns, each with our result for it; a result that has no column of its own
    follows them, without a key.
    """
    by_name = {result.benchmark: result for result in results}
    places = [(key, by_name.pop(key, None)) for key in configuration.columns]
    return places + [("", result) for result in by_name.values()]


def _row(
    configuration: Configuration,
    paper: PaperRow,
    places: Sequence[tuple[str, BenchmarkResult | None]],
    results: Sequence[BenchmarkResult],
) -> tuple[str, ...]:
    cells = [paper.title, paper.params, _params(paper.method, results)]
    for key, result in places:
        if key:
            mean, offset = paper.values[key]
            cells.append(f"{mean:.2f} ± {offset:.2f}")
        if result:
            cells.append(_ours(configuration, paper.method, result))
    return tuple(cells)


def _projection(
    configuration: Configuration,
    places: Sequence[tuple[str, BenchmarkResult | None]],
    results: Sequence[BenchmarkResult],
) -> list[tuple[str, ...]]:
    if not any(result.method("projection") for result in results):
        return []
    cells = [f"projection, {_share(results)} of the rollouts", NONE]
    cells.append(_params("projection", results))
    for key, result in places:
        cells += [NONE] * bool(key)
        if result:
            cells.append(_ours(configuration, "projection", result))
    return [tuple(cells)]


def _share(results: Sequence[BenchmarkResult]) -> str:
    """How many of the rollouts of the paper's estimator projection learned from, over all
    benchmarks where both were run.
    """
    pairs = [[result.method(name) for name in ("projection", "ips")] for result in results]
    counts = [[own.rollouts for own in pair if own and own.rollouts] for pair in pairs]
    both = [pair for pair in counts if len(pair) == len(("projection", "ips"))]
    return (
        f"{sum(part for part, _ in both) / sum(whole for _, whole in both):.0%}" if both else "part"
    )


def _ours(configuration: Configuration, method: str, result: BenchmarkResult) -> str:
    own = result.method(method)
    if own is None or own.missing is not None:
        return "not run"
    return _cell(configuration, own.accuracy, own.tokens)


def _cell(configuration: Configuration, accuracy: Mean | None, tokens: Mean | None) -> str:
    mean, unit = (accuracy, 100.0) if configuration.metric == "accuracy" else (tokens, 1.0)
    return (
        "not known"
        if mean is None
        else offsets(unit * mean.mean, unit * mean.low, unit * mean.high)
    )


def _params(method: str, results: Sequence[BenchmarkResult]) -> str:
    """Trained numbers of ours; from smallest to largest where benchmarks differ."""
    if method == "base":
        return "--"
    found = [
        own.params
        for result in results
        if (own := result.method(method)) and own.params is not None
    ]
    low, high = (min(found), max(found)) if found else (0, 0)
    return NONE if not found else f"{low:,}" if low == high else f"{low:,}–{high:,}"


def details(configuration: Configuration, result: BenchmarkResult) -> TextTable:
    """What each method learned from and chose, and both metrics with their paired difference to the
    base.
    """
    title = configuration.benchmarks[result.benchmark].title
    rows = [_detail(own) for own in result.methods]
    caption = (
        f"{title}: {result.test:,} test problems, greedy, each against the base on the same"
        " problems"
    )
    header = (
        "method",
        "rollouts",
        "entries",
        "chosen",
        "accuracy %",
        *_COMPARED,
        "tokens",
        *_COMPARED,
    )
    return TextTable(caption, header, tuple(rows))


_COMPARED = ("difference", "verdict")


def _detail(own: MethodResult) -> tuple[str, ...]:
    """One method; where it was not run the reason is under the table, among the notes."""
    if own.missing is not None:
        return (own.method, "not run", *[NONE] * 8)
    counts = tuple(NONE if value is None else f"{value:,}" for value in (own.rollouts, own.entries))
    cells = [own.method, *counts, own.chosen or NONE]
    for name, mean, unit in (("accuracy", own.accuracy, 100.0), ("tokens", own.tokens, 1.0)):
        row = next((each for each in own.verdict if each.metric == name), None)
        cells.append(
            NONE if mean is None else offsets(unit * mean.mean, unit * mean.low, unit * mean.high)
        )
        cells.append(
            NONE
            if row is None
            else f"{unit * row.difference:+.2f} ({unit * row.low:+.2f} to {unit * row.high:+.2f})"
        )
        cells.append(NONE if row is None else row.verdict)
    return tuple(cells)


def markdown(document: Reproduction, tables: Sequence[TextTable]) -> str:
    """The tables and the notes as a Markdown page."""
    lines = [f"# The paper's table of {document.table}, with {document.model}", ""]
    for table in tables:
        lines += [f"**{table.title}**", "", *_markdown(table), ""]
    lines += ["## What differs from the paper", "", *(f"- {note}" for note in document.notes), ""]
    return "\n".join(lines)


def _markdown(table: TextTable) -> list[str]:
    bars = ["---", *["---:"] * (len(table.header) - 1)]
    return [_line(row) for row in (table.header, bars, *table.rows)]


def _line(cells: Sequence[str]) -> str:
    escaped = (cell.replace("|", "\\|").replace("\n", " ") for cell in cells)
    return f"| {' | '.join(escaped)} |"
