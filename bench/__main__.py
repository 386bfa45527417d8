"""``python -m bench``: every benchmark at a small size, and every ratio against the stored one.

What comes out worse is measured once more, and the better of both counts: noise does not come
twice, a regression does.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import click

from bench.ratios import STORED, better, compared, kept

__all__ = ["JOBS", "main"]

JOBS: dict[str, list[str]] = {
    "collector": ["collector", "--tokens", "128", "--seconds", "1"],
    "short answers": ["collector", "--tokens", "16", "--seconds", "1"],
    "decision": ["decision"],
    "store_speed": ["store_speed", "--completions", "32"],
    "scale": ["scale", "--part", "ips", "--positions", "4000000"],
    "projection": ["scale", "--part", "fit", "--positions", "100000"],
    "apply_overhead": ["apply_overhead", "--rounds", "100"],
    "proxy_overhead": ["proxy_overhead", "--requests", "300", "--streams", "1"],
    "startup": ["startup", "--repeats", "15"],
}
"""Benchmark -> its module and options; the others measure no ratio of times."""


def run(name: str, folder: Path) -> dict[str, Any] | None:
    """The document of one benchmark, None where it failed."""
    module, *options = JOBS[name]
    click.echo(f"\n## {name} {' '.join(options)}\n")
    out = folder / f"{name}.json"
    command = [sys.executable, "-m", f"bench.{module}", *options, "--out", str(out)]
    ended = subprocess.run(command, env={"OPENBLAS_NUM_THREADS": "1", **os.environ}, check=False)
    if ended.returncode:
        click.echo(f"{name} ended with exit code {ended.returncode}", err=True)
        return None
    document: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
    return document


@click.command()
@click.option(
    "--only", multiple=True, type=click.Choice(list(JOBS)), help="Repeatable. [default: all]"
)
@click.option(
    "--out", type=click.Path(file_okay=False, path_type=Path), help="Folder for the results."
)
@click.option(
    "--store", is_flag=True, help="Keep the ratios as those that later runs are compared with."
)
def main(only: tuple[str, ...], out: Path | None, store: bool) -> None:
    """Run the benchmarks at small sizes, three to four minutes, and compare; exit code 1 where a
    ratio is worse by a fifth, is missing, or was measured with other options.
    """
    stored = json.loads(STORED.read_text(encoding="utf-8"))
    documents = []
    failed = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = out or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for name in only or JOBS:
            document = run(name, folder)
            if document is None:
                failed.append(name)
                continue
            if not store and not compared(stored, [document])[1]:
                click.echo(f"\n{name}: worse than stored, so once more")
                document = better(document, run(name, folder) or document)
            documents.append(document)
    table, passes = compared(stored, documents)
    click.echo(f"\n{table}")
    for name in failed:
        click.echo(f"failed: {name}")
    if store:
        text = json.dumps(kept(stored, documents), indent=1)
        STORED.write_text(f"{text}\n", encoding="utf-8")
    if failed or not (store or passes):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
