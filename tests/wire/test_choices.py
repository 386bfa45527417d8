"""Which completion counts as whole, and what becomes of those that were filtered, refused, damaged,
or came without logprobs.
"""

from __future__ import annotations

import math
from typing import Any

import pytest

from blackbox_lb.api.wire import parse_response
from blackbox_lb.errors import CorruptResponse, NoLogprobs, ProfileError
from blackbox_lb.literals import Endpoint
from blackbox_lb.types import UNNAMED, Completion, Sampling
from blackbox_lb.vocabulary import Vocabulary
from tests.support.entries import entry
from tests.support.errors import raises_naming
from tests.wire.conftest import ProfileWith, Read, choice

STOPS = ("x", "two")


@pytest.mark.parametrize(
    ("stop", "stop_listed", "end_listed", "finish", "total", "whole"),
    [
        ((), None, False, "stop", 3, True),
        ((), None, False, "stop", 4, True),
        ((), None, False, "stop", 5, True),
        ((), None, False, "stop", 6, False),
        ((), None, False, "length", 4, False),
        ((), None, False, "length", 5, False),
        ((), None, True, "stop", 4, False),
        ((), None, True, "stop", 5, False),
        ((), None, None, "stop", 3, True),
        ((), None, None, "stop", 4, True),
        ((), None, None, "length", 4, False),
        ((), None, None, "stop", 5, True),
        ((), None, False, "stop", 2, False),
        ((), None, False, "stop", None, True),
        (STOPS, False, True, "stop", 3, True),
        (STOPS, False, True, "stop", 4, True),
        (STOPS, False, True, "stop", 6, True),  # "two" may be a token a byte
        (STOPS, False, True, "stop", 8, False),
        (STOPS, False, True, "length", 4, False),
        (STOPS, None, True, "stop", 6, True),
        (STOPS, None, False, "stop", 8, True),  # and the end token besides, which is not listed
        (STOPS, None, False, "stop", 9, False),
        (STOPS, True, True, "stop", 4, False),
        (STOPS, True, False, "stop", 4, True),
        (STOPS, True, False, "stop", 5, True),
        (STOPS, True, False, "stop", 6, False),
    ],
)
def test_one_choice_is_whole_where_its_list_is_what_it_generated(
    read: Read,
    stop: tuple[str, ...],
    stop_listed: bool | None,
    end_listed: bool | None,
    finish: str,
    total: int | None,
    whole: bool,
) -> None:
    """Of 3 listed tokens. Where the end token is not sure to be listed, a stop may hide one token,
    or two beside a list that spells the text; a cut-off hides none. A stop text may be counted and
    not listed: whole as far as the longest one accounts for the rest.
    """
    rows = {"logprobs": {"end_token_listed": end_listed, "stop_text_listed": stop_listed}}
    (found,) = read(choice(3, finish), total=total, rows=rows, stop=stop)
    assert (len(found.token_ids), found.n_tokens, found.whole) == (3, total or 3, whole)


STOP_TEXT_HIDDEN = {"logprobs": {"end_token_listed": True, "stop_text_listed": False}}


def test_which_of_several_choices_a_stop_text_shortened_is_not_known(read: Read) -> None:
    """So neither counts, and one completion a request is asked for (see collect)."""
    found = read(choice(3), choice(2), total=7, rows=STOP_TEXT_HIDDEN, stop=("x",))
    assert [(each.generated, each.whole) for each in found] == [(None, False)] * 2


@pytest.mark.parametrize("logprobs", [None, {"content": []}])
def test_a_completion_that_begins_with_a_stop_text(read: Read, logprobs: Any) -> None:
    """Nothing of it is listed, and its tokens were generated; without stop texts the same answer is
    one without logprobs.
    """
    blank = choice(0, logprobs=logprobs)
    (found,) = read(blank, total=2, rows=STOP_TEXT_HIDDEN, stop=("x",))
    assert (found.text, found.whole, found.n_tokens, len(found.token_ids)) == ("", True, 2, 0)
    if logprobs is None:
        for total, stop in ((3, ("x",)), (2, ())):
            with pytest.raises(NoLogprobs):
                read(blank, total=total, rows=STOP_TEXT_HIDDEN, stop=stop)


