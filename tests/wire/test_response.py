"""What comes back: ids, logprobs and alternatives, as real servers wrote them, and the answers that
must be refused.
"""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest

from blackbox_lb.api.wire import parse_response
from blackbox_lb.errors import CorruptResponse, NoLogprobs
from blackbox_lb.literals import Endpoint
from blackbox_lb.providers.profile import load_profile
from blackbox_lb.types import Completion, Sampling
from tests.support.errors import raises_naming

K = Sampling(top_logprobs=3)


def llamacpp(
    *entries: tuple[int, float, list[tuple[int, float]]], generated: int | None = None
) -> dict[str, Any]:
    """A chat answer in the shape that llama.cpp writes; id 2 is the end token, printed as
    nothing.
    """
    content = [
        {**_entry(token, logprob), "top_logprobs": [_entry(other, value) for other, value in top]}
        for token, logprob, top in entries
    ]
    return {
        "choices": [
            {
                "finish_reason": "stop",
                "index": 0,
                "message": {"role": "assistant", "content": "hi"},
                "logprobs": {"content": content},
            }
        ],
        "model": "m",
        "object": "chat.completion",
        "usage": {
            "completion_tokens": len(entries) if generated is None else generated,
            "prompt_tokens": 30,
        },
    }


def _entry(token: int, logprob: float) -> dict[str, Any]:
    raw = b"" if token == 2 else f"t{token}".encode()
    return {"id": token, "token": raw.decode(), "bytes": list(raw), "logprob": logprob}


def vllm_chat(sampled: tuple[int, float], top: list[tuple[int, float]]) -> dict[str, Any]:
    """A chat answer of one token as vLLM writes it: ids inside the token strings, the sampled token
    first in its list.
    """
    entries = [
        {"token": f"token_id:{token}", "logprob": value, "bytes": [116]} for token, value in top
    ]
    content = [
        {
            "token": f"token_id:{sampled[0]}",
            "logprob": sampled[1],
            "bytes": [104],
            "top_logprobs": entries,
        }
    ]
    choice = {
        "index": 0,
        "message": {"content": "h"},
        "finish_reason": "length",
        "logprobs": {"content": content},
    }
    return {
        "choices": [choice],
        "model": "m",
        "usage": {"completion_tokens": 1, "prompt_tokens": 3},
    }


def vllm_completions(sampled: tuple[int, float], top: list[tuple[int, float]]) -> dict[str, Any]:
    """A legacy completions answer of one token as vLLM writes it."""
    lists = {
        "tokens": [f"token_id:{sampled[0]}"],
        "token_logprobs": [sampled[1]],
        "top_logprobs": [{f"token_id:{token}": value for token, value in top}],
        "text_offset": [0],
    }
    return {
        "choices": [{"index": 0, "text": "h", "finish_reason": "length", "logprobs": lists}],
        "usage": {"completion_tokens": 1},
    }


def parse(
    answer: Any, provider: str = "llamacpp", endpoint: Endpoint = "chat", sampling: Sampling = K
) -> Completion:
    """The only completion of an answer."""
    (completion,) = parse_response(load_profile(provider), endpoint, answer, sampling)
    return completion


def listed(completion: Completion, t: int = 0) -> list[int]:
    """The alternatives of position t."""
    return [int(token) for token in completion.top_ids[t] if token >= 0]


def test_a_llamacpp_answer() -> None:
    """Ids, logprobs, sorted alternatives, bytes, the end token as the last position."""
    answer = llamacpp((7, -1.5, [(4, -0.5), (7, -1.5)]), (2, -0.1, [(2, -0.1)]))
    found = parse(answer)
    assert (found.text, found.finish_reason, found.model, found.prompt_tokens) == (
        "hi",
        "stop",
        "m",
        30,
    )
    assert found.token_ids.tolist() == [7, 2]
    assert found.logprobs.tolist() == pytest.approx([-1.5, -0.1])
    assert found.top_ids.tolist() == [[4, 7], [2, -1]]
    assert found.top_logprobs[1, 1] == -math.inf
    assert found.token_bytes == {4: b"t4", 7: b"t7"}
    assert found.whole


def test_llamacpp_answers_completions_in_the_chat_dialect() -> None:
    """The legacy endpoint has `text` instead of a message, and the same logprobs."""
    answer = llamacpp((7, -1.5, []))
    answer["choices"][0]["text"] = answer["choices"][0].pop("message")["content"]
    assert parse(answer, endpoint="completions").text == "hi"


def test_fewer_tokens_listed_than_generated_is_noted() -> None:
    """llama.cpp leaves tokens that end inside a character out of its list; such a completion is not
    whole.
    """
    assert not parse(llamacpp((7, -1.5, []), generated=3)).whole


def test_vllm_chat_lists_the_sampled_token_in_place_of_the_last() -> None:
    """With 3 asked for and the sampled token outside, only 2 alternatives are sure; the third most
    likely is unknown.
    """
    found = parse(vllm_chat((9, -7.0), [(9, -7.0), (4, -0.5), (5, -1.5)]), "vllm")
    assert found.token_ids.tolist() == [9]
    assert listed(found) == [4, 5]


