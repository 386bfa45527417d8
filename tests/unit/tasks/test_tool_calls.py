"""Calls in the text of a completion, tools in data, and the rewards of calls."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from blackbox_lb.errors import DataError, InputError
from blackbox_lb.tasks import load_examples, load_task, parse_reward
from blackbox_lb.tasks.records.tools import read_tools, tools_text
from blackbox_lb.tasks.rewards.forms.endpoint import EndpointReward
from blackbox_lb.types import (
    CALL_BEGIN,
    CALL_END,
    Completion,
    Example,
    Message,
    Prompt,
    ToolCall,
    calls_in,
    with_calls,
)
from tests.support.errors import raises_naming
from tests.support.questions import write_rows

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "days": {"type": "integer"},
                "price": {"type": "number", "multipleOf": 0.01},
            },
            "required": ["city"],
        },
    },
}
CLOCK = {"type": "function", "function": {"name": "clock"}}
OSLO = ToolCall("weather", '{"city": "Oslo"}')


def answer_of(text: str) -> Completion:
    """A completion with this text."""
    return replace(Completion.empty("stop"), text=text, whole=True)


def offered(*tools: dict[str, Any]) -> Example:
    """A prompt that offers ``tools``."""
    prompt = Prompt((Message("user", "Rain?"),), tools=tools_text(list(tools)))
    return Example("1", prompt)


TAGS = (CALL_BEGIN, CALL_END)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(derandomize=True, max_examples=50)
@given(
    st.lists(
        st.tuples(st.text(min_size=1), st.dictionaries(st.text(), VALUES, max_size=3)),
        min_size=1,
        max_size=3,
    ),
    st.sampled_from(["", "Let me look."]),
)
def test_calls_that_are_put_into_a_text_are_read_from_it(
    calls: list[tuple[str, dict[str, Any]]], said: str
) -> None:
    """Names and arguments come back as they were, behind any words of the model, unless an
    argument holds the tags themselves. Arguments that are no JSON are kept.
    """
    made = [ToolCall(name, json.dumps(arguments)) for name, arguments in calls]
    assume(not any(tag in call.name + call.arguments for call in made for tag in TAGS))
    found = calls_in(with_calls(said, made))
    assert [(call.name, call.parsed_arguments) for call in found] == calls
    broken = ToolCall("weather", '{"city": Oslo')
    assert calls_in(with_calls(said, [broken])) == (broken,)
    assert broken.parsed_arguments is None


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "weather", "arguments": {"city": "Oslo"}}',
        '```json\n{"name": "weather", "arguments": {"city": "Oslo"}}\n```',
        '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>',
        '<tool_call>{"name": "weather", "arguments": {"city": "Oslo"}}',
        '[TOOL_CALLS][{"name": "weather", "arguments": {"city": "Oslo"}}]',
        '<|python_tag|>{"name": "weather", "parameters": {"city": "Oslo"}}',
        'I look.\n```json\n{"name": "weather", "arguments": {"city": "Oslo"}}\n```',
    ],
)
def test_a_call_is_read_in_each_form(text: str) -> None:
    """Models write one call in several forms, with or without the tags of their template."""
    assert calls_in(text) == (OSLO,)


@pytest.mark.parametrize(
    "text",
    [
        "It rains.",
        '{"city": "Oslo"}',
        '{"name": "Oslo"}',
        "```python\nprint(1)\n```",
        '<tool_call>\n{"name": "weather", "argum',
        '```json\n{"name": "weather", "arguments": {"city": "Os',
        "",
    ],
)
def test_what_is_no_call_is_none(text: str) -> None:
    """Prose, other JSON, code, and a call that was cut call nothing."""
    assert calls_in(text) == ()


CALL = with_calls("", [OSLO])


def priced(price: float) -> str:
    """A call with a price, which is compared as the decimal that it is written as."""
    arguments = json.dumps({"city": "Oslo", "price": price})
    return with_calls("", [ToolCall("weather", arguments)])


@pytest.mark.parametrize(
    ("spec", "text", "expected"),
    [
        ("calls", CALL, 1.0),
        ("calls", "It rains.", 0.0),
        ("calls:clock", CALL, 0.0),
        ("arguments-valid", CALL, 1.0),
        ("arguments-valid", "It rains.", 0.0),
        ("arguments-valid", with_calls("", [ToolCall("weather", '{"days": 2}')]), 0.0),
        ("arguments-valid", with_calls("", [ToolCall("weather", '{"city": 3}')]), 0.0),
        ("arguments-valid", priced(19.99), 1.0),
        ("arguments-valid", priced(19.995), 0.0),
        ("arguments-valid", with_calls("", [ToolCall("weather", "Oslo")]), 0.0),
        ("arguments-valid", with_calls("", [ToolCall("tides", '{"city": "Oslo"}')]), 0.0),
        ("arguments-valid", with_calls("", [OSLO, ToolCall("clock", "{}")]), 1.0),
        ("arguments-valid", with_calls("", [OSLO, ToolCall("clock", "[]")]), 0.0),
    ],
)
def test_rewards_of_calls(spec: str, text: str, expected: float) -> None:
    """A call counts by its name; its arguments by the schema of the offered function, all calls of
    a completion together.
    """
    reward = parse_reward(spec, max_tokens=50)
    assert not reward.needs_answer
    assert reward.score(offered(WEATHER, CLOCK), answer_of(text)).value == expected
    assert len(answer_of(CALL).tool_calls) == 1


def test_an_endpoint_gets_tools_and_calls() -> None:
    """A reward elsewhere is told what was offered and what was called; without tools its message
    is as it was.
    """
    endpoint = EndpointReward.parse("https://example.com/reward")
    item = endpoint.item(offered(WEATHER), answer_of(CALL))
    assert item["tools"] == [WEATHER]
    assert item["tool_calls"] == [{"name": "weather", "arguments": '{"city": "Oslo"}'}]
    plain = endpoint.item(Example("1", Prompt.user("Rain?")), answer_of(CALL))
    assert not plain.keys() & {"tools", "tool_calls"}


# Tools in data


def test_the_tools_of_a_row_are_those_of_its_prompt(tmp_path: Path) -> None:
    """A column of lists or of JSON texts; the same tools in another spelling are the same prompt,
    and the same question without them is another.
    """
    spelled = {"function": WEATHER["function"], "type": "function"}
    row: dict[str, Any] = {"prompt": "Rain?", "answer": "call"}
    rows = [row | {"tools": tools} for tools in ([WEATHER], json.dumps([spelled]), [])]
    first, second = load_examples(write_rows(tmp_path / "a.jsonl", rows))
    assert json.loads(first.prompt.tools) == [WEATHER]
    assert second.prompt.tools == ""
    assert first.id != second.id


@pytest.mark.parametrize(
    "tools",
    [
        {"name": "weather"},
        ["weather"],
        [{"type": "function"}],
        [CLOCK, CLOCK],
        "no json",
        [3],
    ],
)
def test_tools_that_are_none_are_refused(tmp_path: Path, tools: Any) -> None:
    """In a row and in a file of tools: the server would refuse each request."""
    row = {"prompt": "Rain?", "tools": tools, "answer": "x"}
    with raises_naming(DataError, "line 1"):
        load_examples(write_rows(tmp_path / "a.jsonl", [row]))
    path = tmp_path / "tools.json"
    path.write_text(tools if isinstance(tools, str) else json.dumps(tools))
    with raises_naming(DataError, "tools.json"):
        read_tools(path)


def test_a_file_of_tools_serves_every_prompt(tmp_path: Path) -> None:
    """All splits get it, the data are others than without it, and a row that has tools of its own
    is refused; so is a file that is empty or missing.
    """
    path = tmp_path / "tools.json"
    path.write_text(json.dumps([WEATHER, CLOCK]))
    rows = [{"prompt": f"Rain in {number}?", "answer": "call"} for number in range(60)]
    task = load_task(data=write_rows(tmp_path / "a.jsonl", rows))
    equipped = task.with_tools(read_tools(path))
    for examples in (equipped.train, equipped.validation, equipped.test):
        assert all(json.loads(example.prompt.tools) == [WEATHER, CLOCK] for example in examples)
    assert equipped.data_hash != task.data_hash
    assert equipped.longest_prompt > len(read_tools(path))
    with pytest.raises(InputError):
        equipped.with_tools(read_tools(path))
    path.write_text("[]")
    for other in (path, tmp_path / "none.json"):
        with raises_naming(DataError, other.name):
            read_tools(other)


# Calls and results in messages


CALL_1: dict[str, Any] = {
    "id": "c1",
    "type": "function",
    "function": {"name": "weather", "arguments": OSLO.arguments},
}
CALL_2 = {"id": "c2", "type": "function", "function": {"name": "clock", "arguments": "{}"}}
ASKED = {"role": "user", "content": "Rain in Oslo?"}
CALLED = {"role": "assistant", "content": None, "tool_calls": [CALL_1]}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "rain"}
BOTH = {"role": "assistant", "content": "Let me look.", "tool_calls": [CALL_1, CALL_2]}
RESULT_2 = {"role": "tool", "tool_call_id": "c2", "name": "clock", "content": ""}


def row_with(*messages: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A row with these messages and an answer."""
    return {"messages": list(messages), "answer": "yes", **more}


