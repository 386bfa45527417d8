"""The shapes of answers besides chat's: the Responses API, SGLang's own lists, legacy completions,
sampled ids beside the list.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, get_args

import pytest

from blackbox_lb.api.wire import parse_response
from blackbox_lb.api.wire.dialects import DIALECTS
from blackbox_lb.errors import CorruptResponse, NoLogprobs, ProfileError
from blackbox_lb.literals import Endpoint
from blackbox_lb.providers.profile import Profile, load_profile
from blackbox_lb.providers.schema import EndpointRules
from blackbox_lb.types import UNNAMED, Completion, Sampling
from blackbox_lb.vocabulary import Vocabulary
from tests.support.entries import entry
from tests.support.errors import raises_naming

ProfileWith = Callable[..., Profile]
K = Sampling(top_logprobs=3)


def test_every_dialect_that_a_profile_may_name_has_a_row() -> None:
    """And no row is of a dialect that none can name."""
    assert set(DIALECTS) == set(get_args(EndpointRules.model_fields["dialect"].annotation))


def response(
    *parts: dict[str, Any], status: str = "completed", tokens: int = 2, **more: Any
) -> dict[str, Any]:
    """An answer of the Responses API: a reasoning item and a message of these parts."""
    output = [
        {"type": "reasoning", "id": "r", "summary": []},
        {"type": "message", "role": "assistant", "status": status, "content": list(parts)},
    ]
    usage = {"input_tokens": 9, "output_tokens": tokens, "total_tokens": 9 + tokens}
    return {
        "object": "response",
        "status": status,
        "model": "m",
        "output": output,
        "usage": usage,
        **more,
    }


def said(text: str, *entries: dict[str, Any]) -> dict[str, Any]:
    """A part of a message."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": list(entries)}


def read(
    profile: Profile,
    endpoint: Endpoint,
    answer: Any,
    vocabulary: Vocabulary | None = None,
    sampling: Sampling = K,
) -> Completion:
    """The only completion of an answer."""
    (found,) = parse_response(profile, endpoint, answer, sampling, vocabulary)
    return found


def test_a_response_is_read_like_a_chat_completion(
    profile_with: ProfileWith, vocabulary: Vocabulary
) -> None:
    """Text, tokens, alternatives and counts; the parts of a message are one text."""
    parts = (
        said(" the", entry(" the", -0.5, (" the", -0.5), (" a", -1.5))),
        said(" cat", entry(" cat", -0.25)),
    )
    found = read(profile_with(), "responses", response(*parts), vocabulary)
    assert (found.text, found.finish_reason, found.model) == (" the cat", "stop", "m")
    assert (found.prompt_tokens, found.generated, found.whole) == (9, 2, True)
    assert found.token_ids.tolist() == [0, 2]
    assert found.logprobs.tolist() == [-0.5, -0.25]
    assert found.top_ids.tolist() == [[0, 1], [-1, -1]]


@pytest.mark.parametrize(
    ("status", "details", "finish"),
    [
        ("completed", None, "stop"),
        ("incomplete", {"reason": "max_output_tokens"}, "length"),
        ("incomplete", {"reason": "content_filter"}, "content_filter"),
        ("incomplete", None, "length"),
    ],
)
def test_the_status_of_a_response_is_a_finish_reason(
    profile_with: ProfileWith, vocabulary: Vocabulary, status: str, details: Any, finish: str
) -> None:
    """A response says why it is not complete; where it does not, it ran into its limit."""
    answer = response(
        said(" a", entry(" a", -1.0)), status=status, incomplete_details=details, tokens=1
    )
    assert read(profile_with(), "responses", answer, vocabulary).finish_reason == finish


def test_an_empty_response_has_no_positions(
    profile_with: ProfileWith, vocabulary: Vocabulary
) -> None:
    """Nothing was said, so nothing is missing; what was thought unseen makes it incomplete."""
    found = read(
        profile_with(), "responses", {"output": [], "usage": {"output_tokens": 0}}, vocabulary
    )
    assert (found.text, found.whole, len(found.token_ids)) == ("", True, 0)
    unseen = {"output": [], "usage": {"output_tokens": 64}, "status": "incomplete"}
    assert not read(profile_with(), "responses", unseen, vocabulary).whole
    with raises_naming(CorruptResponse, "acme", "'completed'"):
        read(profile_with(), "responses", {**unseen, "status": "completed"}, vocabulary)


