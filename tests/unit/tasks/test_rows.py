"""Files as people have them: the example that each layout of a row gives, and what is refused by
its file, its line and its remedy.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blackbox_lb.errors import DataError, InputError
from blackbox_lb.tasks import Task, load_examples, load_task
from blackbox_lb.types import Example, Message, Prompt
from tests.support.commands import options, refused
from tests.support.errors import names, raises_naming

Write = Callable[[str, str | bytes], Path]
SPLITS = ("train", "validation", "test")


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a file of the given name and content; text as UTF-8."""

    def _write(name: str, content: str | bytes) -> Path:
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return _write


def jsonl(*rows: object) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def filler(count: int) -> list[dict[str, Any]]:
    """Rows that fill the three splits."""
    return [{"prompt": f"filler {n}", "answer": str(n)} for n in range(count)]


def examples_of(task: Task) -> dict[str, Example]:
    """The examples of all splits by their prompts."""
    examples = (*task.train, *task.validation, *task.test)
    return {example.prompt.text: example for example in examples}


# Layouts of a row

SYSTEM = Message("system", "Route.")
ASKED: dict[str, Any] = {"role": "user", "content": "Question {n}?"}
QUESTION = Message("user", "Question {n}?")
YES: dict[str, Any] = {"role": "assistant", "content": "yes"}
SHARED = [
    {"from": "system", "value": "Route."},
    {"from": "human", "value": "Question {n}?"},
    {"from": "gpt", "value": "yes"},
]
PARTS = [{"type": "text", "text": "Question"}, {"type": "text", "text": "{n}?"}]
NESTED = {"question": {"stem": "Question {n}?", "choices": [{"text": "a", "label": "A"}]}}
INSTRUCTED = {"instruction": "Sum it up.", "input": "x {n}", "output": "y"}
BY_PATHS: dict[str, Any] = {
    "prompt_column": "question.stem",
    "answer_column": "question.choices.0.label",
}
BY_TEMPLATE: dict[str, Any] = {
    "prompt_template": "{instruction} {input:>5}",
    "answer_column": "output",
}


def prompting(answer: object) -> dict[str, Any]:
    """A row with this answer."""
    return {"prompt": "Question {n}?", "answer": answer}


def ended(**more: object) -> dict[str, Any]:
    """A row that ends with the assistant's turn, which has these fields too."""
    return {"messages": [ASKED, {**YES, **more}]}


@pytest.mark.parametrize(
    ("row", "columns", "messages", "answers", "said"),
    [
        (prompting("yes") | {"note": None}, {}, (QUESTION,), ("yes",), ()),
        (prompting(2), {}, (QUESTION,), ("2",), ()),
        (prompting([3.14, "π"]), {}, (QUESTION,), ("3.14", "π"), ()),
        (prompting(2.0), {}, (QUESTION,), ("2.0",), ("40 rows", "1.0")),
        (prompting([True, "yes"]), {}, (QUESTION,), ("true", "yes"), ("40 rows",)),
        (prompting({"text": ["in Oslo", "Oslo"], "answer_start": [3, 6]}), {}, (QUESTION,), ("in Oslo", "Oslo"), ("40 rows",)),
        (prompting([{"text": "Oslo", "answer_start": 6}]), {}, (QUESTION,), ("Oslo",), ("40 rows",)),
        (NESTED, BY_PATHS, (QUESTION,), ("A",), ()),
        ({"a.b": "Question {n}?", "a": {"b": "x"}, "answer": "y"}, {"prompt_column": "a.b"}, (QUESTION,), ("y",), ()),
        ({"conversations": SHARED}, {}, (SYSTEM, QUESTION), ("yes",), ("40 rows", "answer column")),
        ({"chat": SHARED}, {"messages_column": "chat"}, (SYSTEM, QUESTION), ("yes",), ("40 rows",)),
        ({"conversations": [ASKED, YES]}, {}, (QUESTION,), ("yes",), ("40 rows",)),
        ({"messages": [ASKED], "answer": "x"}, {}, (QUESTION,), ("x",), ()),
        ({"prompt": [ASKED], "answer": "x"}, {}, (QUESTION,), ("x",), ()),
        ({"prompt": [ASKED], "answer": "x"}, {"messages_column": "prompt"}, (QUESTION,), ("x",), ()),
        (ended(), {}, (QUESTION,), ("yes",), ("40 rows", "answer column")),
        (ended(weight=1), {}, (QUESTION,), ("yes",), ("40 rows", "weight")),
        (ended(reasoning_content="hm"), {}, (QUESTION,), ("yes",), ("40 rows", "reasoning_content")),
        (ended(reasoning="hm"), {}, (QUESTION,), ("yes",), ("40 rows", "reasoning")),
        (ended(thinking="hm"), {}, (QUESTION,), ("yes",), ("40 rows", "thinking")),
        ({"messages": [ASKED, {**YES, "weight": 0}, ASKED, YES]}, {}, (QUESTION, Message("assistant", "yes"), QUESTION), ("yes",), ("40 rows",)),
        ({"messages": [{**ASKED, "content": PARTS}, YES]}, {}, (Message("user", "Question\n{n}?"),), ("yes",), ("40 rows", "text parts")),
        ({"messages": [ASKED, {**YES, "content": '{"city":'}], "answer": "x"}, {}, (QUESTION, Message("assistant", '{"city":')), ("x",), ("40 rows", "assistant")),
    ],
)  # fmt: skip
def test_a_layout_gives_its_example(
    write: Write,
    row: dict[str, Any],
    columns: dict[str, Any],
    messages: tuple[Message, ...],
    answers: tuple[str, ...],
    said: tuple[str, ...],
) -> None:
    """What is more than a prompt and its answer is said with the number of rows."""
    [example] = load_examples(write("a.jsonl", jsonl(row)), **columns)
    assert (example.prompt.messages, example.answers) == (messages, answers)
    rows = [json.loads(json.dumps(row).replace("{n}", str(n))) for n in range(40)]
    note = load_task(data=write("b.jsonl", jsonl(*rows)), **columns).note
    assert names(note, *said) if said else note == ""


