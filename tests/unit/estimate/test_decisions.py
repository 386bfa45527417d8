"""Decisions: their scores against scikit-learn's, and greedy predictions against the whole
distribution.
"""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.special import logsumexp

from blackbox_lb.errors import InputError
from blackbox_lb.estimate.decisions.feasibility import pulled_shifts
from blackbox_lb.estimate.decisions.first_lists import FirstLists, among, begins_right
from blackbox_lb.estimate.decisions.prediction import decisions_of
from blackbox_lb.estimate.label_fit import label_fit
from tests.support.errors import raises_naming

NAMES = ("a", "b", "c")


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(-1, 2)), min_size=1, max_size=60))
def test_scores_are_scikit_learns(pairs: list[tuple[int, int]]) -> None:
    """Precision, recall, F1 and the confusion matrix, with "no label" as a class that nothing
    has.
    """
    from sklearn.metrics import confusion_matrix, f1_score, precision_score, recall_score

    truth, said = np.array(pairs).T
    found = decisions_of(NAMES, truth, said)
    there = sorted(set(truth.tolist()))
    common = {"labels": there, "average": None, "zero_division": 0}
    f1 = [found.labels[label].f1 for label in there]
    recall = [found.labels[label].recall for label in there]
    np.testing.assert_allclose(f1, f1_score(truth, said, **common))
    np.testing.assert_allclose(recall, recall_score(truth, said, **common))
    decided = [label for label in there if (said == label).any()]
    np.testing.assert_allclose(
        [found.labels[label].precision for label in decided],
        precision_score(truth, said, labels=decided, average=None, zero_division=0),
    )
    assert found.macro_f1 == pytest.approx(
        f1_score(truth, said, labels=there, average="macro", zero_division=0)
    )
    whole = confusion_matrix(truth, np.where(said < 0, 3, said), labels=[0, 1, 2, 3])
    np.testing.assert_array_equal(found.confusion, whole[:3])
    assert found.accuracy == pytest.approx(np.mean(truth == said))
    assert found.no_label == pytest.approx(np.mean(said < 0))
    always = max(range(3), key=truth.tolist().count)
    assert found.majority == pytest.approx(np.mean(truth == always))
    assert found.commonest.label == NAMES[always]


@pytest.mark.parametrize(
    ("confidence", "right", "error"),
    [
        ([1.0, 1.0], [1, 1], 0.0),
        ([0.55, 0.55], [1, 0], 0.05),
        ([1.0, np.nan], [0, 1], 1.0),
        ([np.nan], [1], None),
    ],
)
def test_calibration_error_is_the_gap_between_confidence_and_accuracy(
    confidence: list[float], right: list[int], error: float | None
) -> None:
    """Sure and wrong is all of it."""
    decisions = decisions_of(NAMES, [1] * len(right), right, confidence)
    assert decisions.calibration_error == pytest.approx(error)


def test_what_is_no_decision_is_refused() -> None:
    """Decisions and labels must be as many, and labels must be among those that are named."""
    with raises_naming(InputError, "(2,)", "(1,)"):
        decisions_of(NAMES, [0, 1], [0])
    with raises_naming(InputError, "3"):
        decisions_of(NAMES, [3], [0])
    assert decisions_of(NAMES, [], []).accuracy is None


@settings(max_examples=60)
@given(st.integers(0, 2**32 - 1), st.integers(1, 12))
def test_greedy_is_exact_where_it_is_sure(seed: int, width: int) -> None:
    """From a list of the likeliest tokens, the greedy token under a bias is that of the whole
    distribution unless it is unsure.
    """
    rng = np.random.default_rng(seed)
    whole = np.log(rng.dirichlet(np.ones(12), 5))
    bias = {
        int(token): float(value)
        for token, value in zip(rng.choice(12, 4, replace=False), rng.normal(0, 2, 4), strict=True)
    }
    order = np.argsort(-whole, axis=1)[:, :width]
    lists = FirstLists(order, np.take_along_axis(whole, order, 1))
    full = (whole + np.array([bias.get(token, 0.0) for token in range(12)])).argmax(axis=1)
    sure = ~lists.unsure(bias)
    np.testing.assert_array_equal(lists.greedy(bias)[sure], full[sure])
    if width == 12:
        assert sure.all()
    assert begins_right(full, [np.array([token]) for token in full]).all()