def test_a_refusal_in_a_response_is_its_text(
    profile_with: ProfileWith, vocabulary: Vocabulary
) -> None:
    """This API gives no logprobs of refusals: the user's text is known, its tokens are not."""
    found = read(
        profile_with(), "responses", response({"type": "refusal", "refusal": "no"}), vocabulary
    )
    assert (found.text, found.whole, found.generated, len(found.token_ids)) == ("no", False, 2, 0)


@pytest.mark.parametrize("status", ["failed", "cancelled", "in_progress"])
def test_a_response_that_failed_says_why(
    profile_with: ProfileWith, vocabulary: Vocabulary, status: str
) -> None:
    """The provider's own words are in the error."""
    answer = response(status=status, error={"code": "server_error", "message": "out of cats"})
    with raises_naming(CorruptResponse, repr(status), "'out of cats'"):
        read(profile_with(), "responses", answer, vocabulary)


def test_an_answer_of_llamacpp_tells_ids_and_bytes() -> None:
    """Sorted alternatives, and the end token, printed as nothing, as the last position."""
    told = [entry("t7", -1.5, ("t7", -1.5), ("t4", -0.5)), entry("", -0.125, ("", -0.125))]
    for each in [*told, *(other for position in told for other in position["top_logprobs"])]:
        each["id"] = int(each["token"].removeprefix("t") or 2)
    choice = {"message": {"content": "t7"}, "logprobs": {"content": told}, "finish_reason": "stop"}
    answer = {"choices": [choice], "usage": {"completion_tokens": 2}}
    found = read(load_profile("llamacpp"), "chat", answer)
    assert (found.token_ids.tolist(), found.logprobs.tolist()) == ([7, 2], [-1.5, -0.125])
    assert found.top_ids.tolist() == [[4, 7], [2, -1]]
    assert found.top_logprobs.tolist() == [[-0.5, -1.5], [-0.125, -math.inf]]
    assert (found.token_bytes, found.whole) == ({4: b"t4", 7: b"t7"}, True)


def native(flat: bool) -> dict[str, Any]:
    """An answer of SGLang's chat with ``return_meta_info``, where fragments of a character have one
    text between them.
    """
    top = [[[-0.5, 7, "x"], [-1.5, 8, "\ufffd"]], [[-0.25, 9, "\ufffd"], [-2.5, 10, "\ufffd"]]]
    meta: dict[str, Any] = {"output_token_logprobs": [[-3.0, 11, "y"], [-0.25, 9, "\ufffd"]]}
    if flat:
        meta["output_top_logprobs_val_flat"] = [value for row in top for value, _, _ in row]
        meta["output_top_logprobs_idx_flat"] = [token for row in top for _, token, _ in row]
        meta |= {"output_top_logprobs_shape": [2, 2], "output_top_logprobs_null_prefix": 0}
    else:
        meta["output_top_logprobs"] = top
    entries = [entry("y", -3.0), entry("\ufffd", -0.25)]
    choice = {
        "message": {"content": "y\ufffd"},
        "logprobs": {"content": entries},
        "finish_reason": "stop",
    }
    return {
        "choices": [{**choice, "meta_info": meta}],
        "usage": {"completion_tokens": 2, "prompt_tokens": 3},
    }


@pytest.mark.parametrize("flat", [False, True])
def test_sglangs_own_lists_name_every_token(flat: bool) -> None:
    """Ids are given, so that no vocabulary is needed and no two tokens are taken for one; both
    layouts read the same.
    """
    found = read(load_profile("sglang"), "chat", native(flat))
    assert (found.text, found.whole) == ("y\ufffd", True)
    assert found.token_ids.tolist() == [11, 9]
    assert found.logprobs.tolist() == [-3.0, -0.25]
    assert found.top_ids.tolist() == [[7, 8], [9, 10]]
    assert found.top_logprobs.tolist() == [[-0.5, -1.5], [-0.25, -2.5]]


