"""The bias arrives exactly once through every client class, HTTP library and call style of the SDK
that is installed.

Runs under any openai from 2.0 on: here under the one of this environment, and in
``tests/live/test_sdk_versions.py`` under others.
"""

from __future__ import annotations

import asyncio
import copy
import importlib.util
import inspect
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from pydantic import BaseModel

import blackbox_lb.openai as drop_in
from blackbox_lb import Bias, apply
from blackbox_lb.bias.records import Entry
from tests.support.exact.listener import Request
from tests.support.recording_server import Server, recording

SENT = {"2": -100, "7": 1.25, "50256": 0.1, "199998": -3.0000000000000004}
HELLO: Any = [{"role": "user", "content": [{"type": "text", "text": "héllo 🙂"}]}]
CLASSES = ("OpenAI", "AsyncOpenAI", "AzureOpenAI", "AsyncAzureOpenAI")


class Answer(BaseModel):
    """What ``.parse`` reads."""

    text: str


async def _now(answer: Any) -> Any:
    """What a synchronous client returned, or what an asynchronous one promised."""
    return await answer if inspect.isawaitable(answer) else answer


async def _all(stream: Any) -> list[Any]:
    if hasattr(stream, "__aiter__"):
        return [event async for event in stream]
    return list(stream)


async def _inside(manager: Any, use: Callable[[Any], Awaitable[Any]]) -> Any:
    if hasattr(manager, "__aenter__"):
        async with manager as entered:
            return await use(entered)
    with manager as entered:
        return await use(entered)


async def create(client: Any, chat: dict[str, Any]) -> None:
    """``chat.completions.create``."""
    answer = await _now(client.chat.completions.create(**chat))
    assert answer.choices[0].message.content == '{"text": "ok"}'


async def stream(client: Any, chat: dict[str, Any]) -> None:
    """``create(stream=True)``."""
    events = await _all(await _now(client.chat.completions.create(**chat, stream=True)))
    assert "".join(event.choices[0].delta.content or "" for event in events) == '{"text":"ok"}'


async def stream_helper(client: Any, chat: dict[str, Any]) -> None:
    """``chat.completions.stream``, which assembles the answer."""

    async def final(entered: Any) -> Any:
        return await _now(entered.get_final_completion())

    answer = await _inside(client.chat.completions.stream(**chat, response_format=Answer), final)
    assert answer.choices[0].message.parsed == Answer(text="ok")


async def parse(client: Any, chat: dict[str, Any]) -> None:
    """``chat.completions.parse``."""
    answer = await _now(client.chat.completions.parse(**chat, response_format=Answer))
    assert answer.choices[0].message.parsed == Answer(text="ok")


async def beta(client: Any, chat: dict[str, Any]) -> None:
    """``beta.chat.completions.parse``, its former name."""
    answer = await _now(client.beta.chat.completions.parse(**chat, response_format=Answer))
    assert answer.choices[0].message.parsed == Answer(text="ok")


async def raw_response(client: Any, chat: dict[str, Any]) -> None:
    """``with_raw_response``."""
    answer = await _now(client.chat.completions.with_raw_response.create(**chat))
    assert answer.parse().choices[0].finish_reason == "stop"


async def streaming_response(client: Any, chat: dict[str, Any]) -> None:
    """``with_streaming_response``."""

    async def read(response: Any) -> bytes:
        return bytes(await _now(response.read()))

    assert b"ok" in await _inside(
        client.chat.completions.with_streaming_response.create(**chat), read
    )


async def with_options(client: Any, chat: dict[str, Any]) -> None:
    """A client derived from the client."""
    await create(client.with_options(timeout=60), chat)


async def copied_twice(client: Any, chat: dict[str, Any]) -> None:
    """A client derived from a derived client."""
    await create(client.copy(max_retries=3).copy(default_headers={"x-own": "1"}), chat)


async def legacy(client: Any, chat: dict[str, Any]) -> None:
    """The legacy ``completions.create``."""
    answer = await _now(client.completions.create(model=chat["model"], prompt="a"))
    assert answer.choices[0].text == "ok"


async def legacy_stream(client: Any, chat: dict[str, Any]) -> None:
    """The legacy ``completions.create(stream=True)``."""
    events = await _all(
        await _now(client.completions.create(model=chat["model"], prompt="a", stream=True))
    )
    assert "".join(event.choices[0].text for event in events) == '{"text":"ok"}'


