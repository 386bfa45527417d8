"""Which completion counts as whole, and what becomes of those that were filtered, refused, or came
without logprobs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from blackbox_lb.api.wire import parse_response
from blackbox_lb.api.wire.response import LONGEST_TOKEN
from blackbox_lb.errors import CorruptResponse, NoLogprobs, ProfileError
from blackbox_lb.literals import Endpoint
from blackbox_lb.providers.profile import Profile
from blackbox_lb.types import UNNAMED, Completion, Sampling
from blackbox_lb.vocabulary import Vocabulary
from tests.support.entries import entry
from tests.support.errors import raises_naming

ProfileWith = Callable[..., Profile]
FILTERED: dict[str, Any] = {
    "finish_reason": "content_filter",
    "logprobs": None,
    "content_filter_results": {},
}
"""Azure's choice for a completion that its filter withheld: no message, no text."""


def choice(n: int, finish: str | None = "stop", name: str = " cat", **more: Any) -> dict[str, Any]:
    """A choice of ``n`` equal tokens."""
    message = {"role": "assistant", "content": name * n}
    return {
        "message": message,
        "finish_reason": finish,
        "logprobs": {"content": [entry(name, -1.0)] * n},
        **more,
    }


def read(
    profile: Profile,
    vocabulary: Vocabulary,
    total: int | None,
    *choices: dict[str, Any],
    stop: tuple[str, ...] = (),
) -> list[Completion]:
    """The completions of an answer that says it has ``total`` tokens."""
    usage = None if total is None else {"completion_tokens": total, "prompt_tokens": 11}
    return parse_response(
        profile, "chat", {"choices": list(choices), "usage": usage}, Sampling(stop=stop), vocabulary
    )


