"""Files as people have them: the layouts of published data sets, repeated rows, spreadsheets, other
encodings, and messages that end with the answer.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blackbox_lb.errors import DataError, InputError
from blackbox_lb.tasks import Task, load_examples, load_task
from blackbox_lb.tasks.records.files import ExampleRow, join_repeats, read_rows
from blackbox_lb.tasks.records.records import value_at
from blackbox_lb.tasks.sets.labels import Labels, labels_of_task
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


def prompts_of(task: Task) -> list[str]:
    return sorted(example.prompt.text for split in SPLITS for example in task.split(split))  # type: ignore[arg-type]


def filler(count: int, prompt: str = "prompt", answer: str = "answer") -> list[dict[str, Any]]:
    """Rows that fill the three splits."""
    return [{prompt: f"filler {n}", answer: str(n)} for n in range(count)]


# Numbers


@pytest.mark.parametrize("row", ['"answer": {}', '"answer": {{"a": {}, "b": 1}}', '"id": {}'])
@pytest.mark.parametrize("prompt", ["p", r"\ud83d\ude00"])
def test_a_number_of_too_many_digits_is_named_plainly(write: Write, row: str, prompt: str) -> None:
    """Its row and the limit of digits are named, and no function of Python."""
    lines = [f'{{"prompt": "p {n}", "answer": 1}}' for n in range(8)]
    lines.append(f'{{"prompt": "{prompt}", {row.format("9" * 5000)}}}')
    with raises_naming(DataError, "line 9", "4,300") as caught:
        load_task(data=write("d.jsonl", "\n".join(lines)))
    assert "set_int_max_str_digits" not in str(caught.value)


@pytest.mark.parametrize("share", ["1e999", "-1e999", "1" + "0" * 400, "1e308", "NaN", "-1"])
def test_a_share_that_is_no_finite_number_is_refused(write: Write, share: str) -> None:
    """The row is named."""
    lines = [f'{{"prompt": "p {n}", "answer": {{"a": {share}, "b": 1}}}}' for n in range(40)]
    with raises_naming(DataError, "line 1"):
        load_task(data=write("d.jsonl", "\n".join(lines)))


# Repeated rows


def test_banking77(write: Write) -> None:
    """text,category: a prompt with two categories is one prompt that accepts both, the commoner
    first, and every copy is in one split; an equal row counts once. Both are counted.
    """
    rows = [
        ("I am still waiting on my card?", "card_arrival"),
        ("Where is my new card?", "card_delivery_estimate"),
        ("Where is my new card?", "card_arrival"),
        ("Where is my new card?", "card_arrival"),
        ("How do I top up?", "topping_up_by_card"),
        ("How do I top up?", "topping_up_by_card"),
    ]
    text = "text,category\n" + "".join(f"{text},{category}\n" for text, category in rows)
    text += "".join(f"filler {n},card_arrival\n" for n in range(60))
    path = write("train.csv", text)
    task = load_task(data=path, prompt_column="text", answer_column="category")
    assert len(prompts_of(task)) == len(set(prompts_of(task))) == 63
    examples = {e.prompt.text: e for s in SPLITS for e in task.split(s)}  # type: ignore[arg-type]
    joined = examples["Where is my new card?"]
    assert joined.answers == ("card_arrival", "card_delivery_estimate")
    assert joined.source == f"{path}, line 3"
    assert examples["How do I top up?"].answers == ("topping_up_by_card",)
    assert names(task.note, "2 rows", "1 prompt")


def test_an_equal_row_counts_once(write: Write) -> None:
    """Whatever its id, as in JudgeBench."""
    rows = [{"prompt": "Which?", "answer": "A>B", "id": id_} for id_ in ("1", "2")]
    task = load_task(data=write("a.jsonl", jsonl(*rows, *filler(50))))
    assert len(prompts_of(task)) == 51
    assert names(task.note, "1 row")


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("xyz")), min_size=1, max_size=20))
def test_joining_keeps_every_prompt_and_answer(pairs: list[tuple[str, str]]) -> None:
    """Each prompt once, in the order of the file, with every answer that one of its rows has; rows
    and copies add up.
    """
    rows = [
        ExampleRow(Example(f"{n}", Prompt.user(prompt), (answer,)))
        for n, (prompt, answer) in enumerate(pairs)
    ]
    joined = join_repeats(rows)
    assert [row.example.prompt.text for row in joined] == list(dict.fromkeys(p for p, _ in pairs))
    for row in joined:
        wanted = {answer for prompt, answer in pairs if prompt == row.example.prompt.text}
        assert set(row.example.answers) == wanted
        assert len(row.example.answers) == len(wanted)
    assert sum(1 + row.copies for row in joined) == len(pairs)


def test_white_space_alone_does_not_part_copies(write: Write) -> None:
    """Prompts that differ in white space are two prompts of one split, whatever the seed."""
    rows = [{"prompt": "Is it?", "answer": "yes"}, {"prompt": "Is  it?\n", "answer": "no"}]
    path = write("a.jsonl", jsonl(*rows, *filler(60)))
    for seed in range(8):
        task = load_task(data=path, seed=seed)
        holders = [
            split
            for split in SPLITS
            for example in task.split(split)  # type: ignore[arg-type]
            if "it?" in example.prompt.text
        ]
        assert len(holders) == 2
        assert len(set(holders)) == 1


def test_a_row_of_train_leaves_the_answers_of_test_alone(write: Write) -> None:
    """Where the split column parts the copies of a prompt, test keeps its own rows and answers, and
    those of train are left out and counted.
    """
    rows = [
        {"prompt": "P", "answer": "wrong", "split": "train"},
        {"prompt": "P", "answer": "right", "split": "test"},
        {"prompt": "Q", "answer": "1", "split": "train"},
        {"prompt": "R", "answer": "1", "split": "validation"},
    ]
    task = load_task(data=write("a.jsonl", jsonl(*rows)))
    assert [example.answers for example in task.test] == [("right",)]
    assert [example.prompt.text for example in task.train] == ["Q"]
    assert names(task.note, "1 row", "train", "test")
    with raises_naming(DataError, "train"):
        load_task(data=write("b.jsonl", jsonl(rows[0], rows[1], rows[3])))


def test_labels_of_joined_rows_are_no_synonyms(write: Write) -> None:
    """Answers that stand in one row with a label are spellings of it; answers of another row of the
    same prompt are labels of their own.
    """
    rows = [
        *({"prompt": f"p{n}", "answer": ["yes", "yep"]} for n in range(4)),
        *({"prompt": f"n{n}", "answer": "no"} for n in range(4)),
        {"prompt": "p0", "answer": "no"},
        {"prompt": "p0", "answer": "maybe"},
    ]
    examples = load_examples(write("a.jsonl", jsonl(*rows)))
    labels = Labels.found_in(examples)
    assert labels is not None
    assert labels.names == ("maybe", "no", "yes")
    assert labels.accepted == (frozenset({"maybe"}), frozenset({"no"}), frozenset({"yes", "yep"}))
    assert labels.of(examples[0]) == labels.names.index("yes")


# JSON that is one document


def test_arrays_are_read_as_they_are(write: Write) -> None:
    """PandaLM, LLMBar and Alpaca are a JSON array, pretty or on one line, in a file of any of the
    suffixes.
    """
    rows = [{"instruction": "Sum.", "input": x, "annotator1": n} for n, x in enumerate("xy")]
    for indent in (None, 2):
        for suffix in ("json", "jsonl"):
            path = write(f"p.{suffix}", json.dumps(rows, indent=indent))
            examples = load_examples(path, prompt_column="input", answer_column="annotator1")
            assert [(example.prompt.text, example.answers) for example in examples] == [
                ("x", ("0",)),
                ("y", ("1",)),
            ]


@pytest.mark.parametrize("indent", [None, 2], ids=["one line", "pretty"])
def test_a_row_of_an_array_is_named_by_its_number(write: Write, indent: int | None) -> None:
    """However many lines it has."""
    rows = [{"prompt": "P", "answer": "1"}, {"prompt": "Q"}]
    path = write("a.json", json.dumps(rows, indent=indent))
    with pytest.raises(DataError) as caught:
        load_examples(path)
    assert str(caught.value).startswith(f"{path}, row 2: has no column 'answer'")


def test_bigbench(write: Write) -> None:
    """An array inside an object is read by its field; without it, or with a wrong one, the field is
    named.
    """
    rows = [{"input": f"q{n}", "target": [f"a{n}", f"b{n}"]} for n in range(40)]
    document = {"name": "task", "keywords": ["x"], "meta": {"inner": rows[:3]}, "examples": rows}
    for indent in (None, 2):
        path = write("task.json", json.dumps(document, indent=indent))
        columns: Any = {"prompt_column": "input", "answer_column": "target"}
        task = load_task(data=path, field="examples", **columns)
        assert len(prompts_of(task)) == 40
        assert load_task(
            data=path,
            test=write("t.json", json.dumps({"examples": [{"input": "t", "target": "x"}]})),
            field="examples",
            **columns,
        ).test[0].answers == ("x",)
        for field, facts in (
            (None, ("examples", "``field=meta.inner``")),
            ("exmples", ("'exmples'", "examples", "``field``")),
        ):
            with raises_naming(DataError, *facts):
                load_task(data=path, field=field, **columns)
        with raises_naming(DataError, "'task'", "'name'", "``field``"):
            load_task(data=path, field="name", **columns)
        with raises_naming(DataError, "3 rows", "validation", "26"):
            load_task(data=path, field="meta.inner", **columns)


def test_a_field_is_for_one_json_file(write: Write, tmp_path: Path) -> None:
    """A table and a data set have no field; a task by name has no field, prefill or column."""
    with raises_naming(DataError, "``field=rows``"):
        load_task(data=write("a.csv", "prompt,answer\nP,x\n"), field="rows")
    with raises_naming(InputError, "``field=rows``"):
        load_task(data=tmp_path, field="rows")
    of_data: Any
    for of_data in ({"field": "rows"}, {"prefill": True}, {"prompt_column": "q"}):
        with raises_naming(InputError, "'capitals'"):
            load_task("capitals", **of_data)


def test_one_object_over_several_lines_is_one_row(write: Write) -> None:
    """A row in pretty print is a row; a broken document is named by the line of its fault."""
    row = {"prompt": "P", "answer": "x"}
    (example,) = load_examples(write("a.json", json.dumps(row, indent=2)))
    assert example.answers == ("x",)
    broken = json.dumps([row, row], indent=2).replace('"x"\n', '"x",\n')
    with raises_naming(DataError, "b.json", "JSON"):
        load_examples(write("b.json", broken))


# Columns


def test_nested_columns_are_paths(write: Write) -> None:
    """OpenBookQA nests the question, SQuAD the answers; a path leads there, also in a template and
    through a list, and a name with a dot in it goes first.
    """
    arc: dict[str, Any] = {
        "id": "x",
        "question": {"stem": "Which?", "choices": [{"text": "a", "label": "A"}]},
        "answerKey": "A",
    }
    path = write("a.jsonl", jsonl(arc))
    (example,) = load_examples(path, prompt_column="question.stem", answer_column="answerKey")
    assert example.prompt.text == "Which?"
    (example,) = load_examples(
        path, prompt_column="question.stem", answer_column="question.choices.0.label"
    )
    assert example.answers == ("A",)
    squad = write("s.jsonl", jsonl({"prompt": "Q", "answers": {"text": ["x", "y"]}}))
    assert load_examples(squad, answer_column="answers.text")[0].answers == ("x", "y")
    template = "{question.stem}\nA: {question[choices][0][text]}"
    task = load_task(
        data=write(
            "t.jsonl",
            jsonl(
                *(
                    {**arc, "question": {**arc["question"], "stem": f"q{n}"}, "id": n}
                    for n in range(40)
                )
            ),
        ),
        prompt_template=template,
        answer_column="answerKey",
    )
    assert "q7\nA: a" in prompts_of(task)
    with raises_naming(DataError, "question.stem"):
        load_examples(path, prompt_column="question.stm", answer_column="answerKey")
    assert value_at({"a.b": 1, "a": {"b": 2}}, "a.b") == 1
    assert value_at({"a": [5]}, "a.1") is None


def test_a_template_reaches_columns_only(write: Write) -> None:
    """A template reads what the row holds, and no attribute of Python."""
    path = write("a.jsonl", jsonl({"q": "Q", "answer": "x"}))
    with raises_naming(DataError, "line 1", "'q.__class__'", "``prompt_template``"):
        load_task(data=path, prompt_template="{q.__class__}")


@pytest.mark.parametrize("template", ["{q:>900000000}", "{q:>{width}}", "{number:.900000000f}"])
def test_a_template_that_fills_the_memory_is_refused(write: Write, template: str) -> None:
    """A settings file that is merely found may hold a template, so its formats have a limit."""
    row = {"q": "Q", "width": 900_000_000, "number": 0.5, "answer": "x"}
    splits = ("train", "validation", "test")
    path = write("a.jsonl", jsonl(*({**row, "q": split, "split": split} for split in splits)))
    with raises_naming(InputError, "prompt template", "1,000"):
        load_task(data=path, prompt_template=template)
    task = load_task(data=path, prompt_template="{q:>12}|{number:.2f}")
    assert "  validation|0.50" in prompts_of(task)


# Tables of spreadsheets


def test_cells_are_trimmed_as_headers_are(write: Write) -> None:
    """Behind the mark of a spreadsheet's file, too, and a comma within a cell does not part it."""
    text = "\ufeffprompt ; answer\r\n How much, roughly? ; 1.5 \r\nWhen?;  \r\n"
    first, second = load_examples(write("a.csv", text), require_answers=False)
    assert first.prompt.text.strip() == "How much, roughly?"
    assert (first.answers, second.answers) == (("1.5",), ())


