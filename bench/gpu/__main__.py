"""``python -m bench.gpu OUT --model NAME=FOLDER ...``: every part, most important first, until the
time is up.

A job that ended is not run again, and one that was cut off goes on from its store. ``--summary``
writes the tables alone.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path

import click

from bench.gpu import jobs, servers, summary
from bench.gpu.jobs import Job, Place

__all__ = ["main"]

FIRST_PORT = 8100
PARTS = ("decisions", "records", "mixture", "labels", "gsm8k", "live", "overhead")
ALONE = ("live", "overhead")
"""Parts for a GPU that nobody else uses, one job at a time: they are not among those that are run
by default.
"""
LARGEST = 2_000_000
"""Bytes of the largest store that is packed."""
SETTLE = 15.0
"""Seconds that a job has to keep what it paid for after SIGINT."""
ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "TOKENIZERS_PARALLELISM"), "1"
)


def planned(at: Sequence[Place], parts: Sequence[str]) -> list[Job]:
    """All jobs, in the order in which they begin."""
    found: list[Job] = []
    for part in parts:
        for place in at:
            if part == "mixture" and place is not at[0]:
                continue
            if part in ("records", "gsm8k") and place is not at[-1]:
                continue
            found += getattr(jobs, part)(place)
    return sorted(found, key=lambda job: bool(job.needs))


def run(
    job: Job, out: Path, until: float, done: dict[str, threading.Event], began: float | None = None
) -> int | None:
    """Run a job after the one that it needs, unless it has ended already; its exit code, None where
    time was up.

    until, began: of all jobs, in seconds of the monotonic clock.
    """
    marker = out / f"{job.name}.exit"
    began = time.monotonic() if began is None else began
    try:
        if marker.exists():
            return int(marker.read_text())
        if job.needs and not done[job.needs].wait(max(until - time.monotonic(), 0)):
            return None
        if job.needs and not job.takes_less and not (out / f"{job.needs}.exit").exists():
            return None
        until = began + job.until * (until - began)
        if job.store is not None and not job.store.exists():
            copy_store(out / job.needs / "rollouts.db", job.store)
        code = None if time.monotonic() > until - 5 else _call(job, out / f"{job.name}.log", until)
        if code is not None:
            marker.write_text(str(code))
        return code
    finally:
        done[job.name].set()


def copy_store(source: Path, copy: Path) -> None:
    """Copy a store that other jobs may be writing to; where there is none, the copy begins
    empty.
    """
    copy.parent.mkdir(parents=True, exist_ok=True)
    if not source.exists():
        return
    part = copy.with_suffix(".part")
    part.unlink(missing_ok=True)
    with closing(sqlite3.connect(source)) as old, closing(sqlite3.connect(part)) as new:
        old.backup(new)
    part.rename(copy)


def pack(out: Path) -> Path:
    """OUT.tar.gz: everything but large stores and the copies of what was given."""
    packed = out.with_name(f"{out.name}.tar.gz")
    with tarfile.open(packed, "w:gz", compresslevel=6) as archive:
        for path in sorted(out.rglob("*")):
            store = ".db" in path.name or path.name == "rollouts.part"
            if (
                path.is_file()
                and path.parent != out / "data"
                and not (store and path.stat().st_size > LARGEST)
            ):
                archive.add(path, Path(out.name, path.relative_to(out)))
    return packed


def _call(job: Job, log: Path, until: float) -> int | None:
    started = time.monotonic()
    with log.open("ab") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", job.module, *job.command],
            env={**os.environ, **ONE_THREAD, **job.variables},
            stdout=file,
            stderr=file,
            start_new_session=True,
        )
        try:
            code = process.wait(max(until - time.monotonic(), 1))
            file.write(f"\n[exit {code} after {time.monotonic() - started:.0f} s]\n".encode())
            return code
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(SETTLE)
            except subprocess.TimeoutExpired:
                process.kill()
            return None


@click.command()
@click.argument("out", type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "--model",
    "models",
    multiple=True,
    required=True,
    metavar="NAME=FOLDER",
    help="Repeatable; the smaller one first.",
)
@click.option(
    "--data",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    required=True,
    help="NAME.jsonl of each task.",
)
@click.option(
    "--embedding", required=True, help="Of sentence-transformers: a folder or a hub name."
)
@click.option(
    "--minutes",
    default=8.0,
    show_default=True,
    help="Of jobs; the start of the servers is not counted.",
)
@click.option("--workers", default=14, show_default=True, help="Jobs at a time.")
@click.option(
    "--part",
    "parts",
    multiple=True,
    type=click.Choice(PARTS),
    default=[part for part in PARTS if part not in ALONE],
)
@click.option(
    "--here",
    is_flag=True,
    help="Ask the engine in the process instead of vLLM: FOLDER is a .gguf file.",
)
@click.option("--keep", is_flag=True, help="Leave the servers running; the next call finds them.")
@click.option("--summary", "only", is_flag=True, help="Run nothing.")
def main(
    out: Path,
    models: tuple[str, ...],
    data: Path,
    embedding: str,
    minutes: float,
    workers: int,
    parts: tuple[str, ...],
    here: bool,
    keep: bool,
    only: bool,
) -> None:
    """Run what has not ended yet, write OUT/summary.json and OUT/summary.md, and pack
    OUT.tar.gz.
    """
    began = time.perf_counter()
    out.mkdir(parents=True, exist_ok=True)
    named = [each.partition("=")[::2] for each in models]
    with ExitStack() as stack:
        if not here and not only:
            started = {}
            for number, (name, folder) in enumerate(named):
                if not _answers(FIRST_PORT + number):
                    started[number] = servers.start(name, Path(folder), FIRST_PORT + number, out)
                    if not keep:
                        stack.callback(servers.stop, started[number])
            for number in range(len(named)):
                servers.wait(FIRST_PORT + number, started.get(number), 400)
        at = [
            Place(
                name,
                _options(name, folder, FIRST_PORT + number, here),
                out.resolve(),
                data.resolve(),
                embedding,
                folder,
            )
            for number, (name, folder) in enumerate(named)
        ]
        if not only:
            click.echo(f"the jobs begin {time.perf_counter() - began:.0f} s after the start")
            _run_all(planned(at, parts), out, time.monotonic() + 60 * minutes, workers)
    summary.write(out, data)
    click.echo(f"{pack(out)}")


def _options(name: str, folder: str, port: int, here: bool) -> tuple[str, ...]:
    if here:
        return ("--provider", "local", *(("--model", folder) if folder else ()))
    return ("--provider", "vllm", "--base-url", f"http://127.0.0.1:{port}/v1", "--model", name)


def _answers(port: int) -> bool:
    try:
        servers.wait(port, None, 0.5)
    except RuntimeError:
        return False
    return True


def _run_all(wanted: Sequence[Job], out: Path, until: float, workers: int) -> None:
    done = {job.name: threading.Event() for job in wanted}
    for job in wanted:
        if job.needs and job.needs not in done:
            done[job.needs] = threading.Event()
            done[job.needs].set()
    with ThreadPoolExecutor(workers) as pool:
        codes = list(
            pool.map(partial(run, out=out, until=until, done=done, began=time.monotonic()), wanted)
        )
    for job, code in zip(wanted, codes, strict=True):
        if code != 0:
            click.echo(f"{job.name}: {'not finished' if code is None else f'exit {code}'}")
    click.echo(f"{sum(code == 0 for code in codes)} of {len(codes)} jobs ended well")


if __name__ == "__main__":
    main()