@pytest.mark.parametrize(
    ("end_listed", "finish", "listed", "total", "generated", "whole"),
    [
        (False, "stop", 3, 3, 3, True),
        (False, "stop", 3, 4, 4, True),
        (False, "stop", 3, 5, 5, True),
        (False, "stop", 3, 6, 6, False),
        (False, "length", 3, 4, 4, False),
        (False, "length", 3, 5, 5, False),
        (True, "stop", 3, 4, 4, False),
        (True, "stop", 3, 5, 5, False),
        (None, "stop", 3, 3, 3, True),
        (None, "stop", 3, 4, 4, True),
        (None, "length", 3, 4, 4, False),
        (None, "stop", 3, 5, 5, True),
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
    """Where the end token is not sure to be listed, a stop may hide one token, or two beside a list
    that spells the text; a cut-off hides none."""
    profile = profile_with(logprobs={"end_token_listed": end_listed})
    (found,) = read(profile, vocabulary, total, choice(listed, finish))
    assert (len(found.token_ids), found.generated, found.whole) == (listed, generated, whole)
    assert found.n_tokens == (listed if generated is None else generated)


@pytest.mark.parametrize(
    ("stop_listed", "end_listed", "finish", "total", "whole"),
    [
        (False, True, "stop", 3, True),
        (False, True, "stop", 4, True),
        (False, True, "stop", 6, True),  # "two" may be a token a byte
        (False, True, "stop", 8, False),
        (False, True, "length", 4, False),
        (None, True, "stop", 6, True),
        (None, False, "stop", 8, True),  # and the end token besides, which is not listed
        (None, False, "stop", 9, False),
        (True, True, "stop", 4, False),
        (True, False, "stop", 4, True),
        (True, False, "stop", 5, True),
        (True, False, "stop", 6, False),
    ],
)
def test_a_stop_text_may_be_counted_and_not_listed(
    profile_with: ProfileWith,
    vocabulary: Vocabulary,
    stop_listed: bool | None,
    end_listed: bool,
    finish: str,
    total: int,
    whole: bool,
) -> None:
    """Of 3 listed tokens, where "x" and "two" end a completion: whole as far as the longest stop
    text accounts for the rest.
    """
    profile = profile_with(
        logprobs={"end_token_listed": end_listed, "stop_text_listed": stop_listed}
    )
    (found,) = read(profile, vocabulary, total, choice(3, finish), stop=("x", "two"))
    assert (found.whole, found.generated, found.n_tokens, len(found.token_ids)) == (
        whole,
        total,
        total,
        3,
    )
    (without,) = read(profile, vocabulary, total, choice(3, finish))
    assert without.whole == (
        total == 3 or (total in (4, 5) and not end_listed and finish == "stop")
    )


def test_which_of_several_choices_a_stop_text_shortened_is_not_known(
    profile_with: ProfileWith, vocabulary: Vocabulary
) -> None:
    """So neither counts, and one completion a request is asked for (see collect)."""
    profile = profile_with(logprobs={"end_token_listed": True, "stop_text_listed": False})
    found = read(profile, vocabulary, 7, choice(3), choice(2), stop=("x",))
    assert [(each.generated, each.whole) for each in found] == [(None, False)] * 2


@pytest.mark.parametrize("logprobs", [None, {"content": []}, {"content": None}])
def test_a_completion_that_begins_with_a_stop_text(
    profile_with: ProfileWith, vocabulary: Vocabulary, logprobs: Any
) -> None:
    """Nothing of it is listed, and its tokens were generated; without stop texts the same answer is
    one without logprobs.
    """
    profile = profile_with(logprobs={"end_token_listed": True, "stop_text_listed": False})
    blank = choice(0, logprobs=logprobs)
    (found,) = read(profile, vocabulary, 2, blank, stop=("x",))
    assert (found.text, found.whole, found.n_tokens, len(found.token_ids)) == ("", True, 2, 0)
    with pytest.raises(NoLogprobs):
        read(profile, vocabulary, 3, choice(0, logprobs=None), stop=("x",))
    if logprobs != {"content": []}:
        with pytest.raises(NoLogprobs):
            read(profile, vocabulary, 2, blank)


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
    (found,) = parse_response(
        profile_with(), "completions", answer, Sampling(stop=(" a",)), vocabulary
    )
    assert (found.token_ids.tolist(), found.logprobs.tolist(), found.top_ids.tolist()) == (
        [2, 1],
        [-1, -2],
        [[1], [1]],
    )
    assert (found.whole, found.n_tokens) == (True, 2)
    assert found.bounded is not None
    assert found.bounded.tolist() == [False, False]
    (untouched,) = parse_response(profile_with(), "completions", answer, Sampling(), vocabulary)
    assert (untouched.whole, len(untouched.token_ids)) == (False, 3)


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
    """The position stays, marked, so that those after it keep their places; the other choice is
    none the worse.
    """
    found = read(profile_with(), vocabulary, 3, choice(1, name=" dog"), choice(2))
    assert [each.token_ids.tolist() for each in found] == [[UNNAMED], [2, 2]]
    assert [(each.generated, each.whole) for each in found] == [(1, False), (2, True)]


def test_a_filtered_completion_is_empty_and_no_error(
    profile_with: ProfileWith, vocabulary: Vocabulary
) -> None:
    """Azure withholds text and logprobs; the finish reason says so, and the tokens were generated
    and paid.
    """
    for total in (19, 0, None):
        (found,) = read(profile_with(), vocabulary, total, FILTERED)
        assert (found.text, found.finish_reason, found.generated) == ("", "content_filter", total)
        assert (found.whole, found.filtered, found.top_ids.shape) == (False, True, (0, 0))
        assert len(found.token_ids) == len(found.logprobs) == 0


def test_null_logprobs_of_any_other_choice_are_an_error(
    profile_with: ProfileWith, vocabulary: Vocabulary
) -> None:
    """The remedy names the endpoints of the profile that give them."""
    with raises_naming(NoLogprobs, "acme", "chat", "``endpoint=completions or responses``"):
        read(profile_with(), vocabulary, 1, choice(1, logprobs=None))


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
    logprobs; elsewhere the same answer is an error where they were asked for.
    """
    silent = profile_with(endpoints={endpoint: {"ask_logprobs": "no"}})
    profile, top = (profile_with(), 0) if has_logprobs else (silent, 20)
    (found,) = parse_response(profile, endpoint, ANSWERS[endpoint], Sampling(top_logprobs=top))
    assert (found.text, found.whole, found.generated, found.prompt_tokens) == (
        " cat cat",
        False,
        2,
        11,
    )
    assert (len(found.token_ids), found.top_ids.shape, found.finish_reason) == (0, (0, 0), "stop")
    assert found.readable
    with raises_naming(NoLogprobs, "acme", "``top_logprobs=0``"):
        parse_response(profile_with(), endpoint, ANSWERS[endpoint], Sampling(top_logprobs=1))


def test_logprobs_that_nobody_asked_for_are_read_like_any(
    profile_with: ProfileWith, vocabulary: Vocabulary
) -> None:
    """Some servers send them always: they are as good, and a corrupt one is as bad."""
    answer = {"choices": [choice(2)], "usage": {"completion_tokens": 2}}
    (found,) = parse_response(profile_with(), "chat", answer, Sampling(top_logprobs=0), vocabulary)
    assert (found.token_ids.tolist(), found.whole) == ([2, 2], True)
    answer["choices"] = [spoilt(1e-5)]
    (found,) = parse_response(profile_with(), "chat", answer, Sampling(top_logprobs=0), vocabulary)
    assert found.logprobs.tolist() == [-1.0, 0.0], "a little above 0 is rounding"
    answer["choices"] = [spoilt(0.5)]
    with raises_naming(CorruptResponse, "logprob", "0.5"):
        parse_response(profile_with(), "chat", answer, Sampling(top_logprobs=0), vocabulary)


@pytest.mark.parametrize("usage", [None, {}, {"completion_tokens": None}, {"prompt_tokens": 11}])
@pytest.mark.parametrize(("row", "top"), [("no", 20), ("flag", 0)])
def test_a_text_of_unknown_length_is_refused(
    profile_with: ProfileWith, usage: Any, row: str, top: int
) -> None:
    """Without logprobs and without a count, a long text would be one of 0 tokens to a reward for
    short ones.
    """
    profile, sampling = (
        profile_with(endpoints={"chat": {"ask_logprobs": row}}),
        Sampling(top_logprobs=top),
    )
    answer = {"choices": [choice(2, logprobs=None)], "usage": usage}
    with raises_naming(CorruptResponse, "8", "``endpoint=completions or responses``"):
        parse_response(profile, "chat", answer, sampling)
    answer["choices"] = [choice(0, logprobs=None)]
    (found,) = parse_response(profile, "chat", answer, sampling)
    assert (found.text, found.n_tokens, found.whole) == ("", 0, False)


def test_a_text_longer_than_its_tokens_is_refused(
    profile_with: ProfileWith, vocabulary: Vocabulary
) -> None:
    """A text that ``max_tokens`` tokens cannot spell is corrupt, so that no reward reads it; beside
    a readable choice it is left out.
    """
    long = choice(2)
    long["message"] = {**long["message"], "content": "x" * (LONGEST_TOKEN * 3 + 1)}
    sampling = Sampling(max_tokens=3)
    answer = {"choices": [long], "usage": {"completion_tokens": 2}}
    with pytest.raises(CorruptResponse):
        parse_response(profile_with(), "chat", answer, sampling, vocabulary)
    answer["choices"] = [choice(2), {**long, "index": 1}]
    readable, left_out = parse_response(profile_with(), "chat", answer, sampling, vocabulary)
    assert readable.readable
    assert (left_out.text, left_out.readable) == ("", False)
    long["message"]["content"] = "x" * LONGEST_TOKEN * 3
    assert parse_response(profile_with(), "chat", answer, sampling, vocabulary)[1].text


def test_a_sum_over_several_texts_tells_no_length(profile_with: ProfileWith) -> None:
    """A server that gives two completions where one was asked for, and no list of tokens, is
    named.
    """
    profile = profile_with(endpoints={"chat": {"ask_logprobs": "no"}})
    answer = {
        "choices": [choice(2, logprobs=None), choice(3, logprobs=None)],
        "usage": {"completion_tokens": 5},
    }
    with raises_naming(CorruptResponse, "chat", "8", "``endpoint=completions"):
        parse_response(profile, "chat", answer, Sampling())


def spoilt(logprob: Any, *, listed: bool = False) -> dict[str, Any]:
    """A choice with this logprob at its second token, or among the alternatives there."""
    good = choice(2)["logprobs"]["content"]
    bad = (
        {**good[0], "top_logprobs": [{**good[0], "logprob": logprob}]}
        if listed
        else {**good[0], "logprob": logprob}
    )
    return choice(2, logprobs={"content": [good[0], bad]})


UNREADABLE = {
    "null": choice(2, logprobs=None),
    "no list": choice(2, logprobs={"content": None}),
    "text": choice(2, logprobs="none"),
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
    "number": choice(2, logprobs={"content": 3}),
    "no finish": choice(2, None, logprobs=None),
    "tools": choice(0, "tool_calls", logprobs=None),
}
"""Choices that are refused when they are all that an answer has."""


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("name", UNREADABLE)
def test_an_unreadable_choice_does_not_take_the_others_with_it(
    profile_with: ProfileWith, vocabulary: Vocabulary, name: str, place: int
) -> None:
    """All of them are paid: those that can be read are, and the other one is its text, not whole.
    Alone it is an error.
    """
    bad = UNREADABLE[name]
    choices = [choice(2), choice(3, "length", " a")]
    choices.insert(place, bad)
    found = read(profile_with(), vocabulary, 7, *choices)
    left_out = found.pop(place)
    assert (left_out.text, left_out.finish_reason) == (
        bad["message"]["content"],
        bad["finish_reason"] or "",
    )
    assert (left_out.whole, left_out.generated, left_out.prompt_tokens) == (False, None, 11)
    assert (left_out.token_ids.shape, left_out.logprobs.shape, left_out.top_ids.shape) == (
        (0,),
        (0,),
        (0, 0),
    )
    assert [each.token_ids.tolist() for each in found] == [[2, 2], [1, 1, 1]]
    assert [(each.whole, each.generated) for each in found] == [(True, None)] * 2
    with pytest.raises((NoLogprobs, CorruptResponse)):
        read(profile_with(), vocabulary, 2, bad)


@pytest.mark.parametrize("bad", [None, "no", {}, {"finish_reason": "stop", "logprobs": None}])
def test_a_choice_without_text_is_left_out_without_one(
    profile_with: ProfileWith, vocabulary: Vocabulary, bad: Any
) -> None:
    """What cannot be read is not made up, and its place among the samples is kept."""
    good, left_out, other = read(profile_with(), vocabulary, 6, choice(2), bad, choice(3))
    assert (left_out.text, left_out.whole, left_out.n_tokens) == ("", False, 0)
    assert (good.text, other.text) == (" cat" * 2, " cat" * 3)


@pytest.mark.parametrize(
    ("first", "second", "error", "fact"),
    [
        ("null", "NaN", NoLogprobs, "``top_logprobs=0``"),
        ("NaN", "null", CorruptResponse, "logprob nan"),
        ("positive", "NaN", CorruptResponse, "logprob 0.5"),
    ],
)
def test_where_no_choice_can_be_read_the_first_fault_is_raised(
    profile_with: ProfileWith,
    vocabulary: Vocabulary,
    first: str,
    second: str,
    error: type[Exception],
    fact: str,
) -> None:
    """Nothing was lost that could have been kept; a blank choice proves nothing of a model that
    gives no logprobs.
    """
    blank = choice(0, logprobs=None)
    with raises_naming(error, fact):
        read(profile_with(), vocabulary, 4, UNREADABLE[first], UNREADABLE[second], blank)
    with pytest.raises(NoLogprobs):
        read(profile_with(), vocabulary, 0, blank, blank)
    with pytest.raises(NoLogprobs):
        read(profile_with(), vocabulary, 0, blank)


def test_a_missing_vocabulary_is_raised_whatever_else_can_be_read(
    profile_with: ProfileWith,
) -> None:
    """It is the caller's to mend, and every further request would meet it."""
    answer = {"choices": [choice(0), choice(2)], "usage": {"completion_tokens": 2}}
    with raises_naming(ProfileError, "acme", "``tokenizer``"):
        parse_response(profile_with(), "chat", answer, Sampling())


@pytest.mark.parametrize(
    "logprobs", [None, {}, {"content": None}, {"content": None, "refusal": None}, "absent"]
)
@pytest.mark.parametrize("content", ["", None])
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
    profile_with: ProfileWith,
    vocabulary: Vocabulary,
    logprobs: Any,
    content: str | None,
    finish: str,
    total: int | None,
    whole: bool,
    generated: list[int | None],
) -> None:
    """A completion that ended at once has nothing to list; where the count says otherwise, it is
    one more that was not read.
    """
    blank = choice(0, finish, logprobs=logprobs)
    blank["message"]["content"] = content
    if logprobs == "absent":
        del blank["logprobs"]
    found = read(profile_with(), vocabulary, total, choice(2), choice(3, "length", " a"), blank)
    assert [each.whole for each in found] == [True, True, whole]
    assert [each.generated for each in found] == generated
    assert (found[2].text, len(found[2].token_ids), found[2].finish_reason) == ("", 0, finish)


def test_a_blank_choice_beside_an_unreadable_one_is_not_whole(
    profile_with: ProfileWith, vocabulary: Vocabulary
) -> None:
    """Nothing says whose the tokens are that are not listed."""
    found = read(
        profile_with(), vocabulary, 2, choice(2), choice(0, logprobs=None), UNREADABLE["NaN"]
    )
    assert [each.whole for each in found] == [True, False, False]


def test_a_refusal_is_what_the_user_gets(profile_with: ProfileWith, vocabulary: Vocabulary) -> None:
    """Structured outputs put a refusal in a field and a list of its own; its tokens were sampled
    like any others.
    """
    refused = choice(2)
    refused["message"] = {"role": "assistant", "content": None, "refusal": " cat cat"}
    refused["logprobs"] = {"content": None, "refusal": refused["logprobs"]["content"]}
    (found,) = read(profile_with(), vocabulary, 2, refused)
    assert (found.text, found.token_ids.tolist(), found.whole) == (" cat cat", [2, 2], True)


TEXT = {"type": "text", "text": " cat"}


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ([TEXT, TEXT], " cat cat"),
        (
            [{"type": "output_text", "text": " cat"}, {"type": "refusal", "refusal": " no"}],
            " cat no",
        ),
        ([{"type": "thinking", "thinking": "hm"}, TEXT], " cat"),
        ([], ""),
        (None, ""),
        ("", ""),
    ],
)
def test_the_text_of_a_content_in_parts(
    profile_with: ProfileWith, vocabulary: Vocabulary, content: Any, text: str
) -> None:
    """The texts of its text parts, joined: no spelling of the list, no thought. An empty one is not
    that of two listed words: something on the way took them away, so that it is asked for again.
    """
    message = {"role": "assistant", "content": content}
    if not text:
        (empty,) = read(profile_with(), vocabulary, 0, choice(0, message=message))
        assert (empty.text, empty.whole) == ("", True)
        with raises_naming(CorruptResponse, "acme", "'cat cat'"):
            read(profile_with(), vocabulary, 2, choice(2, message=message))
        return
    (completion,) = read(profile_with(), vocabulary, 2, choice(2, message=message))
    assert (completion.text, completion.token_ids.tolist()) == (text, [2, 2])