def test_positions_before_a_flat_list_have_no_alternatives() -> None:
    """``null_prefix`` counts them."""
    answer = native(True)
    meta = answer["choices"][0]["meta_info"]
    meta |= {"output_top_logprobs_shape": [1, 2], "output_top_logprobs_null_prefix": 1}
    meta["output_top_logprobs_val_flat"] = meta["output_top_logprobs_val_flat"][2:]
    meta["output_top_logprobs_idx_flat"] = meta["output_top_logprobs_idx_flat"][2:]
    assert read(load_profile("sglang"), "chat", answer).top_ids.tolist() == [[-1, -1], [9, 10]]


@pytest.mark.parametrize(
    ("change", "facts"),
    [
        ({"output_top_logprobs_shape": [2, 3]}, ("4 ids", "4 logprobs", "2 x 3")),
        ({"output_top_logprobs_null_prefix": 1}, ("2 tokens", "3 lists")),
        ({"output_token_logprobs": [[-3.0, -11, "y"], [-0.25, 9, ""]]}, ("token id -11",)),
        (
            {"output_token_logprobs": [[-3.0], [-0.25]]},
            ("shape", "profile"),
        ),
    ],
)
def test_own_lists_out_of_step_are_refused(change: dict[str, Any], facts: tuple[str, ...]) -> None:
    """Arrays that do not fit each other name no token."""
    answer = native(True)
    answer["choices"][0]["meta_info"] |= change
    with raises_naming(CorruptResponse, "sglang", *facts):
        read(load_profile("sglang"), "chat", answer)


def test_an_old_server_without_own_lists_is_named() -> None:
    """It answers, and leaves out what it does not know."""
    answer = native(True)
    del answer["choices"][0]["meta_info"]
    with raises_naming(NoLogprobs, "return_meta_info"):
        read(load_profile("sglang"), "chat", answer)


def legacy(
    tokens: list[str], logprobs: list[Any], tops: list[Any] | None, **more: Any
) -> dict[str, Any]:
    """A legacy completion."""
    lists = {
        "tokens": tokens,
        "token_logprobs": logprobs,
        "top_logprobs": tops,
        "text_offset": [0] * len(tokens),
    }
    return {
        "choices": [{"text": "".join(tokens), "finish_reason": "stop", "logprobs": lists, **more}]
    }


def test_a_list_that_was_not_asked_for_may_be_missing(
    profile_with: ProfileWith, vocabulary: Vocabulary
) -> None:
    """With no alternatives there are none, written as null or as an empty list."""
    none: list[list[Any] | None] = [None, []]
    for tops in none:
        found = read(
            profile_with(),
            "completions",
            legacy([" a"], [-1.0], tops),
            vocabulary,
            Sampling(top_logprobs=0),
        )
        assert (found.token_ids.tolist(), found.top_ids.shape) == ([1], (1, 0))


@pytest.mark.parametrize(
    ("logprobs", "tops", "facts"),
    [([None, -1.0], [None, {}], ("null", "0", "2")), ([-1.0], None, ("1", "2"))],
    ids=["an echoed prompt", "lists out of step"],
)
def test_lists_that_are_not_of_the_sampled_tokens_are_refused(
    profile_with: ProfileWith, vocabulary: Vocabulary, logprobs: Any, tops: Any, facts: Any
) -> None:
    """The first token of a prompt has no logprob; parallel lists are parallel."""
    answer = legacy([" the", " cat"], logprobs, tops)
    with raises_naming(CorruptResponse, *facts):
        read(profile_with(), "completions", answer, vocabulary)


def test_a_legacy_propensity_is_a_list_of_its_own(
    profile_with: ProfileWith, vocabulary: Vocabulary
) -> None:
    """Parallel to the others, and refused where it is not."""
    profile = profile_with(logprobs={"propensity": "sampling_logprobs"})
    answer = legacy([" a", " cat"], [-1.0, -2.0], None)
    answer["choices"][0]["logprobs"]["sampling_logprobs"] = [-1.5, -2.5]
    found = read(profile, "completions", answer, vocabulary)
    assert found.propensities is not None
    assert found.propensities.tolist() == [-1.5, -2.5]
    answer["choices"][0]["logprobs"]["sampling_logprobs"] = [-1.5]
    with raises_naming(CorruptResponse, "acme", "shape", "profile"):
        read(profile, "completions", answer, vocabulary)


