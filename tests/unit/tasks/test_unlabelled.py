"""Rows without an answer, in a file whose other rows have one of few labels."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import Result

import blackbox_lb
from blackbox_lb.bias.document import Bias
from blackbox_lb.errors import DataError
from blackbox_lb.estimate.decisions.first_lists import FirstLists
from blackbox_lb.jobs.fitting.choosing.proposing import BATCH, batch_calibration
from blackbox_lb.tasks import load_task
from tests.support.commands import blb
from tests.support.errors import raises_naming
from tests.support.exact import ExactModel, ExactServer
from tests.support.labelled import labelled_rows
from tests.support.questions import write_rows


def rows_of(labelled: int, unlabelled: int) -> list[dict[str, str]]:
    """So many rows with and without an answer."""
    rows = [{"prompt": f"p{n}", "answer": "yes" if n % 2 else "no"} for n in range(labelled)]
    return rows + [{"prompt": f"u{n}"} for n in range(unlabelled)]


def test_they_are_kept_apart(tmp_path: Path) -> None:
    """They are in no split, change the hash of the data, and are training prompts elsewhere."""
    task = load_task(data=write_rows(tmp_path / "d.jsonl", rows_of(60, 7)), seed=1)
    assert [example.prompt.text for example in task.unlabelled] == [f"u{n}" for n in range(7)]
    assert sum(len(task.split(split)) for split in ("train", "validation", "test")) == 60
    without = load_task(data=write_rows(tmp_path / "e.jsonl", rows_of(60, 0)), seed=1)
    assert not without.unlabelled
    assert without.data_hash != task.data_hash
    free = load_task(data=tmp_path / "d.jsonl", seed=1, require_answers=False)
    assert not free.unlabelled
    assert sum(len(free.split(split)) for split in ("train", "validation", "test")) == 67


def test_a_prompt_that_has_an_answer_elsewhere_is_no_unlabelled_one(tmp_path: Path) -> None:
    """Its row without an answer is a copy."""
    rows = [*rows_of(60, 1), {"prompt": "p3"}]
    task = load_task(data=write_rows(tmp_path / "d.jsonl", rows), seed=1)
    assert [example.prompt.text for example in task.unlabelled] == ["u0"]


@pytest.mark.parametrize("split", ["validation", "test"])
def test_what_is_judged_by_needs_an_answer(tmp_path: Path, split: str) -> None:
    """The row is named."""
    rows = [row | {"split": "train"} for row in rows_of(30, 0)]
    rows += [{"prompt": "v", "answer": "yes", "split": "validation"}]
    rows += [{"prompt": "t", "answer": "yes", "split": "test"}, {"prompt": "x", "split": split}]
    with raises_naming(DataError, "line 33"):
        load_task(data=write_rows(tmp_path / "d.jsonl", rows))


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
    nothing = FirstLists(np.full((2, 1), -1), np.full((2, 1), -np.inf))
    assert batch_calibration([nothing], tokens) is None


MODEL = ExactModel(
    14, 2, seed=3, prompts=12, unigram=np.where(np.isin(np.arange(14), (1, 2)), -4.0, 0.0), end=True
)
"""Tokens 1 and 2, " b" and " c", are the labels; the model hardly says either."""


def fit(server: ExactServer, data: Path, out: Path, *more: object) -> Result:
    """A fit with a token a completion."""
    arguments = (
        *("fit", "--provider", "llamacpp", "--base-url", server.base_url, "--data", data),
        *("--out", out, "--reward", "exact-match", "--max-tokens", 1, "--quiet", *more),
    )
    return blb(*arguments)


def test_a_decision_is_calibrated_without_any_answer(server: ExactServer, tmp_path: Path) -> None:
    """Nobody can verify the bias."""
    rows = [{"prompt": row["prompt"], "split": row["split"]} for row in labelled_rows(MODEL)]
    data = write_rows(tmp_path / "d.jsonl", rows)
    asked = ("--learn-from", "unlabelled", "--labels", "b,c", "--json")
    result = fit(server, data, tmp_path / "run", *asked)
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["status"] == "UNVERIFIED"
    bias = Bias.load(tmp_path / "run" / "bias.json")
    assert (bias.estimator, bias.settings["learn_from"]) == ("calibration", "unlabelled")


def test_it_is_judged_where_the_test_has_answers(server: ExactServer, tmp_path: Path) -> None:
    """Training rows without an answer, test rows with one."""
    rows = [
        row if row["split"] == "test" else {"prompt": row["prompt"], "split": row["split"]}
        for row in labelled_rows(MODEL)
    ]
    data = write_rows(tmp_path / "d.jsonl", rows)
    asked = ("--learn-from", "unlabelled", "--labels", "b,c", "--json")
    result = fit(server, data, tmp_path / "run", *asked)
    assert result.exit_code == 0, result.output
    verdict = json.loads(result.stdout)["verdict"]
    assert {row["setting"] for row in verdict} == {"greedy"}


def test_without_labels_it_is_refused(server: ExactServer, tmp_path: Path) -> None:
    """Nobody knows what the labels are."""
    rows = [{"prompt": row["prompt"], "split": row["split"]} for row in labelled_rows(MODEL)]
    data = write_rows(tmp_path / "d.jsonl", rows)
    result = fit(server, data, tmp_path / "run", "--learn-from", "unlabelled")
    assert result.exit_code == 2
    assert "--labels" in result.output


def test_rows_without_an_answer_join_a_fit_with_few(server: ExactServer, tmp_path: Path) -> None:
    """Their lists are asked for, and the calibrated bias is a candidate."""
    rows = labelled_rows(MODEL)
    train = [row for row in rows if row["split"] == "train"]
    few = [row for row in rows if row["split"] != "train"] + train[:6]
    unlabelled = [{"prompt": row["prompt"], "split": "train"} for row in train[6:]]
    data = write_rows(tmp_path / "d.jsonl", few + unlabelled)
    result = fit(server, data, tmp_path / "run", "--labels", "b,c", "--json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    origins = {row["origin"] for row in document["validation"]["tried"]}
    assert "learned, from calibration by the answers" in origins
    assert any(origin.startswith("batch calibration") for origin in origins)
    assert document["origin"]


def test_python_refuses_what_the_command_refuses(server: ExactServer, tmp_path: Path) -> None:
    """Rows without an answer among answers that are no labels are not dropped in silence."""
    rows = [{"prompt": f"p{n}", "answer": f"answer {n}"} for n in range(30)]
    data = write_rows(tmp_path / "d.jsonl", [*rows, {"prompt": "u"}])
    result = fit(server, data, tmp_path / "command")
    assert result.exit_code == 2
    assert "line 31" in result.output
    with pytest.raises(DataError) as refusal:
        blackbox_lb.fit(
            data,
            reward="exact-match",
            provider="llamacpp",
            base_url=server.base_url,
            out=tmp_path / "python",
        )
    assert "line 31" in str(refusal.value)