def test_a_template_makes_the_prompt(write: Write) -> None:
    """Of columns and paths, with short formats; a settings file that is merely found may hold one,
    so that it reaches no attribute of Python and fills no memory.
    """
    rows = [{**INSTRUCTED, "input": f"x {n}", "width": 900_000_000, "id": n} for n in range(40)]
    path = write("a.jsonl", jsonl(*rows))
    task = load_task(data=path, **BY_TEMPLATE)
    assert "Sum it up.   x 7" in examples_of(task)
    assert task.train[0].answers == ("y",)
    nested = [
        {"q": {"stem": f"q{n}", "choices": [{"text": "a"}]}, "answer": "x"} for n in range(40)
    ]
    data = write("n.jsonl", jsonl(*nested))
    task = load_task(data=data, prompt_template="{q.stem}\nA: {q[choices][0][text]}")
    assert "q7\nA: a" in examples_of(task)
    for template, kind, facts in (
        ("{other}", DataError, ("'other'", "instruction", "input", "output")),
        ("{input.__class__}", DataError, ("line 1", "'input.__class__'", "``prompt_template``")),
        ("{input", InputError, ("'{input'",)),
        ("{input:>900000000}", InputError, ("prompt template", "1,000")),
        ("{input:>{width}}", InputError, ("prompt template", "1,000")),
        ("{id:.900000000f}", InputError, ("prompt template", "1,000")),
    ):
        with raises_naming(kind, *facts):
            load_task(data=path, prompt_template=template, answer_column="output")


def test_names_are_sent(write: Write) -> None:
    """OpenAI's chat format has a name for each role; another name is another prompt."""
    rows = [
        {"messages": [{**ASKED, "name": name}, YES]} if name else ended()
        for name in ("ann", "bob", "")
    ]
    examples = load_examples(write("a.jsonl", jsonl(*rows)))
    assert len({example.id for example in examples}) == 3
    assert [message.as_json for message in examples[0].prompt.messages] == [
        {**ASKED, "name": "ann"}
    ]


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
    write: Write, answer: object, shares: tuple[float, ...]
) -> None:
    """Also rounded ones, and labels that are called like fields."""
    [example] = load_examples(write("a.jsonl", jsonl({"prompt": "Q?", "answer": answer})))
    assert example.weights == pytest.approx(shares)


