"""A fit onto a file system that fills up under it, at another point each time, and again once there
is room.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from multiprocessing.context import ForkServerContext
from pathlib import Path

from bench.reliability.job import Job, ended, forks, found_in_files, new_key, result_of, state_of
from bench.reliability.row import Row
from bench.reliability.server import LoggedServer

__all__ = ["MOUNTED", "Plan", "disk", "mounting", "mounts"]

MEGABYTES = 8
"""Of the file system, in which nothing else lies."""
MOUNTED = "BLB_RELIABILITY_TMPFS"
"""Names the folder that is mounted, in the process that may use it."""
MOUNT = f'mount -t tmpfs -o size={MEGABYTES}m tmpfs "$0" && exec "$@"'
WORKERS = 4
WORDS = ("full", "No space")
"""One of them must stand in the sentence."""


@dataclass(frozen=True, slots=True)
class Plan:
    """``fills`` fits, with 0 to ``most_free`` bytes of room, evenly spread."""

    fills: int = 20
    most_free: int = 1_000_000


@dataclass(frozen=True, slots=True)
class _Filled:
    """What came of one fit: exit code on the full disk, whether it said so in a sentence, samples
    kept, and what was wrong.
    """

    code: int
    kept: int
    wrong: tuple[str, ...]


def mounting(folder: Path, line: list[str]) -> list[str]:
    """The command ``line`` with a small tmpfs on ``folder`` that only it sees, which takes no
    privileges where Linux allows it.
    """
    return [
        "unshare",
        "--user",
        "--map-root-user",
        "--mount",
        "sh",
        "-c",
        MOUNT,
        str(folder),
        *line,
    ]


def mounts(folder: Path) -> bool:
    """Whether this machine allows that."""
    if shutil.which("unshare") is None:
        return False
    return (
        subprocess.run(mounting(folder, ["true"]), capture_output=True, check=False).returncode == 0
    )


def within_mount(folder: Path, arguments: list[str]) -> int:
    """``python -m bench.reliability`` with these arguments and the file system mounted; its exit
    code.
    """
    place = folder / "full"
    place.mkdir(parents=True, exist_ok=True)
    line = mounting(
        place, [sys.executable, "-m", "bench.reliability", "--folder", str(folder), *arguments]
    )
    return subprocess.run(line, env=os.environ | {MOUNTED: str(place)}, check=False).returncode


def disk(plan: Plan, folder: Path, place: Path) -> Row:
    """The row; ``place`` is the small file system, logs lie below ``folder``."""
    began, key, context = time.monotonic(), new_key(), forks()
    truth = Job(folder / "undisturbed", key).prepared()
    with LoggedServer(truth.model(), key) as server:
        if ended(truth.fork(context, server.base_url, WORKERS)) != 0:
            raise RuntimeError(f"the undisturbed run did not end well; see {truth.log}")
    found = []
    for number in range(plan.fills):
        free = plan.most_free * number // max(1, plan.fills - 1)
        job = Job(folder / f"{number:03d}", key, out=place / "run").prepared()
        found.append(_filled(job, free, truth, context))
        shutil.copytree(place / "run", job.folder / "run")
        shutil.rmtree(place / "run")
    return _row(plan, found, len(found_in_files(key, folder)), time.monotonic() - began)


def _filled(job: Job, free: int, truth: Job, context: ForkServerContext) -> _Filled:
    ballast = job.run.parent / "ballast"
    wrong = []
    with LoggedServer(job.model(), job.key) as server:
        job.run.mkdir()
        room = os.statvfs(job.run.parent)
        with ballast.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, max(1, room.f_bavail * room.f_frsize - free))
        code = ended(job.fork(context, server.base_url, WORKERS))
        server.settled()
        full, said = state_of(job.store), job.log.read_text(encoding="utf-8")
        wrong += [f"exit code {code} with {free:,} bytes free"] * (code not in (0, 2))
        wrong += ["a traceback"] * ("Traceback" in said) + [
            f"a broken store: {full.broken}"
        ] * bool(full.broken)
        wrong += [f"no sentence about the disk: {said[-300:]}"] * (code == 2 and not _summary(said))
        ballast.unlink()
        again = ended(job.fork(context, server.base_url, WORKERS))
        asked = {each.seed for each in server.settled()}
    wrong += [f"exit code {again} once there was room: {job.log.read_text()[-300:]}"] * (again != 0)
    wrong += ["stored samples were asked for again"] * bool(asked & full.seeds)
    wrong += ["another bias than undisturbed"] * (result_of(job) != result_of(truth))
    wrong += ["another store than undisturbed"] * (state_of(job.store) != state_of(truth.store))
    return _Filled(code, len(full.seeds), tuple(wrong))


def _summary(said: str) -> bool:
    """Whether there is exactly one error, and it is about the disk."""
    errors = [line for line in said.splitlines() if line.startswith("Error: ")]
    return len(errors) == 1 and any(word in errors[0] for word in WORDS)


def _row(plan: Plan, found: list[_Filled], keys: int, seconds: float) -> Row:
    stopped = [each for each in found if each.code == 2]
    wrong = [sentence for each in found for sentence in each.wrong]
    wrong += ["no disk was full"] * (not stopped) + [f"{keys} files show the planted key"] * (
        keys > 0
    )
    return Row(
        "`blb fit` onto a file system that fills up, then again once there is room",
        f"{plan.fills} runs with 0 to {plan.most_free / 1e6:g} MB of room, {len(stopped)} of them"
        " too little",
        f"{len(stopped)} ended with exit code 2 and a sentence,"
        f" {sum(each.kept for each in stopped)} received completions kept,"
        f" {sum(bool(each.wrong) for each in found)} did not come to the undisturbed result"
        f" afterwards; key found in {keys} places",
        seconds,
        {
            "runs": plan.fills,
            "full": len(stopped),
            "kept": sum(each.kept for each in stopped),
            "key_found": keys,
        },
        tuple(dict.fromkeys(wrong)),
    )
