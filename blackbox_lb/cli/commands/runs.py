"""``blb runs``: the finished fits of a folder."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from blackbox_lb.cli.echo import echo, print_json
from blackbox_lb.cli.grouped import PATH, argument, command
from blackbox_lb.cli.options import PrintOptions
from blackbox_lb.cli.terminal import print_table
from blackbox_lb.jobs.runs.names import RUNS
from blackbox_lb.rollouts.progress import number
from blackbox_lb.safety.printable import counted, printable

if TYPE_CHECKING:
    from blackbox_lb.errors import InputError
    from blackbox_lb.jobs.runs.listing import RunRow


HEADER = ("run", "made", "verdict", "reward", "base", "biased", "difference, 95 %", "entries", "$")


class RunsOptions(PrintOptions):
    folders: tuple[Path, ...] = argument(metavar="[FOLDER]...", nargs=-1, type=PATH)


@command("runs", RunsOptions)
def runs_command(options: RunsOptions) -> None:
    """List the finished fits in FOLDER, by default runs, the newest first: reward, verdict,
    entries, cost.

    With two runs or more, by their folders or bias files: these, side by side.
    """
    from blackbox_lb.cli.resources import chosen_bias
    from blackbox_lb.jobs.runs.listing import run_row, runs_in

    damaged: list[InputError] = []
    if len(options.folders) > 1:
        rows = [run_row(chosen_bias(folder).parent) for folder in options.folders]
    elif options.folders and options.folders[0].is_file():
        rows = [run_row(options.folders[0].parent)]
    else:
        rows, damaged = runs_in(options.folders[0] if options.folders else Path(RUNS))
    if damaged and not rows:
        raise damaged[0]
    for error in damaged:
        echo(f"left out: {error}", err=True)
    if options.as_json:
        print_json({"runs": [{**asdict(row), "folder": str(row.folder)} for row in rows]})
    elif not rows:
        where = options.folders[0] if options.folders else RUNS
        echo(f"no finished fit in {where}; blb fit makes one")
    else:
        print_table(
            counted(len(rows), "run"),
            HEADER,
            [_cells(row) for row in rows],
            text_columns=range(4),
        )
        for row in rows:
            echo(f"{printable(str(row.folder))}: {row.headline or row.verdict}")


def _cells(row: RunRow) -> tuple[str, ...]:
    interval = ""
    if row.low is not None and row.high is not None:
        interval = f"{number(row.low, sign=True)} to {number(row.high, sign=True)}"
    return (
        printable(str(row.folder)),
        printable(row.date[:16].replace("T", " ")),
        printable(row.verdict),
        printable(row.metric),
        "" if row.base is None else number(row.base),
        "" if row.biased is None else number(row.biased),
        interval,
        f"{row.entries:,}",
        "" if row.dollars is None else f"{row.dollars:.2f}",
    )