def test_the_default_id_depends_on_content_only(write: Write) -> None:
    """The same row has the same id in JSONL and CSV, in any place; another answer gives another
    id.
    """
    text = jsonl({"prompt": "P", "answer": "0"}, {"answer": 1, "prompt": "Q"})
    [_, row] = load_examples(write("a.jsonl", text))
    [same] = load_examples(write("b.csv", "answer,prompt\n1,Q\n"))
    [other] = load_examples(write("c.csv", "answer,prompt\n2,Q\n"))
    assert row.id == same.id == "5285a0c535d7d873"
    assert other.id != row.id


# What is refused in a row


@pytest.mark.parametrize(
    ("row", "facts"),
    [
        ({"prompt": "Q"}, ("'answer'", "prompt", "``answer_column``")),
        (prompting(None), ("answer is empty",)),
        (prompting([]), ("answer is empty",)),
        (prompting(" "), ("answer is empty",)),
        ({"text": "Q", "answer": "x"}, ("'prompt'", "'messages'", "``prompt_column=text``")),
        ({"prompt": 5, "answer": "x"}, ("prompt", "5", "a string")),
        ({"prompt": " ", "answer": "x"}, ("prompt is empty",)),
        ({"prompt": "Q", "messages": [], "answer": "x"}, ("'prompt'", "'messages'")),
        ({"messages": [], "answer": "x"}, ("messages", "[]")),
        ({"messages": "hello", "answer": "x"}, ("messages", "JSON")),
        ({"messages": [{"role": "bot", "content": "Q"}], "answer": "x"}, ("'bot'", "assistant", "tool")),
        ({"messages": [{"role": ["user"], "content": "Q"}], "answer": "x"}, ("['user']", "assistant", "tool")),
        ({"prompt": ["P", "Q"], "answer": ["x", "y"]}, ("prompt", "['P', 'Q']", "a string")),
        ({"messages": [{**ASKED, "title": "N"}], "answer": "x"}, ("'title'", "user")),
        ({"messages": [{"role": "user", "content": 3}], "answer": "x"}, ("content", "3")),
        ({"messages": [{"role": "user", "content": ""}], "answer": "x"}, ("messages",)),
        ({"messages": [YES]}, ("messages", "``prefill``")),
        ({"messages": [{**ASKED, "content": [{"type": "image_url", "image_url": {}}]}, YES]}, ("'image_url'",)),
        ({"messages": [ASKED, {**YES, "weight": 0}]}, ("weight 0",)),
        ({"messages": [ASKED, {**YES, "weight": 0.5}]}, ("0.5",)),
        ({"messages": [ASKED, {"role": "assistant", "function_call": {"name": "f"}}]}, ("tool_calls", "tool_call_id")),
        ({"messages": [ASKED, {"role": "function", "name": "f", "content": "x"}, ASKED]}, ("tool_calls", "tool_call_id")),
        ({"conversations": [*SHARED, {"from": "observation", "value": "x"}]}, ("'observation'", "tool_calls")),
        (prompting("x") | {"split": "dev"}, ("'dev'", *SPLITS)),
        (prompting("x") | {"id": 1.5}, ("id", "1.5")),
        (prompting("x") | {"id": "first"}, ("'first'", "line 1")),
        ('"hello"', ("'hello'",)),
        (prompting("\ud800"), ("surrogate",)),
        ('{"prompt": "Q", "answer": NaN}', ("JSON", "NaN")),
        ('{"prompt": "Q", "answer": 1e999}', ("1e999",)),
        ('{"prompt": "Q", "answer": %s}' % ("9" * 5000), ("4,300",)),
        ('{"prompt": "Q", "id": %s}' % ("9" * 5000), ("4,300",)),
        ('{"prompt": "Q", "answer": {"a": 1%s, "b": 1}}' % ("0" * 400), ("'a'",)),
        (prompting({"a": 1e308, "b": 1e308}), ("1e+308",)),
        (prompting({"a": -1, "b": 1}), ("-1",)),
        (prompting({"a": 1}), ("'a'",)),
        (prompting({"a": 1.5, "b": 0.7}), ("1 or 100",)),
        (prompting({"label": 1, "score": 0.9}), ("``answer_column=answer.label``",)),
        (prompting({"id": 3, "score": 0.5}), ("``answer_column=answer.id``",)),
        (prompting([{"value": "Oslo"}]), ("``answer_column=answer.0.value``",)),
        (INSTRUCTED, ("``prompt_template='{instruction} {input}'``", "``answer_column=output``")),
        ({"nr": 1, "ticket": "It burns.", "team": "IT"}, ("``prompt_column=ticket``",)),
    ],
)  # fmt: skip
def test_a_broken_row_is_named_by_file_and_line(
    write: Write, row: Any, facts: tuple[str, ...]
) -> None:
    """With the value that is wrong, and the rule or the option that reads it; no function of
    Python is named.
    """
    line = row if isinstance(row, str) else json.dumps(row)
    path = write("rows.jsonl", jsonl({"prompt": "P", "answer": "1", "id": "first"}) + line)
    with raises_naming(DataError, "line 2", *facts) as caught:
        load_examples(path)
    assert str(caught.value).startswith(str(path))
    assert "set_int_max_str_digits" not in str(caught.value)


