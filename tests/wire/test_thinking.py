"""Answers of thinking models: their thoughts are recognised, listed or not, and an answer that was
cut inside them says so.

Constructed after recorded answers of DeepSeek, llama.cpp and gateways, with values of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from blackbox_lb.api.wire import parse_response
from blackbox_lb.api.wire.envelope import CUT, UNLISTED
from blackbox_lb.errors import NoLogprobs
from blackbox_lb.providers.profile import Profile
from blackbox_lb.types import Completion, Sampling
from blackbox_lb.vocabulary import Vocabulary
from tests.support.entries import entry
from tests.support.errors import names, raises_naming

ProfileWith = Callable[..., Profile]
THOUGHTS: dict[str, dict[str, Any]] = {
    "reasoning_content": {"message": {"reasoning_content": " a"}},
    "reasoning": {"message": {"reasoning": " a"}},
    "a list": {"logprobs": {"reasoning_content": [entry(" a", -1.0)]}},
    "a count": {"usage": {"completion_tokens_details": {"reasoning_tokens": 1}}},
}
"""What an answer shows of its thoughts: any of these is enough."""


def entries(text: str) -> list[dict[str, Any]]:
    """The list of the words of ``text``, a token each."""
    return [entry(f" {word}", -0.5) for word in text.split()]


def answer(
    text: str | None, listed: str | None, total: int, finish: str = "stop", shown: str = "reasoning"
) -> dict[str, Any]:
    """An answer of ``total`` tokens with thoughts, of which ``listed`` are listed. ``shown``: what
    shows the thoughts.
    """
    more = THOUGHTS[shown]
    message = {
        "role": "assistant",
        **({} if text is None else {"content": text}),
        **more.get("message", {}),
    }
    logprobs = {
        **({} if listed is None else {"content": entries(listed)}),
        **more.get("logprobs", {}),
    }
    usage = {"completion_tokens": total, "prompt_tokens": 3, **more.get("usage", {})}
    return {
        "choices": [{"message": message, "finish_reason": finish, "logprobs": logprobs}],
        "usage": usage,
    }


def read(profile: Profile, vocabulary: Vocabulary, found: dict[str, Any]) -> Completion:
    """The completion of the answer ``found``."""
    return parse_response(profile, "chat", found, Sampling(), vocabulary)[0]


@pytest.mark.parametrize("shown", THOUGHTS)
def test_thoughts_that_are_counted_and_not_listed(
    profile_with: ProfileWith, vocabulary: Vocabulary, shown: str
) -> None:
    """The completion is not whole, with the reason; one hidden token is no end token, for it may
    belong to the thoughts.
    """
    for total in (2, 3, 4, 40):
        found = read(profile_with(), vocabulary, answer(" cat", "cat", total, shown=shown))
        assert (found.text, found.whole, found.generated, found.note) == (
            " cat",
            False,
            total,
            UNLISTED,
        )
    plain = answer(" cat", "cat", 2)
    del plain["choices"][0]["message"]["reasoning"]
    assert (
        read(profile_with(), vocabulary, plain).whole,
        read(profile_with(), vocabulary, plain).note,
    ) == (True, "")


@pytest.mark.parametrize(
    "thought",
    [
        {"type": "thinking", "thinking": [{"type": "text", "text": " a"}]},
        {"type": "thinking", "thinking": " a", "signature": "x"},
        {"type": "redacted_thinking", "data": "x"},
        {"type": "reasoning", "summary": []},
    ],
)
def test_thinking_parts_of_a_content_are_thoughts(
    profile_with: ProfileWith, vocabulary: Vocabulary, thought: dict[str, Any]
) -> None:
    """They are no part of the text, and make the completion one of a model that thought."""
    spoken = answer(" cat", "cat", 2)
    message = spoken["choices"][0]["message"]
    del message["reasoning"]
    message["content"] = [thought, {"type": "text", "text": " cat"}]
    completion = read(profile_with(), vocabulary, spoken)
    assert (completion.text, completion.whole, completion.note) == (" cat", False, UNLISTED)
    message["content"] = [thought]
    spoken["choices"][0] |= {"finish_reason": "length", "logprobs": None}
    with raises_naming(NoLogprobs, "acme", "``max_tokens``"):
        read(profile_with(), vocabulary, spoken)


@pytest.mark.parametrize("shown", THOUGHTS)
@pytest.mark.parametrize(
    ("text", "logprobs"),
    [("", "absent"), (None, "absent"), ("", None), (None, {}), (None, {"content": None})],
)
def test_an_answer_that_was_cut_inside_its_thinking(
    profile_with: ProfileWith, vocabulary: Vocabulary, shown: str, text: str | None, logprobs: Any
) -> None:
    """It is not blamed for its missing logprobs: the message gives the remedy."""
    found = answer(text, None, 5, "length", shown)
    if logprobs != "absent" and shown != "a list":
        found["choices"][0]["logprobs"] = logprobs
    if text is None and shown in ("a list", "a count"):
        found["choices"][0]["message"]["reasoning_content"] = None
    with raises_naming(NoLogprobs, "acme", "``max_tokens``"):
        read(profile_with(), vocabulary, found)
    found["choices"][0]["finish_reason"] = "stop"
    with raises_naming(NoLogprobs, "acme") as caught:
        read(profile_with(), vocabulary, found)
    assert not names(str(caught.value), "``max_tokens``")


def test_listed_thoughts_are_tokens_like_any(
    profile_with: ProfileWith, vocabulary: Vocabulary
) -> None:
    """Where as many are listed as are counted, the completion is whole, and its text is the answer
    alone; one that was cut inside its thoughts has none, and says so.
    """
    found = read(profile_with(), vocabulary, answer(" cat", "the a cat", 3))
    assert (found.text, found.token_ids.tolist(), found.whole, found.note) == (
        " cat",
        [0, 1, 2],
        True,
        "",
    )
    cut = read(profile_with(), vocabulary, answer(None, "the a", 2, "length"))
    assert (cut.text, cut.token_ids.tolist(), cut.whole, cut.note) == ("", [0, 1], True, CUT)


@pytest.mark.parametrize(
    ("row", "total", "whole"),
    [
        (None, 3, True),
        (None, 4, False),
        (True, 3, True),
        (True, 4, True),
        (True, 5, True),
        (True, 6, False),
        (False, 3, False),
    ],
)
def test_a_profile_says_whether_thoughts_are_listed(
    profile_with: ProfileWith, vocabulary: Vocabulary, row: bool | None, total: int, whole: bool
) -> None:
    """Where they are, the token that is counted and not listed ends the completion, as of gpt-oss
    behind gateways; where they are not, an answer with thoughts is never whole.
    """
    profile = profile_with(logprobs={"reasoning_listed": row})
    found = read(profile, vocabulary, answer(" cat", "the a cat", total))
    assert (found.whole, found.note) == (
        whole,
        "" if whole else UNLISTED if not row else found.note,
    )
    assert read(profile, vocabulary, answer(" the", "the a cat", 4)).whole is False
    ends = profile_with(logprobs={"reasoning_listed": row, "end_token_listed": True})
    assert read(ends, vocabulary, answer(" cat", "the a cat", total)).whole is (
        whole and total == 3
    )


@pytest.mark.parametrize(
    ("text", "finish", "whole"),
    [(" cat a", "stop", True), (" cat", "stop", False), (" cat a", "length", False)],
)
def test_two_tokens_more_than_are_listed(
    profile_with: ProfileWith, vocabulary: Vocabulary, text: str, finish: str, whole: bool
) -> None:
    """Once Azure's gpt-4o counted two more than it listed, and the answer was whole: the listed
    tokens must spell the text.
    """
    found = answer(text, "cat a", 4, finish, "a count")
    found["usage"]["completion_tokens_details"]["reasoning_tokens"] = 0
    assert read(profile_with(), vocabulary, found).whole is whole
    found["choices"][0]["logprobs"]["content"][0]["bytes"] = None
    assert read(profile_with(), vocabulary, found).whole is False


@pytest.mark.parametrize(("listed", "whole"), [("the a cat", True), ("cat", False)])
def test_a_stop_text_behind_thoughts(
    profile_with: ProfileWith, vocabulary: Vocabulary, listed: str, whole: bool
) -> None:
    """llama.cpp lists the thoughts and leaves out the stop text: what is hidden is that where the
    list shows more than the text.
    """
    profile = profile_with(logprobs={"end_token_listed": True, "stop_text_listed": False})
    found = answer(" cat", listed, len(listed.split()) + 2)
    assert (
        parse_response(profile, "chat", found, Sampling(stop=("xx",)), vocabulary)[0].whole is whole
    )


def test_a_count_of_thoughts_is_of_all_choices(
    profile_with: ProfileWith, vocabulary: Vocabulary
) -> None:
    """Of several choices it tells nothing of any one of them; each one's own thoughts do."""
    found = answer(" cat", "cat", 3, shown="a count")
    found["choices"] += answer(" a", "a", 0)["choices"]
    plain, thinking = parse_response(profile_with(), "chat", found, Sampling(), vocabulary)
    assert (plain.whole, thinking.whole) == (False, False)
    assert "counts more tokens than it lists" in plain.note
    assert thinking.note == UNLISTED


def test_a_response_without_text_was_cut(profile_with: ProfileWith, vocabulary: Vocabulary) -> None:
    """The Responses API has no message then; the number of its thoughts says why."""
    usage = {"output_tokens": 9, "output_tokens_details": {"reasoning_tokens": 9}}
    found = {"output": [{"type": "reasoning"}], "status": "incomplete", "usage": usage}
    (cut,) = parse_response(profile_with(), "responses", found, Sampling(), vocabulary)
    assert (cut.text, cut.whole, cut.generated, cut.note) == ("", False, 9, CUT)
