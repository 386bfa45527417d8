"""The shapes of answers besides chat's: the Responses API, SGLang's own lists, legacy completions,
sampled ids beside the list.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from blackbox_lb.api.wire import parse_response
from blackbox_lb.errors import CorruptResponse, NoLogprobs, ProfileError
from blackbox_lb.literals import Endpoint
from blackbox_lb.providers.profile import load_profile
from blackbox_lb.types import UNNAMED, Completion, Sampling
from blackbox_lb.vocabulary import Vocabulary
from tests.support.entries import entry
from tests.support.errors import raises_naming
from tests.wire.conftest import ProfileWith, choice

ReadOne = Callable[..., Completion]


@pytest.fixture
def read(profile_with: ProfileWith, vocabulary: Vocabulary) -> ReadOne:
    """``read(endpoint, answer, k=3, **rows)``: its only completion, under a profile with the rows."""

    def completion(endpoint: Endpoint, answer: Any, k: int = 3, **rows: Any) -> Completion:
        profile, sampling = profile_with(**rows), Sampling(top_logprobs=k)
        (found,) = parse_response(profile, endpoint, answer, sampling, vocabulary)
        return found

    return completion


def response(*parts: dict[str, Any], status: str = "completed", **more: Any) -> dict[str, Any]:
    """An answer of the Responses API of two tokens: a reasoning item and a message of these parts."""
    output = [
        {"type": "reasoning", "id": "r", "summary": []},
        {"type": "message", "role": "assistant", "status": status, "content": list(parts)},
    ]
    usage = {"input_tokens": 9, "output_tokens": 2, "total_tokens": 11}
    return {"status": status, "model": "m", "output": output, "usage": usage, **more}


def said(text: str, *entries: dict[str, Any]) -> dict[str, Any]:
    """A part of a message."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": list(entries)}


THE_CAT = (
    said(" the", entry(" the", -0.5, (" the", -0.5), (" a", -1.5))),
    said(" cat", entry(" cat", -0.25)),
)


@pytest.mark.parametrize(
    ("status", "details", "finish"),
    [
        ("completed", None, "stop"),
        ("incomplete", {"reason": "max_output_tokens"}, "length"),
        ("incomplete", {"reason": "content_filter"}, "content_filter"),
        ("incomplete", None, "length"),
    ],
)
def test_a_response_is_read_like_a_chat_completion(
    read: ReadOne, status: str, details: Any, finish: str
) -> None:
    """Text, tokens, alternatives and counts; the parts of a message are one text, and the status
    with its reason is the finish reason.
    """
    found = read("responses", response(*THE_CAT, status=status, incomplete_details=details))
    assert (found.text, found.finish_reason, found.model) == (" the cat", finish, "m")
    assert (found.prompt_tokens, found.generated) == (9, 2)
    assert found.whole == (finish != "content_filter")
    assert found.token_ids.tolist() == [0, 2]
    assert found.logprobs.tolist() == [-0.5, -0.25]
    assert found.top_ids.tolist() == [[0, 1], [-1, -1]]


def test_an_empty_response_has_no_positions(read: ReadOne) -> None:
    """Nothing was said, so nothing is missing; what was thought unseen makes it incomplete."""
    found = read("responses", {"output": [], "usage": {"output_tokens": 0}})
    assert (found.text, found.whole, len(found.token_ids)) == ("", True, 0)
    unseen = {"output": [], "usage": {"output_tokens": 64}, "status": "incomplete"}
    assert not read("responses", unseen).whole
    with raises_naming(CorruptResponse, "acme", "'completed'"):
        read("responses", {**unseen, "status": "completed"})


def test_a_refusal_in_a_response_is_its_text(read: ReadOne) -> None:
    """This API gives no logprobs of refusals: the user's text is known, its tokens are not."""
    found = read("responses", response({"type": "refusal", "refusal": "no"}))
    assert (found.text, found.whole, found.generated, len(found.token_ids)) == ("no", False, 2, 0)


@pytest.mark.parametrize("status", ["failed", "cancelled", "in_progress"])
def test_a_response_that_failed_says_why(read: ReadOne, status: str) -> None:
    """The provider's own words are in the error."""
    answer = response(status=status, error={"code": "server_error", "message": "out of cats"})
    with raises_naming(CorruptResponse, repr(status), "'out of cats'"):
        read("responses", answer)


def of_profile(name: str, answer: Any) -> Completion:
    """The only completion of a chat answer of this provider, without a vocabulary."""
    (found,) = parse_response(load_profile(name), "chat", answer, Sampling(top_logprobs=3))
    return found


