"""Answers that call functions, in each dialect, and the requests that offer them. The shapes are
those of recorded answers; nothing of the recordings is copied.
"""

from __future__ import annotations

from typing import Any

import pytest

from blackbox_lb.api.draw import Draw
from blackbox_lb.api.wire import build_request, parse_response
from blackbox_lb.errors import CorruptResponse, InputError
from blackbox_lb.literals import Endpoint
from blackbox_lb.providers.packaged import profile_names
from blackbox_lb.providers.profile import load_profile
from blackbox_lb.tasks.records.tools import calls_text, tools_text
from blackbox_lb.types import Message, Prompt, Sampling, ToolCall
from blackbox_lb.vocabulary import Vocabulary
from tests.support.entries import entry
from tests.wire.conftest import ProfileWith

TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
PROMPT = Prompt((Message("user", "Rain?"),), tools=tools_text([TOOL]))
OSLO = ToolCall("weather", '{"city": "Oslo"}')
SENT = {
    "id": "c1",
    "type": "function",
    "function": {"name": "weather", "arguments": OSLO.arguments},
}
K = Sampling(top_logprobs=2)


def message(content: str | None = None, *calls: dict[str, Any]) -> dict[str, Any]:
    """A message of the assistant that calls."""
    return {"role": "assistant", "content": content, "tool_calls": list(calls or [SENT])}


def answer(generated: int, *choices: dict[str, Any]) -> dict[str, Any]:
    """An answer with these choices, numbered in their order."""
    return {
        "choices": [{"index": number, **choice} for number, choice in enumerate(choices)],
        "model": "m",
        "usage": {"completion_tokens": generated, "prompt_tokens": 9},
    }


def llamacpp(*tokens: int) -> dict[str, Any]:
    """The lists of llama.cpp: every token of the call, with its id."""
    return {"content": [{**entry("t", -0.5), "id": token} for token in tokens]}


def vllm(*tokens: int) -> dict[str, Any]:
    """The lists of vLLM: ids in the place of texts."""
    return {"content": [{**entry("t", -0.5), "token": f"token_id:{token}"} for token in tokens]}


def sglang(*tokens: int) -> dict[str, Any]:
    """SGLang's own lists, beside the choice."""
    return {
        "output_token_logprobs": [[-0.5, token, "t"] for token in tokens],
        "output_top_logprobs": [[[-0.5, token, "t"]] for token in tokens],
    }


LISTED: dict[str, dict[str, Any]] = {
    "llamacpp": {"logprobs": llamacpp(5, 6, 2)},
    "local": {"logprobs": llamacpp(5, 6, 2)},
    "vllm": {"logprobs": vllm(5, 6, 2)},
    "sglang": {"logprobs": {"content": []}, "meta_info": sglang(5, 6, 2)},
}
"""Provider -> what stands beside the message of a call of three tokens."""


@pytest.mark.parametrize("provider", LISTED)
def test_a_call_is_read_with_its_tokens(provider: str) -> None:
    """Servers of open models list the tokens that the model wrote for the call: it is whole, it
    ended by itself, and its text holds name and arguments. A missing content is none, and the older
    field ``function_call`` holds one call without a list.
    """
    older = {"role": "assistant", "content": None, "function_call": SENT["function"]}
    without = {"role": "assistant", "tool_calls": [SENT]}
    for spoken in (message(None), message(""), without, older):
        finish = "function_call" if spoken is older else "tool_calls"
        choice = {"message": spoken, "finish_reason": finish, **LISTED[provider]}
        (found,) = parse_response(load_profile(provider), "chat", answer(3, choice), K)
        assert found.tool_calls == (OSLO,)
        assert (found.whole, found.finish_reason) == (True, "stop")
        assert found.token_ids.tolist() == [5, 6, 2]
        assert found.text == OSLO.text


