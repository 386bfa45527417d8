"""The action of ``blb runs``."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from blackbox_lb.cli.commands.using.runs import RunsOptions
from blackbox_lb.cli.echo import echo, print_json
from blackbox_lb.cli.terminal import print_table
from blackbox_lb.jobs.runs.conclusion import number
from blackbox_lb.jobs.runs.listing import RunRow, run_row, runs_in
from blackbox_lb.jobs.runs.names import RUNS
from blackbox_lb.safety.printable import printable


def execute(options: RunsOptions) -> None:
    """Print the rows."""
    if len(options.folders) > 1:
        rows = [run_row(folder) for folder in options.folders]
    else:
        rows = runs_in(options.folders[0] if options.folders else Path(RUNS))
    if options.as_json:
        print_json({"runs": [{**asdict(row), "folder": str(row.folder)} for row in rows]})
    elif not rows:
        where = options.folders[0] if options.folders else RUNS
        echo(f"no finished fit in {where}; blb fit makes one")
    else:
        print_table(
            f"{len(rows)} runs",
            ("run", "made", "verdict", "reward", "base", "biased", "difference", "entries", "$"),
            [_cells(row) for row in rows],
            left_aligned=4,
        )
        for row in rows:
            if row.commonest:
                echo(f"{printable(str(row.folder))}: {row.commonest}")


def _cells(row: RunRow) -> tuple[str, ...]:
    low = number(row.low, sign=True)
    high = number(row.high, sign=True)
    return (
        printable(str(row.folder)),
        printable(row.date[:16].replace("T", " ")),
        printable(row.verdict),
        printable(row.metric),
        number(row.base),
        number(row.biased),
        f"{low} to {high}",
        f"{row.entries:,}",
        "" if row.dollars is None else f"{row.dollars:.2f}",
    )
