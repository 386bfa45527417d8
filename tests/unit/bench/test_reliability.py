"""The reliability table in small: its rows hold, and each of its judges calls what breaks a promise
by its name.
"""

from __future__ import annotations

import base64
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.reliability.job import State, found_in_files, found_in_processes, new_key
from bench.reliability.kill import judged, kill
from bench.reliability.soak import MODES, soak

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="reads /proc and forks"
)
QUICK = ("5xx burst", "half body", "reset before headers", "unsorted alternatives")


@pytest.mark.parametrize("runs", [2, pytest.param(30, marks=pytest.mark.slow)])
def test_killed_runs_lose_nothing(tmp_path: Path, runs: int) -> None:
    """Killed, resumed and ended: nothing lost, nothing paid twice, stores whole, the bias of the
    undisturbed run.
    """
    row = kill(tmp_path, runs, most_kills=2, seed=3)
    assert row.wrong == ()
    assert row.counts["kills"] >= runs // 2


def test_every_broken_promise_is_counted() -> None:
    """Of a life that asked for 1 to 5: what was stored, what not, with one worker."""
    asked = [1, 2, 3, 4, 5]
    before, after = State(frozenset({1, 9})), State(frozenset({1, 2}), broken=("page 3",))
    found = judged(asked, before, after, 1, killed=True)
    assert found == {
        "kills": 1,
        "asked": 5,
        "in_flight": 3,
        "lost": 2,
        "repaid": 1,
        "vanished": 1,
        "corrupt": 1,
    }
    assert judged(asked[:3], State(), State(frozenset({1, 2})), 1, killed=True)["lost"] == 0
    assert judged(asked[:3], State(), State(frozenset({1, 2})), 1, killed=False)["lost"] == 1
    assert judged([1, 1], State(), after, 4, killed=True)["repaid"] == 1


@pytest.mark.parametrize(
    ("seconds", "modes", "prompts"),
    [(2.0, QUICK, 4), pytest.param(60.0, MODES, 16, marks=pytest.mark.slow)],
)
def test_a_soak_leaves_nothing_behind(
    tmp_path: Path, seconds: float, modes: tuple[str, ...], prompts: int
) -> None:
    """No descriptor, no task, no unnamed error; every completion that arrived is stored once."""
    row = soak(tmp_path, seconds, modes, prompts, samples=2)
    assert row.wrong == ()
    assert row.counts["received"] == row.counts["stored"] > 0


def test_a_key_is_found_wherever_it_hides(tmp_path: Path) -> None:
    """In plain, in hexadecimal, in base64 at any offset, and in a command line; not where there is
    none.
    """
    key = new_key()
    (tmp_path / "none").write_bytes(os.urandom(1000))
    assert found_in_files(key, tmp_path) == []
    hidden = [
        key.encode(),
        key.encode().hex().encode(),
        *(base64.b64encode(b"x" * lead + key.encode() + b"yz") for lead in range(3)),
    ]
    for number, text in enumerate(hidden):
        (tmp_path / str(number)).write_bytes(b"before" + text + b"after")
    assert len(found_in_files(key, tmp_path)) == len(hidden)
    command = [sys.executable, "-c", "print(flush=True); input()", key]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()  # it runs: its command line can be read
        assert found_in_processes(key) == [f"/proc/{process.pid}/cmdline"]
        process.communicate(b"\n")
    assert found_in_processes(key) == []
