"""The drop-in classes are the SDK's with one more argument: what they take, how they copy, what
they close.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from typing import Any

import httpx2
import openai
import pytest

from blackbox_lb import openai as drop_in
from blackbox_lb.bias.document import Bias
from blackbox_lb.bias.records import Entry
from blackbox_lb.deploy.client import apply
from blackbox_lb.errors import BiasError, InputError
from tests.support.biases import FIELDS
from tests.support.errors import raises_naming
from tests.support.recording_server import Server, recording

HELLO: Any = [{"role": "user", "content": "a"}]
SENT = {"7": 1.25}


@pytest.fixture
def server() -> Iterator[Server]:
    """A fresh server on a free loopback port."""
    with recording() as fresh:
        yield fresh


@pytest.fixture
def bias() -> Bias:
    """One entry for the model "tiny"."""
    return Bias(**FIELDS | {"model": "tiny", "entries": (Entry(id=7, bias=1.25),)})


def ask(client: openai.OpenAI, **options: Any) -> Any:
    """One chat request."""
    return client.chat.completions.create(**{"model": "tiny", "messages": HELLO, **options})


@pytest.mark.parametrize(
    ("kind", "declared"),
    [
        (openai.OpenAI, drop_in._Sync),
        (openai.AsyncOpenAI, drop_in._Async),
        (openai.AzureOpenAI, drop_in._Azure),
        (openai.AsyncAzureOpenAI, drop_in._AsyncAzure),
    ],
    ids=lambda each: each.__name__,
)
def test_the_sdks_arguments_are_all_declared(kind: type, declared: Any) -> None:
    """What a type checker lets through is exactly what the SDK's constructor takes, and nothing of
    ours hides one.
    """
    taken = {name for name in inspect.signature(kind).parameters if not name.startswith("_")}
    ours = {
        "bias",
        "bias_models",
        "bias_others",
        "bias_on_conflict",
        "bias_as_pairs",
        "bias_provider",
    }
    assert declared.__annotations__.keys() >= ours
    assert taken == declared.__annotations__.keys() - ours


def test_options_are_those_of_apply(server: Server, bias: Bias) -> None:
    """Each keyword does what ``apply``'s does, and a wrong one or a bad file fails at once."""
    made: dict[str, Any] = {"api_key": "k", "base_url": server.url}
    with drop_in.OpenAI(
        bias=bias,
        bias_models=["mine"],
        bias_others="raise",
        bias_on_conflict="add",
        bias_as_pairs=True,
        **made,
    ) as client:
        ask(client, model="mine", logit_bias={"7": 1})
        assert server.last.json["logit_bias"] == [[7, 2.25]]
        with raises_naming(InputError, "'mine'", "'tiny'"):
            ask(client)
    with raises_naming(InputError, "others='skip'"):
        drop_in.OpenAI(bias=bias, bias_others="skip", **made)  # type: ignore[arg-type]
    with raises_naming(BiasError, "absent.json"):
        drop_in.OpenAI(bias="absent.json", **made)
    with raises_naming(TypeError, "'bias'"):
        drop_in.OpenAI(**made)


def test_copies_carry_it_once(server: Server, bias: Bias) -> None:
    """A copy is of the same class and sends the bias once, with an HTTP client of the caller's too,
    and under ``apply``.
    """
    with drop_in.OpenAI(bias=bias, api_key="k", base_url=server.url) as client:
        own = httpx2.Client(headers={"x-gateway": "g"})
        for copied in (
            client.copy(),
            client.with_options(timeout=60).with_options(http_client=own),
        ):
            assert type(copied) is drop_in.OpenAI
            ask(copied)
            assert server.last.json["logit_bias"] == SENT
        assert server.last.headers["x-gateway"] == "g"
        with raises_naming(InputError, "logit_bias"):
            ask(apply(client, bias))
        ask(apply(client, bias, on_conflict="add"))
        assert server.last.json["logit_bias"] == {"7": 2.5}
        with httpx2.Client() as another:
            ask(apply(client, bias, on_conflict="add").with_options(http_client=another))
        assert server.last.json["logit_bias"] == {"7": 2.5}
        own.close()


def test_closing_closes_the_connections(server: Server, bias: Bias) -> None:
    """Unlike a client from ``apply``, a drop-in client owns its connections, as the SDK's own
    does.
    """
    own = httpx2.Client()
    with drop_in.OpenAI(bias=bias, api_key="k", base_url=server.url, http_client=own) as client:
        ask(client)
    assert client.is_closed()
    assert own.is_closed
    with raises_naming(RuntimeError, "closed"):
        ask(client)

    async def talk() -> None:
        own = httpx2.AsyncClient()
        client = drop_in.AsyncOpenAI(bias=bias, api_key="k", base_url=server.url, http_client=own)
        await client.chat.completions.create(model="tiny", messages=HELLO)
        await client.close()
        assert client.is_closed()
        assert own.is_closed

    asyncio.run(talk())
    assert [seen.json["logit_bias"] for seen in server.seen] == [SENT, SENT]