def test_tokens_past_a_stop_text_are_left_out(
    profile_with: ProfileWith, vocabulary: Vocabulary
) -> None:
    """OpenAI's legacy endpoint lists more than belongs to the completion; what it counts is
    kept.
    """
    lists = {
        "tokens": [" cat", " a", " the"],
        "token_logprobs": [-1.0, -2.0, -9999.0],
        "top_logprobs": [{" a": -0.5}] * 3,
    }
    answer = {
        "choices": [{"index": 0, "text": " cat", "finish_reason": "stop", "logprobs": lists}],
        "usage": {"completion_tokens": 2, "prompt_tokens": 3},
    }

    def parsed(*stop: str) -> Completion:
        sampling = Sampling(stop=stop)
        return parse_response(profile_with(), "completions", answer, sampling, vocabulary)[0]

    found = parsed(" a")
    assert (found.token_ids.tolist(), found.logprobs.tolist()) == ([2, 1], [-1, -2])
    assert found.top_ids.tolist() == [[1], [1]]
    assert (found.whole, found.n_tokens) == (True, 2)
    assert found.bounded is not None
    assert found.bounded.tolist() == [False, False]
    assert (parsed().whole, len(parsed().token_ids)) == (False, 3)


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
    read: Read, end_listed: bool | None, total: int | None, expected: list[tuple[int | None, bool]]
) -> None:
    """Where they do not, nobody can say which one is short, so none counts."""
    rows = {"logprobs": {"end_token_listed": end_listed}}
    found = read(choice(2), choice(3, "length", " a"), total=total, rows=rows)
    assert [(each.generated, each.whole) for each in found] == expected
    assert [each.text for each in found] == [" cat cat", " a a a"]
    assert [each.token_ids.tolist() for each in found] == [[2, 2], [1, 1, 1]]


def test_a_sampled_token_without_identity_makes_its_completion_incomplete(read: Read) -> None:
    """The position stays, marked, so that those after it keep their places; the other choice is
    none the worse.
    """
    found = read(choice(1, name=" dog"), choice(2), total=3)
    assert [each.token_ids.tolist() for each in found] == [[UNNAMED], [2, 2]]
    assert [(each.generated, each.whole) for each in found] == [(1, False), (2, True)]


@pytest.mark.parametrize("total", [19, 0, None])
def test_a_filtered_completion_is_empty_and_no_error(read: Read, total: int | None) -> None:
    """Azure withholds text and logprobs; the finish reason says so, and the tokens were generated
    and paid.
    """
    withheld: dict[str, Any] = {
        "finish_reason": "content_filter",
        "logprobs": None,
        "content_filter_results": {},
    }
    (found,) = read(withheld, total=total)
    assert (found.text, found.finish_reason, found.generated) == ("", "content_filter", total)
    assert (found.whole, found.filtered, len(found.token_ids)) == (False, True, 0)


ANSWERS: dict[Endpoint, dict[str, Any]] = {
    "chat": {
        "choices": [
            {"finish_reason": "stop", "message": {"content": " cat cat"}, "logprobs": None}
        ],
        "usage": {"completion_tokens": 2, "prompt_tokens": 11},
    },
    "completions": {
        "choices": [{"finish_reason": "stop", "text": " cat cat"}],
        "usage": {"completion_tokens": 2, "prompt_tokens": 11},
    },
    "responses": {
        "output": [{"type": "message", "content": [{"type": "output_text", "text": " cat cat"}]}],
        "usage": {"output_tokens": 2, "input_tokens": 11},
    },
}
"""What each dialect looks like where nothing was said of logprobs."""


@pytest.mark.parametrize("endpoint", ANSWERS)
@pytest.mark.parametrize("has_logprobs", [True, False])
def test_an_answer_of_which_no_logprobs_were_asked_gives_text_only(
    profile_with: ProfileWith, endpoint: Endpoint, has_logprobs: bool
) -> None:
    """The text and its count are read without a vocabulary, also at an endpoint that gives no
    logprobs; elsewhere the same answer is an error where they were asked for, with the endpoints
    that give them.
    """
    silent = profile_with(endpoints={endpoint: {"ask_logprobs": "no"}})
    profile, top = (profile_with(), 0) if has_logprobs else (silent, 20)
    (found,) = parse_response(profile, endpoint, ANSWERS[endpoint], Sampling(top_logprobs=top))
    assert (found.text, found.whole, found.readable) == (" cat cat", False, True)
    assert (found.generated, found.prompt_tokens, found.finish_reason) == (2, 11, "stop")
    assert len(found.token_ids) == 0
    others = " or ".join(name for name in ANSWERS if name != endpoint)
    facts = ("acme", endpoint, f"``endpoint={others}``", "``top_logprobs=0``")
    with raises_naming(NoLogprobs, *facts):
        parse_response(profile_with(), endpoint, ANSWERS[endpoint], Sampling(top_logprobs=1))


