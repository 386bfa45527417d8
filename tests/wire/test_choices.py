"""Which completion counts as whole, and what becomes of those that were filtered, refused, or came without logprobs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from blackbox_lb.errors import NoLogprobs
from blackbox_lb.profiles import Profile
from blackbox_lb.types import UNNAMED, Completion, Sampling
from blackbox_lb.vocabulary import Vocabulary
from blackbox_lb.wire import parse_response

ProfileWith = Callable[..., Profile]
FILTERED = {"index": 0, "finish_reason": "content_filter", "logprobs": None, "content_filter_results": {}}
"""Azure's choice for a completion that its filter withheld: no message, no text."""


def choice(n: int, finish: str = "stop", name: str = " cat", **more: Any) -> dict[str, Any]:
    """A choice of ``n`` equal tokens."""
    entry = {"token": name, "bytes": list(name.encode()), "logprob": -1.0, "top_logprobs": []}
    message = {"role": "assistant", "content": name * n}
    return {"index": 0, "message": message, "finish_reason": finish, "logprobs": {"content": [entry] * n}, **more}


def read(profile: Profile, vocabulary: Vocabulary, total: int | None, *choices: dict[str, Any]) -> list[Completion]:
    """The completions of an answer that says it has ``total`` tokens."""
    usage = None if total is None else {"completion_tokens": total, "prompt_tokens": 11}
    return parse_response(profile, "chat", {"choices": list(choices), "usage": usage}, Sampling(), vocabulary)


@pytest.mark.parametrize(
    ("end_listed", "finish", "listed", "total", "generated", "whole"),
    [
        (False, "stop", 3, 3, 3, True),
        (False, "stop", 3, 4, 4, True),
        (False, "stop", 3, 5, 5, False),
        (False, "length", 3, 4, 4, False),
        (True, "stop", 3, 4, 4, False),
        (None, "stop", 3, 3, 3, True),
        (None, "stop", 3, 4, 4, True),
        (None, "length", 3, 4, 4, False),
        (None, "stop", 3, 5, 5, False),
        (False, "stop", 3, 2, 2, False),
        (False, "stop", 3, None, None, True),
    ],
)
def test_one_choice_is_whole_where_its_list_is_what_it_generated(
    profile_with: ProfileWith,
    vocabulary: Vocabulary,
    end_listed: bool | None,
    finish: str,
    listed: int,
    total: int | None,
    generated: int | None,
    whole: bool,
) -> None:
    """Where the end token is not sure to be listed, a stop may hide exactly one token, and a cut-off none."""
    profile = profile_with(logprobs={"end_token_listed": end_listed})
    (found,) = read(profile, vocabulary, total, choice(listed, finish))
    assert (len(found.token_ids), found.generated, found.whole) == (listed, generated, whole)
    assert found.n_tokens == (listed if generated is None else generated)


@pytest.mark.parametrize(
    ("end_listed", "total", "expected"),
    [
        (False, 5, [(2, True), (3, True)]),
        (False, 6, [(3, True), (3, True)]),  # the first stopped, the second ran into its limit
        (True, 6, [(None, False), (None, False)]),
        (None, 5, [(2, True), (3, True)]),
        (None, 6, [(3, True), (3, True)]),
        (None, 7, [(None, False), (None, False)]),
        (False, None, [(None, True), (None, True)]),
    ],
)
def test_several_choices_are_whole_where_their_lists_sum_up(
    profile_with: ProfileWith,
    vocabulary: Vocabulary,
    end_listed: bool | None,
    total: int | None,
    expected: list[tuple[int | None, bool]],
) -> None:
    """Where they do not, nobody can say which one is short, so none counts."""
    profile = profile_with(logprobs={"end_token_listed": end_listed})
    found = read(profile, vocabulary, total, choice(2, "stop"), choice(3, "length", " a"))
    assert [(each.generated, each.whole) for each in found] == expected
    assert [each.text for each in found] == [" cat cat", " a a a"]
    assert [each.token_ids.tolist() for each in found] == [[2, 2], [1, 1, 1]]


