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

from bench.compare import STORED, compared, direction, kept, report

__all__ = ["JOBS", "better", "main"]

JOBS: dict[str, list[str]] = {
    "collector": ["--tokens", "128", "--seconds", "1"],
    "short answers": ["--tokens", "16", "--seconds", "1"],
    "decision": [],
    "store_speed": ["--completions", "32"],
    "scale": ["--scale", "0.2"],
    "projection_scale": [],
    "apply_overhead": ["--rounds", "100"],
    "proxy_overhead": ["--requests", "300", "--streams", "1"],
    "startup": ["--repeats", "15"],
    "efficiency": ["--draws", "3", "--most", "1280"],
}
"""Benchmark -> options; vllm_overhead needs vLLM, reliability and frontier measure no time."""
MODULES = {"short answers": "collector"}
"""Benchmark -> its module, where that has another name."""


def run(name: str, folder: Path) -> dict[str, Any] | None:
    """The document of one benchmark, None where it failed; some end with exit code 1 where a goal
    is missed.
    """
    click.echo(f"\n## {name} {' '.join(JOBS[name])}\n")
    out = folder / f"{name}.json"
    out.unlink(missing_ok=True)
    command = [
        sys.executable,
        "-m",
        f"bench.{MODULES.get(name, name)}",
        *JOBS[name],
        "--out",
        str(out),
    ]
    done = subprocess.run(command, env={"OPENBLAS_NUM_THREADS": "1", **os.environ}, check=False)
    if not out.exists():
        click.echo(f"{name} ended with exit code {done.returncode} and wrote nothing", err=True)
        return None
    found: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
    return found


def better(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """``second`` with the better value of each ratio that both have."""
    ratios = dict(second["ratios"])
    for name, value in first["ratios"].items():
        if name in ratios:
            ratios[name] = (max if direction(name) == "higher" else min)(value, ratios[name])
    return {**second, "ratios": ratios}


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
    """Run the benchmarks at small sizes, about fifteen minutes, and compare; exit code 1 where a
    ratio is worse by a fifth.
    """
    stored = json.loads(STORED.read_text(encoding="utf-8")) if STORED.exists() else {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = out or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        documents, failed = {}, []
        for name in only or JOBS:
            found = run(name, folder)
            if found is None:
                failed.append(name)
                continue
            if not store and compared(stored, [found]).worse:
                click.echo(f"\n{name}: worse than stored, so once more")
                again = run(name, folder)
                found = found if again is None else better(found, again)
            documents[name] = found
    verdict = compared(stored, list(documents.values()))
    click.echo(f"\n{report(verdict)}")
    for name in failed:
        click.echo(f"failed: {name}")
    if store:
        STORED.write_text(
            json.dumps(kept(stored, list(documents.values())), indent=1) + "\n", encoding="utf-8"
        )
    if failed or not (store or verdict.passes):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