@pytest.mark.parametrize(
    ("content", "encoding"),
    [
        ("prompt,answer\nBogotá,x\n".encode("utf-16"), "UTF-16"),
        (b"\xfe\xff" + "prompt,answer\n".encode("utf-16-be"), "UTF-16"),
        ("prompt,answer\nBogotá,x\n".encode("utf-32"), "UTF-32"),
    ],
)
def test_another_encoding_gets_the_command_that_mends_it(
    write: Write, content: bytes, encoding: str
) -> None:
    """The marks of UTF-16 and UTF-32 are believed."""
    path = write("a.csv", content)
    with pytest.raises(DataError) as caught:
        load_examples(path)
    assert f"iconv -f {encoding} -t UTF-8 {path}" in str(caught.value)


EXCEL = "prompt;answer\nKäse?;Emmental\nBread?;Rye\n"


def test_a_table_in_windows_1252_is_read_and_said(write: Write) -> None:
    """What Excel saves is read; the rows with letters that depend on it are counted."""
    rows = read_rows(write("a.csv", EXCEL.encode("cp1252")))
    assert [row.example.prompt.text for row in rows] == ["Käse?", "Bread?"]
    assert "Windows-1252" in rows[0].remarks[0]
    assert "Käse" in rows[0].remarks[0]
    assert rows[1].remarks == ()
    assert not read_rows(write("b.csv", EXCEL))[0].remarks