@pytest.mark.parametrize(
    "messages",
    [
        (ASKED, CALLED, RESULT),
        (ASKED, BOTH, RESULT_2, RESULT, {"role": "user", "content": "Sure?"}),
        (ASKED, CALLED, RESULT, {"role": "assistant", "content": "It rains."}, ASKED),
    ],
)
def test_calls_and_results_are_read_as_they_are(
    tmp_path: Path, messages: tuple[dict[str, Any], ...]
) -> None:
    """What goes out is what the row holds; results of several calls come in any order. A last call
    is the answer of a row without one, and not sent.
    """
    rows = [row_with(*messages), {"messages": [*messages, ASKED, CALLED]}]
    first, second = load_examples(write_rows(tmp_path / "a.jsonl", rows))
    assert [message.as_json for message in first.prompt.messages] == list(messages)
    assert [message.as_json for message in second.prompt.messages] == [*messages, ASKED]
    assert second.answers == (OSLO.text,)


def test_another_call_or_result_is_another_prompt(tmp_path: Path) -> None:
    """Rows that differ in what was called, or in whose result it is, are apart; equal ones are one
    example.
    """
    other = called(function={**CALL_1["function"], "name": "w"})
    rows = [
        row_with(ASKED, CALLED, RESULT),
        row_with(ASKED, CALLED, RESULT),
        row_with(ASKED, other, RESULT),
        row_with(ASKED, called(id="c9"), {**RESULT, "tool_call_id": "c9"}),
        row_with(ASKED),
    ]
    examples = load_examples(write_rows(tmp_path / "a.jsonl", rows))
    assert len({example.id for example in examples}) == len(examples) == 4


