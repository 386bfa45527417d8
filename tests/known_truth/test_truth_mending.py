"""Mending of readers whose slope and offsets are known."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import logsumexp, softmax

from blackbox_lb.errors import InputError
from blackbox_lb.estimate.inputs.checks import Vector
from blackbox_lb.estimate.label_fit import SlopePull, label_fit, label_fits
from blackbox_lb.estimate.mending import (
    LEAST_SLOPE,
    CandidateMending,
    MendingRows,
    best_mending,
    candidate_weights,
    changed_by_floors,
    mending_candidates,
    ordered_basis,
)
from blackbox_lb.estimate.right_decisions import best_offsets

ROWS = 2_000


def reader(
    slope: float, offsets: Vector, count: int = ROWS, seed: int = 0, spread: float = 1.5
) -> MendingRows:
    """Rows whose answers are drawn from ``softmax(slope * v + offsets)``."""
    rng = np.random.default_rng(seed)
    scores = rng.normal(0, spread, (count, len(offsets)))
    logprobs = scores - logsumexp(scores, axis=1, keepdims=True)
    noise = rng.gumbel(size=scores.shape)
    answers = (slope * logprobs + offsets + noise).argmax(axis=1)
    return MendingRows(logprobs, answers, np.zeros(scores.shape, np.bool_))


def rounded(rows: MendingRows, decimals: int = 2) -> MendingRows:
    """The same rows as an endpoint prints them; 0 stands at half of the last decimal."""
    printed = np.round(np.exp(rows.logprobs), decimals)
    is_floored = printed == 0
    values = np.where(is_floored, 0.5 * 10**-decimals, printed)
    return MendingRows(np.log(values), rows.answers, is_floored, rows.is_ordered)


def chosen_mending(rows: MendingRows) -> CandidateMending:
    """What a fit of these rows chooses."""
    return best_mending(mending_candidates(rows), rows.answers)


def effective_offsets(rows: MendingRows) -> tuple[float, Vector]:
    """Slope, and offsets with the center in them, of sum 0, of the candidate that learns both."""
    candidates = {candidate.name: candidate for candidate in mending_candidates(rows)}
    mending = candidates["slope and offsets"].mending
    offsets = mending.offsets + mending.slope * mending.center
    return mending.slope, offsets - offsets.mean()


@pytest.mark.parametrize(
    ("slope", "offsets"),
    [(0.4, [0.0, 1.0, -2.0, 0.3, 0.7]), (1.0, [0.5, -0.5]), (1.8, [1.5, 0.0, -1.5])],
)
def test_slope_and_offsets_are_found(slope: float, offsets: list[float]) -> None:
    """Of 2,000 rows, to an eighth of the slope and .3 nats: about three standard errors of
    the rarest option.
    """
    truth = np.array(offsets) - np.mean(offsets)
    found_slope, found = effective_offsets(reader(slope, truth))
    assert found_slope == pytest.approx(slope, rel=0.125)
    assert found == pytest.approx(truth, abs=0.3)


def test_slope_and_offsets_are_found_from_two_decimals() -> None:
    """Where few values are printed as 0, rounding costs no more than the sampling error."""
    truth = np.array([1.0, 0.0, -1.0])
    rows = rounded(reader(0.7, truth, spread=1.0))
    assert rows.floored.mean() < 0.01
    slope, offsets = effective_offsets(rows)
    assert slope == pytest.approx(0.7, rel=0.1)
    assert offsets == pytest.approx(truth, abs=0.15)


def test_rows_decided_by_a_floor_are_counted() -> None:
    """A row whose new likeliest option was printed as 0 is one; a row whose new option was printed
    with a value is none, and neither is one that keeps its option.
    """
    logprobs = np.log([[0.99, 0.005, 0.005], [0.6, 0.4, 0.005], [0.01, 0.98, 0.01]])
    floored = np.array([[False, True, True], [False, False, True], [False] * 3])
    rows = MendingRows(logprobs, np.full(3, -1), floored)
    truth = reader(1.0, np.array([-4.0, 3.0, 1.0]), count=300)
    mending = chosen_mending(truth).mending
    assert changed_by_floors(mending, rows).tolist() == [True, False, False]


def test_the_fit_is_the_optimum() -> None:
    """Slope and offsets agree with a solver without derivatives, with each pull on its own."""
    rows = reader(0.5, np.array([1.0, 0.0, -1.0]), count=40)
    scores = rows.logprobs
    basis = ordered_basis(3)
    l2 = np.array([8.0, 0.5])
    pull = SlopePull(1.0, np.array([0.3, 3.0]), LEAST_SLOPE)
    slopes, offsets = label_fits(scores, rows.answers, basis, l2, pull)

    def loss(x: Vector) -> float:
        logits = x[0] * scores + x[1:]
        right = logits[np.arange(40), rows.answers]
        bend = x[1] - 2 * x[2] + x[3]
        price = 3 / 2 * (x[0] - 1) ** 2 + 0.5 / 2 * (bend**2 + 0.1 * (x[1:] ** 2).sum())
        return float(logsumexp(logits, axis=1).sum() - right.sum() + price)

    best = minimize(loss, np.zeros(4), method="Powell", options={"xtol": 1e-9, "ftol": 1e-13}).x
    assert slopes[1] == pytest.approx(best[0], abs=1e-4)
    assert offsets[1] == pytest.approx(best[1:], abs=1e-4)


def test_a_slope_stays_above_zero() -> None:
    """A reader that is wrong on purpose gets the least slope, not its opposite."""
    scores = np.random.default_rng(0).normal(0, 2, (300, 3))
    pull = SlopePull(1.0, 0.3, LEAST_SLOPE)
    slope, _ = label_fit(scores, scores.argmin(axis=1), slope=pull)
    assert slope == LEAST_SLOPE


def test_offsets_of_a_score_are_smooth() -> None:
    """The level that no answer shows gets an offset nearer to its neighbours' than without an
    order, at the same strength; the true order of the levels is found.
    """
    levels = np.array([-1.0, -0.5, 0.0, 0.5, 1.0])
    rows = reader(1.0, levels, count=150, seed=3)
    is_seen = rows.answers != 2
    scores = rows.logprobs[is_seen]
    answers = rows.answers[is_seen]
    pull = SlopePull(1.0, 3.0, LEAST_SLOPE)
    l2 = np.array([2.0])
    _, (plain,) = label_fits(scores, answers, np.eye(5), l2, pull)
    _, (smooth,) = label_fits(scores, answers, ordered_basis(5), l2, pull)
    gap = (plain[1] + plain[3]) / 2 - plain[2]
    smooth_gap = (smooth[1] + smooth[3]) / 2 - smooth[2]
    assert 0 < smooth_gap < 0.7 * gap
    many = reader(1.0, levels)
    weak = np.array([0.1])
    _, (offsets,) = label_fits(many.logprobs, many.answers, ordered_basis(5), weak, pull)
    assert offsets == pytest.approx(levels, abs=0.25)


def test_best_offsets_reach_the_best_accuracy() -> None:
    """Of two options they reach that of every threshold."""
    rng = np.random.default_rng(1)
    scores = rng.normal(0, 1, (200, 2))
    answers = (scores[:, 0] - scores[:, 1] + rng.logistic(1.0, 1.0, 200) < 0).astype(np.int64)
    offsets = best_offsets(scores, answers)
    margins = scores[:, 1] - scores[:, 0]
    best = max(((margins > cut) == answers).mean() for cut in [-9.0, *margins, 9.0])
    assert ((scores + offsets).argmax(axis=1) == answers).mean() == best


def test_the_average_is_of_scores() -> None:
    """Its probabilities are the weighted geometric mean of the candidates', by weights that fall
    with the square root of the answers times the mean log loss, the batch prior's three times.
    """
    rows = reader(0.6, np.array([2.0, 0.0, -2.0]), count=64)
    candidates = mending_candidates(rows)
    losses = np.array([candidate.scores.log_loss for candidate in candidates])
    weights = np.array([1, 3, 1, 1, 1]) * np.exp(-8 * losses)
    weights /= weights.sum()
    assert candidate_weights(candidates) == pytest.approx(weights)
    average = best_mending(candidates, rows.answers)
    assert average.name == "average"
    logs = [np.log(candidate.mending.probabilities(rows.logprobs)) for candidate in candidates]
    mean = softmax(np.tensordot(weights, np.array(logs), axes=1), axis=1)
    assert average.mending.probabilities(rows.logprobs) == pytest.approx(mean)
    lists = [np.log(candidate.left_out) for candidate in candidates]
    left_out = softmax(np.tensordot(weights, np.array(lists), axes=1), axis=1)
    assert average.left_out == pytest.approx(left_out)


def test_a_reader_that_nothing_improves_is_left_as_it_is() -> None:
    """A reader that says nothing, and answers in equal shares."""
    answers = np.arange(12) % 3
    logprobs = np.log(np.full((12, 3), 1 / 3))
    rows = MendingRows(logprobs, answers, np.zeros(logprobs.shape, np.bool_))
    assert chosen_mending(rows).name == "as it is"


def test_a_calibrated_reader_is_left_as_it_is() -> None:
    """Where answers are drawn from the raw probabilities, nothing that is learned from 300 of them
    is better, or better by more than a hundredth of a nat on fresh rows.
    """
    chosen = chosen_mending(reader(1.0, np.zeros(3), count=300, seed=2))
    fresh = reader(1.0, np.zeros(3), seed=9)
    places = np.arange(ROWS)
    raw = -softmax(fresh.logprobs, axis=1)[places, fresh.answers]
    mended = -chosen.mending.probabilities(fresh.logprobs)[places, fresh.answers]
    assert np.log(-mended).mean() > np.log(-raw).mean() - 0.01


def test_a_biased_reader_is_mended() -> None:
    """Of 100 rows, the share of right decisions on fresh ones is within three hundredths of the
    best possible, and the cross-validated one is near it.
    """
    truth = np.array([2.0, 0.0, -2.0])
    chosen = chosen_mending(reader(0.6, truth, count=100))
    fresh = reader(0.6, truth, seed=9)
    best = ((0.6 * fresh.logprobs + truth).argmax(axis=1) == fresh.answers).mean()
    mended = (chosen.mending.probabilities(fresh.logprobs).argmax(axis=1) == fresh.answers).mean()
    assert mended > best - 0.03
    assert chosen.scores.accuracy == pytest.approx(best, abs=0.1)


@pytest.mark.parametrize(
    "answers",
    [
        [0, 0, 0, 0, 1],
        [0, 1, 2, 0, 1, 2, 0, 1, 2, 0],
        [0] * 9 + [2],
        [0, 1] * 5,
        [1, 1, 0, 2, -1, 1, 1, -1, 0, 0],
    ],
)
@pytest.mark.parametrize("is_ordered", [False, True])
def test_few_rows_are_enough(answers: list[int], is_ordered: bool) -> None:
    """Five to ten answers, an option with one row or none: finite slopes and offsets, and a
    distribution for every row.
    """
    count = len(answers)
    logprobs = np.log(np.random.default_rng(0).dirichlet(np.ones(3), count))
    floored = np.zeros((count, 3), np.bool_)
    rows = MendingRows(logprobs, np.array(answers), floored, is_ordered=is_ordered)
    for candidate in mending_candidates(rows):
        assert np.isfinite(candidate.mending.offsets).all()
        assert candidate.mending.slope >= LEAST_SLOPE
        assert candidate.left_out.sum(axis=1) == pytest.approx(np.ones(count))


@pytest.mark.parametrize("answers", [[0, 1, 0, 1, -1, -1], [1] * 10, [-1] * 10, []])
def test_nothing_is_learned_from_nothing(answers: list[int]) -> None:
    """Fewer than five answers, or one option alone."""
    count = len(answers)
    floored = np.zeros((count, 2), np.bool_)
    rows = MendingRows(np.log(np.full((count, 2), 0.5)), np.array(answers, np.int64), floored)
    with pytest.raises(InputError):
        chosen_mending(rows)


def test_rows_are_checked() -> None:
    """Shapes, values and numbers of options."""
    logprobs = np.log(np.full((2, 2), 0.5))
    floored = np.zeros((2, 2), np.bool_)
    answers = np.array([0, 1])
    for wrong in (
        (logprobs[:, :1], answers, floored[:, :1]),
        (logprobs, answers[:1], floored),
        (logprobs, answers, floored[:1]),
        (logprobs - np.inf, answers, floored),
        (logprobs, answers + 1, floored),
        (logprobs, answers - 2, floored),
    ):
        with pytest.raises(InputError):
            MendingRows(*wrong)
