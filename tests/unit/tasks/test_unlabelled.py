"""Rows without an answer, in a file whose other rows have one of few labels."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import blackbox_lb
from blackbox_lb.bias.document import Bias
from blackbox_lb.errors import DataError
from blackbox_lb.tasks import load_task
from tests.support.commands import asking, blb, options, refused
from tests.support.errors import names, raises_naming
from tests.support.exact import ExactModel, ExactServer
from tests.support.labelled import labelled_rows
from tests.support.questions import write_rows

Row = dict[str, str]


def rows_of(labelled: int, unlabelled: int) -> list[Row]:
    """So many rows with and without an answer."""
    rows = [{"prompt": f"p{n}", "answer": "yes" if n % 2 else "no"} for n in range(labelled)]
    return rows + [{"prompt": f"u{n}"} for n in range(unlabelled)]


def test_they_are_kept_apart(tmp_path: Path) -> None:
    """They are in no split, change the hash of the data, and are training prompts elsewhere; a
    prompt that has an answer in another row is none of them.
    """
    rows = [*rows_of(60, 7), {"prompt": "p3"}, {"prompt": "p4 "}]
    task = load_task(data=write_rows(tmp_path / "d.jsonl", rows), seed=1)
    assert names(task.note, "7 rows have no answer")
    assert [example.prompt.text for example in task.unlabelled] == [f"u{n}" for n in range(7)]
    assert len(task.train + task.validation + task.test) == 60
    without = load_task(data=write_rows(tmp_path / "e.jsonl", rows_of(60, 0)), seed=1)
    assert not without.unlabelled
    assert without.data_hash != task.data_hash
    free = load_task(data=tmp_path / "d.jsonl", seed=1, require_answers=False)
    assert not free.unlabelled
    assert len(free.train + free.validation + free.test) == 68


@pytest.mark.parametrize("split", ["validation", "test"])
def test_what_is_judged_by_needs_an_answer(tmp_path: Path, split: str) -> None:
    """The row is named."""
    rows = [row | {"split": "train"} for row in rows_of(30, 0)]
    rows += [{"prompt": "v", "answer": "yes", "split": "validation"}]
    rows += [{"prompt": "t", "answer": "yes", "split": "test"}, {"prompt": "x", "split": split}]
    with raises_naming(DataError, "line 33"):
        load_task(data=write_rows(tmp_path / "d.jsonl", rows))


MODEL = ExactModel(
    14, 2, seed=3, prompts=12, unigram=np.where(np.isin(np.arange(14), (1, 2)), -4.0, 0.0), end=True
)
"""Tokens 1 and 2, " b" and " c", are the labels; the model hardly says either."""


def fit(server: ExactServer, folder: Path, rows: list[Row], **more: object) -> tuple[str, ...]:
    """The command of a fit with a token a completion."""
    write_rows(folder / "d.jsonl", rows)
    where = asking(server, data=folder / "d.jsonl", out=folder / "run")
    return ("fit", *where, "--quiet", *options(reward="exact-match", max_tokens=1, **more))


def fitted(server: ExactServer, folder: Path, rows: list[Row], **more: object) -> Any:
    """What the fit prints as JSON."""
    result = blb(*fit(server, folder, rows, **more), "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def unanswered(row: Row) -> Row:
    """The row without its answer."""
    return {"prompt": row["prompt"], "split": row["split"]}


def test_a_decision_is_calibrated_without_any_answer(server: ExactServer, tmp_path: Path) -> None:
    """Nobody can verify the bias, unless test rows have answers; and nobody knows the labels, unless
    they are named.
    """
    rows = [unanswered(row) for row in labelled_rows(MODEL)]
    asked = {"learn_from": "unlabelled", "labels": "b,c"}
    assert fitted(server, tmp_path, rows, **asked)["status"] == "UNVERIFIED"
    bias = Bias.load(tmp_path / "run" / "bias.json")
    assert (bias.estimator, bias.settings["learn_from"]) == ("calibration", "unlabelled")
    lists = [MODEL.logprobs([], MODEL.prompt_of(row["prompt"])) for row in rows[:60]]
    likelier = np.mean([logprobs[1] - logprobs[2] for logprobs in lists])
    assert bias.logit_bias[1] - bias.logit_bias[2] == pytest.approx(-likelier, abs=0.02)
    rows = [row if row["split"] == "test" else unanswered(row) for row in labelled_rows(MODEL)]
    verdict = fitted(server, tmp_path, rows, **asked)["verdict"]
    assert {row["setting"] for row in verdict} == {"greedy"}
    assert "--labels" in refused(*fit(server, tmp_path, rows, learn_from="unlabelled"))
    for goal in ({"objective": "balanced"}, {"objective": "rate=.2", "positive": "b"}):
        assert "right answers" in refused(*fit(server, tmp_path, rows, **asked, **goal))


def test_rows_without_an_answer_join_a_fit_with_few(server: ExactServer, tmp_path: Path) -> None:
    """Their lists are asked for, and the calibrated bias is a candidate."""
    rows = labelled_rows(MODEL)
    train = [row for row in rows if row["split"] == "train"]
    few = [row for row in rows if row["split"] != "train"] + train[:6]
    document = fitted(server, tmp_path, few + [unanswered(row) for row in train[6:]], labels="b,c")
    origins = {row["origin"] for row in document["validation"]["tried"]}
    assert "learned, from calibration by the answers" in origins
    assert any(origin.startswith("batch calibration") for origin in origins)
    assert document["origin"]


def test_python_refuses_what_the_command_refuses(server: ExactServer, tmp_path: Path) -> None:
    """Rows without an answer among answers that are no labels are not dropped in silence."""
    rows = [{"prompt": f"p{n}", "answer": f"answer {n}"} for n in range(30)]
    assert "line 31" in refused(*fit(server, tmp_path, [*rows, {"prompt": "u"}]))
    with raises_naming(DataError, "line 31"):
        blackbox_lb.fit(
            tmp_path / "d.jsonl",
            reward="exact-match",
            provider="llamacpp",
            base_url=server.base_url,
            out=tmp_path / "python",
        )
