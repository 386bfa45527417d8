"""Rows as public data sets have them: ShareGPT, Alpaca, BoolQ, SQuAD, files for fine-tuning, and
plain text. They are read, or refused with the option that reads them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from blackbox_lb.errors import DataError
from blackbox_lb.tasks import load_examples, load_task
from blackbox_lb.types import Example, Message
from tests.support.errors import names, raises_naming

ASKED: dict[str, Any] = {"role": "user", "content": "Is water wet?"}
YES: dict[str, Any] = {"role": "assistant", "content": "yes"}


def written(path: Path, *rows: object) -> Path:
    """A file of these rows, one a line."""
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return path


def example_of(tmp_path: Path, row: dict[str, Any], **columns: Any) -> Example:
    """The example in a file of one row."""
    (example,) = load_examples(written(tmp_path / "a.jsonl", row), **columns)
    return example


def note_of(tmp_path: Path, row: dict[str, Any], **columns: Any) -> str:
    """What is said of 40 rows like this one, which differ in the text ``{n}``."""
    rows = [json.loads(json.dumps(row).replace("{n}", str(n))) for n in range(40)]
    return load_task(data=written(tmp_path / "b.jsonl", *rows), **columns).note


# Answers


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (True, ("true",)),
        (False, ("false",)),
        ([True, "yes"], ("true", "yes")),
        ({"text": ["in Oslo", "Oslo"], "answer_start": [3, 6]}, ("in Oslo", "Oslo")),
        ([{"text": "in Oslo", "answer_start": 3}, {"text": "Oslo", "answer_start": 6}], ("in Oslo", "Oslo")),
    ],
    ids=str,
)  # fmt: skip
def test_answers_that_are_no_texts_are_read(
    tmp_path: Path, answer: object, expected: tuple[str, ...]
) -> None:
    """BoolQ's booleans as JSON spells them, SQuAD's objects as their texts; the note says so."""
    row = {"prompt": "{n}?", "answer": answer}
    assert example_of(tmp_path, row).answers == expected
    assert names(note_of(tmp_path, row), "40 rows")


@pytest.mark.parametrize(
    ("answer", "path"),
    [
        ({"label": 1, "score": 0.9}, "answer.label"),
        ({"id": 3, "score": 0.5}, "answer.id"),
        ({"value": "Oslo", "aliases": ["oslo"]}, "answer.value"),
        ([{"value": "Oslo"}], "answer.0.value"),
    ],
    ids=str,
)
def test_an_object_that_has_no_shares_is_refused(tmp_path: Path, answer: object, path: str) -> None:
    """A prediction is no distribution over its fields: the path to the answer is named."""
    with raises_naming(DataError, "line 1", f"``answer_column={path}``"):
        example_of(tmp_path, {"prompt": "Q?", "answer": answer})


@pytest.mark.parametrize(
    ("answer", "shares"),
    [
        ({"agree": 0.6, "disagree": 0.4}, (0.6, 0.4)),
        ({"agree": 12.0, "disagree": 36.0, "none": 0}, (0.25, 0.75, 0.0)),
        ({"agree": 60.5, "disagree": 39.5}, (0.605, 0.395)),
        ({"a": 0.33, "b": 0.33, "c": 0.33}, (1 / 3, 1 / 3, 1 / 3)),
        ({"answer": 0.25, "call": 0.75}, (0.25, 0.75)),
    ],
    ids=str,
)
def test_shares_counts_and_per_cent_are_shares(
    tmp_path: Path, answer: object, shares: tuple[float, ...]
) -> None:
    """Also rounded ones, and labels that are called like fields."""
    example = example_of(tmp_path, {"prompt": "Q?", "answer": answer})
    assert example.weights == pytest.approx(shares)


def test_numbers_that_are_neither_are_refused(tmp_path: Path) -> None:
    """Fractions far above 1 are neither counts nor shares; the remedy is named."""
    with raises_naming(DataError, "line 1", "1 or 100"):
        example_of(tmp_path, {"prompt": "Q?", "answer": {"a": 1.5, "b": 0.7}})


# Messages


def test_sharegpt_is_read(tmp_path: Path) -> None:
    """``from`` and ``value`` as roles and contents, the last turn as the answer; also in a column
    that is named, and with roles in ``conversations``.
    """
    turns = [
        {"from": "system", "value": "Be short."},
        {"from": "human", "value": "Is water wet?"},
        {"from": "gpt", "value": "yes"},
        {"from": "human", "value": "{n}?"},
        {"from": "gpt", "value": "no"},
    ]
    messages = (
        Message("system", "Be short."),
        Message("user", "Is water wet?"),
        Message("assistant", "yes"),
        Message("user", "{n}?"),
    )
    named = example_of(tmp_path, {"chat": turns}, messages_column="chat")
    for example in (named, example_of(tmp_path, {"conversations": turns, "id": "1"})):
        assert example.prompt.messages == messages
        assert example.answers == ("no",)
    assert names(note_of(tmp_path, {"conversations": turns}), "40 rows", "answer column")
    assert example_of(tmp_path, {"conversations": [ASKED, YES]}).answers == ("yes",)
    with raises_naming(DataError, "'observation'", "tool_calls"):
        example_of(tmp_path, {"conversations": [*turns, {"from": "observation", "value": "x"}]})


def test_text_parts_are_joined(tmp_path: Path) -> None:
    """One part is its text, several are lines, which is said; anything but text is refused by its
    type.
    """
    parts = [{"type": "text", "text": "Look."}, {"type": "text", "text": "{n}?"}]
    one = example_of(tmp_path, {"messages": [{"role": "user", "content": parts[:1]}, YES]})
    assert one.prompt.messages == (Message("user", "Look."),)
    row = {"messages": [{"role": "user", "content": parts}, YES]}
    assert example_of(tmp_path, row).prompt.text == "Look.\n{n}?"
    assert names(note_of(tmp_path, row), "40 rows", "text parts")
    image = {"type": "image_url", "image_url": {"url": "data:"}}
    with raises_naming(DataError, "line 1", "'image_url'"):
        example_of(tmp_path, {"messages": [{"role": "user", "content": [*parts, image]}, YES]})


@pytest.mark.parametrize(
    "more", [{"weight": 1}, {"reasoning_content": "hm"}, {"reasoning": "hm"}, {"thinking": "hm"}]
)
def test_what_no_request_carries_is_left_out_and_said(tmp_path: Path, more: dict[str, Any]) -> None:
    """The weight of a turn and the reasoning behind it: the example is the same without them."""
    plain = example_of(tmp_path, {"messages": [ASKED, YES]})
    assert example_of(tmp_path, {"messages": [ASKED, {**YES, **more}]}) == plain
    row = {"messages": [{**ASKED, "content": "{n}?"}, {**YES, **more}]}
    assert names(note_of(tmp_path, row), "40 rows", next(iter(more)))


def test_a_last_turn_of_weight_0_is_no_answer(tmp_path: Path) -> None:
    """It is neither learned from nor sent, and the row has no answer; an earlier one is context."""
    row = {"messages": [ASKED, {**YES, "weight": 0}]}
    example = example_of(tmp_path, row, require_answers=False)
    assert example.prompt.messages == (Message("user", "Is water wet?"),)
    assert example.answers == ()
    with raises_naming(DataError, "line 1", "weight 0"):
        example_of(tmp_path, row)
    earlier = [ASKED, {**YES, "weight": 0}, ASKED, {**YES, "weight": 1}]
    example = example_of(tmp_path, {"messages": earlier})
    assert example.answers == ("yes",)
    assert len(example.prompt.messages) == 3
    with raises_naming(DataError, "line 1", "0.5"):
        example_of(tmp_path, {"messages": [ASKED, {**YES, "weight": 0.5}]})


def test_names_are_sent(tmp_path: Path) -> None:
    """OpenAI's chat format has a name for each role; another name is another prompt, and a prompt
    without one keeps its id.
    """
    named = [{"role": "system", "content": "s", "name": "bot"}, {**ASKED, "name": "ann"}]
    example = example_of(tmp_path, {"messages": [*named, YES]})
    assert [message.as_json for message in example.prompt.messages] == named
    other = example_of(tmp_path, {"messages": [named[0], {**ASKED, "name": "bob"}, YES]})
    assert other.id != example.id
    assert other.prompt != example.prompt


@pytest.mark.parametrize(
    "messages",
    [
        [ASKED, {"role": "assistant", "function_call": {"name": "f", "arguments": "{}"}}],
        [ASKED, {"role": "function", "name": "f", "content": "x"}, ASKED],
    ],
)
def test_the_old_form_of_calls_is_refused_with_the_new_one(
    tmp_path: Path, messages: list[dict[str, Any]]
) -> None:
    """``function_call`` became ``tool_calls`` in OpenAI's format."""
    with raises_naming(DataError, "line 1", "tool_calls", "tool_call_id"):
        example_of(tmp_path, {"messages": messages})