def test_sampled_ids_beside_the_list_name_what_its_text_cannot(
    profile_with: ProfileWith, vocabulary: Vocabulary
) -> None:
    """The sampled fragment has the text of any other; the alternative of that text and logprob is
    the same token.
    """
    profile = profile_with(endpoints={"completions": {"sampled_ids": "extra.token_ids"}})
    answer = legacy(
        [" a", "\ufffd"], [-1.0, -0.5], [{" the": -0.5, " a": -1.0}, {"\ufffd": -0.5, " cat": -1.0}]
    )
    answer["choices"][0]["extra"] = {"token_ids": [1, 4]}
    found = read(profile, "completions", answer, vocabulary, Sampling(top_logprobs=2))
    assert found.token_ids.tolist() == [1, 4]
    assert found.top_ids.tolist() == [[0, 1], [4, 2]]
    assert found.whole
    answer["choices"][0]["logprobs"]["top_logprobs"][1] = {"\ufffd": -0.25, " cat": -1.0}
    assert read(
        profile, "completions", answer, vocabulary, Sampling(top_logprobs=2)
    ).top_ids.tolist() == [[0, 1], [UNNAMED, 2]]


def test_sampled_ids_of_the_chat_dialect(profile_with: ProfileWith, vocabulary: Vocabulary) -> None:
    """They name what the entry cannot, and must not contradict what it can."""
    profile = profile_with(endpoints={"chat": {"sampled_ids": "response_token_ids"}})
    content = [entry(" cat", -1.0, (" the", -0.5)), {**entry("?", -1.0), "bytes": None}]
    choice = {
        "message": {"content": " cat?"},
        "logprobs": {"content": content},
        "finish_reason": "stop",
    }
    answer = {"choices": [{**choice, "response_token_ids": [2, 9]}]}
    found = read(profile, "chat", answer, vocabulary)
    assert (found.token_ids.tolist(), found.whole, found.top_ids[0].tolist()) == ([2, 9], True, [0])
    answer["choices"][0]["response_token_ids"] = [3, 9]
    with raises_naming(ProfileError, "token 3", "token 2"):
        read(profile, "chat", answer, vocabulary)


def test_a_list_in_which_one_text_hides_another_is_not_trusted(
    profile_with: ProfileWith, vocabulary: Vocabulary
) -> None:
    """A letter and a byte that prints as it are one key: with fewer entries than asked for, a
    likelier one may be hidden.
    """
    profile = profile_with(endpoints={"completions": {"id": "latin-1", "sampled_ids": "token_ids"}})
    both = {" the": -0.5, "\u00e9": -1.5, " cat": -1.0}
    answer = legacy([" cat"], [-1.0], [both], token_ids=[2])
    found = read(profile, "completions", answer, vocabulary, Sampling(top_logprobs=3))
    assert found.top_ids.tolist() == [[0, 2, UNNAMED]]
    found = read(profile, "completions", answer, vocabulary, Sampling(top_logprobs=4))
    assert (found.top_ids.shape, found.token_ids.tolist(), found.whole) == ((1, 0), [2], True)
    del both["\u00e9"]
    found = read(profile, "completions", answer, vocabulary, Sampling(top_logprobs=4))
    assert found.top_ids.tolist() == [[0, 2]]


@pytest.mark.parametrize(
    ("ids", "found"), [(None, "none"), ([1], "1"), ([1, 2, 3], "3"), ("12", "none")]
)
def test_sampled_ids_that_do_not_fit_the_list_are_refused(
    profile_with: ProfileWith, vocabulary: Vocabulary, ids: Any, found: str
) -> None:
    """As many ids as tokens, or none is taken for any."""
    profile = profile_with(endpoints={"completions": {"sampled_ids": "token_ids"}})
    answer = legacy([" a", " cat"], [-1.0, -2.0], None, token_ids=ids)
    with raises_naming(CorruptResponse, "2", "`token_ids`", found):
        read(profile, "completions", answer, vocabulary)