def test_a_sampled_token_without_identity_makes_its_completion_incomplete(
    profile_with: ProfileWith, vocabulary: Vocabulary
) -> None:
    """The position stays, marked, so that those after it keep their places; the other choice is none the worse."""
    found = read(profile_with(), vocabulary, 3, choice(1, name=" dog"), choice(2))
    assert [each.token_ids.tolist() for each in found] == [[UNNAMED], [2, 2]]
    assert [(each.generated, each.whole) for each in found] == [(1, False), (2, True)]


def test_a_filtered_completion_is_empty_and_no_error(profile_with: ProfileWith, vocabulary: Vocabulary) -> None:
    """Azure withholds text and logprobs; the finish reason says so, and the tokens were generated and paid."""
    (found,) = read(profile_with(), vocabulary, 19, FILTERED)
    assert (found.text, found.finish_reason, found.whole, found.generated) == ("", "content_filter", False, 19)
    assert found.top_ids.shape == (0, 0)
    assert len(found.token_ids) == len(found.logprobs) == 0
    assert found.filtered


def test_a_filtered_completion_is_never_whole(profile_with: ProfileWith, vocabulary: Vocabulary) -> None:
    """Not even where the provider counts no token for it, or does not count."""
    assert [read(profile_with(), vocabulary, total, FILTERED)[0].whole for total in (0, None)] == [False, False]


def test_a_filtered_choice_beside_a_good_one(profile_with: ProfileWith, vocabulary: Vocabulary) -> None:
    """The good one is read and counts as whole: the sum, which holds the filtered one's tokens too, says nothing against it."""
    good, filtered = read(profile_with(), vocabulary, 9, choice(2), FILTERED)
    assert (good.text, good.whole, good.generated) == (" cat cat", True, None)
    assert (filtered.text, filtered.whole) == ("", False)


def test_null_logprobs_of_any_other_choice_are_an_error(profile_with: ProfileWith, vocabulary: Vocabulary) -> None:
    """The remedy names the endpoints of the profile that give them."""
    with pytest.raises(
        NoLogprobs, match=r"acme returned no logprobs on its chat endpoint.*--endpoint completions or resp"
    ):
        read(profile_with(), vocabulary, 1, choice(1, logprobs=None))


def test_an_endpoint_without_logprobs_gives_text_only(profile_with: ProfileWith) -> None:
    """A bias can be tried there; nothing can be learned there, and no vocabulary is wanted."""
    profile = profile_with(endpoints={"chat": {"ask_logprobs": "no"}})
    answer = {
        "choices": [choice(2, logprobs=None)],
        "usage": {"completion_tokens": 2, "prompt_tokens": 11},
        "model": "m",
    }
    (found,) = parse_response(profile, "chat", answer, Sampling())
    assert (found.text, found.whole, found.generated, found.n_tokens) == (" cat cat", False, 2, 2)
    assert (found.prompt_tokens, found.model, found.top_ids.shape) == (11, "m", (0, 0))
    answer["usage"] = {"completion_tokens": 0}
    assert not parse_response(profile, "chat", answer, Sampling())[0].whole


def test_a_refusal_is_what_the_user_gets(profile_with: ProfileWith, vocabulary: Vocabulary) -> None:
    """Structured outputs put a refusal in a field and a list of its own; its tokens were sampled like any others."""
    refused = choice(2)
    refused["message"] = {"role": "assistant", "content": None, "refusal": " cat cat"}
    refused["logprobs"] = {"content": None, "refusal": refused["logprobs"]["content"]}
    (found,) = read(profile_with(), vocabulary, 2, refused)
    assert (found.text, found.token_ids.tolist(), found.whole) == (" cat cat", [2, 2], True)
