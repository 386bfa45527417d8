"""Prompts of token ids: how a server makes them of messages, and where they go."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import numpy as np
import pytest

from blackbox_lb.api.draw import Draw
from blackbox_lb.api.session import Session
from blackbox_lb.api.transport.channel import Channel
from blackbox_lb.api.wire import build_request
from blackbox_lb.errors import InputError
from blackbox_lb.providers.profile import load_profile
from blackbox_lb.safety.http.clients import HttpRequest
from blackbox_lb.types import Completion, Message, Prompt, Sampling
from tests.support.answering import Answering
from tests.support.errors import raises_naming
from tests.support.exact.listener import Reply


def test_a_prompt_of_ids_goes_to_the_completions_endpoint_only() -> None:
    """The ids go out as they are; chat has no field for them."""
    profile, sampling = load_profile("vllm"), Sampling(max_tokens=1, top_logprobs=-1)
    draw = Draw(sampling, endpoint="completions")
    body = build_request(profile, draw, model="m", prompt=[3, 1, 2])
    assert (body["prompt"], body["logprobs"]) == ([3, 1, 2], -1)
    with raises_naming(InputError, "chat", "``endpoint=completions``"):
        build_request(profile, Draw(sampling, endpoint="chat"), model="m", prompt=[3, 1, 2])


def vllm(request: HttpRequest) -> Reply:
    """What vLLM 0.32 answers, as seen: /tokenize with messages or a text, and legacy completions
    with logprobs -1.
    """
    body: dict[str, Any] = json.loads(request.content)
    if request.url.path == "/tokenize":
        ids = [1, 9, 2] if "messages" in body else [9]
        said = (
            body.get("add_generation_prompt")
            if "messages" in body
            else body.get("add_special_tokens")
        )
        return Reply(200, {"count": len(ids), "max_model_len": 2048, "tokens": ids} if said else {})
    logprobs = np.log([0.1, 0.2, 0.3, 0.4])
    table = {f"token_id:{token}": float(value) for token, value in enumerate(logprobs)}
    lists = {
        "tokens": ["token_id:1"],
        "token_logprobs": [table["token_id:1"]],
        "top_logprobs": [table],
    }
    assert (body["prompt"], body["logprobs"], body["max_tokens"]) == ([1, 9, 2, 7], -1, 1)
    choice = {"text": "x", "finish_reason": "length", "logprobs": lists, "token_ids": [1]}
    return Reply(200, {"model": "m", "choices": [choice], "usage": {"completion_tokens": 1}})


@pytest.mark.parametrize("endpoint", ["chat", "completions"])
def test_vllm_tells_prompt_ids_and_whole_lists(endpoint: Any) -> None:
    """Chat goes through the template, a text through the tokenizer with special tokens; -1 lists
    all, by id.
    """
    session = Session(
        load_profile("vllm"), base_url="https://host.example", model="m", endpoint=endpoint
    )
    session.channel = Channel(session.profile, "https://host.example", transport=Answering(vllm))

    async def ask() -> tuple[list[int], Completion]:
        found = await session.prompt_ids(Prompt((Message("user", "hi"),)))
        draw = Draw(Sampling(1.0, 1, -1), endpoint="completions")
        (completion,) = await session.complete_many([1, 9, 2, 7], draw)
        return found, completion

    ids, completion = asyncio.run(ask())
    assert ids == ([1, 9, 2] if endpoint == "chat" else [9])
    assert completion.top_ids[0].tolist() == [3, 2, 1, 0]
    np.testing.assert_allclose(np.exp(completion.top_logprobs[0]), [0.4, 0.3, 0.2, 0.1], rtol=1e-6)


@pytest.mark.parametrize(
    ("provider", "path"), [("llamacpp", "/apply-template"), ("vllm", "/tokenize")]
)
def test_the_template_gets_the_tools(provider: str, path: str) -> None:
    """The ids of a chat prompt are those with its tools: servers put them into the prompt."""
    bodies: dict[str, Any] = {}

    def answer(request: HttpRequest) -> Reply:
        bodies[request.url.path] = json.loads(request.content)
        found = {"prompt": "p"} if request.url.path == "/apply-template" else {"tokens": [1, 9]}
        return Reply(200, found)

    session = Session(
        load_profile(provider), base_url="https://host.example/v1", model="m", endpoint="chat"
    )
    session.channel = Channel(
        session.profile, "https://host.example/v1", transport=Answering(answer)
    )
    tools = [{"type": "function", "function": {"name": "weather"}}]
    prompt = Prompt((Message("user", "hi"),), tools=json.dumps(tools))
    assert asyncio.run(session.prompt_ids(prompt)) == [1, 9]
    assert bodies[path]["tools"] == tools
