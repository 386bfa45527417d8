"""A session before its first completion: what it asks for, what it puts up with, and which model
really answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from blackbox_lb.api.draw import Draw
from blackbox_lb.api.limits.budget import SpendLimit
from blackbox_lb.api.session import Session
from blackbox_lb.api.transport.channel import Channel
from blackbox_lb.errors import (
    AuthenticationFailed,
    BlbError,
    CorruptResponse,
    InputError,
    ModelUnsuitable,
    ProfileError,
    ServerFailed,
)
from blackbox_lb.providers.profile import load_profile
from blackbox_lb.safety.http.clients import HttpRequest
from blackbox_lb.store import RolloutStore
from blackbox_lb.types import Prompt, Sampling
from blackbox_lb.vocabulary.tokenizer import Tokenizer
from tests.support.answering import Answering
from tests.support.collecting import collect
from tests.support.errors import raises_naming
from tests.support.exact.listener import Reply

Answer = Callable[[HttpRequest], Reply]
HELLO = [{"token": "Hello", "bytes": list(b"Hello"), "logprob": -0.5, "top_logprobs": []}]


pytestmark = pytest.mark.usefixtures("quick_retries", "tiktoken_cache")


@pytest.fixture(autouse=True)
def _machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    monkeypatch.setenv("AZURE_OPENAI_API_KEY", "k")


def completion(model: str) -> Reply:
    """One token, said by ``model``."""
    choice = {
        "finish_reason": "length",
        "message": {"content": "Hello"},
        "logprobs": {"content": HELLO},
    }
    return Reply(200, {"model": model, "choices": [choice], "usage": {"completion_tokens": 1}})


def session_with(
    answer: Answer, provider: str = "openai", **options: Any
) -> tuple[Session, list[str]]:
    """A session whose requests are answered so, and the paths that are asked for."""
    asked: list[str] = []

    def handle(request: HttpRequest) -> Reply:
        asked.append(request.url.path)
        return answer(request)

    session = Session(load_profile(provider), base_url="https://host.example", **options)
    session.channel = Channel(session.profile, "https://host.example", transport=Answering(handle))
    return session, asked


def complete(session: Session) -> None:
    """Enter and ask for one completion."""

    async def go() -> None:
        async with session:
            await session.complete(Prompt.user("hi"), Sampling(max_tokens=1, top_logprobs=1))

    asyncio.run(go())


@pytest.mark.parametrize("status", [403, 404, 405])
def test_a_key_that_may_not_list_models_may_sample(status: int) -> None:
    """With a model named, only a wrong key (401) is an end."""
    refusal = {"error": {"message": "Missing scopes: api.model.read"}}

    def answer(request: HttpRequest) -> Reply:
        return Reply(status, refusal) if request.method == "GET" else completion("gpt-4o-mini")

    complete(session_with(answer, model="gpt-4o-mini")[0])
    with pytest.raises(BlbError):
        complete(session_with(answer, "vllm")[0])
    with pytest.raises(AuthenticationFailed):
        complete(session_with(lambda request: Reply(401, refusal), model="gpt-4o-mini")[0])


def test_a_server_that_loads_its_model_is_waited_for() -> None:
    """503 to the first question is asked again, until the model is there or patience ends."""
    answers = iter([503, 503, 200])

    def answer(request: HttpRequest) -> Reply:
        if request.method == "POST":
            return completion("gpt-4o-mini")
        return Reply(next(answers), {"data": [{"id": "gpt-4o-mini"}]})

    complete(session_with(answer, model="gpt-4o-mini")[0])
    with pytest.raises(ServerFailed):
        complete(session_with(lambda request: Reply(503), model="gpt-4o-mini")[0])


def test_a_deployment_that_is_another_model_is_noticed() -> None:
    """Its own name says nothing, or the wrong thing: of a model with another tokenizer all ids would
    be wrong, and a reasoning model cannot be adapted.
    """

    def asked(behind: str, **options: Any) -> None:
        complete(session_with(lambda request: completion(behind), "azure", **options)[0])

    for options in ({}, {"tokenizer": "cl100k_base"}):
        facts = ("'gpt-4'", "azure", "gpt-4o-2024-11-20", "``tokenizer=o200k_base``")
        with raises_naming(InputError, *facts):
            asked("gpt-4o-2024-11-20", model="gpt-4", **options)
    asked("gpt-4o-2024-11-20", model="gpt-4", tokenizer="o200k_base")
    with raises_naming(ModelUnsuitable, "o3-mini-2025-01-31", "azure"):
        asked("o3-mini-2025-01-31", model="m", tokenizer="o200k_base")


def test_a_failure_stops_what_has_not_been_sent(tmp_path: Path) -> None:
    """Requests that wait for the rate budget when another is refused for good never leave."""
    limit, left = "x-ratelimit-limit-requests", "x-ratelimit-remaining-requests"

    def answer(request: HttpRequest) -> Reply:
        if request.method == "GET":
            return Reply(200, {"data": []})
        if b"question 0" in request.content:
            return replace(completion("gpt-4o-mini"), headers={limit: "600", left: "0"})
        return Reply(401, {"error": {"message": "revoked"}})

    budget = SpendLimit()
    session, asked = session_with(answer, model="gpt-4o-mini", budget=budget)
    prompts = [Prompt.user(f"question {n}") for n in range(12)]

    async def go() -> None:
        async with session:
            with RolloutStore(tmp_path / "s.db") as store:
                for some in (prompts[:1], prompts):
                    sampling = Sampling(max_tokens=1, top_logprobs=1)
                    await collect(
                        session,
                        store,
                        Tokenizer("t", None),
                        some,
                        Draw(sampling),
                        samples=1,
                        concurrency=6,
                        budget=budget,
                    )

    with raises_naming(AuthenticationFailed, "401", "revoked"):
        asyncio.run(asyncio.wait_for(go(), timeout=120))
    assert asked.count("/v1/chat/completions") <= 3, (
        "the first, the one that was refused, and one that was on its way"
    )


def test_openai_without_a_model_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the key is looked for: the model's name is what is missing, and an example of one is
    named. With a vocabulary the model is not needed to find one.
    """
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with raises_naming(ProfileError, "``model=gpt-4o-mini``"):
        Session(load_profile("openai"))
    with pytest.raises(AuthenticationFailed):
        Session(load_profile("openai"), tokenizer="o200k_base")


