"""Answers and errors of the hosts that nobody has called yet, written anew after their
specifications and sources.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from blackbox_lb.api.transport.channel import Channel
from blackbox_lb.api.wire import parse_response
from blackbox_lb.errors import BlbError, CorruptResponse, ModelUnsuitable, NoLogprobs
from blackbox_lb.literals import Endpoint
from blackbox_lb.providers.profile import load_profile
from blackbox_lb.safety.http.clients import HttpRequest
from blackbox_lb.types import Sampling
from blackbox_lb.vocabulary import Vocabulary
from tests.support.answering import Answering
from tests.support.exact.listener import Reply

K = Sampling(top_logprobs=2)
PAIRS = [(" the", -0.5), (" a", -1.5)], [(" cat", -0.25), (" the", -2.5)]
"""Two positions, each with its two most likely tokens; the first is sampled. Ids: see ``IDS``."""
IDS = {" the": 0, " a": 1, " cat": 2}
USAGE = {"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11}


def content(**fields: Any) -> list[dict[str, Any]]:
    """``logprobs.content``; ``fields``: name -> a function of the token's text."""

    def entry(text: str, logprob: float) -> dict[str, Any]:
        return {
            "token": text,
            "logprob": logprob,
            **{name: value(text) for name, value in fields.items()},
        }

    return [
        {**entry(*pairs[0]), "top_logprobs": [entry(*pair) for pair in pairs]} for pairs in PAIRS
    ]


def lists(**fields: Any) -> dict[str, Any]:
    """Lists side by side."""
    tokens = [pairs[0][0] for pairs in PAIRS]
    sampled = [pairs[0][1] for pairs in PAIRS]
    return {
        "tokens": tokens,
        "token_logprobs": sampled,
        "top_logprobs": [dict(pairs) for pairs in PAIRS],
        **fields,
    }


def raw(text: str) -> list[int]:
    """The bytes of a text."""
    return list(text.encode())


ANSWERS: list[tuple[str, Endpoint, Any]] = [
    ("openrouter", "chat", {"content": content(bytes=raw), "refusal": None}),
    ("together", "chat", lists(token_ids=[0, 2])),
    ("together", "completions", lists(token_ids=[0, 2])),
    # Its gpt-oss answers so, with ids of the sampled tokens or without.
    ("together", "chat", {"content": content(bytes=raw)}),
    ("together", "chat", {"content": content(bytes=raw), "token_ids": [0, 2]}),
    ("novita", "chat", {"content": content(bytes=raw)}),
    ("novita", "completions", lists(text_offset=[0, 4])),
    ("deepinfra", "chat", {"content": content(bytes=raw)}),
    ("mlx", "chat", {"content": content(id=IDS.__getitem__)}),
    ("mlx", "completions", {"content": content(id=IDS.__getitem__)}),
    ("nim", "chat", {"content": content(bytes=raw)}),
    ("nim", "completions", lists(text_offset=[0, 4])),
    ("cerebras", "chat", {"content": content(bytes=raw), "refusal": None}),
    ("cerebras", "completions", lists(text_offset=[0, 4])),
    ("byteplus", "chat", {"content": content(bytes=raw)}),
    ("tabbyapi", "chat", {"content": content(token_id=IDS.__getitem__)}),
]


@pytest.mark.parametrize(("name", "endpoint", "logprobs"), ANSWERS)
def test_an_answer_is_read_as_the_host_gives_it(
    name: str, endpoint: Endpoint, logprobs: Any, vocabulary: Vocabulary
) -> None:
    """Tokens, logprobs, counts; the alternatives that are sure to be the most likely ones have
    their ids.
    """
    said = chat_choice(logprobs)
    if endpoint == "completions":
        said["text"] = said.pop("message")["content"]
    answer = {"model": "m", "choices": [said], "usage": USAGE, "system_fingerprint": "fp"}
    (found,) = parse_response(load_profile(name), endpoint, answer, K, vocabulary)
    assert (found.text, found.finish_reason, found.fingerprint) == (" the cat", "stop", "fp")
    assert (found.prompt_tokens, found.generated, found.whole) == (9, 2, True)
    assert found.token_ids.tolist() == [0, 2]
    assert found.logprobs.tolist() == [-0.5, -0.25]
    unsure = load_profile(name).endpoint(endpoint).sampled_in_list == "replaces the last"
    assert found.top_ids.tolist() == ([[0], [2]] if unsure else [[0, 1], [2, 0]])