# Columns and plain text


def test_alpaca_gets_its_options(tmp_path: Path) -> None:
    """The refusal names the template and the column of the answers, and these read the row."""
    row = {"instruction": "Sum it up.", "input": "x {n}", "output": "y"}
    template = "{instruction} {input}"
    with raises_naming(DataError, f"``prompt_template='{template}'``", "``answer_column=output``"):
        example_of(tmp_path, row)
    rows = [{**row, "input": str(n)} for n in range(40)]
    task = load_task(
        data=written(tmp_path / "c.jsonl", *rows), prompt_template=template, answer_column="output"
    )
    assert task.train[0].prompt.text.startswith("Sum it up. ")
    assert task.train[0].answers == ("y",)


def test_a_text_file_has_one_prompt_a_line(tmp_path: Path) -> None:
    """Blank lines aside; a comma is part of the prompt. JSON in it is refused with its suffix."""
    path = tmp_path / "prompts.txt"
    path.write_text('Write, slowly, of "rain".\r\n\n  A sea.\n', encoding="utf-8")
    examples = load_examples(path, require_answers=False)
    assert [example.prompt.text for example in examples] == ['Write, slowly, of "rain".', "A sea."]
    assert examples[1].source.endswith("line 3")
    with raises_naming(DataError, "prompts.txt", "line 1", "'answer'"):
        load_examples(path)
    path.write_text('{"prompt": "P", "answer": "a"}\n', encoding="utf-8")
    with raises_naming(DataError, "prompts.txt", "jsonl"):
        load_examples(path)
    with raises_naming(DataError, "``field=rows``"):
        load_task(data=path, field="rows")
