"""What several commands print: the tables of the report, all of it, findings, operating points."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from blackbox_lb.cli.echo import echo
from blackbox_lb.cli.terminal import print_table
from blackbox_lb.safety.printable import printable

if TYPE_CHECKING:
    from blackbox_lb.bias.operating import OperatingCurve, OperatingPoint
    from blackbox_lb.extras.report.data import RunDocuments
    from blackbox_lb.extras.report.page_table import Cell, PageTable
    from blackbox_lb.records import Finding

MOST_ROWS = 15
"""Points of a curve that are printed; the JSON and the bias file hold all of them."""


def print_page_table(table: PageTable, most: int | None = None) -> None:
    """Print a table of the report, notes in brackets. most: rows that are printed, None for all."""
    title = table.caption
    if most is not None and most < len(table.rows):
        title = f"{title}: {most} of {len(table.rows)}"
    print_table(
        title,
        table.columns,
        ([_cell_text(cell) for cell in row] for row in table.rows[:most]),
        text_columns=set(range(len(table.columns))) - table.numbers,
    )


def _cell_text(cell: Cell) -> str:
    text = cell.text
    if cell.note and cell.bar is None:  # the note of a bar is its colour
        text = f"{text} ({cell.note})".lstrip()
    return text.replace("\N{MINUS SIGN}", "-")


def print_report(run: RunDocuments) -> None:
    """Print the tables and facts of the report."""
    from blackbox_lb.extras.report.contents import facts_of, tables_of

    for tables in tables_of(run).values():
        for table in tables:
            print_page_table(table)
    findings_list(run.bias.findings)
    print_facts(facts_of(run))


def print_facts(facts: Iterable[tuple[str, str]]) -> None:
    """Print names and their facts, a line each."""
    for name, fact in facts:
        echo(f"{printable(name)}: {printable(fact)}")


def findings_list(findings: Sequence[Finding]) -> None:
    """Print the findings on the fit."""
    if findings:
        echo(
            "Checks of the fit (FAIL: a reason why the bias may not help; INCONCLUSIVE: too little"
            " data):"
        )
    for row in findings:
        remedy = ""
        if row.remedy and row.word != "PASS":
            remedy = f"; {row.remedy}"
        echo(f"{row.word:12} {printable(row.code)}: {printable(f'{row.sentence}{remedy}')}")


def print_curve(curve: OperatingCurve) -> None:
    """Print points of the curve: the table of the report."""
    from blackbox_lb.extras.report.page_table import operating_table

    print_page_table(operating_table(curve, shown_points(curve)))


def shown_points(curve: OperatingCurve) -> list[OperatingPoint]:
    """At most ``MOST_ROWS`` points of different decisions, evenly spread, and the chosen one."""
    distinct: list[OperatingPoint] = []
    for point in curve.points:
        if not distinct or point.validation != distinct[-1].validation:
            distinct.append(point)
    step = max((len(distinct) - 1) / (MOST_ROWS - 1), 1.0)
    places = {round(number * step) for number in range(MOST_ROWS)}
    points = [point for place, point in enumerate(distinct) if place in places]
    if curve.chosen not in points:
        points.append(curve.chosen)
    return sorted(points, key=lambda point: point.shift)