@pytest.mark.parametrize(
    "content",
    [
        {"type": "text", "text": " cat"},
        12,
        True,
        [" cat"],
        [None],
        [{"text": " cat"}],
        [{"type": "text", "text": None}],
        [{"type": "text"}],
        [{"type": ["text"], "text": " cat"}],
        [TEXT, {"type": "image_url", "image_url": {"url": "https://host.example"}}],
    ],
)
def test_any_other_content_is_a_corrupt_answer(
    profile_with: ProfileWith, vocabulary: Vocabulary, content: Any
) -> None:
    """Alone it is refused; beside a readable choice it is left out, without a text."""
    bad = choice(2, message={"role": "assistant", "content": content})
    with pytest.raises(CorruptResponse):
        read(profile_with(), vocabulary, 2, bad)
    left_out, good = read(profile_with(), vocabulary, 4, bad, choice(2))
    assert (left_out.text, left_out.whole) == ("", False)
    assert good.text == " cat cat"


@pytest.mark.parametrize("value", [12, True, {"type": "stop"}, ["stop"]])
@pytest.mark.parametrize("name", ["text", "refusal", "model", "system_fingerprint"])
def test_a_field_of_text_that_holds_none_is_corrupt(
    profile_with: ProfileWith, vocabulary: Vocabulary, name: str, value: Any
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

    with pytest.raises(CorruptResponse):
        parsed(value)
    completion = parsed(None)
    fields = {
        "text": completion.text,
        "refusal": completion.text,
        "model": completion.model,
        "system_fingerprint": completion.fingerprint,
    }
    assert fields[name] == ""
