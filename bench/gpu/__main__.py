"""``python -m bench.gpu OUT --size 25 --model NAME=FOLDER ...``: what fits into so many minutes on
a machine with a GPU, most important first.

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
import tomllib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import click

from bench.commands import Place
from bench.gpu import servers, summary
from bench.steps import Step, commands_of, steps_of

__all__ = ["main"]

TABLE = tomllib.loads(Path(__file__).with_name("jobs.toml").read_text(encoding="utf-8"))

FIRST_PORT = 8100
PARTS = ("decisions", "records", "mixture", "labels", "gsm8k", "math", "live", "overhead")
ALONE = ("live", "overhead")
"""Parts for a GPU that nobody else uses: one job at a time, after the servers have been stopped.
They are not among those that are run by default.
"""


class Size(NamedTuple):
    """What fits into the minutes of its name, with three to start the servers and one to pack.

    parts: in the order of their importance.
    minutes: of the parts that ask servers.
    alone: minutes of those of ``ALONE``.
    """

    parts: tuple[str, ...]
    minutes: float
    alone: float = 0.0


SIZES = {
    "10": Size(("decisions",), 6.0),
    "25": Size(("decisions", "records", "mixture", "labels"), 21.0),
    "60": Size(PARTS, 41.0, alone=14.0),
}
LARGEST = 2_000_000
"""Bytes of the largest store that is packed."""
SETTLE = 15.0
"""Seconds that a job has to keep what it paid for after SIGINT."""
ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "TOKENIZERS_PARALLELISM"), "1"
)


@dataclass(frozen=True, slots=True)
class Model:
    """A model, and where it is asked.

    Attributes:
        name: in the names of jobs.
        place: options of ``blb`` for it, the folder of all runs, and that of the data.
        embedding: an embedding model.
        folder: of its weights.
    """

    name: str
    place: Place
    embedding: str
    folder: str = ""


def planned(models: Sequence[Model], parts: Sequence[str]) -> list[Step]:
    """Write the data of the parts and return all jobs, in the order in which they begin. Some are
    for the first or the last model alone; none is there whose file is not.
    """
    jobs: list[Step] = []
    for part in parts:
        for model in models:
            commands = commands_of(
                TABLE,
                model.place,
                name=model.name,
                embedding=model.embedding,
                folder=model.folder,
                python=sys.executable,
            )
            asked = {"first": models[0], "last": models[-1]}
            groups = [
                group for group in TABLE[part] if asked.get(group.get("model"), model) is model
            ]
            jobs += steps_of(commands, groups)
    return sorted(jobs, key=lambda job: bool(job.needs))


def run(
    job: Step, out: Path, until: float, done: dict[str, threading.Event], began: float | None = None
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


def _call(job: Step, log: Path, until: float) -> int | None:
    started = time.monotonic()
    with log.open("ab") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", job.module or "blackbox_lb", *job.words],
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
    "--size",
    type=click.Choice(list(SIZES)),
    help="Minutes of the whole command; they determine --part and --minutes.",
)
@click.option(
    "--minutes",
    type=float,
    help="Of jobs; the start of the servers is not counted. [default: 8]",
)
@click.option("--workers", default=14, show_default=True, help="Jobs at a time.")
@click.option(
    "--part",
    "parts",
    multiple=True,
    type=click.Choice(PARTS),
    help=f"Repeatable. [default: all but {' and '.join(ALONE)}, which have the GPU for themselves]",
)
@click.option(
    "--here",
    is_flag=True,
    help="Ask the engine in the process instead of vLLM: FOLDER is a .gguf file.",
)
@click.option(
    "--cpu",
    is_flag=True,
    help="So few problems of GSM8K and MATH as two cores answer in two hours:"
    f" {TABLE['small']['problems']['train']} to learn from, {TABLE['small']['problems']['test']}"
    f" and {TABLE['small']['math']} to judge on.",
)
@click.option("--keep", is_flag=True, help="Leave the servers running; the next call finds them.")
@click.option("--summary", "only", is_flag=True, help="Run nothing.")
def main(
    out: Path,
    models: tuple[str, ...],
    data: Path,
    embedding: str,
    size: str | None,
    minutes: float | None,
    workers: int,
    parts: tuple[str, ...],
    here: bool,
    cpu: bool,
    keep: bool,
    only: bool,
) -> None:
    """Run what has not ended yet, write OUT/summary.json and OUT/summary.md, and pack
    OUT.tar.gz.
    """
    chosen = _size(size, parts, minutes)
    asking = [part for part in chosen.parts if part not in ALONE]
    alone = [part for part in chosen.parts if part in ALONE]
    if alone and (keep or here):
        raise click.UsageError(
            f"{' and '.join(alone)} start a vLLM of their own: no --keep, no --here"
        )
    out.mkdir(parents=True, exist_ok=True)
    at = []
    for number, model in enumerate(models):
        name, _, folder = model.partition("=")
        options = _options(name, folder, FIRST_PORT + number, here)
        place = Place(options, out.resolve(), data.resolve(), small=cpu)
        at.append(Model(name, place, embedding, folder))
    try:
        if asking and not only:
            began = time.perf_counter()
            with ExitStack() as stack:
                if not here:
                    _start_servers(at, out, stack, keep=keep)
                click.echo(f"the jobs begin {time.perf_counter() - began:.0f} s after the start")
                _run_all(planned(at, asking), out, time.monotonic() + 60 * chosen.minutes, workers)
        if alone and not only:
            _run_all(planned(at, alone), out, time.monotonic() + 60 * chosen.alone, workers=1)
    finally:  # also where it is interrupted: the machine may be gone before the next call
        summary.write(out)
        click.echo(f"{pack(out)}")


def _size(name: str | None, parts: tuple[str, ...], minutes: float | None) -> Size:
    """What is to be run. Raises UsageError: a size beside parts or minutes of one's own."""
    if name is None:
        default = tuple(part for part in PARTS if part not in ALONE)
        limit = 8.0 if minutes is None else minutes
        return Size(parts or default, limit, alone=limit)
    if parts or minutes is not None:
        raise click.UsageError(f"--size {name} determines --part and --minutes; leave these out")
    return SIZES[name]


def _start_servers(at: Sequence[Model], out: Path, stack: ExitStack, *, keep: bool) -> None:
    """Start a server a model where none answers at its port, and wait for all; without ``keep``
    they end with ``stack``.
    """
    started = {}
    for number, model in enumerate(at):
        if not _answers(FIRST_PORT + number):
            server = servers.start(model.name, Path(model.folder), FIRST_PORT + number, out)
            started[number] = server
            if not keep:
                stack.callback(servers.stop, server)
    for number in range(len(at)):
        servers.wait(FIRST_PORT + number, started.get(number), 400)


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


def _run_all(wanted: Sequence[Step], out: Path, until: float, workers: int) -> None:
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
