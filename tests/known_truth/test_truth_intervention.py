"""Intervention scores, against the exact ones and against each other."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import logsumexp

from blackbox_lb.estimate.inputs.checks import Vector
from blackbox_lb.estimate.inputs.rollouts import Rollouts
from blackbox_lb.estimate.next_token.next_token import NextToken
from blackbox_lb.estimate.reweighting import (
    InterventionScores,
    divergence,
    intervention_scores,
)
from tests.support.exact import ExactModel
from tests.support.truth import Exact

V, T, N = 40, 3, 4000
RARE = np.where(np.arange(V) < 25, 0.0, -3.0)
DELTA = np.random.default_rng(2).normal(size=V)
MODEL = ExactModel(V, T, seed=5, unigram=RARE)


def nothing(tokens: tuple[int, ...], prompt: int) -> float:
    """No reward: none is read."""
    return 0.0


def scores_of(rollouts: Rollouts, shifts: Vector) -> InterventionScores:
    """Of all positions."""
    return intervention_scores(rollouts.token_ids, rollouts.rollout_of, shifts)


def exact_shifts(
    logprobs: np.ndarray[Any, np.dtype[np.float64]],
    sampled: np.ndarray[Any, np.dtype[np.int32]],
    delta: Vector,
) -> Vector:
    """(m,) ``delta(y) - log sum_v pi_0(v) exp(delta(v))`` from whole distributions (m, v)."""
    return np.asarray(delta[sampled] - logsumexp(logprobs + delta, axis=1))


def listed_shifts(rollouts: Rollouts, delta: Vector, tail: Rollouts) -> Vector:
    """(m,) the shifts from lists; tail: unbiased rollouts."""
    base = NextToken.of(tail)
    return divergence(rollouts, np.arange(len(delta)), delta, base).per_position


def both_sources(top: int | None, seed: int = 3) -> tuple[Rollouts, dict[str, Vector]]:
    """The same biased completions, and their shifts by whole distributions and by lists."""
    drawn = MODEL.rollouts(N, nothing, seed, top=top, delta=DELTA)
    base = MODEL.rollouts(N, nothing, seed + 1, top=top)
    rows = drawn.token_ids.reshape(N, T).astype(np.int64)
    whole = np.stack(
        [MODEL.next_logprobs(rows[:, :t], np.zeros(N, np.int64)) for t in range(T)], axis=1
    ).reshape(-1, V)
    return drawn, {
        "exact": exact_shifts(whole, drawn.token_ids, DELTA),
        "tail model": listed_shifts(drawn, DELTA, base),
    }


def true_scores(model: ExactModel, delta: Vector) -> Vector:
    """(v,) S by enumeration of every prefix: the shift of each token there, weighted by how likely
    it is to be generated.
    """
    total, weight = np.zeros(model.vocab_size), np.zeros(model.vocab_size)
    for length in range(model.horizon):
        for prefix in product(range(model.vocab_size), repeat=length):
            reached = 1.0
            for t, token in enumerate(prefix):
                reached *= tilted(model.logprobs(prefix[:t]), delta)[token]
            base = model.logprobs(prefix)
            drawn = reached * tilted(base, delta)
            total += drawn * (np.log(tilted(base, delta)) - base)
            weight += drawn
    return np.asarray(total / weight)


def tilted(
    logprobs: Vector,
    delta: Vector,
) -> Vector:
    """pi_delta."""
    values = np.exp(logprobs + delta)
    return np.asarray(values / values.sum())


def test_a_worked_example() -> None:
    """pi_0 = (.5, .3, .2), delta = (ln 2, 0, -ln 2): Z = 1 + .3 + .1, so pi_delta / pi_0 = (2, 1,
    1/2) / 1.4 everywhere.
    """
    base, delta = np.log([[0.5, 0.3, 0.2]]), np.log([2.0, 1.0, 0.5])
    tokens, completions = np.array([0, 0, 1, 0, 2, 1]), np.array([0, 0, 0, 1, 1, 1])
    found = intervention_scores(
        tokens, completions, exact_shifts(np.repeat(base, 6, axis=0), tokens, delta)
    )
    assert found.scores == pytest.approx([np.log(2 / 1.4), np.log(1 / 1.4), np.log(0.5 / 1.4)])
    assert found.scores == pytest.approx([0.357, -0.336, -1.030], abs=5e-4)
    assert found.counts.tolist() == [3, 2, 1]
    assert found.errors[:2] == pytest.approx([0, 0], abs=1e-12)
    assert np.isnan(found.errors[2])


def test_the_error_is_that_of_completions() -> None:
    """Two completions with one token, shifts (1, 1) and (3): S = 5/3, residuals sum to -4/3 and
    4/3, so sqrt(2 * 2 * 16/9) / 3.
    """
    found = intervention_scores([7, 7, 7], [0, 0, 1], [1.0, 1.0, 3.0])
    assert found.scores.tolist() == pytest.approx([5 / 3])
    assert found.errors.tolist() == pytest.approx([np.sqrt(2 * 2 * 16 / 9) / 3])


def test_complete_lists_are_exact() -> None:
    """With every token listed the shift is the exact one at every position, up to float32."""
    _, shifts = both_sources(None)
    assert shifts["tail model"] == pytest.approx(shifts["exact"], abs=2e-5)


def test_scores_are_the_enumerated_ones() -> None:
    """Of five tokens, within 4 standard errors of the sum over all prefixes; and their mean is
    KL(p_delta || p_0) a token.
    """
    model, delta = ExactModel(5, 3, seed=1), np.array([1.5, 0.0, -2.0, 0.5, 0.0])
    drawn = model.rollouts(6000, nothing, 2, delta=delta)
    found = scores_of(drawn, listed_shifts(drawn, delta, drawn))
    assert np.all(np.abs(found.scores - true_scores(model, delta)) < 4 * found.errors + 1e-6)
    assert np.all(found.errors < 0.05)
    assert found.mean == pytest.approx(Exact(model, nothing).kl(delta) / 3, rel=0.03)


@pytest.mark.parametrize(("top", "tolerance"), [(20, 0.01), (8, 0.06)])
def test_short_lists_come_close(top: int, tolerance: float) -> None:
    """By the usage of the tokens, the scores by the tail model are this near to the exact ones, in
    nats.
    """
    drawn, shifts = both_sources(top)
    exact = scores_of(drawn, shifts["exact"])
    found = scores_of(drawn, shifts["tail model"])
    apart = np.abs(found.scores - exact.scores) @ exact.counts / exact.counts.sum()
    assert apart < tolerance
    assert found.mean == pytest.approx(exact.mean, abs=tolerance)


def test_the_sources_agree_on_other_completions_within_their_errors() -> None:
    """Both sources, each on completions of its own: scores of tokens used 200 times differ by
    noise of the expected size.
    """
    (drawn, shifts), (others, other_shifts) = both_sources(20, 3), both_sources(20, 30)
    exact = scores_of(drawn, shifts["exact"])
    listed = scores_of(others, other_shifts["tail model"])
    often = listed.token_ids[listed.counts >= 200]
    both = np.isin(exact.token_ids, often) & (exact.counts >= 200)
    place = np.searchsorted(listed.token_ids, exact.token_ids[both])
    z = (exact.scores[both] - listed.scores[place]) / np.hypot(
        exact.errors[both], listed.errors[place]
    )
    assert np.sqrt((z**2).mean()) < 1.6


def test_the_errors_cover() -> None:
    """Of 100 sets of 150 completions, 95 % intervals hold the enumerated score in 90 to 99 % of
    cases.
    """
    model, delta = ExactModel(5, 3, seed=1), np.array([1.5, 0.0, -2.0, 0.5, 0.0])
    truth, inside = true_scores(model, delta), []
    for seed in range(100):
        drawn = model.rollouts(150, nothing, seed, delta=delta)
        found = scores_of(drawn, listed_shifts(drawn, delta, drawn))
        often = found.counts >= 30
        inside += (np.abs(found.scores - truth[found.token_ids]) < 1.96 * found.errors)[
            often
        ].tolist()
    assert 0.90 < np.mean(inside) < 0.99


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3), st.floats(-5, 5)), min_size=1))
def test_scores_weighted_by_use_are_the_mean_shift(rows: list[tuple[int, int, float]]) -> None:
    """Whatever the tokens are, the scores by count add up to the mean over positions, the KL a
    token.
    """
    tokens, completions, shifts = (np.array(column) for column in zip(*rows, strict=True))
    found = intervention_scores(tokens, completions, shifts)
    assert found.mean == pytest.approx(shifts.mean(), abs=1e-9)
    assert found.counts.sum() == len(rows)
