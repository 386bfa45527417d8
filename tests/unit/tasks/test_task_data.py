"""Tasks from Parquet files, folders and data sets of the hub: columns are mapped, their own splits
kept, repeats counted.
"""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

from blackbox_lb.errors import DataError, InputError
from blackbox_lb.tasks import load_examples, load_task
from blackbox_lb.tasks.records import hub_data
from tests.support.errors import raises_naming

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


def test_a_broken_parquet_file(tmp_path: Path) -> None:
    """What is no Parquet file is refused by name."""
    (tmp_path / "x.parquet").write_text("hello")
    with raises_naming(DataError, "x.parquet"):
        load_task(data=tmp_path / "x.parquet")
    with raises_naming(DataError, "y.parquet"):
        load_task(data=tmp_path / "y.parquet")


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


def test_saved_to_disk(datasets: Any, tmp_path: Path) -> None:
    """What the library wrote with save_to_disk is read back; one split is divided three ways."""
    with hub_data.quiet():
        datasets.Dataset.from_list(ROWS).save_to_disk(str(tmp_path / "saved"))
    task = load_task(data=tmp_path / "saved", prompt_column="q", answer_column="a")
    assert len(task.train) + len(task.validation) + len(task.test) == 40


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


def test_names_and_data_exclude_each_other() -> None:
    """Columns belong to data, not to a task by name."""
    with raises_naming(InputError, "'capitals'"):
        load_task("capitals", prompt_column="q")
