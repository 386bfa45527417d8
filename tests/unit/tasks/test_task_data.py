"""Tasks from Parquet files, folders and data sets of the hub: columns are mapped, their own splits
kept, repeats counted.
"""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from blackbox_lb.errors import DataError, InputError
from blackbox_lb.tasks import load_examples, load_task
from blackbox_lb.tasks.records import hub_data
from tests.support.errors import names, raises_naming

pytestmark = pytest.mark.needs("datasets")
ROWS = [
    {"q": f"What is {n} + {n}?", "hint": f"twice {n}", "a": str(2 * n), "id": 7, "split": "x"}
    for n in range(40)
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder as the hub lays one out, with a train and a dev split; dev repeats a train row,
    train one of its own.
    """
    data = tmp_path / "sums"
    data.mkdir()
    for name, rows in (
        ("train", [*ROWS, ROWS[3]]),
        ("dev", [*ROWS[:1], {**ROWS[0], "q": "What is 99 + 1?"}]),
    ):
        (data / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return data


@pytest.fixture(autouse=True)
def datasets(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """The library, whose cache is a folder of the test's own."""
    library: Any = importlib.import_module("datasets")
    monkeypatch.setattr(library.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    return library


def test_parquet_is_read_like_jsonl(datasets: Any, tmp_path: Path) -> None:
    """One row a prompt, answers as lists or numbers, an absent cell absent."""
    path = tmp_path / "sums.parquet"
    rows = [{"prompt": "1 + 1?", "answer": ["2", "two"]}, {"prompt": "2 + 2?", "answer": ["4"]}]
    with hub_data.quiet():
        datasets.Dataset.from_list(rows).to_parquet(str(path))
    assert [example.answers for example in load_examples(path)] == [("2", "two"), ("4",)]
    with hub_data.quiet():
        datasets.Dataset.from_list(
            [{"prompt": "x", "answer": 3}, {"prompt": None, "answer": 4}]
        ).to_parquet(str(path))
    with raises_naming(DataError, "sums.parquet", "row 2", "prompt"):
        load_examples(path)
    with raises_naming(DataError, "none.parquet"):
        load_examples(tmp_path / "none.parquet")


def test_a_template_makes_the_prompt(tmp_path: Path) -> None:
    """Columns stand in the prompt where the template names them; other columns and formats are
    refused with what there is.
    """
    path = tmp_path / "sums.jsonl"
    path.write_text(
        "".join(
            json.dumps({**row, "id": index, "split": None}) + "\n" for index, row in enumerate(ROWS)
        )
    )
    task = load_task(
        data=path, prompt_template="Question: {q} ({hint})\nAnswer:", answer_column="a"
    )
    assert "Question: What is 5 + 5? (twice 5)\nAnswer:" in {
        e.prompt.text for e in (*task.train, *task.validation, *task.test)
    }
    with raises_naming(DataError, "'question'", "q", "hint", "a"):
        load_task(data=path, prompt_template="{question}", answer_column="a")
    with raises_naming(InputError, "'{q'"):
        load_task(data=path, prompt_template="{q", answer_column="a")


def test_a_folder_keeps_its_splits(folder: Path) -> None:
    """dev is validation, test is divided off train, and of equal prompts one is kept and the others
    counted.
    """
    task = load_task(data=folder, prompt_column="q", answer_column="a")
    assert task.name == "sums"
    assert len(task.validation) == 2
    assert len(task.train) + len(task.test) == 39
    assert "1 row equal to another" in task.note
    assert "1 row left out of train, whose prompts are in validation" in task.note


def test_numbered_classes_are_read_by_their_names(datasets: Any, tmp_path: Path) -> None:
    """The answers are the names that the file has for its numbers, alone, in a list and in an
    object; -1 and null are no label. The note names the classes.
    """
    topics = datasets.ClassLabel(names=["World", "Sports", "Sci/Tech"])
    features = datasets.Features(
        {
            "prompt": datasets.Value("string"),
            "label": topics,
            "labels": datasets.Sequence(topics),
            "gold": {"label": topics},
        }
    )
    rows = [
        {"prompt": f"p{n}", "label": n % 3, "labels": [0, -1, 2], "gold": {"label": 1}}
        for n in range(30)
    ]
    rows += [
        {"prompt": "secret", "label": -1, "labels": [], "gold": {"label": -1}},
        {"prompt": "none", "label": None, "labels": None, "gold": None},
    ]
    table = datasets.Dataset.from_list(rows, features=features)
    with hub_data.quiet():
        table.to_parquet(str(tmp_path / "a.parquet"))
        table.save_to_disk(str(tmp_path / "saved"))
    for column, answers in (
        ("label", [("World",), ("Sports",)]),
        ("labels", [("World", "Sci/Tech"), ("World", "Sci/Tech")]),
        ("gold.label", [("Sports",), ("Sports",)]),
    ):
        examples = load_examples(
            tmp_path / "a.parquet", answer_column=column, require_answers=False
        )
        assert [example.answers for example in examples[:2]] == answers
        assert [example.answers for example in examples[-2:]] == [(), ()]
        for data in ("a.parquet", "saved"):
            task = load_task(data=tmp_path / data, answer_column=column)
            assert len(task.train) + len(task.validation) + len(task.test) == 30
            assert names(task.note, f"2 rows have no {column} (rows 31, 32)")
            assert {example.prompt.text for example in task.unlabelled} == {"secret", "none"}


def test_a_number_that_no_class_has_is_refused(tmp_path: Path) -> None:
    """The row and the number of names are said."""
    features = {
        "prompt": {"dtype": "string", "_type": "Value"},
        "answer": {"names": ["a", "b"], "_type": "ClassLabel"},
    }
    table = pyarrow.table({"prompt": ["x", "y"], "answer": [0, 2]})
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    pyarrow.parquet.write_table(table.replace_schema_metadata(metadata), tmp_path / "a.parquet")
    with raises_naming(DataError, "row 2", "answer", "2 classes"):
        load_examples(tmp_path / "a.parquet")


def test_a_column_that_stands_twice_is_refused(tmp_path: Path) -> None:
    """Nobody knows which of them is meant."""
    table = pyarrow.Table.from_arrays(
        [pyarrow.array([text]) for text in ("x", "y", "z")], names=["prompt", "answer", "answer"]
    )
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    with raises_naming(DataError, "a.parquet", "'answer'", "twice"):
        load_examples(tmp_path / "a.parquet")


def test_padding_of_a_table_is_not_sent(tmp_path: Path) -> None:
    """Arrow gives all objects of a list the same fields, at every depth, in tools and in messages;
    what was padded is as it was before. A null that JSON text holds stays.
    """
    tools = [
        tool("weather", {"city": {"type": "string", "enum": ["Oslo", "Quito"]}}),
        tool("trains", {"station": {"type": "object", "properties": {"id": {"type": "integer"}}}}),
    ]
    call = {"id": "c", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    chats: list[list[dict[str, Any]]] = [
        [{"role": "user", "content": "Rain?"}],
        [
            {"role": "user", "content": "Rain?"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c", "content": "rain"},
        ],
    ]
    table = pyarrow.table(
        {"messages": chats, "tools": [[tools[0]], [tools[1]]], "answer": ["a", "b"]}
    )
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    examples = load_examples(tmp_path / "a.parquet")
    for example, chat, offered in zip(examples, chats, tools, strict=True):
        assert [message.as_json for message in example.prompt.messages] == chat
        assert json.loads(example.prompt.tools) == [offered]
    optional = tool("weather", {"city": {"default": None, "enum": ["Oslo", None]}})
    texts = pyarrow.table({"prompt": ["x"], "tools": [json.dumps([optional])], "answer": ["a"]})
    pyarrow.parquet.write_table(texts, tmp_path / "b.parquet")
    lines = tmp_path / "b.jsonl"
    lines.write_text(json.dumps({"prompt": "x", "tools": [optional], "answer": "a"}))
    for path in (tmp_path / "b.parquet", lines):
        (example,) = load_examples(path)
        assert json.loads(example.prompt.tools) == [optional]


def tool(name: str, properties: dict[str, Any]) -> dict[str, Any]:
    """A function with parameters."""
    parameters = {"type": "object", "properties": properties}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def test_a_test_split_whose_answers_are_kept_secret(datasets: Any, tmp_path: Path) -> None:
    """It counts as missing, and rows without an answer are left out of validation: both are said.
    Without any answer in train, the column is named.
    """
    label = datasets.ClassLabel(names=["no", "yes"])
    features = datasets.Features({"prompt": datasets.Value("string"), "label": label})

    def split(name: str, *labels: int) -> Any:
        rows = [{"prompt": f"{name}{n}", "label": label} for n, label in enumerate(labels)]
        return datasets.Dataset.from_list(rows, features=features)

    splits = datasets.DatasetDict(
        train=split("t", *[0, 1] * 20), validation=split("v", 0, 1, -1), test=split("s", -1, -1)
    )
    with hub_data.quiet():
        splits.save_to_disk(str(tmp_path / "saved"))
    task = load_task(data=tmp_path / "saved", answer_column="label")
    assert [example.answers for example in task.validation] == [("no",), ("yes",)]
    assert len(task.train) + len(task.test) == 40
    assert len(task.test) > 0
    assert names(task.note, "1 row of validation", "2 rows of test")
    with raises_naming(DataError, "row 1", "'answers'"):
        load_task(data=tmp_path / "saved", answer_column="answers")


@pytest.mark.parametrize(
    ("spec", "asked"),
    [
        ("hf:owner/sums", ("owner/sums", None)),
        ("hf:owner/sums/easy", ("owner/sums", "easy")),
        ("hf:sums@train", ("sums", None)),
        ("hf:owner/sums/easy@train", ("owner/sums", "easy")),
    ],
)
def test_names_of_the_hub(
    datasets: Any, monkeypatch: pytest.MonkeyPatch, spec: str, asked: tuple[str, str | None]
) -> None:
    """Owner, name, config and split are told apart; a split that is not there is refused with those
    that are.
    """
    calls: list[Any] = []

    def loaded(path: str, config: str | None) -> Any:
        calls.append((path, config))
        return datasets.DatasetDict(
            {"train": datasets.Dataset.from_list(ROWS), "extra": datasets.Dataset.from_list(ROWS)}
        )

    monkeypatch.setattr(datasets, "load_dataset", loaded)
    monkeypatch.setattr(hub_data, "_answers", lambda _endpoint: True)
    task = load_task(data=spec, prompt_column="q", answer_column="a")
    assert calls == [asked]
    assert len(task.train) + len(task.validation) + len(task.test) == 40
    assert ("not used: extra" in task.note) is ("@" not in spec)
    with raises_naming(InputError, "'nope'", "train", "extra"):
        load_task(data=f"{spec.partition('@')[0]}@nope", prompt_column="q", answer_column="a")


def test_without_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the hub does not answer, one sentence says so at once."""
    monkeypatch.setattr(hub_data, "_answers", lambda _endpoint: False)
    with raises_naming(InputError, "hf:owner/none"):
        load_task(data="hf:owner/none")