def test_words_before_a_call_and_several_calls_stand_in_the_text() -> None:
    """In the order of the answer."""
    clock = {"type": "function", "function": {"name": "clock", "arguments": "{}"}}
    both = {
        "message": message("Let me look.", SENT, clock),
        "finish_reason": "tool_calls",
        "logprobs": llamacpp(5, 2),
    }
    (found,) = parse_response(load_profile("llamacpp"), "chat", answer(2, both), K)
    assert found.text.startswith("Let me look.\n<tool_call>")
    assert [call.name for call in found.tool_calls] == ["weather", "clock"]


@pytest.mark.parametrize("logprobs", [None, {"content": None, "refusal": None}, {"content": []}])
def test_a_call_whose_tokens_are_hidden_is_scored_and_not_learned_from(
    profile_with: ProfileWith, vocabulary: Vocabulary, logprobs: Any
) -> None:
    """OpenAI lists no token of a call: its text and its number of tokens are known, it is not
    whole, and a note says what can be done with it. It is no broken answer that is asked again.
    """
    choice = {"message": message(), "finish_reason": "tool_calls", "logprobs": logprobs}
    (found,) = parse_response(profile_with(), "chat", answer(17, choice), K, vocabulary)
    assert found.tool_calls == (OSLO,)
    assert (found.whole, found.n_tokens, len(found.token_ids)) == (False, 17, 0)
    assert "call a function" in found.note


def test_a_hidden_call_leaves_the_other_choices_whole(
    profile_with: ProfileWith, vocabulary: Vocabulary
) -> None:
    """Their sum of tokens is of both, and tells nothing of either; the listed text is complete."""
    said = {
        "message": {"role": "assistant", "content": " cat"},
        "finish_reason": "length",
        "logprobs": {"content": [entry(" cat", -0.5)]},
    }
    call = {"message": message(), "finish_reason": "tool_calls", "logprobs": None}
    spoken, hidden = parse_response(profile_with(), "chat", answer(18, said, call), K, vocabulary)
    assert (spoken.whole, hidden.whole) == (True, False)
    assert hidden.tool_calls == (OSLO,)


@pytest.mark.parametrize(
    "calls",
    [
        [{"function": {"arguments": "{}"}}],
        [{"function": {"name": 3}}],
        [{}],
        ["weather"],
        "weather",
    ],
)
def test_a_call_of_another_shape_is_refused(calls: Any) -> None:
    """A call without a name calls nothing that could be told."""
    choice = {
        "message": {"content": None, "tool_calls": calls},
        "finish_reason": "tool_calls",
        "logprobs": llamacpp(5, 2),
    }
    with pytest.raises(CorruptResponse):
        parse_response(load_profile("llamacpp"), "chat", answer(2, choice), K)


TURNS = (
    Message("user", "Rain?"),
    Message("assistant", "", calls_text([SENT])),
    Message("tool", "rain", tool_call_id="c1"),
)
CHATS = [name for name in profile_names() if "chat" in load_profile(name).endpoints]
"""Profiles with a chat endpoint."""


@pytest.mark.parametrize("prompt", [PROMPT, Prompt(TURNS)], ids=["tools", "calls and results"])
@pytest.mark.parametrize("endpoint", ["completions", "responses"])
def test_tools_and_calls_need_the_chat_endpoint(
    profile_with: ProfileWith, endpoint: Endpoint, prompt: Prompt
) -> None:
    """The others take none, or in another form, and would drop them."""
    with pytest.raises(InputError):
        build_request(profile_with(), Draw(K, endpoint=endpoint), model="m", prompt=prompt)


@pytest.mark.parametrize("provider", CHATS)
def test_tools_calls_and_their_results_are_sent_as_they_are(provider: str) -> None:
    """Every chat endpoint gets the tools as OpenAI's field has them, the turn that calls, without a
    content, and the result with the id of its call; a prompt without tools has no such field.
    """
    profile, draw = load_profile(provider), Draw(Sampling(top_logprobs=0), endpoint="chat")
    assert build_request(profile, draw, model="m", prompt=PROMPT)["tools"] == [TOOL]
    body = build_request(profile, draw, model="m", prompt=Prompt(TURNS))
    assert "tools" not in body
    assert body["messages"] == [
        {"role": "user", "content": "Rain?"},
        message(None),
        {"role": "tool", "tool_call_id": "c1", "content": "rain"},
    ]
