"""``python -m bench.reliability NAME``: the rows of the reliability table, one a command, each
measured on real processes.

Every command prints its row, writes all numbers behind it with ``--out``, and ends with 1 where
something was not as promised.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import click

from bench.reliability.clock import clock
from bench.reliability.disk import MOUNTED, disk, within_mount
from bench.reliability.kill import kill
from bench.reliability.row import Row
from bench.reliability.soak import MODES, soak
from bench.reliability.writers import writers

__all__ = ["main"]


@click.group(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.option(
    "--out", type=click.Path(path_type=Path), help="Write the row and its numbers as JSON."
)
@click.option(
    "--folder",
    type=click.Path(path_type=Path),
    help="Where the runs lie. [default: a temporary folder]",
)
@click.pass_context
def main(ctx: click.Context, out: Path | None, folder: Path | None) -> None:
    """What survives kills, faults, many writers, a moving clock and a full disk."""
    temporary = ctx.with_resource(tempfile.TemporaryDirectory(prefix="reliability-"))
    ctx.obj = (out, folder or Path(temporary))


def _end(ctx: click.Context, row: Row) -> None:
    out, _ = ctx.obj
    click.echo(row.line)
    if out is not None:
        row.save(out)
    ctx.exit(int(bool(row.wrong)))


@main.command("kill")
@click.option("--runs", default=200, help="Each is killed up to three times, then resumed.")
@click.option("--seed", default=0, help="Of the instants.")
@click.pass_context
def _kill(ctx: click.Context, runs: int, seed: int) -> None:
    """SIGKILL at random instants, then resuming."""
    _end(ctx, kill(ctx.obj[1], runs, seed=seed))


@main.command("soak")
@click.option("--seconds", default=7200.0)
@click.pass_context
def _soak(ctx: click.Context, seconds: float) -> None:
    """Collecting from servers that fail in every known way."""
    _end(ctx, soak(ctx.obj[1], seconds, MODES))


@main.command("writers")
@click.option("--writers", "count", default=24)
@click.option("--seconds", default=20.0)
@click.pass_context
def _writers(ctx: click.Context, count: int, seconds: float) -> None:
    """Many processes on one store."""
    _end(ctx, writers(ctx.obj[1], count, seconds))


@main.command("clock")
@click.pass_context
def _clock(ctx: click.Context) -> None:
    """A wall clock that jumps; needs a C compiler."""
    _end(ctx, clock(ctx.obj[1]))


@main.command("disk")
@click.option("--fills", default=20, help="Fits, each with more room.")
@click.pass_context
def _disk(ctx: click.Context, fills: int) -> None:
    """A disk that fills up; needs Linux with tmpfs and unprivileged mounts, or root."""
    out, folder = ctx.obj
    place = os.environ.get(MOUNTED)
    if place is not None:
        _end(ctx, disk(folder, Path(place), fills))
    words = ["--out", str(out.absolute())] if out else []
    sys.exit(within_mount(folder.absolute(), [*words, "disk", "--fills", str(fills)]))


if __name__ == "__main__":
    main()