@pytest.mark.parametrize("text", ["a", "A.", "The answer is a."])
def test_a_last_turn_that_holds_the_answer_is_refused(write: Write, text: str) -> None:
    """The model would be shown the answer; the option for a wanted prefill is named, and sends
    it.
    """
    chats = [
        {"messages": [{**ASKED, "content": str(n)}, {**YES, "content": text}], "answer": ["b", "a"]}
        for n in range(40)
    ]
    path = write("a.jsonl", jsonl(*chats))
    with raises_naming(DataError, "line 1", "'a'", "``prefill``"):
        load_examples(path)
    where = options(provider="llamacpp", base_url="http://127.0.0.1:9/v1", data=path)
    assert names(refused("check", *where, "--reward", "contains"), "line 1", "'a'", "--prefill")
    task = load_task(data=path, prefill=True)
    assert task.train[0].prompt.messages[-1] == Message("assistant", text)
    assert task.note == ""


# Files


@pytest.mark.parametrize(
    ("name", "content", "facts"),
    [
        ("a.jsonl", "", ("empty",)),
        ("a.jsonl", '\n\n{"prompt": "Q", \n', ("line 3", "JSON")),
        ("a.jsonl", '\n{"prompt": "Bogotá", "answer": "x"}\n'.encode("latin-1"), ("0xe1", "line 2", "UTF-8")),
        ("a.json", '[\n{"prompt": "P", "answer": "x"},\n{"prompt": "Q", "answer": "x",}]', ("line 3", "JSON")),
        ("a.json", '[{"prompt": "P", "answer": "1"}, {"prompt": "Q"}]', ("row 2", "'answer'")),
        ("a.doc", "Q", ("'.doc'", ".jsonl")),
        ("a.csv", 'prompt,answer\n"a\nb",x\nQ,\n', ("line 4", "answer is empty")),
        ("a.csv", "prompt,answer\n,x\n", ("line 2", "prompt is empty")),
        ("a.csv", "prompt,answer\nQ,x,y\n", ("line 2", "3 cells", "2 (prompt, answer")),
        ("a.csv", 'prompt,answer\nQ,"x\n', ("line 2", "quotes")),
        ("a.csv", "prompt,answer\nQ," + "x" * 200_000, ("line 2", "131072")),
        ("a.csv", "prompt,answer,answer\nQ,x,y\n", ("line 1", "'answer'", "twice")),
        ("a.csv", "prompt,answer\n", ("no rows",)),
        ("a.csv", ",,\n", ("no header",)),
        ("a.csv", "nr^ticket\n1^It burns.\n", ("a semicolon, a tab or |",)),
        ("a.csv", "prompt,answer\nBogotá,x\n".encode("utf-16"), ("iconv -f UTF-16 -t UTF-8",)),
        ("a.csv", b"\xfe\xff" + "prompt,answer\n".encode("utf-16-be"), ("iconv -f UTF-16 -t UTF-8",)),
        ("a.csv", "prompt,answer\nBogotá,x\n".encode("utf-32"), ("iconv -f UTF-32 -t UTF-8",)),
        # One stray byte among letters of UTF-8; a byte that Windows-1252 lacks; no text.
        ("a.csv", "prompt;answer\nKäse, Brötchen;x\nCaf".encode() + b"\xe9;x\n", ("line 3", "not Windows-1252 either")),
        ("a.csv", b"prompt;answer\nCaf\x81;x\n", ("line 2", "not Windows-1252 either")),
        ("a.csv", b"\x7fELF\x01\xe9\xe8\n", ("line 1", "not Windows-1252 either")),
        ("a.csv", "prompt,answer\n".encode("utf-16-le"), ("NUL", "iconv -f UTF-16LE -t UTF-8")),
        ("a.csv", "prompt,answer\n".encode("utf-16-be"), ("NUL", "iconv -f UTF-16BE -t UTF-8")),
        ("a.csv", b"PK\x03\x04\xe9\xe8\n", ("Excel", "CSV UTF-8")),
        ("a.jsonl.gz", b"\x1f\x8b\x08\x00", ("gzip", "gunzip")),
        ("a.json", '{"prompt": ["P", "Q"], "answer": ["x", "y"]}', ("line 1", "orient='records'")),
        ("a.txt", '{"prompt": "P", "answer": "a"}\n', ("jsonl",)),
        ("a.txt", "P\n", ("line 1", "'answer'")),
    ],
)  # fmt: skip
def test_a_broken_file_is_explained(
    write: Write, name: str, content: str | bytes, facts: tuple[str, ...]
) -> None:
    """With the place, what was found and the remedy, in one sentence however long the file is."""
    path = write(name, content)
    with raises_naming(DataError, name, *facts) as caught:
        load_examples(path)
    assert len(str(caught.value)) < 300 + 2 * len(str(path))