@pytest.mark.parametrize("name", [12, None, {"name": "m"}, ["m"]])
def test_a_model_without_a_name_of_text_is_not_chosen(name: Any) -> None:
    """No request is sent with Python's spelling of what the server listed."""
    session, asked = session_with(lambda request: Reply(200, {"data": [{"id": name}]}), "vllm")
    with pytest.raises(CorruptResponse):
        complete(session)
    assert asked == ["/models"]


def test_a_model_that_is_listed_twice_is_one_model() -> None:
    """It is chosen as the server's only one."""

    def answer(request: HttpRequest) -> Reply:
        if request.url.path.endswith("/models"):
            return Reply(200, {"data": [{"id": "toy"}, {"id": "toy"}]})
        return Reply(401, {"error": "who?"})

    session, asked = session_with(answer, "vllm")
    with pytest.raises(AuthenticationFailed):
        complete(session)
    assert session.model == "toy"
    assert len(asked) > 1


@pytest.mark.parametrize("listed", [{"data": []}, {"data": [{"id": "m"}]}, {"models": ["m"]}, []])
def test_a_server_need_not_tell_the_size_of_its_vocabulary(listed: Any) -> None:
    """A gateway before it may list no model, or list it without its facts."""

    def answer(request: HttpRequest) -> Reply:
        return Reply(200, listed if request.method == "GET" else {"tokens": [1, 2, 3]})

    async def size() -> int | None:
        async with session_with(answer, "llamacpp", model="m")[0] as session:
            return (await session.tokenizer()).vocabulary_size

    assert asyncio.run(size()) is None
