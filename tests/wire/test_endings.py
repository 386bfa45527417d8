"""What the host says of an answer's end decides whether it is a completion: whole, cut by a limit,
stopped by a filter, or broken off.

Constructed after the documentation of the hosts that are named in ``types.ENDINGS``.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from blackbox_lb.api.wire import AnswerReader, parse_response
from blackbox_lb.api.wire.envelope import CUT
from blackbox_lb.errors import CorruptResponse
from blackbox_lb.providers.profile import load_profile
from blackbox_lb.types import Sampling
from tests.support.entries import entry
from tests.support.errors import raises_naming
from tests.wire.conftest import Read, choice


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        *[(reason, "stop") for reason in ("stop", "eos", "eos_token", "stop_sequence")],
        *[(reason, "stop") for reason in ("end_turn", "STOP", "COMPLETE", {"type": "stop"})],
        *[(reason, "length") for reason in ("length", "max_tokens", "MAX_TOKENS", "model_length")],
        *[(reason, "length") for reason in ("repetition", {"type": "length", "length": 12})],
    ],
)
def test_every_host_has_words_for_a_completion(read: Read, sent: Any, kept: str) -> None:
    """They are kept in the words of chat completions, so that all that reads them knows two."""
    (completion,) = read(choice(1, sent), total=1)
    assert (completion.finish_reason, completion.whole, completion.readable) == (kept, True, True)
    assert completion.cut == (kept == "length")
    assert not completion.filtered
    assert not completion.broken_off


BROKEN = ["error", "network_error", "abort", "insufficient_system_resource", "", "some_new_word"]


@pytest.mark.parametrize("reason", [None, {"type": "abort"}, {}, *BROKEN])
def test_an_answer_that_the_host_broke_off_is_no_completion(read: Read, reason: Any) -> None:
    """Whatever is not known to end a completion broke it off; the error has the host's word."""
    word = reason.get("type") if isinstance(reason, dict) else reason
    for broken in (choice(1, reason), choice(1, reason, logprobs=None)):
        for top_logprobs in (0, 5):
            with raises_naming(CorruptResponse, "acme", repr(word or None)):
                read(broken, total=1, top_logprobs=top_logprobs)


@pytest.mark.parametrize("finish", ["stop", "error", None])
@pytest.mark.parametrize(
    "error", [{"code": 502, "message": "the host went away"}, "the host went away"]
)
def test_an_error_inside_a_choice_breaks_it_off(read: Read, finish: str | None, error: Any) -> None:
    """Whatever reason stands beside it, and its words are in the message; a null is no error."""
    with raises_naming(CorruptResponse, "acme", "the host went away"):
        read(choice(1, finish, error=error), total=1)
    assert read(choice(error=None), total=1)[0].whole


def test_a_choice_that_was_broken_off_does_not_take_the_others_with_it(read: Read) -> None:
    """All of them are paid: the others are whole, and it is kept with its text and word, neither to
    be learned from nor judged.
    """
    good, broken, other = read(choice(), choice(1, "network_error"), choice(1, "length"), total=3)
    assert [completion.whole for completion in (good, broken, other)] == [True, False, True]
    assert (broken.text, broken.finish_reason) == (" cat", "network_error")
    assert (broken.broken_off, broken.readable) == (True, False)
    assert "network_error" in broken.note


@pytest.mark.parametrize("reason", ["content_filter", "sensitive", "SAFETY", "refusal"])
def test_what_a_filter_ended_is_not_whole(read: Read, reason: str) -> None:
    """Not even with its text and the logprobs of all its tokens: the filter cut it in the middle,
    and asking again would not help.
    """
    (completion,) = read(choice(1, reason), total=1)
    assert (completion.finish_reason, completion.text) == ("content_filter", " cat")
    assert (completion.whole, completion.filtered, completion.readable) == (False, True, False)


@pytest.mark.parametrize("text", [None, "", " \n"])
@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_a_text_that_is_all_in_the_thoughts(read: Read, name: str, text: str | None) -> None:
    """A server's reasoning parser put it there: an answer that ended by itself is not judged as an
    empty one, and one that its limit cut says so, as before.
    """
    message = {"role": "assistant", "content": text, name: " cat"}
    with raises_naming(CorruptResponse, "acme", "--reasoning-parser"):
        read(choice(message=message), total=1)
    if not text:
        (cut,) = read(choice(1, "length", message=message), total=1)
        assert (cut.text, cut.note) == ("", CUT)
    call = {"type": "function", "function": {"name": "look", "arguments": "{}"}}
    called = choice(1, "tool_calls", message={**message, "tool_calls": [call]})
    (completion,) = read(called, total=1)
    assert [call.name for call in completion.tool_calls] == ["look"]


@pytest.mark.parametrize(
    ("listed", "is_empty"),
    [
        ([" cat"], False),
        ([" the", " cat", "<|im_end|>"], False),
        (["<|im_end|>"], True),
        (["</s>"], True),
        (["[EOS]"], True),
        (["<|channel|>", "analysis"], True),
        ([" ", "\n"], True),
        ([], True),
    ],
)
def test_an_empty_text_is_what_its_tokens_spell(listed: list[str], is_empty: bool) -> None:
    """Where the listed tokens spell words, something took them away; where they spell blanks or the
    ends of a template, the completion is empty.
    """
    content = [
        {**entry(token, -1.0), "token": f"token_id:{number}"} for number, token in enumerate(listed)
    ]
    blank = choice(0, logprobs={"content": content}, token_ids=list(range(len(listed))))
    answer = {"choices": [blank], "usage": {"completion_tokens": len(listed), "prompt_tokens": 1}}
    profile = load_profile("vllm")
    by_columns = AnswerReader(profile, profile.endpoint("chat"), None)
    for form in (answer, by_columns.loads(json.dumps(answer).encode())):
        if is_empty:
            (completion,) = parse_response(profile, "chat", form, Sampling())
            assert (completion.text, completion.whole) == ("", True)
        else:
            with raises_naming(CorruptResponse, "vllm", "'cat'" if len(listed) == 1 else "'the"):
                parse_response(profile, "chat", form, Sampling())
