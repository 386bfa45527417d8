"""A fit onto a file system that fills up under it, at another point each time, and again once there
is room.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import NamedTuple

from bench.reliability.job import Job, ended, forks, found_in_files, new_key, result_of, state_of
from bench.reliability.row import Row, failed
from bench.reliability.server import LoggedServer

__all__ = ["MOUNTED", "disk", "within_mount"]

MEGABYTES = 8
"""Of the file system, in which nothing else lies."""
MOUNTED = "BLB_RELIABILITY_TMPFS"
"""Names the folder that is mounted, in the process that may use it."""
MOUNT = f'mount -t tmpfs -o size={MEGABYTES}m tmpfs "$0" && exec "$@"'
WORKERS = 4
WORDS = ("full", "No space")
"""One of them must stand in the sentence."""


MOST_FREE = 1_000_000
"""Bytes of room of the last fit; the first has none."""


class Filled(NamedTuple):
    """What came of one fit: its exit code on the full disk, samples kept, and what was wrong."""

    code: int
    kept: int
    wrong: tuple[str, ...]


def within_mount(folder: Path, arguments: list[str]) -> int:
    """``python -m bench.reliability`` with these arguments and a small tmpfs that only it sees,
    which takes no privileges where Linux allows it; its exit code.
    """
    place = folder / "full"
    place.mkdir(parents=True, exist_ok=True)
    line = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", MOUNT, str(place)]
    line += [sys.executable, "-m", "bench.reliability", "--folder", str(folder), *arguments]
    return subprocess.run(line, env=os.environ | {MOUNTED: str(place)}, check=False).returncode


def disk(folder: Path, place: Path, fills: int = 20) -> Row:
    """The row of so many fits; ``place`` is the small file system, logs lie below ``folder``."""
    began = time.monotonic()
    key = new_key()
    context = forks()
    truth = Job(folder / "undisturbed", key).prepared()
    with LoggedServer(truth.model(), key) as server:
        if ended(truth.fork(context, server.base_url, WORKERS)) != 0:
            raise RuntimeError(f"the undisturbed run did not end well; see {truth.log}")
    fits = []
    for number in range(fills):
        free = MOST_FREE * number // max(1, fills - 1)
        job = Job(folder / f"{number:03d}", key, out=place / "run").prepared()
        fits.append(_filled(job, free, truth, context))
        shutil.copytree(place / "run", job.folder / "run")
        shutil.rmtree(place / "run")
    keys = len(found_in_files(key, folder))
    stopped = [fit for fit in fits if fit.code == 2]
    kept = sum(fit.kept for fit in stopped)
    wrong = [sentence for fit in fits for sentence in fit.wrong]
    wrong += failed(
        {"no disk was full": not stopped, f"{keys} files show the planted key": keys > 0}
    )
    return Row(
        "`blb fit` onto a file system that fills up, then again once there is room",
        f"{fills} runs with 0 to {MOST_FREE / 1e6:g} MB of room, {len(stopped)} of them too little",
        f"{len(stopped)} ended with exit code 2 and a sentence, {kept} received completions kept,"
        f" {sum(bool(fit.wrong) for fit in fits)} did not come to the undisturbed result"
        f" afterwards; key found in {keys} places",
        time.monotonic() - began,
        {"runs": fills, "full": len(stopped), "kept": kept, "key_found": keys},
        tuple(dict.fromkeys(wrong)),
    )


def _filled(job: Job, free: int, truth: Job, context: ForkServerContext) -> Filled:
    ballast = job.run.parent / "ballast"
    with LoggedServer(job.model(), job.key) as server:
        job.run.mkdir()
        room = os.statvfs(job.run.parent)
        with ballast.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, max(1, room.f_bavail * room.f_frsize - free))
        code = ended(job.fork(context, server.base_url, WORKERS))
        server.settled()
        full = state_of(job.store)
        printed = job.log.read_text(encoding="utf-8")
        ballast.unlink()
        again = ended(job.fork(context, server.base_url, WORKERS))
        asked = {exchange.seed for exchange in server.settled()}
    errors = [line for line in printed.splitlines() if line.startswith("Error: ")]
    says_so = len(errors) == 1 and any(word in errors[0] for word in WORDS)
    end = job.log.read_text(encoding="utf-8")[-300:]
    checks = {
        f"exit code {code} with {free:,} bytes free": code not in (0, 2),
        "a traceback": "Traceback" in printed,
        f"a broken store: {full.broken}": bool(full.broken),
        f"no sentence about the disk: {printed[-300:]}": code == 2 and not says_so,
        f"exit code {again} once there was room: {end}": again != 0,
        "stored samples were asked for again": bool(asked & full.seeds),
        "another bias than undisturbed": result_of(job) != result_of(truth),
        "another store than undisturbed": state_of(job.store) != state_of(truth.store),
    }
    return Filled(code, len(full.seeds), failed(checks))
