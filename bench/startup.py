"""``python -m bench.startup``: how long a new process takes to answer, against Python itself and
the openai SDK.

Every number is the median of processes that start, do one thing and end, in turns; files are in the
system's cache, and all modules are compiled, as an installer leaves them, whatever the environment
says of bytecode.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import click

from bench.measuring import OUT, markdown, medians, ratio, write

__all__ = ["COMMANDS"]

BLB = [sys.executable, "-m", "blackbox_lb"]
PYTHON, HELP, FIT_HELP = "python -c pass", "blb --help", "blb fit --help"
PACKAGE, SDK = "import blackbox_lb", "import openai"
COMMANDS: dict[str, list[str]] = {
    PYTHON: [sys.executable, "-c", "pass"],
    HELP: [*BLB, "--help"],
    "blb --version": [*BLB, "--version"],
    "blb show --help": [*BLB, "show", "--help"],
    FIT_HELP: [*BLB, "fit", "--help"],
    PACKAGE: [sys.executable, "-c", "import blackbox_lb"],
    "from blackbox_lb import apply": [sys.executable, "-c", "from blackbox_lb import apply"],
    "import numpy": [sys.executable, "-c", "import numpy"],
    "all that blb fit loads": [
        sys.executable,
        "-c",
        "import blackbox_lb.cli.commands.fit, blackbox_lb.jobs.runs.fit, rich.table",
    ],
    SDK: [sys.executable, "-c", "import openai"],
}


@click.command()
@click.option(
    "--repeats", default=9, show_default=True, type=click.IntRange(1), help="Processes of each."
)
@OUT
def main(repeats: int, out: Path | None) -> None:
    """Seconds from the start of a process to its end."""
    with tempfile.TemporaryDirectory() as bytecode:
        env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": bytecode}
        functions: dict[str, Callable[[], object]] = {
            name: partial(subprocess.run, command, stdout=subprocess.DEVNULL, check=True, env=env)
            for name, command in COMMANDS.items()
        }
        taken = medians(functions, repeats, warm_up=1)
    table = [
        [f"`{name}`", f"{seconds * 1e3:.0f}", f"{seconds / taken[SDK]:.3f}"]
        for name, seconds in taken.items()
    ]
    click.echo(markdown(["process", "ms, median", "ratio to import openai"], table))
    ratios = {
        f"startup/{name} over {SDK}": ratio(taken[name], taken[SDK])
        for name in (HELP, PACKAGE, FIT_HELP)
    }
    write(out, ratios)


if __name__ == "__main__":
    main()