def test_logprobs_that_nobody_asked_for_are_read_like_any(read: Read) -> None:
    """Some servers send them always: they are as good, and a corrupt one is as bad."""
    (found,) = read(choice(2), total=2, top_logprobs=0)
    assert (found.token_ids.tolist(), found.whole) == ([2, 2], True)
    (found,) = read(spoilt(1e-5), total=2, top_logprobs=0)
    assert found.logprobs.tolist() == [-1.0, 0.0], "a little above 0 is rounding"
    with raises_naming(CorruptResponse, "logprob", "0.5"):
        read(spoilt(0.5), total=2, top_logprobs=0)


@pytest.mark.parametrize("usage", [None, {}, {"completion_tokens": None}, {"prompt_tokens": 11}])
@pytest.mark.parametrize(("row", "top"), [("no", 20), ("flag", 0)])
def test_a_text_of_unknown_length_is_refused(
    profile_with: ProfileWith, usage: Any, row: str, top: int
) -> None:
    """Without logprobs and without a count of its own, a long text would be one of 0 tokens to a
    reward for short ones.
    """
    profile = profile_with(endpoints={"chat": {"ask_logprobs": row}})
    sampling = Sampling(top_logprobs=top)
    text = choice(2, logprobs=None)
    for choices, total in ([text], usage), ([text, text], {"completion_tokens": 4}):
        with raises_naming(CorruptResponse, "8", "``endpoint=completions or responses``"):
            parse_response(profile, "chat", {"choices": choices, "usage": total}, sampling)
    empty = {"choices": [choice(0, logprobs=None)], "usage": usage}
    (found,) = parse_response(profile, "chat", empty, sampling)
    assert (found.text, found.n_tokens, found.whole) == ("", 0, False)


def test_a_text_longer_than_its_tokens_is_refused(read: Read) -> None:
    """A text that ``max_tokens`` tokens cannot spell is corrupt, so that no reward reads it; beside
    a readable choice it is left out.
    """
    long = choice(2, message={"role": "assistant", "content": "x" * (1024 * 3 + 1)})
    with pytest.raises(CorruptResponse):
        read(long, total=2, max_tokens=3)
    readable, left_out = read(choice(2), long, total=2, max_tokens=3)
    assert readable.readable
    assert (left_out.text, left_out.readable) == ("", False)
    long["message"]["content"] = "x" * 1024 * 3
    assert read(choice(2), long, total=2, max_tokens=3)[1].text


def spoilt(logprob: Any, *, listed: bool = False) -> dict[str, Any]:
    """A choice with this logprob at its second token, or among the alternatives there."""
    good = entry(" cat", -1.0)
    bad = {**good, "logprob": logprob}
    if listed:
        bad = {**good, "top_logprobs": [bad]}
    return choice(2, logprobs={"content": [good, bad]})


def lists(**changes: Any) -> dict[str, Any]:
    """A choice with these changes to its second token."""
    return choice(2, logprobs={"content": [entry(" cat", -1.0), {**entry(" a", -1.0), **changes}]})


def says(content: Any) -> dict[str, Any]:
    """A choice with this content."""
    return choice(2, message={"role": "assistant", "content": content})