def test_a_path_that_is_no_file_is_explained(write: Write, tmp_path: Path) -> None:
    """A missing file gets the nearest name; a folder, a name that no file can have, none, and a file
    over 256 MiB are refused unread.
    """
    path = write("tickets.csv", "prompt,answer\nP,a\n")
    with raises_naming(DataError, "did you mean tickets.csv?"):
        load_examples(path.with_name("ticket.csv"))
    for name in ("folder.jsonl", "folder.parquet"):
        (tmp_path / name).mkdir()
        with raises_naming(DataError, name, "directory"):
            load_examples(tmp_path / name)
    for suffix in ("jsonl", "parquet"):
        with raises_naming(DataError, suffix, "name too long"):
            load_task(data=f"{'x' * 300}.{suffix}")
    with raises_naming(InputError, "``data``", "empty"):
        load_task(data="")
    huge = tmp_path / "huge.jsonl"
    with huge.open("wb") as file:
        file.truncate(2**28 + 1)
    with raises_naming(DataError, "268,435,456"):
        load_examples(huge)


# Tables


@pytest.mark.parametrize("suffix", ["csv", "TSV"])
@pytest.mark.parametrize("mark", [",", ";", "\t", "|"])
def test_every_usual_separator_is_found(write: Write, suffix: str, mark: str) -> None:
    """By the header, whatever the suffix says. Cells are trimmed and may span lines; one that is a
    JSON list holds several answers, an empty one none; the mark of a spreadsheet is skipped.
    """
    rows = [
        ("prompt", " answer "),
        ('"two\nlines"', '"[""x"", 1]"'),
        ("interval?", '"[0, 1)"'),
        ("none?", " "),
    ]
    text = "\ufeff" + "\r\n\r\n".join(mark.join(cells) for cells in rows)
    examples = load_examples(write(f"a.{suffix}", text), require_answers=False)
    assert [(example.prompt.text, example.answers) for example in examples] == [
        ("two\nlines", ("x", "1")),
        ("interval?", ("[0, 1)",)),
        ("none?", ()),
    ]


def test_cells_of_a_table(write: Write) -> None:
    """A comma in the name of a column is none between columns; messages are JSON, and the empty
    prompt beside them counts as absent. Columns without a name are left aside.
    """
    path = write("a.csv", "prompt|the answer, in a word|answer\nHow much?|x|y\n")
    assert load_examples(path)[0].answers == ("y",)
    cell = json.dumps([ASKED]).replace('"', '""')
    [example] = load_examples(write("b.csv", f'prompt,messages,answer\n,"{cell}",x\n'))
    assert example.prompt == Prompt((QUESTION,))
    [example] = load_examples(write("c.csv", ",prompt,answer,,\n0,P,x,,\n"))
    assert (example.prompt.text, example.answers) == ("P", ("x",))


