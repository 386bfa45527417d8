"""``python -m bench.profile collector | table | projection``: where the time of a hot path goes, by
py-spy.

It runs the path in a process of its own and prints the functions that the interpreter was in,
native code included, from the most samples to the least. py-spy comes by ``uv run --with py-spy``;
it needs the right to look into its own child.
"""

from __future__ import annotations

import collections
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import click

from bench.collector_server import MODEL, serving
from bench.measuring import markdown
from bench.peers.timed import Job, options

__all__ = ["PARTS", "PATHS", "folded", "main", "parts"]

PATHS = ("collector", "table", "projection")
LEFT_OUT = ("_find_and_load", "prepared_store", "prepared_rollouts")
"""Imports, and what is made for the profile alone."""
WAITING = ("_worker (", "Condition.wait (", "Writer._run (", "Thread._wait_for_tstate_lock (")
"""Threads that wait for work; py-spy sees no more than that they are inside C code."""
DISK = "waiting for the disk"
PARTS = {
    DISK: ("Database.transaction (",),
    "SQLite": ("RolloutStore.add_rows (", "RolloutStore.add_answers ("),
    "packing and checksums": ("RolloutStore.rows_of (",),
    "finding the numbers in JSON": ("AnswerReader.",),
    "from numbers to a completion": ("Session.completions_in (",),
    "HTTP": (
        "AiohttpTransport.",
        "ResponseHandler.",
        "_SelectorSocketTransport.",
        "ClientSession.",
    ),
    "request, key, errors": (
        "HttpService.send (",
        "HttpService.reading (",
        "Credentials.",
    ),
    "budgets, rate limits, retries": (
        "SpendLimit.",
        "RateLimiter.",
        "Channel.",
        "HttpService.tried (",
        "Session.answer (",
    ),
    "drift, pace, progress": ("DriftWatch.", "AdaptiveConcurrency.", "collect.<locals>.receive ("),
    "event loop": ("BaseEventLoop.", "Handle."),
}
"""Parts of a completion's collection, each with the functions that it is made of; the innermost
known one decides.
"""
SECONDS, RATE = 15, 200
"""Of the profile, and samples a second."""
TOP, CONCURRENCY = 20, 32


def _command(path: str, base_url: str, folder: str, tokens: int) -> list[str]:
    if path == "collector":
        job = Job("blb", base_url, MODEL, tokens, TOP, CONCURRENCY, SECONDS, folder, "openai")
        return ["-m", "bench.peers.blb", *options(job)]
    return ["-m", "bench.profiled", path, folder]


def folded(text: str) -> tuple[collections.Counter[str], collections.Counter[str]]:
    """Samples by the function that was running, and by every function that was on the stack, from
    py-spy's raw format.
    """
    own: collections.Counter[str] = collections.Counter()
    within: collections.Counter[str] = collections.Counter()
    for frames, count in _stacks(text):
        own[frames[-1]] += count
        within.update(dict.fromkeys(frames, count))
    return own, within


def parts(text: str) -> collections.Counter[str]:
    """Samples by the part of ``PARTS`` that was running, from py-spy's raw format; "other" where
    none of them was.
    """
    found: collections.Counter[str] = collections.Counter()
    for frames, count in _stacks(text):
        known = (
            part
            for frame in reversed(frames)
            for part, names in PARTS.items()
            if frame.startswith(names)
        )
        found[next(known, "other")] += count
    return found


def _stacks(text: str) -> Iterator[tuple[list[str], int]]:
    """The functions of each sampled stack, outermost first, and its samples; without imports and
    waiting threads.
    """
    for line in text.splitlines():
        stack, _, count = line.rpartition(" ")
        frames = [_short(frame) for frame in stack.split(";")]
        if not any(name in stack for name in LEFT_OUT) and not frames[-1].startswith(WAITING):
            yield frames, int(count)


def _short(frame: str) -> str:
    """Without the folders of the file."""
    name, found, place = frame.partition(" (")
    return f"{name} ({place.rpartition('/')[2]}" if found else frame or "a thread without Python"


@click.command()
@click.argument("path", type=click.Choice(PATHS))
@click.option("--rows", default=15, show_default=True, type=click.IntRange(1))
@click.option(
    "--tokens",
    default=1024,
    show_default=True,
    type=click.IntRange(1),
    help="Of each completion collected.",
)
@click.option(
    "--native/--no-native",
    default=False,
    show_default=True,
    help="Whether to tell C functions apart.",
)
def main(path: str, rows: int, tokens: int, native: bool) -> None:
    """Profile one hot path: the collector, building the table from a store, or the projection's
    iterations.
    """
    spy = shutil.which("py-spy")
    if spy is None:
        raise click.ClickException(
            "py-spy is not here; uv run --with py-spy python -m bench.profile " + path
        )
    with tempfile.TemporaryDirectory() as folder, serving(tokens, TOP) as base_url:
        raw = Path(folder, "profile.txt")
        command = [
            spy,
            "record",
            "--format",
            "raw",
            "--function",
            "--output",
            str(raw),
            "--rate",
            str(RATE),
        ]
        command += ["--native"] if native else []
        done = subprocess.run(
            [*command, "--", sys.executable, *_command(path, base_url, folder, tokens)],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode or not raw.exists() or "Traceback" in done.stderr:
            raise click.ClickException(
                f"py-spy ended with exit code {done.returncode}: {done.stderr.strip()[-500:]}"
            )
        samples = raw.read_text(encoding="utf-8")
    own, within = folded(samples)
    if path == "collector":
        told = json.loads(
            next(line for line in done.stdout.splitlines() if line.startswith("{"))
        )  # py-spy prints its own lines, too
        shares, cpu = parts(samples), told["cpu"] / told["completions"] * 1e3
        waited = shares.pop(DISK, 0) / RATE / SECONDS
        table = [
            [part, f"{count / shares.total():.1%}", f"{cpu * count / shares.total():.3f}"]
            for part, count in shares.most_common()
        ]
        click.echo(
            f"{cpu:.2f} ms of processor time a completion; beside it a thread was {DISK}"
            f" {waited:.0%} of the time\n"
        )
        click.echo(markdown(["part", "share", "ms a completion"], table) + "\n")
    total = own.total()
    click.echo(
        f"{total} samples of running threads; share by the function itself, then by what it was"
        " called from\n"
    )
    for title, counter in (("itself", own), ("with what it calls", within)):
        table = [[f"`{name}`", f"{count / total:.1%}"] for name, count in counter.most_common(rows)]
        click.echo(markdown(["function", title], table) + "\n")


if __name__ == "__main__":
    main()
