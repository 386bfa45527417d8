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
from blackbox_lb.types import Completion, Sampling
from blackbox_lb.vocabulary import Vocabulary
from tests.support.entries import entry
from tests.support.errors import names, raises_naming
from tests.wire.conftest import ProfileWith

ReadOne = Callable[..., Completion]
THOUGHTS: dict[str, dict[str, Any]] = {
    "reasoning_content": {"message": {"reasoning_content": " a"}},
    "reasoning": {"message": {"reasoning": " a"}},
    "a list": {"logprobs": {"reasoning_content": [entry(" a", -1.0)]}},
    "a count": {"usage": {"completion_tokens_details": {"reasoning_tokens": 1}}},
}
"""What an answer shows of its thoughts: any of these is enough."""


def answer(
    text: str | None, listed: str | None, total: int, finish: str = "stop", shown: str = "reasoning"
) -> dict[str, Any]:
    """An answer of ``total`` tokens with thoughts, of which ``listed`` are listed, a token a word.
    ``shown``: what shows the thoughts.
    """
    more = THOUGHTS[shown]
    message = {"role": "assistant", **more.get("message", {})}
    if text is not None:
        message["content"] = text
    logprobs = dict(more.get("logprobs", {}))
    if listed is not None:
        logprobs["content"] = [entry(f" {word}", -0.5) for word in listed.split()]
    usage = {"completion_tokens": total, "prompt_tokens": 3, **more.get("usage", {})}
    choice = {"message": message, "finish_reason": finish, "logprobs": logprobs}
    return {"choices": [choice], "usage": usage}


@pytest.fixture
def read(profile_with: ProfileWith, vocabulary: Vocabulary) -> ReadOne:
    """``read(answer, stop=(), **rows)``: its first completion, under logprob rows."""

    def completion(given: Any, stop: tuple[str, ...] = (), **rows: Any) -> Completion:
        profile = profile_with(logprobs=rows)
        return parse_response(profile, "chat", given, Sampling(stop=stop), vocabulary)[0]

    return completion


@pytest.mark.parametrize("shown", THOUGHTS)
def test_thoughts_that_are_counted_and_not_listed(read: ReadOne, shown: str) -> None:
    """The completion is not whole, with the reason; one hidden token is no end token, for it may
    belong to the thoughts.
    """
    for total in (2, 3, 4, 40):
        found = read(answer(" cat", "cat", total, shown=shown))
        assert (found.text, found.whole, found.generated) == (" cat", False, total)
        assert found.note == UNLISTED


@pytest.mark.parametrize(
    "thought",
    [
        {"type": "thinking", "thinking": [{"type": "text", "text": " a"}]},
        {"type": "thinking", "thinking": " a", "signature": "x"},
        {"type": "redacted_thinking", "data": "x"},
        {"type": "reasoning", "summary": []},
    ],
)
def test_thinking_parts_of_a_content_are_thoughts(read: ReadOne, thought: dict[str, Any]) -> None:
    """They are no part of the text, and make the completion one of a model that thought; without
    any, the hidden token is its end.
    """
    spoken = answer(" cat", "cat", 2)
    message = spoken["choices"][0]["message"]
    del message["reasoning"]
    assert (read(spoken).whole, read(spoken).note) == (True, "")
    message["content"] = [thought, {"type": "text", "text": " cat"}]
    completion = read(spoken)
    assert (completion.text, completion.whole, completion.note) == (" cat", False, UNLISTED)
    message["content"] = [thought]
    spoken["choices"][0] |= {"finish_reason": "length", "logprobs": None}
    with raises_naming(NoLogprobs, "acme", "``max_tokens``"):
        read(spoken)


@pytest.mark.parametrize("shown", THOUGHTS)
@pytest.mark.parametrize("text", ["", None])
def test_an_answer_that_was_cut_inside_its_thinking(
    read: ReadOne, shown: str, text: str | None
) -> None:
    """It is not blamed for its missing logprobs: the message gives the remedy."""
    found = answer(text, None, 5, "length", shown)
    (choice,) = found["choices"]
    if text is None and shown in ("a list", "a count"):
        choice["message"]["reasoning_content"] = None
    without: list[Any] = [choice["logprobs"]]
    if shown != "a list":
        without += [None, {}, {"content": None}]
    for logprobs in without:
        choice |= {"finish_reason": "length", "logprobs": logprobs}
        with raises_naming(NoLogprobs, "acme", "``max_tokens``"):
            read(found)
        choice["finish_reason"] = "stop"
        with raises_naming(NoLogprobs, "acme") as caught:
            read(found)
        assert not names(str(caught.value), "``max_tokens``")


def test_listed_thoughts_are_tokens_like_any(read: ReadOne) -> None:
    """Where as many are listed as are counted, the completion is whole, and its text is the answer
    alone; one that was cut inside its thoughts has none, and says so.
    """
    found = read(answer(" cat", "the a cat", 3))
    assert (found.text, found.token_ids.tolist()) == (" cat", [0, 1, 2])
    assert (found.whole, found.note) == (True, "")
    cut = read(answer(None, "the a", 2, "length"))
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
    read: ReadOne, row: bool | None, total: int, whole: bool
) -> None:
    """Where they are, the token that is counted and not listed ends the completion, as of gpt-oss
    behind gateways; where they are not, an answer with thoughts is never whole.
    """
    found = read(answer(" cat", "the a cat", total), reasoning_listed=row)
    assert found.whole == whole
    if whole or not row:
        assert found.note == ("" if whole else UNLISTED)
    assert not read(answer(" the", "the a cat", 4), reasoning_listed=row).whole
    ends = read(answer(" cat", "the a cat", total), reasoning_listed=row, end_token_listed=True)
    assert ends.whole == (whole and total == 3)


@pytest.mark.parametrize(
    ("text", "finish", "whole"),
    [(" cat a", "stop", True), (" cat", "stop", False), (" cat a", "length", False)],
)
def test_two_tokens_more_than_are_listed(
    read: ReadOne, text: str, finish: str, whole: bool
) -> None:
    """Once Azure's gpt-4o counted two more than it listed, and the answer was whole: the listed
    tokens must spell the text.
    """
    found = answer(text, "cat a", 4, finish, "a count")
    found["usage"]["completion_tokens_details"]["reasoning_tokens"] = 0
    assert read(found).whole is whole
    found["choices"][0]["logprobs"]["content"][0]["bytes"] = None
    assert read(found).whole is False


@pytest.mark.parametrize(("listed", "whole"), [("the a cat", True), ("cat", False)])
def test_a_stop_text_behind_thoughts(read: ReadOne, listed: str, whole: bool) -> None:
    """llama.cpp lists the thoughts and leaves out the stop text: what is hidden is that where the
    list shows more than the text.
    """
    found = answer(" cat", listed, len(listed.split()) + 2)
    rows = {"end_token_listed": True, "stop_text_listed": False}
    assert read(found, ("xx",), **rows).whole is whole


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
