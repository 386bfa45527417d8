"""``python -m bench.reliability kill`` (or ``soak``): a row of the reliability table, measured on
real processes.

A command prints its row, and ends with 1 where something was not as promised.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import click

from bench.reliability.job import Row
from bench.reliability.kill import kill
from bench.reliability.soak import MODES, soak

__all__ = ["main"]


@click.group(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.option(
    "--folder",
    type=click.Path(path_type=Path),
    help="Where the runs lie. [default: a temporary folder]",
)
@click.pass_context
def main(ctx: click.Context, folder: Path | None) -> None:
    """What survives kills, and hours of faults."""
    temporary = ctx.with_resource(tempfile.TemporaryDirectory(prefix="reliability-"))
    ctx.obj = folder or Path(temporary)


@main.result_callback()
def _end(row: Row, folder: Path | None) -> None:
    """Print the row of a command. folder: the option of the group."""
    click.echo(row.line)
    sys.exit(int(bool(row.wrong)))


@main.command("kill")
@click.option("--runs", default=200, help="Each is killed up to three times, then resumed.")
@click.option("--seed", default=0, help="Of the instants.")
@click.pass_obj
def _kill(folder: Path, runs: int, seed: int) -> Row:
    """SIGKILL at random instants, then resuming."""
    return kill(folder, runs, seed=seed)


@main.command("soak")
@click.option("--seconds", default=7200.0)
@click.pass_obj
def _soak(folder: Path, seconds: float) -> Row:
    """Collecting from servers that fail in every known way."""
    return soak(folder, seconds, MODES)


if __name__ == "__main__":
    main()
