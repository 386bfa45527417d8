"""The layout of the paper's tables: its numbers as printed, ours beside them, and what has to be
known to compare them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.paper.plan import Part, Table

__all__ = ["TextTable", "comparison", "details", "differences", "page"]

Result = Mapping[str, Any]
"""A benchmark's results, or a method's."""


@dataclass(frozen=True, slots=True)
class TextTable:
    """Cells of text; all columns but the first are numbers."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    @property
    def text(self) -> str:
        """As Markdown."""
        bars = ("---", *["---:"] * (len(self.header) - 1))
        lines = [f"**{self.title}**", ""]
        for row in (self.header, bars, *self.rows):
            cells = (cell.replace("|", "\\|").replace("\n", " ") for cell in row)
            lines.append(f"| {' | '.join(cells)} |")
        return "\n".join(lines)


def offsets(mean: Mapping[str, float], unit: float) -> str:
    """``33.14 ± 1.30`` as in the paper; ``33.14 +1.31 -1.29`` where the two offsets of the interval
    do not print alike.
    """
    up = f"{unit * (mean['high'] - mean['mean']):.2f}"
    down = f"{unit * (mean['mean'] - mean['low']):.2f}"
    value = f"{unit * mean['mean']:.2f}"
    return f"{value} ± {up}" if up == down else f"{value} +{up} -{down}"


def comparison(table: Table, results: Sequence[Result], model: str) -> TextTable:
    """The paper's table with our columns: beside each benchmark that was run, or, where its columns
    are models, after them.
    """
    by_name = {result["benchmark"]: result for result in results}
    places = [(key, by_name.pop(key, None)) for key in table["columns"]]
    places += [("", result) for result in by_name.values()]
    header = ["Method", "Trained params", "ours"]
    for key, result in places:
        header.append(f"{table['columns'][key]}, paper" if key else f"{model}, ours")
        if key and result:
            header.append(f"{table['columns'][key]}, ours")
    rows = []
    for paper in table["rows"]:
        cells = [paper["title"], paper["params"], _params(paper["method"], results)]
        for key, result in places:
            if key:
                mean, offset = paper["values"][key]
                cells.append(f"{mean:.2f} ± {offset:.2f}")
            if result:
                cells.append(_ours(table, paper["method"], result))
        rows.append(tuple(cells))
    cells = [f"projection, {_share(results)} of the rollouts", "", _params("projection", results)]
    for key, result in places:
        if key:
            cells.append("")
        if result:
            cells.append(_ours(table, "projection", result))
    return TextTable(table["caption"], tuple(header), (*rows, tuple(cells)))


def _ours(table: Table, method: str, result: Result) -> str:
    own = result["methods"].get(method, {})
    metric = table["metric"]
    if "tokens" not in own:
        return "not run"
    if metric not in own:
        return "not known"
    return offsets(own[metric], 100.0 if metric == "accuracy" else 1.0)


def _params(method: str, results: Sequence[Result]) -> str:
    """Trained numbers of ours; from smallest to largest where benchmarks differ."""
    if method == "base":
        return "--"
    numbers = [result["methods"].get(method, {}).get("params") for result in results]
    known = sorted({number for number in numbers if number is not None})
    return "–".join(f"{number:,}" for number in dict.fromkeys([*known[:1], *known[-1:]]))


def _share(results: Sequence[Result]) -> str:
    """How many of the rollouts of the paper's estimator projection learned from, over all
    benchmarks where both were run.
    """
    pairs = [
        [result["methods"][name].get("rollouts") for name in ("projection", "ips")]
        for result in results
    ]
    both = [pair for pair in pairs if all(pair)]
    if not both:
        return "part"
    return f"{sum(part for part, _ in both) / sum(whole for _, whole in both):.0%}"


def details(table: Table, result: Result) -> TextTable:
    """What each method learned from and chose, and both metrics with their paired difference to the
    base.
    """
    title = table["benchmarks"][result["benchmark"]]["title"]
    caption = (
        f"{title}: {result['test']:,} test problems, greedy, each against the base on the same"
        " problems"
    )
    rows = []
    for name, own in result["methods"].items():
        if "tokens" not in own:
            rows.append((name, "not run", *[""] * 8))
            continue
        cells = [name]
        counts = [own.get(key) for key in ("rollouts", "entries")]
        cells += ["" if count is None else f"{count:,}" for count in counts]
        cells.append(own.get("chosen") or "")
        for metric, unit in (("accuracy", 100.0), ("tokens", 1.0)):
            cells.append(offsets(own[metric], unit) if metric in own else "")
            row = next((row for row in own["verdict"] if row["metric"] == metric), None)
            if row is None:
                cells += ["", ""]
                continue
            difference, low, high = (unit * row[key] for key in ("difference", "low", "high"))
            cells += [f"{difference:+.2f} ({low:+.2f} to {high:+.2f})", row["verdict"]]
        rows.append(tuple(cells))
    compared = ("difference", "verdict")
    header = ("method", "rollouts", "entries", "chosen", "accuracy %", *compared)
    return TextTable(caption, (*header, "tokens", *compared), tuple(rows))


def differences(
    table: Table, parts: Sequence[Part], results: Sequence[Result], scale: float, served: str
) -> list[str]:
    """Everything that makes a number of ours another thing than the paper's beside it. served: the
    model, and through what.
    """
    notes = [f"model: {served}; the paper's: {table['model']}"]
    notes += [sentence for part in parts for sentence in part.sentences(scale)]
    for part, result in zip(parts, results, strict=True):
        title = part.paper["title"]
        if result["note"]:
            notes.append(f"{title}: {result['note']}")
        notes.append(f"{title}: the paper's selection chose {part.paper['chosen']}")
        for name, own in result["methods"].items():
            if "missing" in own:
                notes.append(f"{title}, {name} not run: {own['missing']}")
            if own.get("compiled"):
                notes.append(f"{title}, {name}: {own['compiled']}")
    names = {part.name for part in parts}
    left_out = [own["title"] for name, own in table["benchmarks"].items() if name not in names]
    if left_out:
        notes.append(f"not run: {', '.join(left_out)}")
    notes += [f"the paper does not tell {what}" for what in table["not_told"]]
    if table["objective"] == "pareto":
        notes.append(
            "a candidate keeps the base's validation accuracy if it loses no more than one standard"
            " error of the paired difference; the paper does not tell how closely it has to be kept"
        )
    notes.append(
        "projection is not in the paper; a bias of ours is sent with each request as logit_bias"
        " within the provider's limits, the paper's through a logits processor, whole"
    )
    notes.append("LoRA-GRPO needs the weights and was not run")
    return notes


def page(table: Table, model: str, tables: Sequence[TextTable], notes: Sequence[str]) -> str:
    """The tables and the notes as a Markdown page."""
    lines = [f"# The paper's table of {table['table']}, with {model}", ""]
    for part in tables:
        lines += [part.text, ""]
    lines += ["## What differs from the paper", "", *(f"- {note}" for note in notes), ""]
    return "\n".join(lines)