@pytest.mark.parametrize(
    "content",
    [
        # One stray byte among letters of UTF-8; a byte that Windows-1252 lacks; no text.
        "prompt;answer\nKäse, Brötchen;x\nCaf".encode() + b"\xe9;x\n",
        b"prompt;answer\nCaf\x81;x\n",
        b"PK\x03\x04\xe9\xe8\n",
    ],
)
def test_what_is_not_windows_1252_is_not_read_as_such(write: Write, content: bytes) -> None:
    """The line is named, and nothing is guessed."""
    with raises_naming(DataError, "line", "not Windows-1252 either"):
        read_rows(write("a.csv", content))


@pytest.mark.parametrize("suffix", [".csv", ".tsv"])
@pytest.mark.parametrize("mark", [",", ";", "\t", "|"])
def test_every_usual_separator_is_found(write: Write, suffix: str, mark: str) -> None:
    """By the header, whatever the suffix says."""
    text = EXCEL.replace(";", mark)
    examples = load_examples(write(f"a{suffix}", text))
    assert [example.answers for example in examples] == [("Emmental",), ("Rye",)]


def test_a_separator_divides_the_row_below_the_header_alike(write: Write) -> None:
    """So a comma within a name of a column does not count."""
    path = write("a.csv", "prompt|the answer, in a word|answer\nHow much?|x|y\n")
    assert load_examples(path)[0].answers == ("y",)


