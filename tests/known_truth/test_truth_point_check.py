"""Operating points of an opening on a model whose every probability is known: their curve, their
check on other prompts, and margins whose distribution is known.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import ks_2samp

from blackbox_lb import Run
from blackbox_lb.bias.operating import (
    DecisionCounts,
    OperatingCurve,
    OperatingPoint,
    PromptCounts,
)
from blackbox_lb.jobs.point_check import LEVEL, margin_distance
from tests.support.commands import asking, blb, refused
from tests.support.exact import ExactServer
from tests.support.openings import (
    COUNTS,
    LABELLED,
    MODEL,
    OPENING,
    check,
    checked,
    fit_opening,
    margin,
    row,
)
from tests.support.questions import write_rows


@pytest.fixture(scope="module")
def server() -> Iterator[ExactServer]:
    """The model behind a llama.cpp server."""
    with ExactServer(MODEL) as running:
        yield running


@pytest.fixture(scope="module")
def fitted(server: ExactServer, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A fit with a promise."""
    folder = tmp_path_factory.mktemp("point")
    return fit_opening(folder, server, objective="recall@precision=.7")


def test_the_curve_of_an_opening_is_the_truth(fitted: Run) -> None:
    """Its tokens are those that begin with the text, and at every point of the curve the counts on
    validation prompts are what the exact model decides greedily under that bias. The goal's
    promise is checked on fresh completions.
    """
    bias = fitted.bias
    curve = bias.operating
    assert curve is not None
    assert curve.token_ids == OPENING
    assert curve.positive == "begins"
    assert set(bias.logit_bias) <= set(OPENING)
    examples = fitted.task.validation
    own = np.array([margin(example.prompt.text) for example in examples])
    is_wanted = np.array([example.answers == ("begins",) for example in examples])
    sent = bias.logit_bias.get(OPENING[0], 0.0)
    for point in curve.points:
        is_decided = own + sent - curve.shift + point.shift > 0
        assert point.validation.decided == is_decided.sum()
        assert point.validation.right == (is_decided & is_wanted).sum()
    assert curve.checked is not None
    decisions = fitted.result.decisions["greedy"]
    assert sum(row.count for row in decisions.biased.labels) == COUNTS["test"]
    assert decisions.biased.no_label == decisions.base.no_label == 0
    test_margins = np.array([margin(example.prompt.text) for example in fitted.task.test])
    assert curve.checked.decisions.decided == (test_margins + sent > 0).sum()


def test_fresh_rows_are_decided_as_the_model_decides_them(
    fitted: Run, server: ExactServer, tmp_path: Path
) -> None:
    """The counts are what the exact model decides greedily with the bias, from one token a row;
    rows like those of the fit show no drift, and its promise holds on them.
    """
    rng = np.random.default_rng(2)
    rows = [row(f"fresh {number}", rng) for number in range(300)]
    data = write_rows(tmp_path / "fresh.jsonl", rows)
    found, sent = checked(server, data, fitted.folder / "bias.json", *LABELLED)
    shift = fitted.bias.logit_bias[OPENING[0]]
    is_decided = np.array([margin(each["prompt"]) + shift > 0 for each in rows])
    is_wanted = np.array([each["want"] == "begins" for each in rows])
    assert sent == found["prompts"] == 300
    assert found["checked"]["decisions"] == {
        "decided": is_decided.sum(),
        "right": (is_decided & is_wanted).sum(),
    }
    assert found["checked"]["prompts"] == {"prompts": 300, "positives": is_wanted.sum()}
    assert found["rate_now"]["value"] == pytest.approx(is_decided.mean())
    assert not found["drifted"]
    assert found["verdict"] == "HOLDS"
    assert found["auc"]["value"] > 0.7


def test_rows_without_answers_show_a_drift(
    fitted: Run, server: ExactServer, tmp_path: Path
) -> None:
    """Prompts on which the model is likelier to begin so have other margins; no answer is needed
    to see it, and nothing is said of the promise.
    """
    names = [f"other {number}" for number in range(400)]
    likely = sorted(names, key=margin)[-150:]
    data = write_rows(tmp_path / "logs.jsonl", [{"prompt": name} for name in likely])
    found, _ = checked(server, data, fitted.folder / "bias.json", "--reward", "tokens")
    assert (found["verdict"], found["drifted"]) == ("DRIFTED", True)
    assert found["promise"] is found["checked"] is None
    assert found["rate_now"]["value"] > found["rate_then"]["value"]