def test_vllm_chat_moves_the_sampled_token_to_the_front() -> None:
    """A sampled token among the likely ones is sorted back into its place."""
    found = parse(vllm_chat((5, -1.5), [(5, -1.5), (4, -0.5), (6, -2.5)]), "vllm")
    assert listed(found) == [4, 5]


def test_vllm_completions_adds_the_sampled_token() -> None:
    """The legacy endpoint lists all 3 and the sampled token beside them: the 3 are sure, with or
    without it.
    """
    outside = vllm_completions((9, -7.0), [(9, -7.0), (4, -0.5), (5, -1.5), (6, -2.5)])
    inside = vllm_completions((5, -1.5), [(5, -1.5), (4, -0.5), (6, -2.5)])
    assert listed(parse(outside, "vllm", "completions")) == [4, 5, 6]
    assert listed(parse(inside, "vllm", "completions")) == [4, 5, 6]


def test_the_whole_vocabulary_is_kept_whole() -> None:
    """Asked for with -1, no alternative is cut."""
    found = parse(
        vllm_chat((5, -1.5), [(5, -1.5), (4, -0.5), (6, -2.5)]),
        "vllm",
        sampling=Sampling(top_logprobs=-1),
    )
    assert listed(found) == [4, 5, 6]


def test_a_tiny_positive_logprob_is_rounding() -> None:
    """1e-5 above 0 is float rounding and reads as 0."""
    assert parse(llamacpp((7, 1e-5, []))).logprobs.tolist() == [0.0]


@pytest.mark.parametrize("value", [math.nan, 0.5, math.inf, -9999.0, -math.inf, None, "-1.0", True])
def test_a_sampled_logprob_that_is_none_is_refused(value: Any) -> None:
    """NaN, positive, infinite, placeholder and non-numeric logprobs never become numbers."""
    with raises_naming(CorruptResponse, "logprob"):
        parse(llamacpp((7, value, [])))


@pytest.mark.parametrize("value", [math.nan, 0.5, None])
def test_an_alternatives_logprob_that_is_none_is_refused(value: Any) -> None:
    """The same holds inside the lists."""
    with raises_naming(CorruptResponse, "logprob"):
        parse(llamacpp((7, -1.0, [(4, value)])))


def _without(answer: dict[str, Any], *path: Any) -> dict[str, Any]:
    inner = answer = copy.deepcopy(answer)
    for key in path[:-1]:
        inner = inner[key]
    del inner[path[-1]]
    return answer


@pytest.mark.parametrize(
    "path",
    [
        ("choices",),
        ("choices", 0),
        ("choices", 0, "message", "content"),
        ("choices", 0, "logprobs", "content", 0, "id"),
        ("choices", 0, "logprobs", "content", 0, "logprob"),
        ("choices", 0, "logprobs", "content", 0, "top_logprobs", 0, "id"),
    ],
)
def test_a_missing_field_is_refused(path: tuple[Any, ...]) -> None:
    """Nothing that is missing is made up."""
    with pytest.raises(CorruptResponse):
        parse(_without(llamacpp((7, -1.0, [(4, -0.5)])), *path))


@pytest.mark.parametrize(
    "answer",
    [
        None,
        [],
        "no",
        3,
        {},
        {"choices": []},
        {"choices": "x"},
        {"error": {"message": "overloaded"}},
    ],
)
def test_what_is_no_completion_is_refused(answer: Any) -> None:
    """A 200 with anything else inside is not an answer."""
    with raises_naming(CorruptResponse, "choices"):
        parse(answer)


def test_an_answer_without_logprobs_says_what_is_missing() -> None:
    """``logprobs: null``, no logprobs, and a logprobs object without a list are the same fault."""
    answer = llamacpp((7, -1.0, []))
    for broken in (None, {"content": None}):
        answer["choices"][0]["logprobs"] = broken
        with raises_naming(NoLogprobs, "logprobs"):
            parse(answer)
    with raises_naming(NoLogprobs, "chat", "``endpoint=completions``", "``top_logprobs=0``"):
        parse(_without(llamacpp((7, -1.0, [])), "choices", 0, "logprobs"))


def test_a_token_listed_twice_is_refused() -> None:
    """Probability must not be counted twice."""
    with raises_naming(CorruptResponse, "twice"):
        parse(llamacpp((7, -1.0, [(4, -0.5), (4, -0.5)])))


def test_a_vllm_server_that_ignores_the_id_option_is_refused() -> None:
    """A display string is never taken for a token."""
    answer = vllm_chat((9, -1.0), [(9, -1.0)])
    answer["choices"][0]["logprobs"]["content"][0]["token"] = " Paris"
    with raises_naming(CorruptResponse, "token_id:N"):
        parse(answer, "vllm")


def test_lists_of_different_lengths_are_refused() -> None:
    """The legacy dialect's parallel lists must be parallel."""
    answer = vllm_completions((9, -1.0), [(9, -1.0)])
    answer["choices"][0]["logprobs"]["token_logprobs"].append(-1.0)
    with raises_naming(CorruptResponse, "1", "2"):
        parse(answer, "vllm", "completions")


def test_an_empty_completion_has_no_positions() -> None:
    """A completion that ends at once, where the end token is not listed, is empty and
    well-formed.
    """
    found = parse(llamacpp())
    assert found.n_tokens == 0
    assert found.top_ids.shape == (0, 0)
    assert found.token_ids.dtype == np.int32