def test_an_answer_of_llamacpp_tells_ids_and_bytes() -> None:
    """Sorted alternatives, and the end token, printed as nothing, as the last position."""
    told = [entry("t7", -1.5, ("t7", -1.5), ("t4", -0.5)), entry("", -0.125, ("", -0.125))]
    for each in [*told, *(other for position in told for other in position["top_logprobs"])]:
        each["id"] = int(each["token"].removeprefix("t") or 2)
    spoken = choice(1, "stop", "t7", logprobs={"content": told})
    found = of_profile("llamacpp", {"choices": [spoken], "usage": {"completion_tokens": 2}})
    assert (found.token_ids.tolist(), found.logprobs.tolist()) == ([7, 2], [-1.5, -0.125])
    assert found.top_ids.tolist() == [[4, 7], [2, -1]]
    assert found.top_logprobs.tolist() == [[-0.5, -1.5], [-0.125, -math.inf]]
    assert (found.token_bytes, found.whole) == ({4: b"t4", 7: b"t7"}, True)


FLAT = {
    "output_top_logprobs_val_flat": [-0.5, -1.5, -0.25, -2.5],
    "output_top_logprobs_idx_flat": [7, 8, 9, 10],
    "output_top_logprobs_shape": [2, 2],
    "output_top_logprobs_null_prefix": 0,
}
NESTED = {
    "output_top_logprobs": [
        [[-0.5, 7, "x"], [-1.5, 8, "\ufffd"]],
        [[-0.25, 9, "\ufffd"], [-2.5, 10, "\ufffd"]],
    ]
}


def native(**meta: Any) -> dict[str, Any]:
    """An answer of SGLang's chat with ``return_meta_info``, where fragments of a character have one
    text between them.
    """
    spoken = choice(1, "stop", "y\ufffd", logprobs={"content": [entry("y", -3.0)]})
    spoken["meta_info"] = {
        "output_token_logprobs": [[-3.0, 11, "y"], [-0.25, 9, "\ufffd"]],
        **(meta or FLAT),
    }
    return {"choices": [spoken], "usage": {"completion_tokens": 2, "prompt_tokens": 3}}


@pytest.mark.parametrize("lists", [FLAT, NESTED])
def test_sglangs_own_lists_name_every_token(lists: dict[str, Any]) -> None:
    """Ids are given, so that no vocabulary is needed and no two tokens are taken for one; both
    layouts read the same.
    """
    found = of_profile("sglang", native(**lists))
    assert (found.text, found.whole) == ("y\ufffd", True)
    assert found.token_ids.tolist() == [11, 9]
    assert found.logprobs.tolist() == [-3.0, -0.25]
    assert found.top_ids.tolist() == [[7, 8], [9, 10]]
    assert found.top_logprobs.tolist() == [[-0.5, -1.5], [-0.25, -2.5]]


def test_positions_before_a_flat_list_have_no_alternatives() -> None:
    """``null_prefix`` counts them."""
    late = {
        "output_top_logprobs_val_flat": [-0.25, -2.5],
        "output_top_logprobs_idx_flat": [9, 10],
        "output_top_logprobs_shape": [1, 2],
        "output_top_logprobs_null_prefix": 1,
    }
    found = of_profile("sglang", native(**late))
    assert found.top_ids.tolist() == [[-1, -1], [9, 10]]


@pytest.mark.parametrize(
    ("change", "facts"),
    [
        ({"output_top_logprobs_shape": [2, 3]}, ("4 ids", "4 logprobs", "2 x 3")),
        ({"output_top_logprobs_null_prefix": 1}, ("2 tokens", "3 lists")),
        ({"output_token_logprobs": [[-3.0, -11, "y"], [-0.25, 9, ""]]}, ("token id -11",)),
        ({"output_token_logprobs": [[-3.0], [-0.25]]}, ("shape", "profile")),
    ],
)
def test_own_lists_out_of_step_are_refused(change: dict[str, Any], facts: tuple[str, ...]) -> None:
    """Arrays that do not fit each other name no token; an old server that gives none is named."""
    with raises_naming(CorruptResponse, "sglang", *facts):
        of_profile("sglang", native(**{**FLAT, **change}))
    answer = native()
    del answer["choices"][0]["meta_info"]
    with raises_naming(NoLogprobs, "return_meta_info"):
        of_profile("sglang", answer)


def legacy(tokens: list[str], logprobs: list[Any], tops: Any, **more: Any) -> dict[str, Any]:
    """A legacy completion; ``more`` stands beside the lists of the choice."""
    lists = {"tokens": tokens, "token_logprobs": logprobs, "top_logprobs": tops}
    spoken = {"text": "".join(tokens), "finish_reason": "stop", "logprobs": lists, **more}
    return {"choices": [spoken]}


@pytest.mark.parametrize("tops", [None, []])
def test_a_list_that_was_not_asked_for_may_be_missing(read: ReadOne, tops: Any) -> None:
    """With no alternatives there are none, written as null or as an empty list."""
    found = read("completions", legacy([" a"], [-1.0], tops), k=0)
    assert (found.token_ids.tolist(), found.top_ids.shape) == ([1], (1, 0))