def test_each_list_gains_the_tokens_that_it_lacks_at_their_bound() -> None:
    """Those named for all prompts and its own, in the order of their ids behind the list; a prompt
    without a list stays without one. Memory is for what lists gain, and not for every prompt's own
    token in every list.
    """
    nats = np.log(np.array([[0.5, 0.25], [0.5, 0.25], [1.0, 1.0]]))
    nats[2] = -np.inf
    lists = FirstLists(np.array([[3, 7], [9, 3], [-1, -1]]), nats)
    own = [np.array([7]), np.array([5, 8]), np.array([1])]
    wider = lists.with_tokens(np.array([4, 3]), own)
    assert wider.ids.tolist() == [[3, 7, 4, -1, -1], [9, 3, 4, 5, 8], [-1] * 5]
    np.testing.assert_allclose(np.exp(wider.logprobs[0, :3]), [0.5, 0.25, 0.125], rtol=1e-6)
    np.testing.assert_allclose(np.exp(wider.logprobs[1, 2:]), np.full(3, 0.125 / 3), rtol=1e-6)

    rows = 5_000
    many = FirstLists(np.zeros((rows, 1), np.int32), np.full((rows, 1), -1.0))
    tracemalloc.start()
    wider = many.with_tokens(np.zeros(0, np.int64), [np.array([row]) for row in range(rows)])
    assert wider.ids.shape == (rows, 2)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 20e6


def test_pulled_shifts_are_the_optimum_and_forgive_a_model_that_is_too_sure() -> None:
    """They agree with a solver without derivatives; where the true log-odds are a third of the
    model's, they find the shift that decides right, which the likeliest shift at scale 1 does not.
    """
    draws = np.random.default_rng(0)
    shift = np.array([1.0, 0.0, -1.0])
    scores = 3.0 * draws.normal(0, 1, (4_000, 3))
    logits = (scores + shift) / 3.0
    labels = (logits + draws.gumbel(size=logits.shape)).argmax(axis=1)
    shifts = pulled_shifts(scores, labels, 1.0)
    assert shifts == pytest.approx(shift, abs=0.25)
    _, plain = label_fit(scores, labels)
    assert np.abs(plain - plain.mean() - shift).max() > 2 * np.abs(shifts - shift).max()

    few, right, counts = scores[:40], labels[:40], draws.uniform(0.5, 2, 40)

    def loss(x: np.ndarray) -> float:
        moved = x[1:] - x[1:].mean()
        z = np.exp(x[0]) * (few + moved)
        logs = z - logsumexp(z, axis=1, keepdims=True)
        return float(-counts @ logs[np.arange(40), right] + 5 * moved @ moved + x[0] ** 2 / 2)

    best = minimize(loss, np.zeros(4), method="Powell", options={"xtol": 1e-9, "ftol": 1e-12}).x
    assert pulled_shifts(few, right, 10.0, counts) == pytest.approx(
        best[1:] - best[1:].mean(), abs=1e-3
    )
    assert pulled_shifts(few, right, 1e6) == pytest.approx(np.zeros(3), abs=1e-3)


def test_greedy_decides_between_the_likeliest_tokens() -> None:
    """Three spellings of one label add up for a sample, and greedy decoding takes the best one."""
    ids = np.array([[1, 2, 3, 4], [4, 1, 9, -1], [9, 8, -1, -1]])
    logprobs = np.log(np.array([[0.2, 0.2, 0.2, 0.4], [0.6, 0.3, 0.1, 1.0], [0.5, 0.5, 1, 1]]))
    logprobs[ids < 0] = -np.inf
    lists = FirstLists(ids, logprobs)
    groups = [np.array([1, 2, 3]), np.array([4])]
    assert lists.shares(groups)[0] == pytest.approx([0.6, 0.4, 0.0])
    shares = among(np.exp(lists.best(groups)))
    assert shares[:2] == pytest.approx(np.array([[1 / 3, 2 / 3], [1 / 3, 2 / 3]]))
    assert np.isnan(shares[2]).all()
    assert (np.array([4, 4]) == lists.greedy({})[:2]).all()
