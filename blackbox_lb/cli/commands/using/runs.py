"""``blb runs``: the finished fits of a folder."""

from __future__ import annotations

from pathlib import Path

from blackbox_lb.cli.grouped import PATH, argument, command
from blackbox_lb.cli.options import PrintOptions


class RunsOptions(PrintOptions):
    folders: tuple[Path, ...] = argument(metavar="[FOLDER]...", nargs=-1, type=PATH)


@command("runs", RunsOptions)
def runs_command(options: RunsOptions) -> None:
    """List the finished fits in FOLDER, by default runs, the newest first: reward, verdict,
    entries, cost.

    With the folders of two runs or more: these, side by side.
    """
    from blackbox_lb.cli.actions.runs import execute

    execute(options)
