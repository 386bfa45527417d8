"""``python -m bench.reliability NAME``: the rows of the reliability table, one a command, each
measured on real processes.

Every command prints its row, writes all numbers behind it with ``--out``, and ends with 1 where
something was not as promised.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import click

from bench.reliability import disk as reliability_disk
from bench.reliability import soak as reliability_soak
from bench.reliability import writers as reliability_writers
from bench.reliability.clock import clock
from bench.reliability.kill import Plan, kill
from bench.reliability.row import Row

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
    ctx.obj = (out, folder)


def _measure(ctx: click.Context, measure: Callable[[Path], Row]) -> None:
    out, folder = ctx.obj
    with tempfile.TemporaryDirectory(prefix="reliability-") as temporary:
        row = measure(folder or Path(temporary))
    click.echo(row.line)
    if out is not None:
        row.save(out)
    sys.exit(bool(row.wrong))


@main.command("kill")
@click.option(
    "--runs",
    type=click.IntRange(1),
    default=200,
    help="Each is killed up to three times, then resumed.",
)
@click.option("--seed", type=int, default=0, help="Of the instants.")
@click.pass_context
def _kill(ctx: click.Context, runs: int, seed: int) -> None:
    """SIGKILL at random instants, then resuming."""
    _measure(ctx, lambda folder: kill(Plan(runs, seed=seed), folder, partial(click.echo, err=True)))


@main.command("soak")
@click.option("--seconds", type=click.FloatRange(1), default=reliability_soak.Plan().seconds)
@click.pass_context
def _soak(ctx: click.Context, seconds: float) -> None:
    """Collecting from servers that fail in every known way."""
    _measure(ctx, lambda folder: reliability_soak.soak(reliability_soak.Plan(seconds), folder))


@main.command("writers")
@click.option("--writers", type=click.IntRange(1), default=reliability_writers.Plan().writers)
@click.option("--seconds", type=click.FloatRange(1), default=reliability_writers.Plan().seconds)
@click.pass_context
def _writers(ctx: click.Context, writers: int, seconds: float) -> None:
    """Many processes on one store."""
    _measure(
        ctx,
        lambda folder: reliability_writers.writers(
            reliability_writers.Plan(writers, seconds), folder
        ),
    )


@main.command("clock")
@click.pass_context
def _clock(ctx: click.Context) -> None:
    """A wall clock that jumps; needs a C compiler."""
    _measure(ctx, clock)


@main.command("disk")
@click.option(
    "--fills",
    type=click.IntRange(1),
    default=reliability_disk.Plan().fills,
    help="Fits, each with more room.",
)
@click.pass_context
def _disk(ctx: click.Context, fills: int) -> None:
    """A disk that fills up; needs Linux with tmpfs and unprivileged mounts, or root."""
    place = os.environ.get(reliability_disk.MOUNTED)
    if place is not None:
        return _measure(
            ctx,
            lambda folder: reliability_disk.disk(reliability_disk.Plan(fills), folder, Path(place)),
        )
    out, folder = ctx.obj
    arguments = [*(("--out", str(out.absolute())) if out else ()), "disk", "--fills", str(fills)]
    with tempfile.TemporaryDirectory(prefix="reliability-") as temporary:
        sys.exit(reliability_disk.within_mount(Path(folder or temporary).absolute(), arguments))


if __name__ == "__main__":
    main()