def test_what_the_model_reads_is_counted_and_shown() -> None:
    """The calls are among the sent texts, and stand in the prompt's text as in a completion's."""
    messages = (
        Message("user", "Rain?"),
        Message("assistant", "I look.", json.dumps([CALL_1])),
        Message("tool", "rain", tool_call_id="c1"),
    )
    prompt = Prompt(messages)
    assert calls_in(prompt.text) == (OSLO,)
    assert prompt.text.startswith("Rain?\n\nI look.\n<tool_call>")
    assert prompt.text.endswith("rain")
    assert json.dumps([CALL_1]) in prompt.sent_texts


def called(**changes: Any) -> dict[str, Any]:
    """The message of a call, with other fields in the call."""
    return {**CALLED, "tool_calls": [{**CALL_1, **changes}]}


@pytest.mark.parametrize(
    "messages",
    [
        # A result answers an open call, once, and a call has its result before the next turn.
        (ASKED, RESULT),
        (ASKED, CALLED, {**RESULT, "tool_call_id": "c2"}),
        (ASKED, CALLED, {"role": "tool", "content": "rain"}),
        (ASKED, CALLED, RESULT, RESULT),
        (ASKED, CALLED, {"role": "user", "content": "?"}, RESULT),
        (ASKED, BOTH, RESULT),
        (ASKED, BOTH, RESULT, ASKED),
        (ASKED, CALLED),
        # Both have the form of OpenAI's chat API.
        (ASKED, {**CALLED, "tool_calls": [CALL_1, CALL_1]}, RESULT, RESULT),
        (ASKED, {**CALLED, "tool_calls": {"id": "c1"}}, RESULT),
        (ASKED, {**CALLED, "tool_calls": ["weather"]}, RESULT),
        (ASKED, called(id=""), RESULT),
        (ASKED, called(type="custom"), RESULT),
        (ASKED, called(function={"name": "w", "arguments": {}}), RESULT),
        (ASKED, called(function={"arguments": "{}"}), RESULT),
        (ASKED, {"role": "assistant", "content": None}, ASKED),
        ({**ASKED, "tool_calls": [CALL_1]}, RESULT),
        (ASKED, CALLED, {**RESULT, "content": None}),
        (ASKED, CALLED, {**RESULT, "tool_call_id": 1}),
        (ASKED, CALLED, {**RESULT, "is_error": True}),
        (ASKED, "weather"),
    ],
)
def test_broken_calls_and_results_are_refused(tmp_path: Path, messages: Any) -> None:
    """With their line."""
    with raises_naming(DataError, "line 1"):
        load_examples(write_rows(tmp_path / "a.jsonl", [row_with(*messages)]))
