"""A fit whose wall clock jumps: an hour back every few readings, two days forward now and then,
while the monotonic clock runs on.

The clock is moved beneath Python, by a library loaded ahead of the C library, so that nothing of
the process escapes it.
"""

from __future__ import annotations

import itertools
import sqlite3
import subprocess
import time
from pathlib import Path

from bench.reliability.job import Job, ended, found_in_files, new_key, result_of, state_of
from bench.reliability.row import Row, failed
from bench.reliability.server import LoggedServer
from tests.support.chaos.server import ChaosServer

__all__ = ["clock"]

SOURCE = Path(__file__).with_name("clock.c")
JUMP = 1800.0
"""Seconds: a row received so much earlier than the one stored before it shows that the clock went
back.
"""
STORM = 0.2
"""Share of requests that are refused with 429 and a time to wait, so that there is something to
wait for.
"""
WORKERS = 4


def clock(folder: Path) -> Row:
    """The row, from two fits below ``folder``. Needs ``cc``."""
    began = time.monotonic()
    key = new_key()
    folder.mkdir(parents=True, exist_ok=True)
    library = _library(folder)
    steady, seconds = _fit(Job(folder / "steady", key).prepared(), {})
    moved, longer = _fit(Job(folder / "moved", key).prepared(), {"LD_PRELOAD": str(library)})
    jumps = _jumps(moved.store)
    keys = len(found_in_files(key, folder))
    state = state_of(steady.store)
    same = state_of(moved.store) == state and result_of(moved) == result_of(steady)
    checks = {
        "the clock did not move": jumps == 0 or _jumps(steady.store) > 0,
        "store or bias differ from those of a steady clock": not same,
        "no bias was written": not result_of(steady),
        f"{keys} files show the planted key": keys > 0,
    }
    rows = len(state.seeds)
    return Row(
        "wall clock jumping back an hour, and forward by two days, under `blb fit` among 429s with"
        " times to wait",
        f"1 run of {rows} completions, {jumps} jumps back between stored rows",
        f"{'same' if same else 'other'} store and bias as with a steady clock, {longer:.1f} s"
        f" against {seconds:.1f} s; key found in {keys} places",
        time.monotonic() - began,
        {"rows": rows, "jumps": jumps, "seconds_moved": longer, "seconds_steady": seconds},
        failed(checks),
    )


def _library(folder: Path) -> Path:
    library = folder / "clock.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, SOURCE, "-ldl"], check=True)
    return library


def _fit(job: Job, variables: dict[str, str]) -> tuple[Job, float]:
    """The job once it is done, and its seconds."""
    with (
        LoggedServer(job.model(), job.key) as server,
        ChaosServer(server, "429 storm", rate=STORM, pause=0.05) as stormy,
    ):
        started = time.monotonic()
        code = ended(job.start(stormy.base_url, WORKERS, **variables))
        if code != 0:
            raise RuntimeError(f"blb fit ended with {code}; see {job.log}")
        return job, time.monotonic() - started


def _jumps(store: Path) -> int:
    """How often a row was received more than ``JUMP`` before the one that was stored before it."""
    db = sqlite3.connect(store)
    times = [row[0] for row in db.execute("SELECT received FROM completions ORDER BY rowid")]
    db.close()
    return sum(later < earlier - JUMP for earlier, later in itertools.pairwise(times))