def test_a_misspelt_file_gets_the_nearest_one(write: Write) -> None:
    """Of the files in its folder."""
    path = write("tickets.csv", EXCEL)
    with raises_naming(DataError, "did you mean tickets.csv?"):
        load_examples(path.with_name("ticket.csv"))


def test_a_missing_column_gets_the_option_and_its_likely_name(write: Write) -> None:
    """The column with the longest texts."""
    path = write("a.csv", "nr;ticket;team\n1;The printer is on fire;IT\n")
    with raises_naming(DataError, "``prompt_column=ticket``"):
        load_examples(path)
    with raises_naming(DataError, "a semicolon, a tab or |"):
        load_examples(write("b.csv", "nr^ticket^team\n1^The printer is on fire^IT\n"))


# Messages that end with the assistant

ASKED = [{"role": "system", "content": "Route."}, {"role": "user", "content": "City?"}]


def turn(text: str) -> list[dict[str, str]]:
    return [*ASKED, {"role": "assistant", "content": text}]


def ended(text: str, **more: object) -> str:
    """40 different questions that end with this text of the assistant."""
    answered = {"role": "assistant", "content": text}
    asked = ([{"role": "user", "content": str(n)}, answered] for n in range(40))
    return jsonl(*({"messages": messages, **more} for messages in asked))