TEXT = {"type": "text", "text": " cat"}
UNREADABLE: dict[str, Any] = {
    "null": choice(2, logprobs=None),
    "no list": choice(2, logprobs={"content": None}),
    "text": choice(2, logprobs="none"),
    "number": choice(2, logprobs={"content": 3}),
    "NaN": spoilt(math.nan),
    "positive": spoilt(0.5),
    "infinite": spoilt(math.inf),
    "-inf": spoilt(-math.inf),
    "a number as text": spoilt("-1.0"),
    "true": spoilt(True),
    "null logprob": spoilt(None),
    "null listed": spoilt(None, listed=True),
    "placeholder": spoilt(-5000.0),
    "NaN listed": spoilt(math.nan, listed=True),
    "positive listed": spoilt(0.5, listed=True),
    "no bytes": choice(2, logprobs={"content": [{"token": " cat", "logprob": -1.0}]}),
    "a number of zero bytes": lists(bytes=3),
    "a number of zero bytes listed": lists(
        top_logprobs=[{"token": " cat", "bytes": 3, "logprob": -1.0}]
    ),
    "a bound of probability zero": lists(
        logprob=-9999.0, top_logprobs=[{**entry(" the", -math.inf)}]
    ),
    "no finish": choice(2, None, logprobs=None),
    "tools": choice(0, "tool_calls", logprobs=None),
    "no choice": None,
    "no fields": {},
    "no message": {"finish_reason": "stop", "logprobs": None},
    "content: an object": says(TEXT),
    "content: a number": says(12),
    "content: true": says(True),
    "content: texts": says([" cat"]),
    "content: null in a list": says([None]),
    "content: no type": says([{"text": " cat"}]),
    "content: null text": says([{"type": "text", "text": None}]),
    "content: no text": says([{"type": "text"}]),
    "content: a list for a type": says([{"type": ["text"], "text": " cat"}]),
    "content: a picture": says([TEXT, {"type": "image_url", "image_url": {"url": "https://h"}}]),
}
"""Choices that are refused when they are all that an answer has."""


@pytest.mark.parametrize("name", UNREADABLE)
def test_an_unreadable_choice_does_not_take_the_others_with_it(read: Read, name: str) -> None:
    """All of them are paid: those that can be read are, and the other one is its text, as far as it
    has one, not whole. Alone it is an error.
    """
    bad = UNREADABLE[name]
    for place in (0, 1, 2):
        choices = [choice(2), choice(3, "length", " a")]
        choices.insert(place, bad)
        found = read(*choices, total=7)
        left_out = found.pop(place)
        content = ((bad or {}).get("message") or {}).get("content")
        assert left_out.text == (content if isinstance(content, str) else "")
        assert (left_out.whole, left_out.generated, len(left_out.token_ids)) == (False, None, 0)
        assert [each.token_ids.tolist() for each in found] == [[2, 2], [1, 1, 1]]
        assert [(each.whole, each.generated) for each in found] == [(True, None)] * 2
    with pytest.raises((NoLogprobs, CorruptResponse)):
        read(bad, total=2)


@pytest.mark.parametrize(
    ("first", "second", "error", "fact"),
    [
        ("null", "NaN", NoLogprobs, "``top_logprobs=0``"),
        ("NaN", "null", CorruptResponse, "logprob nan"),
        ("positive", "NaN", CorruptResponse, "logprob 0.5"),
    ],
)
def test_where_no_choice_can_be_read_the_first_fault_is_raised(
    read: Read, first: str, second: str, error: type[Exception], fact: str
) -> None:
    """Nothing was lost that could have been kept; a blank choice proves nothing of a model that
    gives no logprobs.
    """
    blank = choice(0, logprobs=None)
    with raises_naming(error, fact):
        read(UNREADABLE[first], UNREADABLE[second], blank, total=4)
    for blanks in ([blank], [blank, blank]):
        with pytest.raises(NoLogprobs):
            read(*blanks, total=0)


def test_a_missing_vocabulary_is_raised_whatever_else_can_be_read(
    profile_with: ProfileWith,
) -> None:
    """It is the caller's to mend, and every further request would meet it."""
    answer = {"choices": [choice(0), choice(2)], "usage": {"completion_tokens": 2}}
    with raises_naming(ProfileError, "acme", "``tokenizer``"):
        parse_response(profile_with(), "chat", answer, Sampling())


@pytest.mark.parametrize("answer", [None, [], "no", 3, {}, {"error": {"message": "overloaded"}}])
@pytest.mark.parametrize("endpoint", ANSWERS)
def test_what_is_no_answer_is_refused(
    profile_with: ProfileWith, endpoint: Endpoint, answer: Any
) -> None:
    """A 200 with anything else inside is not an answer."""
    missing = "output" if endpoint == "responses" else "choices"
    wrong: list[Any] = [answer, {missing: "x"}, {missing: [1]}]
    if endpoint != "responses":
        wrong.append({missing: []})
    for each in wrong:
        with raises_naming(CorruptResponse, "acme", missing):
            parse_response(profile_with(), endpoint, each, Sampling(top_logprobs=2))