def test_a_table_in_windows_1252_is_read_and_said(write: Write) -> None:
    """What Excel saves is read; the rows with letters that depend on it are counted."""
    text = "prompt;answer\nKäse?;a\n" + "".join(f"Bread {n}?;b\n" for n in range(40))
    task = load_task(data=write("a.csv", text.encode("cp1252")))
    assert "Käse?" in examples_of(task)
    assert names(task.note, "1 row", "Windows-1252", "Käse")
    assert "Windows-1252" not in load_task(data=write("b.csv", text)).note


# JSON that is one document, and plain text


@pytest.mark.parametrize("indent", [None, 2], ids=["one line", "pretty"])
def test_a_document_is_read_as_it_is(write: Write, indent: int | None) -> None:
    """An array in a file of either suffix; one object is one row."""
    rows = [{"instruction": "Sum.", "input": x, "annotator1": n} for n, x in enumerate("xy")]
    columns: Any = {"prompt_column": "input", "answer_column": "annotator1"}
    for suffix in ("json", "jsonl"):
        path = write(f"p.{suffix}", json.dumps(rows, indent=indent))
        examples = load_examples(path, **columns)
        assert [(example.prompt.text, example.answers) for example in examples] == [
            ("x", ("0",)),
            ("y", ("1",)),
        ]
    [example] = load_examples(write("a.json", json.dumps(rows[1], indent=indent)), **columns)
    assert example.answers == ("1",)


def test_an_array_inside_an_object_is_read_by_its_field(write: Write, tmp_path: Path) -> None:
    """As in BIG-bench; without the field, or with a wrong one, it is named. Nothing but JSON has
    fields, and a task by name has no option of data.
    """
    rows = [{"input": f"q{n}", "target": [f"a{n}", f"b{n}"]} for n in range(40)]
    document = {"name": "task", "keywords": ["x"], "meta": {"inner": rows[:3]}, "examples": rows}
    path = write("task.json", json.dumps(document, indent=2))
    test = write("test.json", json.dumps({"examples": [{"input": "t", "target": "x"}]}))
    columns: Any = {"prompt_column": "input", "answer_column": "target"}
    task = load_task(data=path, test=test, field="examples", **columns)
    assert [example.answers for example in task.test] == [("x",)]
    assert len(examples_of(task)) == 41
    for field, facts in (
        (None, ("examples", "``field=meta.inner``")),
        ("exmples", ("'exmples'", "examples", "``field``")),
        ("name", ("'task'", "'name'", "``field``")),
        ("meta.inner", ("3 rows", "validation", "26")),
    ):
        with raises_naming(DataError, *facts):
            load_task(data=path, field=field, **columns)
    rows_given: Any = [{"prompt": "P", "answer": "x"}]
    files = (write("a.csv", "prompt,answer\nP,x\n"), write("a.txt", "P\n"), write("a.parquet", ""))
    for other in (*files, tmp_path, rows_given):
        with raises_naming(InputError, "``field=rows``"):
            load_task(data=other, field="rows")
    of_data: Any
    for of_data in ({"field": "rows"}, {"prefill": True}, {"prompt_column": "q"}):
        with raises_naming(InputError, "'capitals'"):
            load_task("capitals", **of_data)


def test_plain_text_and_lines_of_json(write: Write) -> None:
    """A line of text is a prompt, with its commas and quotes; U+2028 and U+0085 end no line, and the
    line ends of old Macs do. The marks of files that were joined are skipped.
    """
    path = write("prompts.txt", 'Write, slowly, of "rain".\r\n\n  A sea.\n')
    examples = load_examples(path, require_answers=False)
    assert [example.prompt.text for example in examples] == ['Write, slowly, of "rain".', "A sea."]
    assert examples[1].source.endswith("line 3")
    line = '\ufeff\r\n{"prompt": "a\u2028b\u0085c"}\r\n'
    [example] = load_examples(write("a.jsonl", line), require_answers=False)
    assert (example.prompt.text, example.answers) == ("a\u2028b\u0085c", ())
    for name, text in (
        ("b.txt", "P\rQ\r"),
        ("b.jsonl", '{"prompt": "P"}\r\ufeff{"prompt": "Q"}\r'),
    ):
        examples = load_examples(write(name, text), require_answers=False)
        assert [example.prompt.text for example in examples] == ["P", "Q"]


# Rows of a program