@pytest.mark.parametrize(
    ("logprobs", "tops", "facts"),
    [([None, -1.0], [None, {}], ("null", "0", "2")), ([-1.0], None, ("1", "2"))],
    ids=["an echoed prompt", "lists out of step"],
)
def test_lists_that_are_not_of_the_sampled_tokens_are_refused(
    read: ReadOne, logprobs: Any, tops: Any, facts: Any
) -> None:
    """The first token of a prompt has no logprob; parallel lists are parallel."""
    with raises_naming(CorruptResponse, *facts):
        read("completions", legacy([" the", " cat"], logprobs, tops))


@pytest.mark.parametrize(("token", "is_empty"), [(" cat", False), ("<|end|>", True)])
def test_an_empty_legacy_text_is_what_its_tokens_spell(
    read: ReadOne, token: str, is_empty: bool
) -> None:
    """Something took words away; the name of a special token spells none."""
    answer = legacy([token], [-1.0], None)
    answer["choices"][0]["text"] = ""
    if is_empty:
        assert read("completions", answer).text == ""
    else:
        with raises_naming(CorruptResponse, "'cat'"):
            read("completions", answer)


def test_a_legacy_propensity_is_a_list_of_its_own(read: ReadOne) -> None:
    """Parallel to the others, and refused where it is not."""
    rows = {"propensity": "sampling_logprobs"}
    answer = legacy([" a", " cat"], [-1.0, -2.0], None)
    answer["choices"][0]["logprobs"]["sampling_logprobs"] = [-1.5, -2.5]
    found = read("completions", answer, logprobs=rows)
    assert found.propensities is not None
    assert found.propensities.tolist() == [-1.5, -2.5]
    answer["choices"][0]["logprobs"]["sampling_logprobs"] = [-1.5]
    with raises_naming(CorruptResponse, "acme", "shape", "profile"):
        read("completions", answer, logprobs=rows)


def test_sampled_ids_beside_the_list_name_what_its_text_cannot(read: ReadOne) -> None:
    """The sampled fragment has the text of any other; the alternative of that text and logprob is
    the same token.
    """
    rows = {"completions": {"sampled_ids": "extra.token_ids"}}
    tops = [{" the": -0.5, " a": -1.0}, {"\ufffd": -0.5, " cat": -1.0}]
    answer = legacy([" a", "\ufffd"], [-1.0, -0.5], tops, extra={"token_ids": [1, 4]})
    found = read("completions", answer, k=2, endpoints=rows)
    assert found.token_ids.tolist() == [1, 4]
    assert found.top_ids.tolist() == [[0, 1], [4, 2]]
    assert found.whole
    tops[1]["\ufffd"] = -0.25
    found = read("completions", answer, k=2, endpoints=rows)
    assert found.top_ids.tolist() == [[0, 1], [UNNAMED, 2]]


def test_sampled_ids_of_the_chat_dialect(read: ReadOne) -> None:
    """They name what the entry cannot, and must not contradict what it can."""
    rows = {"chat": {"sampled_ids": "response_token_ids"}}
    content = [entry(" cat", -1.0, (" the", -0.5)), {**entry("?", -1.0), "bytes": None}]
    spoken = choice(1, "stop", " cat?", logprobs={"content": content}, response_token_ids=[2, 9])
    found = read("chat", {"choices": [spoken]}, endpoints=rows)
    assert (found.token_ids.tolist(), found.whole, found.top_ids[0].tolist()) == ([2, 9], True, [0])
    spoken["response_token_ids"] = [3, 9]
    with raises_naming(ProfileError, "token 3", "token 2", "``tokenizer``"):
        read("chat", {"choices": [spoken]}, endpoints=rows)


def test_a_list_in_which_one_text_hides_another_is_not_trusted(read: ReadOne) -> None:
    """A letter and a byte that prints as it are one key: with fewer entries than asked for, a
    likelier one may be hidden.
    """
    rows = {"completions": {"id": "latin-1", "sampled_ids": "token_ids"}}
    both = {" the": -0.5, "\u00e9": -1.5, " cat": -1.0}
    answer = legacy([" cat"], [-1.0], [both], token_ids=[2])
    found = read("completions", answer, k=3, endpoints=rows)
    assert found.top_ids.tolist() == [[0, 2, UNNAMED]]
    found = read("completions", answer, k=4, endpoints=rows)
    assert (found.top_ids.shape, found.token_ids.tolist(), found.whole) == ((1, 0), [2], True)
    del both["\u00e9"]
    assert read("completions", answer, k=4, endpoints=rows).top_ids.tolist() == [[0, 2]]


@pytest.mark.parametrize(
    ("ids", "found"), [(None, "none"), ([1], "1"), ([1, 2, 3], "3"), ("12", "none")]
)
def test_sampled_ids_that_do_not_fit_the_list_are_refused(
    read: ReadOne, ids: Any, found: str
) -> None:
    """As many ids as tokens, or none is taken for any."""
    answer = legacy([" a", " cat"], [-1.0, -2.0], None, token_ids=ids)
    with raises_naming(CorruptResponse, "2", "`token_ids`", found):
        read("completions", answer, endpoints={"completions": {"sampled_ids": "token_ids"}})
