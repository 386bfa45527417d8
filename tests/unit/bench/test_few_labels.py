"""Decisions from few labelled rows, by first lists alone."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from bench.gallery.few_labels import by_thresholds, main
from bench.gallery.over_draws import crossed
from bench.measuring import write_rows
from tests.support.exact import ExactServer
from tests.support.labelled import DECIDER, labelled_rows


def test_the_interval_holds_the_truth_for_new_prompts_and_new_draws() -> None:
    """Where prompts and draws both move the difference, in at least 93 of 100 studies."""
    rng = np.random.default_rng(4)
    held = 0
    for _ in range(1000):
        by_draw = rng.normal(0, 0.05, (5, 1))
        by_prompt = rng.normal(0, 0.5, (1, 200))
        values = 0.1 + by_draw + by_prompt + rng.normal(0, 0.3, (5, 200))
        _, low, high, _ = crossed(values)
        held += low <= 0.1 <= high
    assert held >= 0.93 * 1000


def test_a_single_draw_varies_by_its_prompts_alone() -> None:
    """Its interval is Student's, and a difference of nothing has p-value 1."""
    mean, low, high, _ = crossed(np.array([[1.0, 0.0, 0.0, 1.0]]))
    assert (mean, round(high - mean, 4)) == (0.5, round(3.1824 * np.sqrt(1 / 12), 4))
    assert low == pytest.approx(1 - high)
    assert crossed(np.zeros((3, 4))) == (0.0, 0.0, 0.0, 1.0)


def test_rbcorr_counts_every_label_alike() -> None:
    """Its shift is minus the mean logprob of a label, over as many rows of each label as of the
    others, however often a label stands among the rows.
    """
    table = np.log(np.array([[0.8, 0.2], [0.8, 0.2], [0.8, 0.2], [0.4, 0.6]]))
    shifts = by_thresholds(table, np.array([0, 0, 0, 1]))["RBCorr"]
    expected = -(table[0] + table[3]) / 2
    assert shifts == pytest.approx(expected)


def test_decisions_are_those_of_a_model_that_is_known(tmp_path: Path) -> None:
    """The labels are what the model finds likelier of the two, so that the labels alone are always
    right, and the bias nearly; the model itself hardly ever says a label.
    """
    rows = [{**row, "split": "train"} for row in labelled_rows(DECIDER)[:100]]
    rows += [{**row, "split": "test"} for row in labelled_rows(DECIDER)[100:]]
    path = write_rows(tmp_path / "rows.jsonl", rows)
    with ExactServer(DECIDER) as server:
        words = [f"Two=letters={path}", "--provider", "llamacpp", "--base-url", server.base_url]
        words += ["--store", str(tmp_path / "store.db"), "--number", "30"]
        ended = CliRunner().invoke(
            main, [*words, "--draws", "2", "--asked", "5", "--prompts", "--words-from", "30"]
        )
    assert ended.exit_code == 0, ended.output
    document = json.loads(ended.stdout.splitlines()[-1])
    (judged,) = document["evaluations"]
    assert (judged["title"], judged["labels"], judged["draws"]) == ("Two=letters", 30, 2)
    policies = {policy["name"]: policy for policy in judged["policies"]}
    assert policies["labels only"]["mean"] == 1.0
    assert policies["fixed"]["mean"] > 0.9
    assert policies["base"]["mean"] < 0.2
    assert policies["base"]["verdicts"]["fixed"] == "wins"
    assert {"words", "4 examples"} <= policies.keys()
    assert document["tables"][0]["notes"] == [
        "Of 5 test prompts that were asked with the bias, 5 began as predicted."
    ]