def examples_given(rows: list[Any]) -> tuple[Example, ...]:
    """The examples in rows of a program."""
    return load_task(test=rows, learns=False, require_answers=False).test


@pytest.mark.parametrize(
    ("row", "facts"),
    [
        ({"state": {"at": date(2026, 1, 2)}}, ("state", "date")),
        (prompting("x") | {"tools": [{"function": {"name": "f", "on": date(2026, 1, 2)}}]}, ("tools", "date")),
        (prompting("x") | {"tools": [{"function": {"name": "f", "most": math.nan}}]}, ("tools", "JSON")),
        ({"messages": [ASKED, {**YES, "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": "{}"}, "on": date(2026, 1, 2)}]}]}, ("messages", "date")),
    ],
    ids=str,
)  # fmt: skip
def test_what_json_does_not_have_is_refused(row: Any, facts: tuple[str, ...]) -> None:
    """Dates inside of objects, as Parquet has them, and NaN: they could not be sent."""
    with raises_naming(DataError, "data, row 1", *facts):
        load_task(data=[row], state=True)


@pytest.mark.parametrize(
    ("row", "answers"),
    [
        (prompting(np.int64(1)), ("1",)),
        (prompting(np.float32(0.5)), ("0.5",)),
        (prompting(np.bool_(True)), ("true",)),
        (prompting(np.array(["a", "b"])), ("a", "b")),
        (prompting(("a", np.int64(1))), ("a", "1")),
        (prompting({1: 0.5, 0: 0.5}), ("1", "0")),
        (prompting(np.float64("nan")), ()),
        ({"messages": np.array([ASKED], dtype=object), "answer": "x", "id": np.int64(7), 8: 9}, ("x",)),
    ],
    ids=str,
)  # fmt: skip
def test_rows_of_a_program_may_hold_values_of_numpy(row: Any, answers: tuple[str, ...]) -> None:
    """They are read as JSON has them; NaN counts as absent, and a name may be a number."""
    [example] = examples_given([row])
    assert (example.prompt.messages, example.answers) == ((QUESTION,), answers)


def test_columns_of_a_program_are_named() -> None:
    """Also those that are named by numbers; of two with one name nobody knows which is meant. Half
    a character is refused, as in files.
    """
    numbered: list[Any] = [{1: "P", "answer": "x"}]
    with raises_naming(DataError, "data, row 1", "1, answer", "``prompt_column=1``"):
        load_task(data=numbered)
    with raises_naming(DataError, "data, row 1", "surrogate"):
        load_task(data=[prompting("\udce9")])
    with raises_naming(DataError, "``data``", "'answer'", "twice"):
        load_task(data=SimpleNamespace(columns=("prompt", "answer", "answer")))


# Repeated rows


def test_the_rows_of_a_prompt_are_one_example(write: Write) -> None:
    """As in BANKING77: it accepts the answers of all of its rows, the commonest first; an equal row
    counts once, whatever its id. Both are counted.
    """
    rows = [
        ("Where?", "late"),
        ("Where?", "lost"),
        ("Where?", "lost"),
        ("How?", "top up"),
        ("How?", "top up"),
    ]
    table = "text,category,id\n" + "".join(f"{row[0]},{row[1]},{n}\n" for n, row in enumerate(rows))
    path = write("train.csv", table + "".join(f"filler {n},late,f{n}\n" for n in range(60)))
    task = load_task(data=path, prompt_column="text", answer_column="category")
    examples = examples_of(task)
    assert len(examples) == len(task.train) + len(task.validation) + len(task.test) == 62
    assert examples["Where?"].answers == ("lost", "late")
    assert examples["Where?"].source == f"{path}, line 2"
    assert examples["How?"].answers == ("top up",)
    assert names(task.note, "2 rows", "1 prompt")


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("xyz")), min_size=1, max_size=20))
def test_joining_keeps_every_prompt_and_answer(pairs: list[tuple[str, str]]) -> None:
    """Each prompt once, in the order of the file, with every answer that one of its rows has."""
    joined = examples_given([{"prompt": prompt, "answer": answer} for prompt, answer in pairs])
    assert [example.prompt.text for example in joined] == list(dict.fromkeys(p for p, _ in pairs))
    for example in joined:
        wanted = {answer for prompt, answer in pairs if prompt == example.prompt.text}
        assert sorted(example.answers) == sorted(wanted)
