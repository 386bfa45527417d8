"""Waits for a service: said with their reason and end, bounded, and named where they are cut off."""

from __future__ import annotations

import asyncio
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import pytest

from blackbox_lb.api.transport import channel as channel_module
from blackbox_lb.api.transport.channel import OPENAI_HEADERS, Channel
from blackbox_lb.errors import RateLimited
from blackbox_lb.providers.profile import load_profile
from blackbox_lb.safety.http.clients import HttpRequest
from blackbox_lb.safety.http.retries import PATIENCE
from blackbox_lb.safety.http.waits import NOTICEABLE, heard_by
from blackbox_lb.store import RolloutStore
from tests.support.answering import Answering
from tests.support.commands import asking, options, refused
from tests.support.exact import ExactModel, ExactServer
from tests.support.exact.listener import Reply, Request
from tests.support.questions import write_questions

Answer = Callable[[int], Reply]
MODEL = ExactModel(12, 8, end=True, prompts=4)
CLOCK = re.compile(r"\d\d:\d\d")


class Clock:
    """A clock that a sleep moves on at once, and the sleeps so far, in seconds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1_000.0
        self.slept: list[float] = []
        self._pass = asyncio.sleep
        monkeypatch.setattr(asyncio, "sleep", self._sleep)
        monkeypatch.setattr(channel_module, "time", SimpleNamespace(monotonic=lambda: self.now))

    async def _sleep(self, seconds: float) -> None:
        end = self.now + seconds
        await self._pass(0)
        if seconds > 0:
            self.slept.append(seconds)
            self.now = max(self.now, end)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """No test waits."""
    return Clock(monkeypatch)


def refusal(status: int, seconds: float, words: str = "limit of a minute") -> Reply:
    """A refusal that asks to wait."""
    return Reply(status, {"error": {"message": words}}, {"retry-after": str(seconds)})


def send(answer: Answer, times: int = 1) -> tuple[list[str], int]:
    """Send so many requests at the same time to a server that answers its n-th request so; what was
    said, and the requests that arrived.
    """
    said: list[str] = []
    arrived = 0

    def handle(request: HttpRequest) -> Reply:
        nonlocal arrived
        arrived += 1
        return answer(arrived)

    async def go() -> None:
        channel = Channel(load_profile("vllm"), "http://h/v1", transport=Answering(handle))
        async with channel:
            posts = [channel.post("/chat/completions", {"model": "m"}) for _ in range(times)]
            await asyncio.gather(*posts)

    with heard_by(said.append):
        asyncio.run(go())
    return said, arrived


@pytest.mark.parametrize(
    ("status", "seconds"), [(429, NOTICEABLE + 5), (503, 600), (429, PATIENCE - 1)]
)
def test_a_long_wait_is_said_once_and_kept(clock: Clock, status: int, seconds: float) -> None:
    """Of eight requests that are refused at the same time, one says why and until when; none asks
    earlier than it may.
    """
    said, arrived = send(
        lambda number: refusal(status, seconds) if number <= 8 else Reply(200, {}), 8
    )
    assert len(said) == 1
    assert str(status) in said[0]
    assert "limit of a minute" in said[0]
    assert CLOCK.search(said[0])
    assert arrived == 16
    assert max(clock.slept) >= seconds


def test_all_waits_of_a_request_are_within_the_patience(clock: Clock) -> None:
    """A service that asks for ten minutes again and again is given up after an hour."""
    with pytest.raises(RateLimited):
        send(lambda number: refusal(429, 600))
    assert PATIENCE - 600 <= sum(clock.slept) <= PATIENCE


@pytest.mark.parametrize(("remaining", "waits"), [(0, True), (1, False)])
def test_a_wait_for_the_headers_budget_is_said(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, remaining: int, waits: bool
) -> None:
    """Two requests a minute: the next one after the last free one leaves half a minute later."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-0123456789abcdef")
    headers = {
        OPENAI_HEADERS["limit-requests"]: "2",
        OPENAI_HEADERS["remaining-requests"]: str(remaining),
        OPENAI_HEADERS["reset-requests"]: "60s",
    }
    said: list[str] = []

    def handle(request: HttpRequest) -> Reply:
        return Reply(200, {}, headers)

    async def go() -> None:
        transport = Answering(handle)
        async with Channel(load_profile("openai"), transport=transport) as channel:
            for _ in range(2):
                await channel.post("/chat/completions", {"model": "gpt-4o-mini"})

    with heard_by(said.append):
        asyncio.run(go())
    assert bool(said) == waits
    assert sum(clock.slept) == pytest.approx(30.0 if waits else 0.0, abs=0.1)


class LimitedServer(ExactServer):
    """An exact model behind a limit: after three completions every request is refused, and asked to
    wait so many seconds.
    """

    def __init__(self, seconds: int, status: int = 429) -> None:
        super().__init__(MODEL)
        self._seconds = seconds
        self._status = status

    def _reply(self, request: Request) -> Reply | Literal["drop"]:
        sent = sum(path.endswith("/completions") for path, _ in self.calls)
        if request.path.endswith("/completions") and sent >= 3:
            body: dict[str, Any] = {"error": {"message": "free requests of the day are used up"}}
            return Reply(self._status, body, {"retry-after": str(self._seconds)})
        return super()._reply(request)


def collecting(server: ExactServer, folder: Path) -> list[str]:
    """A collection of sixty completions, one at a time."""
    data = write_questions(folder / "data.jsonl", 30)
    where = asking(server, out=folder / "run", data=data, reward="length", max_tokens=8)
    return ["collect", *where, *options(samples_per_prompt=2, concurrency=1)]


def kept(folder: Path) -> int:
    """Completions in the run's store."""
    with RolloutStore(folder / "run" / "rollouts.db") as store:
        return store.size().completions


@pytest.mark.parametrize("status", [429, 503])
def test_a_limit_of_a_day_ends_the_command_and_keeps_what_came(status: int, tmp_path: Path) -> None:
    """Exit code 2 with the host's words and the time to go on, and no wait."""
    with LimitedServer(36_000, status) as server:
        said = refused(*collecting(server, tmp_path))
    assert "free requests of the day are used up" in said
    assert CLOCK.search(said)
    assert kept(tmp_path) >= 3


@pytest.mark.skipif(sys.platform == "win32", reason="a signal cannot be sent to one process there")
def test_ctrl_c_names_the_wait(tmp_path: Path) -> None:
    """The notice comes while the command waits, and the closing words repeat its reason."""
    with LimitedServer(900) as server:
        process = subprocess.Popen(
            [sys.executable, "-m", "blackbox_lb", *collecting(server, tmp_path)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stderr is not None
        lines = []
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            lines.append(process.stderr.readline())
            if "used up" in lines[-1] or not lines[-1]:
                break
        assert "used up" in lines[-1], lines
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert "free requests of the day are used up" in " ".join(err.split())
    assert kept(tmp_path) >= 3
