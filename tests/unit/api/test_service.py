"""One HTTP service for models, rewards, judges and embeddings: the same fault has the same error and
the same number of tries, whoever is asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from blackbox_lb.api.transport.channel import Channel
from blackbox_lb.errors import (
    AuthenticationFailed,
    BlbError,
    ConnectionFailed,
    InputError,
    QuotaExhausted,
    RateLimited,
    RequestRejected,
    ServerFailed,
)
from blackbox_lb.providers.profile import load_profile
from blackbox_lb.rollouts.progress import Silent
from blackbox_lb.rollouts.remote_rewards import fetch_rewards
from blackbox_lb.safety.http.clients import HttpRequest, NoAnswer
from blackbox_lb.safety.http.retries import ATTEMPTS, RATE_LIMIT_ATTEMPTS, SLOW_ATTEMPTS
from blackbox_lb.safety.http.service import HttpService
from blackbox_lb.store import RolloutStore
from blackbox_lb.tasks import parse_reward
from blackbox_lb.types import Completion, Example, Prompt
from blackbox_lb.vocabulary.embedding import TextVectors
from tests.support.answering import Answering
from tests.support.exact.listener import Listener, Reply, Request

JUDGE = """
base_url = "{url}"
model = "m"
prompt = "Rate {{completion}}"
pattern = "[0-9]+"
"""
Ask = Callable[[str, Path], object]


class Refusing:
    """A server on loopback that answers every request alike, and counts them."""

    def __init__(self) -> None:
        self.answer: Reply | Literal["drop"] = "drop"
        self.asked = 0
        self.listener = Listener(self._reply)

    def _reply(self, request: Request) -> Reply | Literal["drop"]:
        self.asked += 1
        return self.answer


@pytest.fixture
def server(quick_retries: None) -> Iterator[Refusing]:
    """Running; nobody waits between tries."""
    del quick_retries
    running = Refusing()
    running.listener.start()
    yield running
    running.listener.stop()


def ask_model(url: str, folder: Path) -> object:
    """A completion."""

    async def asked() -> Any:
        channel = Channel(load_profile("vllm"), f"{url}/v1")
        try:
            return await channel.post("/chat/completions", {"model": "m"})
        finally:
            await channel.close()

    return asyncio.run(asked())


def fetched(spec: str, folder: Path) -> object:
    """The reward of a completion."""
    ids = np.zeros(1, np.int32)
    none = np.zeros((1, 0), np.float32)
    logprobs = np.zeros(1, np.float32)
    completion = Completion("x", "stop", ids, logprobs, none.astype(np.int32), none)
    example = Example("q", Prompt.user("Q?"), ())
    with RolloutStore(folder / "s.db") as store:
        reward = parse_reward(spec, max_tokens=8)
        return asyncio.run(fetch_rewards(store, reward, [(example, completion)], Silent(), "t"))


def ask_reward(url: str, folder: Path) -> object:
    """The reward of an endpoint."""
    return fetched(f"{url}/score", folder)


def ask_judge(url: str, folder: Path) -> object:
    """The reward of a judge."""
    file = folder / "judge.toml"
    file.write_text(JUDGE.format(url=f"{url}/v1"))
    return fetched(f"judge:{file}", folder)


def ask_embeddings(url: str, folder: Path) -> object:
    """A vector."""
    return TextVectors(f"m@{url}/v1").of(["a"])


def ask_in_a_loop(url: str, folder: Path) -> object:
    """A vector, for a caller that runs in an event loop."""

    async def within() -> object:
        return ask_embeddings(url, folder)

    return asyncio.run(within())


ASKS = [ask_model, ask_reward, ask_judge, ask_embeddings, ask_in_a_loop]


@pytest.mark.parametrize("ask", ASKS)
@pytest.mark.parametrize(
    ("answer", "kind", "tries"),
    [
        (Reply(429, {"error": "slow down"}), RateLimited, RATE_LIMIT_ATTEMPTS),
        (Reply(429, {"error": {"code": "insufficient_quota", "message": "no credit"}}), QuotaExhausted, 1),
        (Reply(429, {"error": "INSUFFICIENT QUOTA", "message": "You exceeded your current quota of tokens per minute."}), RateLimited, RATE_LIMIT_ATTEMPTS),
        (Reply(429, {"error": "tomorrow"}, {"retry-after": "36000"}), RateLimited, 1),
        (Reply(503, {"error": "tomorrow"}, {"retry-after": "36000"}), ServerFailed, 1),
        (Reply(408, {"error": "late"}), ServerFailed, ATTEMPTS),
        (Reply(500, {"error": "broken"}), ServerFailed, ATTEMPTS),
        (Reply(503, {"error": "full"}), ServerFailed, ATTEMPTS),
        ("drop", ConnectionFailed, ATTEMPTS),
        (Reply(401, {"error": "who?"}), AuthenticationFailed, 1),
        (Reply(403, {"error": "not you"}), AuthenticationFailed, 1),
        (Reply(404, {"error": "nothing here"}), RequestRejected, 1),
        (Reply(422, {"error": "no"}), RequestRejected, 1),
        (Reply(302, {}, {"location": "http://127.0.0.1:9/"}), RequestRejected, 1),
    ],
)  # fmt: skip
def test_a_fault_is_the_same_everywhere(
    server: Refusing,
    tmp_path: Path,
    ask: Ask,
    answer: Reply | Literal["drop"],
    kind: type[BlbError],
    tries: int,
) -> None:
    """In its class, and in how often is asked."""
    server.answer = answer
    with pytest.raises(kind) as caught:
        ask(server.listener.url, tmp_path)
    assert type(caught.value) is kind
    assert server.asked == tries


@pytest.mark.parametrize("ask", ASKS)
def test_an_address_is_mended_or_refused(server: Refusing, tmp_path: Path, ask: Ask) -> None:
    """Case and blanks, as of one that was pasted, are mended; one that reaches nothing is refused
    before anything is sent, with what is wrong, and without a key in it.
    """
    for end, fact in (("/v1#part", "#"), ("/v1?key=hunter2", "query"), (" x", "URL")):
        with pytest.raises(InputError) as caught:
            ask(f"{server.listener.url}{end}", tmp_path)
        assert fact in str(caught.value)
        assert "hunter2" not in str(caught.value)
    assert server.asked == 0
    server.answer = Reply(401, {"error": "who?"})
    with pytest.raises(AuthenticationFailed):
        ask(server.listener.url.replace("http://", " HTTP://"), tmp_path)
    assert server.asked == 1


@pytest.mark.parametrize("ask", ASKS)
def test_the_other_scheme_names_the_cure(server: Refusing, tmp_path: Path, ask: Ask) -> None:
    """https to a server of http: it runs, so no message asks whether it does. http to a server of
    https: where the server says so.
    """
    url = server.listener.url
    with pytest.raises(ConnectionFailed) as failed:
        ask(url.replace("http://", "https://"), tmp_path)
    assert url in str(failed.value)
    assert server.asked == 0
    for words in (
        "Client sent an HTTP request to an HTTPS server.",
        "<html><body><h1>400 Bad Request</h1>The plain HTTP request was sent to HTTPS port</body>",
    ):
        server.answer = Reply(400, words.encode())
        with pytest.raises(RequestRejected) as refused:
            ask(url, tmp_path)
        assert url.replace("http://", "https://") in str(refused.value)


def test_what_nobody_answers_in_time_is_tried_twice(server: Refusing) -> None:
    """Each try takes the whole patience."""

    def late(request: HttpRequest) -> Reply:
        server.asked += 1
        raise NoAnswer("too late") from TimeoutError()

    async def ask() -> None:
        async with HttpService("http://h", "s", transport=Answering(late)) as service:
            await service.tried(lambda: service.send("GET", "http://h/"))

    with pytest.raises(ConnectionFailed):
        asyncio.run(ask())
    assert server.asked == SLOW_ATTEMPTS
