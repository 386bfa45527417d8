"""Rows without an answer, in a file whose other rows have one of few labels."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from blackbox_lb.errors import DataError
from blackbox_lb.estimate.decisions.prediction import FirstLists
from blackbox_lb.jobs.fitting.choosing.priors import BATCH, batch_calibration
from blackbox_lb.tasks import load_task


def written(path: Path, rows: list[dict[str, str]]) -> Path:
    """A file of these rows."""
    path.write_text("\n".join(map(json.dumps, rows)) + "\n", encoding="utf-8")
    return path


def rows_of(labelled: int, unlabelled: int) -> list[dict[str, str]]:
    """So many rows with and without an answer."""
    rows = [{"prompt": f"p{n}", "answer": "yes" if n % 2 else "no"} for n in range(labelled)]
    return rows + [{"prompt": f"u{n}"} for n in range(unlabelled)]


def test_they_are_kept_apart(tmp_path: Path) -> None:
    """They are in no split, change the hash of the data, and are training prompts elsewhere."""
    task = load_task(data=written(tmp_path / "d.jsonl", rows_of(60, 7)), seed=1)
    assert [example.prompt.text for example in task.unlabelled] == [f"u{n}" for n in range(7)]
    assert sum(len(task.split(split)) for split in ("train", "validation", "test")) == 60
    without = load_task(data=written(tmp_path / "e.jsonl", rows_of(60, 0)), seed=1)
    assert not without.unlabelled
    assert without.data_hash != task.data_hash
    free = load_task(data=tmp_path / "d.jsonl", seed=1, require_answers=False)
    assert not free.unlabelled
    assert sum(len(free.split(split)) for split in ("train", "validation", "test")) == 67


def test_a_prompt_that_has_an_answer_elsewhere_is_no_unlabelled_one(tmp_path: Path) -> None:
    """Its row without an answer is a copy."""
    rows = [*rows_of(60, 1), {"prompt": "p3"}]
    task = load_task(data=written(tmp_path / "d.jsonl", rows), seed=1)
    assert [example.prompt.text for example in task.unlabelled] == ["u0"]


@pytest.mark.parametrize("split", ["validation", "test"])
def test_what_is_judged_by_needs_an_answer(tmp_path: Path, split: str) -> None:
    """The row is named."""
    rows = [row | {"split": "train"} for row in rows_of(30, 0)]
    rows += [{"prompt": "v", "answer": "yes", "split": "validation"}]
    rows += [{"prompt": "t", "answer": "yes", "split": "test"}, {"prompt": "x", "split": split}]
    with pytest.raises(DataError, match="line 33"):
        load_task(data=written(tmp_path / "d.jsonl", rows))


def test_batch_calibration_divides_the_mean_answer_out() -> None:
    """Two labels that the model gives .8 and .1 on average are .08 nats per e-fold apart: their
    shifts are minus the logs of these shares among the labels, with mean 0.
    """
    ids = np.tile(np.array([1, 2, 3]), (4, 1))
    logprobs = np.log(np.tile(np.array([0.8, 0.1, 0.1]), (4, 1)))
    tokens = [np.array([1]), np.array([2])]
    prior = batch_calibration([FirstLists(ids, logprobs)], tokens)
    assert prior is not None
    assert prior.name == BATCH
    assert prior.means == pytest.approx([-np.log(8) / 2, np.log(8) / 2])
    assert prior.lifted.tolist() == [1, 2]
    nothing = FirstLists(np.full((2, 1), 3), np.zeros((2, 1)))
    assert batch_calibration([nothing], tokens) is None
