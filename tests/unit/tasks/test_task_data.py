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
ROWS = [{"q": f"What is {n} + {n}?", "a": str(2 * n), "id": 7, "split": "x"} for n in range(40)]
COLUMNS: dict[str, Any] = {"prompt_column": "q", "answer_column": "a"}


@pytest.fixture(autouse=True)
def datasets(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """The library, whose cache is a folder of the test's own."""
    library: Any = importlib.import_module("datasets")
    monkeypatch.setattr(library.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    return library


def parquet(path: Path, columns: dict[str, list[Any]]) -> Path:
    """A file of these columns."""
    pyarrow.parquet.write_table(pyarrow.table(columns), path)
    return path


def test_parquet_is_read_like_jsonl(tmp_path: Path) -> None:
    """One row a prompt, answers as lists or numbers, an absent cell absent. Nobody knows which of
    two columns of one name is meant.
    """
    columns: dict[str, list[Any]] = {
        "prompt": ["1 + 1?", "2 + 2?"],
        "answer": [["2", "two"], ["4"]],
    }
    examples = load_examples(parquet(tmp_path / "a.parquet", columns))
    assert [example.answers for example in examples] == [("2", "two"), ("4",)]
    columns = {"prompt": ["x", None], "answer": [3, 4]}
    with raises_naming(DataError, "b.parquet", "row 2", "prompt"):
        load_examples(parquet(tmp_path / "b.parquet", columns))
    cells = [pyarrow.array([text]) for text in ("x", "y", "z")]
    table = pyarrow.Table.from_arrays(cells, names=["prompt", "answer", "answer"])
    pyarrow.parquet.write_table(table, tmp_path / "c.parquet")
    with raises_naming(DataError, "c.parquet", "'answer'", "twice"):
        load_examples(tmp_path / "c.parquet")


def test_a_folder_keeps_its_splits(tmp_path: Path) -> None:
    """dev is validation, test is divided off train, and of equal prompts one is kept and the others
    counted.
    """
    folder = tmp_path / "sums"
    folder.mkdir()
    dev = [ROWS[0], {**ROWS[0], "q": "What is 99 + 1?"}]
    for name, rows in (("train", [*ROWS, ROWS[3]]), ("dev", dev)):
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / f"{name}.jsonl").write_text(lines)
    task = load_task(data=folder, **COLUMNS)
    assert task.name == "sums"
    assert len(task.validation) == 2
    assert len(task.train) + len(task.test) == 39
    assert "1 row equal to another" in task.note
    assert "1 row left out of train, whose prompts are in validation" in task.note
    with raises_naming(DataError, "dev.jsonl", "line 1", "'r'"):
        load_task(data=folder, prompt_column="r", answer_column="a")


def test_cells_of_a_folder_are_texts(tmp_path: Path) -> None:
    """None and N/A are labels, and 01 is not 1, as in a single file; its separator is found, and
    Windows-1252 is said.
    """
    rows = "".join(f"Käse {n}?;{['None', 'N/A', '01'][n % 3]}\n" for n in range(60))
    (tmp_path / "train.csv").write_bytes(f"prompt;answer\n{rows}".encode("cp1252"))
    (tmp_path / "notes.txt").write_text("x")
    task = load_task(data=tmp_path)
    assert len(task.train) + len(task.validation) + len(task.test) == 60
    assert {example.answers for example in task.train} == {("None",), ("N/A",), ("01",)}
    assert names(task.note, "60 rows", "Windows-1252")


def test_images_are_not_looked_at(datasets: Any, tmp_path: Path) -> None:
    """A column of images, also inside of lists and objects, needs no library that decodes them."""
    image = datasets.Image()
    features = datasets.Features(
        {
            "prompt": datasets.Value("string"),
            "answer": datasets.Value("string"),
            "images": datasets.List({"image": image}),
        }
    )
    shown = [{"image": {"bytes": b"no image", "path": None}}]
    rows = [{"prompt": f"p{n}", "answer": "x", "images": shown} for n in range(40)]
    table = datasets.Dataset.from_list(rows, features=features)
    with hub_data.quiet():
        table.to_parquet(str(tmp_path / "a.parquet"))
    assert load_examples(tmp_path / "a.parquet")[0].answers == ("x",)


def test_a_folder_in_another_encoding_is_refused_by_its_file(tmp_path: Path) -> None:
    """With the command that helps, where its files are not named after splits."""
    for name, text in (("first", "prompt,answer\np,a\n"), ("second", "prompt,answer\né,a\n")):
        (tmp_path / f"{name}.csv").write_bytes(text.encode("cp1252"))
    with raises_naming(InputError, "second.csv", "line 2", "iconv -f WINDOWS-1252"):
        load_task(data=tmp_path)


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
        path = tmp_path / "a.parquet"
        examples = load_examples(path, answer_column=column, require_answers=False)
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


def tool(name: str, properties: dict[str, Any]) -> dict[str, Any]:
    """A function with parameters."""
    parameters = {"type": "object", "properties": properties}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def test_padding_of_a_table_is_not_sent(tmp_path: Path) -> None:
    """Arrow gives all objects of a list the same fields, at every depth, in tools and in messages;
    what was padded is as it was before. A null that JSON text holds stays.
    """
    tools = [
        tool("weather", {"city": {"type": "string", "enum": ["Oslo", "Quito"]}}),
        tool("trains", {"station": {"type": "object", "properties": {"id": {"type": "integer"}}}}),
    ]
    call = {"id": "c", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    asked = {"role": "user", "content": "Rain?"}
    chats: list[list[dict[str, Any]]] = [
        [asked],
        [
            asked,
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c", "content": "rain"},
        ],
    ]
    columns: dict[str, list[Any]] = {
        "messages": chats,
        "tools": [[tools[0]], [tools[1]]],
        "answer": ["a", "b"],
    }
    examples = load_examples(parquet(tmp_path / "a.parquet", columns))
    for example, chat, offered in zip(examples, chats, tools, strict=True):
        assert [message.as_json for message in example.prompt.messages] == chat
        assert json.loads(example.prompt.tools) == [offered]
    optional = tool("weather", {"city": {"default": None, "enum": ["Oslo", None]}})
    columns = {"prompt": ["x"], "tools": [json.dumps([optional])], "answer": ["a"]}
    lines = tmp_path / "b.jsonl"
    lines.write_text(json.dumps({"prompt": "x", "tools": [optional], "answer": "a"}))
    for path in (parquet(tmp_path / "b.parquet", columns), lines):
        [example] = load_examples(path)
        assert json.loads(example.prompt.tools) == [optional]


def test_a_test_split_whose_answers_are_kept_secret(datasets: Any, tmp_path: Path) -> None:
    """It counts as missing, and rows without an answer are left out of validation: both are said.
    Without any answer in train, the column is named.
    """
    label = datasets.ClassLabel(names=["no", "yes"])
    features = datasets.Features({"prompt": datasets.Value("string"), "label": label})
    labels = {"train": [0, 1] * 20, "validation": [0, 1, -1], "test": [-1, -1]}
    splits = {}
    for name, numbers in labels.items():
        rows = [{"prompt": f"{name}{n}", "label": label} for n, label in enumerate(numbers)]
        splits[name] = datasets.Dataset.from_list(rows, features=features)
    with hub_data.quiet():
        datasets.DatasetDict(splits).save_to_disk(str(tmp_path / "saved"))
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
    that are; where the hub does not answer, one sentence says so at once.
    """
    calls: list[Any] = []

    def loaded(path: str, config: str | None) -> Any:
        calls.append((path, config))
        table = datasets.Dataset.from_list(ROWS)
        return datasets.DatasetDict({"train": table, "extra": table})

    monkeypatch.setattr(datasets, "load_dataset", loaded)
    monkeypatch.setattr(hub_data, "_answers", lambda _endpoint: True)
    task = load_task(data=spec, **COLUMNS)
    assert calls == [asked]
    assert len(task.train) + len(task.validation) + len(task.test) == 40
    assert ("not used: extra" in task.note) is ("@" not in spec)
    with raises_naming(InputError, "'nope'", "train", "extra"):
        load_task(data=f"{spec.partition('@')[0]}@nope", **COLUMNS)
    monkeypatch.setattr(hub_data, "_answers", lambda _endpoint: False)
    with raises_naming(InputError, spec):
        load_task(data=spec)