@pytest.mark.parametrize(
    ("finish", "total", "whole", "generated"),
    [
        ("stop", 5, True, [2, 3, 0]),
        ("stop", 7, True, [3, 3, 1]),  # the two that stopped counted their end tokens
        ("length", 5, True, [2, 3, 0]),
        ("stop", 9, False, [None] * 3),
        ("length", 4, False, [None] * 3),
        ("stop", None, False, [None] * 3),
        ("tool_calls", 5, False, [None] * 3),
        ("content_filter", 5, False, [None] * 3),
    ],
)
def test_a_blank_choice_is_one_of_no_tokens_where_the_count_agrees(
    read: Read, finish: str, total: int | None, whole: bool, generated: list[int | None]
) -> None:
    """A completion that ended at once has nothing to list; where the count says otherwise, it is
    one more that was not read.
    """
    blanks = [
        choice(0, finish, logprobs=logprobs)
        for logprobs in (None, {}, {"content": None}, {"content": None, "refusal": None})
    ]
    blanks.append({"finish_reason": finish, "message": {"content": None}})
    for blank in blanks:
        found = read(choice(2), choice(3, "length", " a"), blank, total=total)
        assert [each.whole for each in found] == [True, True, whole]
        assert [each.generated for each in found] == generated
        assert (found[2].text, len(found[2].token_ids), found[2].finish_reason) == ("", 0, finish)


def test_a_blank_choice_beside_an_unreadable_one_is_not_whole(read: Read) -> None:
    """Nothing says whose the tokens are that are not listed."""
    found = read(choice(2), choice(0, logprobs=None), UNREADABLE["NaN"], total=2)
    assert [each.whole for each in found] == [True, False, False]


def test_a_refusal_is_what_the_user_gets(read: Read) -> None:
    """Structured outputs put a refusal in a field and a list of its own; its tokens were sampled
    like any others.
    """
    refused = choice(2)
    refused["message"] = {"role": "assistant", "content": None, "refusal": " cat cat"}
    refused["logprobs"] = {"content": None, "refusal": refused["logprobs"]["content"]}
    (found,) = read(refused, total=2)
    assert (found.text, found.token_ids.tolist(), found.whole) == (" cat cat", [2, 2], True)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ([TEXT, TEXT], " cat cat"),
        (
            [{"type": "output_text", "text": " cat"}, {"type": "refusal", "refusal": " no"}],
            " cat no",
        ),
        ([{"type": "thinking", "thinking": "hm"}, TEXT], " cat"),
    ],
)
def test_the_text_of_a_content_in_parts(read: Read, content: Any, text: str) -> None:
    """The texts of its text parts, joined: no spelling of the list, no thought."""
    (completion,) = read(says(content), total=2)
    assert (completion.text, completion.token_ids.tolist()) == (text, [2, 2])


@pytest.mark.parametrize("content", [[], None, ""])
def test_an_empty_text_that_tokens_were_listed_for(read: Read, content: Any) -> None:
    """Something on the way took the words away, so that it is asked for again."""
    (empty,) = read(choice(0, message={"role": "assistant", "content": content}), total=0)
    assert (empty.text, empty.whole) == ("", True)
    with raises_naming(CorruptResponse, "acme", "'cat cat'"):
        read(says(content), total=2)


@pytest.mark.parametrize("name", ["text", "refusal", "model", "system_fingerprint"])
def test_a_field_of_text_that_holds_none_is_corrupt(
    profile_with: ProfileWith, vocabulary: Vocabulary, name: str
) -> None:
    """Null is no text; Python's spelling of anything else would pass for one."""

    def parsed(given: Any) -> Completion:
        spoken = choice(0)
        answer = {"choices": [spoken], "usage": {"completion_tokens": 0}}
        if name == "refusal":
            spoken["message"] = {"content": None, name: given}
        elif name == "text":
            del spoken["message"]
            spoken["text"] = given
        else:
            answer[name] = given
        return parse_response(profile_with(), "chat", answer, Sampling(), vocabulary)[0]

    for value in (12, True, {"type": "stop"}, ["stop"]):
        with pytest.raises(CorruptResponse):
            parsed(value)
    completion = parsed(None)
    assert (completion.text, completion.model, completion.fingerprint) == ("", "", "")