def chat_choice(logprobs: Any, **fields: Any) -> dict[str, Any]:
    """A choice of a chat completion."""
    message = {"role": "assistant", "content": " the cat"}
    return {"finish_reason": "stop", "message": message, "logprobs": logprobs, **fields}


@pytest.mark.parametrize(
    ("provider", "system"),
    [
        ({"provider": "DeepInfra"}, "DeepInfra"),
        ({"system_fingerprint": "fp_1"}, "fp_1"),
        ({"provider": "DeepInfra", "system_fingerprint": None}, "DeepInfra"),
        ({"provider": "OpenAI", "system_fingerprint": "fp_1"}, "OpenAI / fp_1"),
        ({}, ""),
    ],
)
def test_openrouters_host_and_its_setup_are_both_kept(
    provider: dict[str, Any], system: str, vocabulary: Vocabulary
) -> None:
    """As far as an answer has them."""
    answer = {"choices": [chat_choice({"content": content(bytes=raw)})], "usage": USAGE, **provider}
    (completion,) = parse_response(load_profile("openrouter"), "chat", answer, K, vocabulary)
    assert completion.fingerprint == system


@pytest.mark.parametrize(
    ("name", "error"),
    [("openai", NoLogprobs), ("openrouter", NoLogprobs), ("llamacpp", CorruptResponse)],
)
@pytest.mark.parametrize("text", ["", "\ufffd"])
def test_one_token_without_logprobs(
    name: str, error: type[BlbError], text: str, vocabulary: Vocabulary
) -> None:
    """A host that gives none of gpt-oss (Groq, behind others' addresses) gives none for one token
    either, and is not asked again; llama.cpp leaves out a token that is a part of a character.
    """
    message = {"role": "assistant", "content": text}
    choice = chat_choice(None, message=message, finish_reason="length")
    usage = {"prompt_tokens": 9, "completion_tokens": 1, "total_tokens": 10}
    sampling = Sampling(max_tokens=1, top_logprobs=2)
    with pytest.raises(error):
        parse_response(
            load_profile(name), "chat", {"choices": [choice], "usage": usage}, sampling, vocabulary
        )


SPECULATIVE = (
    "The min_p and logit_bias sampling parameters are not yet supported with speculative decoding."
)
DIFFUSION = (
    "The temperature, min_p, seed, min_tokens, logit_bias, bad_words, and allowed_token_ids"
    " sampling parameters are not yet supported with diffusion models."
)


def refused(name: str, message: str) -> BlbError:
    """The error of a biased request that a server of this profile refuses with 400."""

    def answer(_: HttpRequest) -> Reply:
        error = {"message": message, "type": "BadRequestError", "param": None, "code": 400}
        return Reply(400, {"error": error})

    async def go() -> None:
        channel = Channel(load_profile(name), transport=Answering(answer))
        try:
            await channel.post("/chat/completions", {"model": "m", "logit_bias": {"5": 1.0}})
        finally:
            await channel.close()

    with pytest.raises(BlbError) as caught:
        asyncio.run(go())
    return caught.value


@pytest.mark.parametrize(("message", "remedy"), [(SPECULATIVE, 0), (DIFFUSION, 1)])
def test_vllms_refusal_of_every_bias_has_its_remedy(message: str, remedy: int) -> None:
    """Of a set-up that the profile names, with the server's words; another refusal, and another
    server's, is none of these.
    """
    row = load_profile("vllm").bias.refused[remedy]
    error = refused("vllm", message)
    assert isinstance(error, ModelUnsuitable)
    assert message.rstrip(".") in str(error)
    assert str(error).endswith(row.remedy)
    other = refused("vllm", "logit_bias must be an object.")
    assert not any(row.remedy in str(other) for row in load_profile("vllm").bias.refused)
    assert row.remedy not in str(refused("sglang", message))