def test_of_the_data_of_the_fit_only_the_test_rows_are_asked(
    fitted: Run, server: ExactServer, tmp_path: Path
) -> None:
    """The point was chosen on the others."""
    data = fitted.folder.parent / "data.jsonl"
    found, _ = checked(server, data, fitted.folder / "bias.json", *LABELLED)
    assert found["prompts"] == COUNTS["test"]
    curve = fitted.bias.operating
    assert curve is not None
    assert curve.checked is not None
    assert found["checked"] == curve.checked.model_dump()


def test_a_broken_promise_is_said(fitted: Run, server: ExactServer, tmp_path: Path) -> None:
    """Where fresh rows want the opening less often, the precision falls although no margin moved,
    and the next step is named.
    """
    rows = [{"prompt": f"less {number}", "want": "other"} for number in range(100)]
    rows += [{"prompt": f"more {number}", "want": "begins"} for number in range(3)]
    data = write_rows(tmp_path / "less.jsonl", rows)
    found, _ = checked(server, data, fitted.folder / "bias.json", *LABELLED)
    assert (found["verdict"], found["promise"]["word"]) == ("BROKEN", "BROKEN")
    told = check(server, data, fitted.folder / "bias.json", *LABELLED)
    assert told.startswith("BROKEN ")
    assert "blb fit" in told
    assert "--decide" in told


def test_stored_lists_are_not_forecast_whatever_their_width(
    fitted: Run, server: ExactServer, tmp_path: Path
) -> None:
    """A check that goes on after a limit announces the rest alone."""
    data = write_rows(tmp_path / "rows.jsonl", [{"prompt": f"row {n}"} for n in range(30)])
    where = asking(server, data=data, max_tokens=1, out=tmp_path / "check", top_logprobs=10)
    words = ("check", fitted.folder / "bias.json", *where, "--reward", "tokens")
    assert "about 30 requests" in blb(*words, "--max-requests", 20).stderr
    assert "about 10 requests" in blb(*words).stderr


def test_a_bias_without_a_point_is_refused(fitted: Run, tmp_path: Path) -> None:
    """There is nothing to compare with, and no request is sent."""
    path = tmp_path / "plain.json"
    fitted.bias.replacing(operating=None).save(path)
    data = fitted.folder.parent / "data.jsonl"
    refused("check", path, "--provider", "llamacpp", "--data", data, *LABELLED)


def curve_on(then: np.ndarray) -> OperatingCurve:
    """The curve of validation prompts with these margins, with a point between any two."""
    ordered = np.sort(then)
    thresholds = (ordered[1:] + ordered[:-1]) / 2
    points = []
    for shift in sorted(-thresholds):
        counts = DecisionCounts(decided=int((then + shift > 0).sum()), right=0)
        points.append(OperatingPoint(shift=shift, training=counts, validation=counts))
    prompts = PromptCounts(prompts=len(then), positives=0)
    return OperatingCurve(
        positive="begins",
        token_ids=OPENING,
        goal="rate=0.5",
        shift=points[0].shift,
        auc=0.9,
        auc_low=0.8,
        auc_high=0.95,
        training=prompts,
        validation=prompts,
        points=tuple(points),
    )


def test_the_distance_is_that_of_kolmogorov_and_smirnov() -> None:
    """Between margins then and now, up to what lies between two points; its p-value raises a false
    alarm in at most one of twenty draws, and a shift of a standard deviation is seen in each.
    """
    rng = np.random.default_rng(0)
    alarms = 0
    for _ in range(200):
        then = rng.normal(size=80)
        now = rng.normal(size=60)
        curve = curve_on(then)
        distance, chance = margin_distance(curve, now + curve.shift)
        assert ks_2samp(then, now).statistic - 0.03 <= distance
        assert distance <= ks_2samp(then, now).statistic + 1e-9
        alarms += chance < LEVEL
        assert margin_distance(curve, now + 1.0 + curve.shift)[1] < LEVEL
    assert alarms <= 0.08 * 200
