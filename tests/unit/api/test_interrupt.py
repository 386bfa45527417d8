"""Ctrl-C and SIGTERM: once, what is in flight arrives and is kept; twice, the end is now; nothing
received is lost.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from blackbox_lb.store import RolloutStore
from tests.support.commands import asking, blb, options
from tests.support.exact import ExactModel, ExactServer
from tests.support.questions import write_questions

pytestmark = pytest.mark.skipif(
    sys.platform == "win32", reason="a signal cannot be sent to one process there"
)
MODEL = ExactModel(12, 8, end=True, prompts=4)
IN_FLIGHT = 3


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Thirty questions."""
    return write_questions(tmp_path / "data.jsonl", 30)


@pytest.fixture
def server() -> Iterator[ExactServer]:
    """An exact model that takes half a second for an answer."""
    with ExactServer(MODEL, delay=0.5) as running:
        yield running


def asked(server: ExactServer) -> int:
    """Completion requests that arrived."""
    return sum(path.endswith("/completions") for path, _ in server.calls)


def stored(folder: Path) -> int:
    """Completions in the run's store."""
    with RolloutStore(folder / "rollouts.db") as store:
        return store.size().completions


def command(server: ExactServer, data: Path, folder: Path) -> list[str]:
    """A collection of 30 completions."""
    where = asking(server, out=folder, data=data, reward="length", max_tokens=8)
    more = options(samples_per_prompt=2, concurrency=IN_FLIGHT)
    return [sys.executable, "-m", "blackbox_lb", "collect", *where, *more, "--quiet"]


def started(server: ExactServer, data: Path, folder: Path, requests: int) -> subprocess.Popen[str]:
    """The command, once so many requests have arrived."""
    process = subprocess.Popen(
        command(server, data, folder), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    while asked(server) < requests:
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    return process


def test_the_first_signal_receives_what_is_in_flight(
    server: ExactServer, data: Path, tmp_path: Path
) -> None:
    """As many completions as requests are stored, the exit code is 130, and the same command sends
    only what is missing. That SIGINT waits too, the test of the second signal says.
    """
    process = started(server, data, tmp_path / "run", 2 * IN_FLIGHT)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=200)
    sent = asked(server)
    assert (process.returncode, out) == (130, ""), err
    assert stored(tmp_path / "run") == sent
    kept = f"{sent} completions are kept in {tmp_path / 'run' / 'rollouts.db'}"
    assert re.fullmatch(
        rf"Interrupted after {sent} requests, .*: {re.escape(kept)}, .* goes on from there",
        " ".join(err.split()),
    )
    record = json.loads((tmp_path / "run" / "run.json").read_text())["runs"]["collect"]
    assert (record["finished"], record["stopped_by"]) == (False, "Interrupted")
    server.delay = 0.0
    again = blb(*command(server, data, tmp_path / "run")[3:], "--json")
    assert asked(server) == json.loads(again.stdout)["completions"]


SLOW_REWARD = """
from pathlib import Path

def score(example, completion):
    Path("scoring").touch()
    while True:
        try:
            sum(range(1000))
        except Exception:
            pass
"""


@pytest.mark.parametrize("name", ["collect", "score"])
def test_one_signal_ends_a_computation(data: Path, tmp_path: Path, name: str) -> None:
    """A reward that computes for minutes keeps the event loop: one signal ends the command all the
    same, without a traceback, and what was received is kept.
    """
    (tmp_path / "slow.py").write_text(SLOW_REWARD)
    with ExactServer(MODEL) as server:
        words = command(server, data, tmp_path / "run")
        if name == "score":
            assert blb(*words[3:]).exit_code == 0
            words = [*words[:3], "score", str(tmp_path / "run"), "--data", str(data), "--quiet"]
        process = subprocess.Popen(
            [*words, "--reward", "slow:score"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
        )
        while not (tmp_path / "scoring").exists():
            assert process.poll() is None, process.communicate()
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM if name == "collect" else signal.SIGINT)
        out, err = process.communicate(timeout=200)
    assert (process.returncode, out) == (130, ""), err
    assert "Traceback" not in err
    assert stored(tmp_path / "run") == asked(server) > 0


def test_the_second_signal_ends_at_once(data: Path, tmp_path: Path) -> None:
    """Although answers take ten minutes, the command ends, without a traceback; what had been
    answered is stored.
    """
    with ExactServer(MODEL) as server:
        process = started(server, data, tmp_path / "run", 1)
        answered = asked(server)
        server.delay = 600.0
        while asked(server) < answered + IN_FLIGHT:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        time.sleep(1.0)
        assert process.poll() is None, "the first waits for what is in flight"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=120)
        assert (process.returncode, out) == (130, ""), err
        kept = "Interrupted: what was received is kept, and the same command goes on from there"
        assert " ".join(err.split()) == kept
        in_flight = asked(server) - stored(tmp_path / "run")
        assert 0 < in_flight <= IN_FLIGHT


SCRIPT = """
import asyncio, os, signal, threading, time
from blackbox_lb.api.limits.budget import SpendLimit
from blackbox_lb.errors import Interrupted
from blackbox_lb.api.limits.concurrency import computing, run_interruptible

def after(seconds, number):
    threading.Timer(seconds, os.kill, (os.getpid(), number)).start()

async def idle():
    after(0.2, signal.SIGINT)
    await asyncio.sleep(600)

async def computes():
    after(0.2, signal.SIGINT)
    after(0.5, signal.SIGINT)
    end = time.monotonic() + 600
    while time.monotonic() < end:
        pass

async def scores():
    after(0.2, signal.SIGTERM)
    end = time.monotonic() + 600
    with computing():
        while time.monotonic() < end:
            try:
                pass
            except Exception:
                pass

for main in (idle, computes, scores):
    try:
        run_interruptible(main(), SpendLimit())
    except (Interrupted, KeyboardInterrupt) as error:
        restored = signal.getsignal(signal.SIGINT) is signal.default_int_handler
        print(main.__name__, type(error).__name__, restored)

async def background():
    os.kill(os.getpid(), signal.SIGINT)
    await asyncio.sleep(0.1)
    return "done"

signal.signal(signal.SIGINT, signal.SIG_IGN)
print("background", run_interruptible(background(), SpendLimit()))
"""


def test_without_anything_in_flight() -> None:
    """An idle loop ends at the first signal, and so does a marked computation; one that is not
    marked ends at the second. The handlers are those of before afterwards, and a signal that is
    ignored, as under nohup or in the background of a shell, stays ignored.
    """
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=200, check=True
    )
    assert done.stdout.splitlines() == [
        "idle Interrupted True",
        "computes KeyboardInterrupt True",
        "scores Interrupted True",
        "background done",
    ], done.stderr
    assert "Traceback" not in done.stderr