def test_the_last_turn_is_the_answer_of_a_row_without_one(write: Write) -> None:
    """A file as fine-tuning takes it: the gold turn is the answer and not sent, which is said; it
    is the same example as with an answer column.
    """
    (example,) = load_examples(write("a.jsonl", jsonl({"messages": turn("a")})))
    (other,) = load_examples(write("b.jsonl", jsonl({"messages": ASKED, "answer": "a"})))
    assert example == other
    assert example.prompt.messages == (Message("system", "Route."), Message("user", "City?"))
    for needed in (True, False):
        task = load_task(data=write("c.jsonl", ended("a")), require_answers=needed)
        assert names(task.note, "40 rows", "answer column")
        assert {e.prompt.messages[-1].role for e in task.train} == {"user"}
    with raises_naming(DataError, "line 1", "messages", "``prefill``"):
        load_examples(write("d.jsonl", jsonl({"messages": turn("a")[2:]})))
    with raises_naming(DataError, "'gold'"):
        load_examples(write("a.jsonl", jsonl({"messages": turn("a")})), answer_column="gold")


@pytest.mark.parametrize("text", ["a", "A.", "The answer is a."])
def test_a_last_turn_that_holds_the_answer_is_refused(write: Write, text: str) -> None:
    """The model would be shown the answer; the option for a wanted prefill is named, and sends
    it.
    """
    path = write("a.jsonl", jsonl({"messages": turn(text), "answer": ["b", "a"]}))
    with raises_naming(DataError, "line 1", "'a'", "``prefill``"):
        load_examples(path)
    where = options(provider="llamacpp", base_url="http://127.0.0.1:9/v1", data=path)
    assert names(refused("check", *where, "--reward", "contains"), "line 1", "'a'", "--prefill")
    task = load_task(data=write("b.jsonl", ended(text, answer="a")), prefill=True)
    assert task.train[0].prompt.messages[-1] == Message("assistant", text)
    assert task.note == ""


def test_another_last_turn_is_sent_and_said(write: Write) -> None:
    """The beginning of a completion that gives nothing away is sent, and counted unless --prefill
    says that it is meant.
    """
    rows = ended('{"city":', answer="x")
    task = load_task(data=write("a.jsonl", rows))
    assert task.train[0].prompt.messages[-1].content == '{"city":'
    assert names(task.note, "40 rows", "assistant")
    assert load_task(data=write("a.jsonl", rows), prefill=True).note == ""


# --- Where nothing is learned


def test_to_judge_takes_a_file_of_test_rows_alone(write: Write) -> None:
    """Given as the test data, or by their split column; all are judged on, and labels come from
    them. A file without that column is divided as before.
    """
    rows = [{"prompt": f"{n}?", "answer": ["yes", "no"][n % 2]} for n in range(40)]
    fresh = write("fresh.jsonl", jsonl(*rows))
    marked = write("marked.jsonl", jsonl(*({**row, "split": "test"} for row in rows)))
    for task in (load_task(test=fresh, learns=False), load_task(data=marked, learns=False)):
        assert (len(task.train), len(task.validation), len(task.test)) == (0, 0, 40)
        labels = labels_of_task(None, None, task)
        assert labels is not None
        assert labels.names == ("no", "yes")
    divided = load_task(data=fresh, learns=False)
    assert divided == load_task(data=fresh)
    assert 0 < len(divided.test) < 40


def test_to_learn_needs_rows_to_learn_from(write: Write) -> None:
    """Test rows alone are refused, and so is nothing at all."""
    rows = [{"prompt": f"{n}?", "answer": "yes", "split": "test"} for n in range(9)]
    marked = write("marked.jsonl", jsonl(*rows))
    with raises_naming(DataError, "train and validation"):
        load_task(data=marked)
    with raises_naming(InputError, "learn from"):
        load_task(test=marked)
    with raises_naming(InputError, "judge on"):
        load_task(learns=False)
    unanswered = write("unanswered.jsonl", jsonl(*rows, {"prompt": "9?", "split": "test"}))
    with raises_naming(DataError, "unanswered.jsonl", "10"):
        load_task(data=unanswered, learns=False)
