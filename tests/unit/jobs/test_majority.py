"""A decision where always giving the commonest label is as good: every place that names a verdict
says so.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blackbox_lb.bias.document import Bias
from blackbox_lb.estimate.decisions.prediction import beats_commonest, decisions_of
from tests.support.commands import asking, blb, refusal
from tests.support.errors import names
from tests.support.exact import ExactModel, ExactServer
from tests.support.printed import ended_well, printed
from tests.support.questions import write_rows

V = 14
MODEL = ExactModel(
    V, 2, seed=30, prompts=20, unigram=np.where(np.arange(V) == V - 1, 0.5, 0.0), end=True
)
"""It knows nothing of the labels " b" and " c", and rarely says one."""


@dataclass(frozen=True, slots=True)
class Fitted:
    """A fit of the command line: its folder, server, options and outputs."""

    folder: Path
    server: ExactServer
    words: tuple[object, ...]
    text: str
    document: dict[str, Any]


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fitted]:
    """Two of three rows are "b", whatever the prompt says: a bias makes the model say it."""
    root = tmp_path_factory.mktemp("majority")
    generator = np.random.default_rng(1)
    rows = [
        {"prompt": f"question {number}", "answer": "c" if generator.random() < 1 / 3 else "b"}
        for number in range(200)
    ]
    write_rows(root / "data.jsonl", rows)
    folder = root / "run"
    with ExactServer(MODEL) as server:
        task = asking(server, reward="accuracy", data=root / "data.jsonl", max_tokens=2)
        words = (*task, "--quiet")
        done = ended_well(blb("fit", *words, "--out", folder))
        document = json.loads((folder / "result.json").read_text())
        yield Fitted(folder, server, words, done.stdout, document)


def test_the_first_words_of_a_fit_name_the_commonest_label(fitted: Fitted) -> None:
    """The verdict against the base stays HELPS in the record, which holds the label, its share and
    the biased accuracy; the first line names label and share, and so does the list of runs.
    """
    [row] = [row for row in fitted.document["verdict"] if row["metric"] == "accuracy"]
    assert row["verdict"] == "HELPS"
    commonest = row["commonest"]
    assert (commonest["label"], commonest["is_beaten"]) == ("b", False)
    assert commonest["accuracy"] == pytest.approx(row["biased"])
    lines = fitted.text.splitlines()
    assert lines[0].startswith("NOT SHOWN TO PAY")
    headline = " ".join(line.strip() for line in lines[:2])
    assert names(headline, "b", f"{100 * commonest['share']:.0f} %")
    assert "--deploy greedy --rivals" in " ".join(lines)
    [listed] = json.loads(blb("runs", fitted.folder.parent, "--json").stdout)["runs"]
    assert (listed["verdict"], listed["headline"]) == Bias.load(
        fitted.folder / "bias.json"
    ).headline


def test_a_check_says_yes_only_above_the_commonest_label(fitted: Fitted, tmp_path: Path) -> None:
    """A bias would mend most answers, and get what the commonest label has: not shown to pay."""
    found = printed(blb("check", *fitted.words, "--out", tmp_path, "--json"))
    assert found["answer"] == "not above the commonest"
    assert found["commonest"] == "b"
    assert found["predicted"] > found["base"]
    text = blb("check", *fitted.words, "--out", tmp_path).stdout
    assert text.startswith("NOT SHOWN TO PAY")
    assert f"{100 * found['majority']:.0f} %" in text
    assert not any(line.startswith("YES") for line in text.splitlines())


def test_an_evaluation_judges_where_the_bias_was_judged(fitted: Fitted, tmp_path: Path) -> None:
    """Without --deploy, at the settings of its verdict alone; the comparison with the base has the
    p-values of the fit, however many alternatives stand beside it, and its headline.
    """
    words = ("eval", fitted.folder / "bias.json", *fitted.words, "--out", tmp_path)
    rivals = ("--rival", "prompt:Say b.", "--rival", "prompt:Say c.", "--rival", "labels-only")
    document = printed(blb(*words, *rivals, "--json"))
    said = " ".join(blb(*words, *rivals).stdout.split())
    assert " ".join(Bias.load(fitted.folder / "bias.json").headline) in said
    assert {row["setting"] for row in document["policies"]} == {"greedy"}
    primary = [row for row in document["comparisons"] if row["family"] == "primary"]
    fit_rows = [row for row in fitted.document["verdict"] if row["setting"] == "greedy"]
    assert [row["metric"] for row in primary] == [row["metric"] for row in fit_rows]
    for row, before in zip(primary, fit_rows, strict=True):
        assert (row["p"], row["verdict"]) == (before["p"], before["verdict"])
    secondary = [row for row in document["comparisons"] if row["family"] == "secondary"]
    assert {row["metric"] for row in secondary} == {"accuracy"}


def test_an_evaluation_that_can_show_nothing_is_refused(fitted: Fitted, tmp_path: Path) -> None:
    """Four prompts show no difference at all; that is said before the first completion, with the
    number of prompts that would do.
    """
    asked = len(fitted.server.requests)
    done = blb(
        *("eval", fitted.folder / "bias.json", *fitted.words, "--out", tmp_path, "--test-limit", 4),
        *("--deploy", "temperature=1", "--deploy", "greedy", "--rival", "prompt:Say b."),
    )
    message = refusal(done)
    assert "too few for the 4 primary comparisons" in message
    assert "give 8 test prompts or more" in message
    assert "--deploy greedy" in message
    assert not [body for body in fitted.server.requests[asked:] if "max_tokens" in body]


@pytest.mark.parametrize(
    ("won", "completions", "is_beaten"), [(6, 1, True), (5, 1, False), (6, 6, False)]
)
def test_the_commonest_label_is_beaten_by_evidence_alone(
    won: int, completions: int, is_beaten: bool
) -> None:
    """A sign test: six prompts won and none lost have p = 1/32; six completions of one prompt are
    one prompt.
    """
    right = [0] * 35 + [1] * 15
    decided = [0] * (50 - won) + [1] * won
    assert beats_commonest(decisions_of(("a", "b"), right, decided), completions) == is_beaten