async def post(client: Any, chat: dict[str, Any]) -> None:
    """The raw ``client.post``."""
    assert await _now(client.post("/chat/completions", body=chat, cast_to=object))


STYLES = (
    create,
    stream,
    stream_helper,
    parse,
    beta,
    raw_response,
    streaming_response,
    with_options,
    copied_twice,
    legacy,
    legacy_stream,
    post,
)


@pytest.fixture
def server() -> Iterator[Server]:
    """A fresh server on a free loopback port."""
    with recording() as fresh:
        yield fresh


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bias file: a whole value, a binary-exact one, one that is not, and one with all 17
    digits.
    """
    bias = Bias(
        provider="local",
        model="tiny",
        tokenizer="probe-sha256:aa",
        reward="exact-match",
        estimator="projection",
        entries=tuple(Entry(id=int(token), bias=value) for token, value in SENT.items()),
    )
    bias.save(path := tmp_path_factory.mktemp("bias") / "bias.json")
    return path


def options(name: str, server: Server) -> dict[str, Any]:
    """Constructor arguments of a client class that talks to the server."""
    if "Azure" in name:
        endpoint = server.url.removesuffix("/v1")
        return {
            "api_key": "k",
            "azure_endpoint": endpoint,
            "api_version": "2026-01-01",
            "max_retries": 1,
        }
    return {"api_key": "k", "base_url": server.url, "max_retries": 1}


def with_library(name: str, library: str) -> dict[str, Any]:
    """An HTTP client of the caller's own, where the library is there and this SDK takes it."""
    if library == "default":
        return {}
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    major, minor = (int(part) for part in openai.__version__.split(".")[:2])
    if library == "httpx2" and (major, minor) < (2, 50):
        pytest.skip("this SDK takes no httpx2 client")
    module = importlib.import_module(library)
    kind = module.AsyncClient if name.startswith("Async") else module.Client
    return {"http_client": kind(follow_redirects=True, headers={"x-gateway": library})}


def assert_biased(seen: list[Request], plain: Request) -> None:
    """Each attempt: the plain body and the bias after it, once, with its values exact; all attempts
    the same bytes.
    """
    for one in seen:
        assert one.path == plain.path
        assert one.body.startswith(plain.body[:-1])
        assert one.json == {**plain.json, "logit_bias": SENT}
        assert one.body.count(b'"logit_bias"') == 1
        assert int(one.headers["content-length"]) == len(one.body)
    assert len({one.body for one in seen}) == 1


def made(name: str, server: Server, path: Path, way: str, library: str) -> tuple[Any, Any]:
    """The caller's own client, and a biased one of the same class."""
    kind = getattr(openai, name)
    own = kind(**options(name, server), **with_library(name, library))
    if way == "apply":
        biased = apply(own, path)
        assert type(biased) is kind
    else:
        biased = getattr(drop_in, name)(
            bias=path, **options(name, server), **with_library(name, library)
        )
        assert isinstance(biased, kind)
    return own, biased


@pytest.mark.parametrize("way", ["apply", "drop-in"])
@pytest.mark.parametrize("library", ["default", "httpx", "httpx2"])
@pytest.mark.parametrize("name", CLASSES)
def test_every_way_to_ask(
    server: Server, path: Path, name: str, library: str, way: str, subtests: pytest.Subtests
) -> None:
    """Plain, biased with a first attempt that fails, plain again: the bias is where it belongs and
    nothing else differs.
    """

    async def cell(own: Any, biased: Any, style: Any) -> None:
        chat = {"model": "tiny", "messages": HELLO, "temperature": 0.5, "seed": 7}
        before = copy.deepcopy(chat)
        await style(own, chat)
        server.failures = [500]
        await style(biased, chat)
        await style(own, chat)
        plain, *attempts, last = server.seen
        assert len(attempts) == 2
        assert_biased(attempts, plain)
        assert last.body == plain.body
        assert b"logit_bias" not in plain.body
        assert chat == before
        if library != "default":
            assert {seen.headers["x-gateway"] for seen in server.seen} == {library}

    async def talk() -> None:
        own, biased = made(name, server, path, way, library)
        for style in STYLES if library == "default" else STYLES[:2]:
            server.seen.clear()
            with subtests.test(style=style.__name__):
                await cell(own, biased, style)
        await _now(biased.close())
        assert (biased.is_closed(), own.is_closed()) == (True, False)
        await _now(own.close())

    asyncio.run(talk())
