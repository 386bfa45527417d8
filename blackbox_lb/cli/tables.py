"""Tables that several commands print: verdicts, comparisons, findings, shares of labels, operating
points.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from blackbox_lb.cli.echo import echo
from blackbox_lb.cli.terminal import print_table
from blackbox_lb.rollouts.progress import chance, number
from blackbox_lb.safety.printable import printable

if TYPE_CHECKING:
    from blackbox_lb.bias.operating import OperatingCurve, OperatingPoint
    from blackbox_lb.bias.records import Comparison, Verdict
    from blackbox_lb.extras.report.page_table import PageTable
    from blackbox_lb.records import Finding, SharesOfGroup

MOST_ROWS = 15
"""Points of a curve that are printed; the JSON and the bias file hold all of them."""


def verdict_table(verdicts: Iterable[Verdict]) -> None:
    """Base against biased, one row a setting and metric; p is adjusted for the number of rows.

    Where the reward is itself the share of right answers, its row is not printed twice.
    """
    from blackbox_lb.jobs.runs.conclusion import change, level

    rows = []
    printed = set[tuple[str, float, float, float]]()
    for row in verdicts:
        numbers = (row.setting, row.base, row.biased, row.p)
        if row.metric != "accuracy" or numbers not in printed:
            rows.append(row)
        printed.add(numbers)
    print_table(
        "Test prompts, base against biased",
        ("setting", "metric", "base", "biased", "diff", "95 % interval", "p", "verdict"),
        (
            (
                row.setting.replace("temperature ", "T = "),
                printable(row.metric),
                level(row, row.base),
                level(row, row.biased),
                change(row, row.difference),
                f"{change(row, row.low)} to {change(row, row.high)}",
                chance(row.p),
                row.word,
            )
            for row in rows
        ),
        left_aligned=2,
    )


def findings_list(findings: Iterable[Finding], *, everything: bool = False) -> None:
    """Print the findings on the fit: the first one, the test's, and all reasons to worry, or with
    ``everything`` all.
    """
    rows = list(findings)
    if rows:
        echo(
            "Checks of the fit (FAIL: a reason why the bias may not help; INCONCLUSIVE: too little"
            " data):"
        )
    for rank, row in enumerate(rows):
        if everything or rank == 0 or row.word == "FAIL" or row.code == "test":
            remedy = ""
            if row.remedy and row.word != "PASS":
                remedy = f"; {row.remedy}"
            sentence = f"{row.sentence}{remedy}"
            echo(f"{row.word:12} {printable(row.code)}: {printable(sentence)}")


def comparisons_table(title: str, rows: Iterable[Comparison]) -> None:
    """Policies against others, paired by prompt, a row each."""
    print_table(
        title,
        (
            "setting",
            "policy",
            "against",
            "metric",
            "diff",
            "95 % interval",
            "p",
            "sign p",
            "needed",
            "verdict",
        ),
        (
            (
                row.setting.replace("temperature ", "T = "),
                printable(row.policy),
                printable(row.against),
                printable(row.metric),
                number(row.difference, sign=True),
                f"{number(row.low, sign=True)} to {number(row.high, sign=True)}",
                chance(row.p),
                chance(row.p_sign),
                "" if row.needed is None else f"{row.needed:,}",
                row.word,
            )
            for row in rows
        ),
        left_aligned=4,
    )


def shares_table(setting: str, sampled: Mapping[str, Sequence[SharesOfGroup]]) -> None:
    """The wanted share of each label and that of every policy: the table of the report."""
    from blackbox_lb.extras.report.page_table import shares_table as page_table

    _print_page_table(page_table(setting, sampled), left_aligned=2)


def print_curve(curve: OperatingCurve) -> None:
    """Print points of the curve: the table of the report."""
    from blackbox_lb.extras.report.page_table import operating_table

    _print_page_table(operating_table(curve, shown_points(curve)), left_aligned=1)


def _print_page_table(table: PageTable, left_aligned: int) -> None:
    """Print a table of the report; see ``print_table``."""
    rows = ([cell.text for cell in row] for row in table.rows)
    print_table(table.caption, table.columns, rows, left_aligned=left_aligned)


def shown_points(curve: OperatingCurve, most: int = MOST_ROWS) -> list[OperatingPoint]:
    """At most ``most`` points of different decisions, evenly spread, and the chosen one."""
    distinct: list[OperatingPoint] = []
    for point in curve.points:
        if not distinct or point.validation != distinct[-1].validation:
            distinct.append(point)
    step = max((len(distinct) - 1) / max(most - 1, 1), 1.0)
    places = {round(number * step) for number in range(most)}
    points = [point for place, point in enumerate(distinct) if place in places]
    if curve.chosen not in points:
        points.append(curve.chosen)
    return sorted(points, key=lambda point: point.shift)


def rate(value: float | None) -> str:
    """A share for display; a dash where no decision was for the label, or no prompt has it."""
    if value is None:
        return "-"
    return f"{value:.2f}"
