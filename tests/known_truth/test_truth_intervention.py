"""Intervention scores, against the exact ones and against each other."""

from __future__ import annotations

from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blackbox_lb.errors import InputError
from blackbox_lb.estimate.inputs.rollouts import Rollouts
from blackbox_lb.estimate.next_token.next_token import NextToken
from blackbox_lb.estimate.reweighting import (
    InterventionScores,
    exact_shifts,
    intervention_scores,
    listed_shifts,
    shifts_after_bias,
)
from tests.support.errors import raises_naming
from tests.support.exact import ExactModel
from tests.support.truth import Exact

V, T, N = 40, 3, 4000
RARE = np.where(np.arange(V) < 25, 0.0, -3.0)
DELTA = np.random.default_rng(2).normal(size=V)
BIAS = dict(enumerate(DELTA.tolist()))
MODEL = ExactModel(V, T, seed=5, unigram=RARE)
BIASED = ExactModel(V, T, seed=5, unigram=RARE + DELTA)
"""The same model with the bias built in: what it lists are logprobs after the bias, and it draws
the very same completions.
"""


def nothing(tokens: tuple[int, ...], prompt: int) -> float:
    """No reward: none is read."""
    return 0.0


def scores_of(
    rollouts: Rollouts, shifts: np.ndarray[tuple[int], np.dtype[np.float64]]
) -> InterventionScores:
    """Of all positions."""
    return intervention_scores(rollouts.token_ids, rollouts.rollout_of, shifts)


def three_sources(
    top: int | None, seed: int = 3
) -> tuple[Rollouts, dict[str, np.ndarray[tuple[int], np.dtype[np.float64]]]]:
    """The same biased completions, and their shifts by each source."""
    before, after = (
        MODEL.rollouts(N, nothing, seed, top=top, delta=DELTA),
        BIASED.rollouts(N, nothing, seed, top=top),
    )
    assert np.array_equal(before.token_ids, after.token_ids)
    base = MODEL.rollouts(N, nothing, seed + 1, top=top)
    rows = before.token_ids.reshape(N, T).astype(np.int64)
    whole = np.stack(
        [MODEL.next_logprobs(rows[:, :t], np.zeros(N, np.int64)) for t in range(T)], axis=1
    ).reshape(-1, V)
    return before, {
        "exact": exact_shifts(whole, before.token_ids, DELTA),
        "tail model": listed_shifts(before, BIAS, NextToken.of(base)),
        "after the bias": shifts_after_bias(after, BIAS, NextToken.of(base)),
    }


def true_scores(
    model: ExactModel, delta: np.ndarray[tuple[int], np.dtype[np.float64]]
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
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
    logprobs: np.ndarray[tuple[int], np.dtype[np.float64]],
    delta: np.ndarray[tuple[int], np.dtype[np.float64]],
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
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
    """With every token listed all three sources give the same shift at every position, up to
    float32.
    """
    _, shifts = three_sources(None)
    assert shifts["tail model"] == pytest.approx(shifts["exact"], abs=2e-5)
    assert shifts["after the bias"] == pytest.approx(shifts["exact"], abs=2e-5)


def test_scores_are_the_enumerated_ones() -> None:
    """Of five tokens, within 4 standard errors of the sum over all prefixes; and their mean is
    KL(p_delta || p_0) a token.
    """
    model, delta = ExactModel(5, 3, seed=1), np.array([1.5, 0.0, -2.0, 0.5, 0.0])
    drawn = model.rollouts(6000, nothing, 2, delta=delta)
    found = scores_of(
        drawn, listed_shifts(drawn, dict(enumerate(delta.tolist())), NextToken.of(drawn))
    )
    assert np.all(np.abs(found.scores - true_scores(model, delta)) < 4 * found.errors + 1e-6)
    assert np.all(found.errors < 0.05)
    assert found.mean == pytest.approx(Exact(model, nothing).kl(delta) / 3, rel=0.03)


@pytest.mark.parametrize(("top", "tolerance"), [(20, 0.01), (8, 0.06)])
def test_short_lists_come_close(top: int, tolerance: float) -> None:
    """By the usage of the tokens, the scores by the tail model and after the bias are this near to
    the exact ones, in nats.
    """
    drawn, shifts = three_sources(top)
    exact = scores_of(drawn, shifts["exact"])
    for source in ("tail model", "after the bias"):
        found = scores_of(drawn, shifts[source])
        apart = np.abs(found.scores - exact.scores) @ exact.counts / exact.counts.sum()
        assert apart < tolerance, source
        assert found.mean == pytest.approx(exact.mean, abs=tolerance), source


def test_the_sources_agree_on_other_completions_within_their_errors() -> None:
    """Three sources, each on completions of its own: scores of tokens used 200 times differ by
    noise of the expected size.
    """
    pairs = [
        (source, scores_of(*_one(seed, source)))
        for seed, source in ((3, "exact"), (30, "tail model"), (60, "after the bias"))
    ]
    for (_, one), (name, other) in pairwise(pairs):
        both = np.isin(one.token_ids, other.token_ids[other.counts >= 200]) & (one.counts >= 200)
        place = np.searchsorted(other.token_ids, one.token_ids[both])
        z = (one.scores[both] - other.scores[place]) / np.hypot(
            one.errors[both], other.errors[place]
        )
        assert np.sqrt((z**2).mean()) < 1.6, name


def _one(seed: int, source: str) -> tuple[Rollouts, np.ndarray[tuple[int], np.dtype[np.float64]]]:
    drawn, shifts = three_sources(20, seed)
    return drawn, shifts[source]


def test_a_banned_token_is_not_forgotten() -> None:
    """After the bias its mass is neither listed nor drawn: it is known from unbiased completions,
    to a tenth of what it moves.
    """
    common = int(np.bincount(MODEL.rollouts(1000, nothing, 9).token_ids).argmax())
    for strength in (-6.0, -100.0):
        delta = np.where(np.arange(V) == common, strength, 0.0)
        after = ExactModel(V, T, seed=5, unigram=RARE + delta).rollouts(N, nothing, 3, top=20)
        rows = after.token_ids.reshape(N, T).astype(np.int64)
        whole = np.stack(
            [MODEL.next_logprobs(rows[:, :t], np.zeros(N, np.int64)) for t in range(T)], axis=1
        )
        exact = exact_shifts(whole.reshape(-1, V), after.token_ids, delta)
        base = NextToken.of(MODEL.rollouts(N, nothing, 4, top=20))
        found = shifts_after_bias(after, {common: strength}, base)
        assert exact.mean() > 0.1
        assert found.mean() == pytest.approx(exact.mean(), rel=0.3)


def test_the_errors_cover() -> None:
    """Of 100 sets of 150 completions, 95 % intervals hold the enumerated score in 90 to 99 % of
    cases.
    """
    model, delta = ExactModel(5, 3, seed=1), np.array([1.5, 0.0, -2.0, 0.5, 0.0])
    truth, inside = true_scores(model, delta), []
    for seed in range(100):
        drawn = model.rollouts(150, nothing, seed, delta=delta)
        found = scores_of(
            drawn, listed_shifts(drawn, dict(enumerate(delta.tolist())), NextToken.of(drawn))
        )
        often = found.counts >= 30
        inside += (np.abs(found.scores - truth[found.token_ids]) < 1.96 * found.errors)[
            often
        ].tolist()
    assert 0.90 < np.mean(inside) < 0.99


def test_a_position_without_a_list_is_not_scored() -> None:
    """After the bias nothing is known where nothing is listed: NaN, which is left out of the
    scores; all NaN is refused.
    """
    drawn = BIASED.rollouts(3, nothing, 1, top=20)
    drawn.top_ids[4], drawn.top_logprobs[4] = -1, -np.inf
    shifts = shifts_after_bias(drawn, BIAS, NextToken.of(MODEL.rollouts(50, nothing, 2, top=20)))
    assert np.flatnonzero(np.isnan(shifts)).tolist() == [4]
    assert scores_of(drawn, shifts).counts.sum() == 8
    with raises_naming(InputError, "2"):
        intervention_scores([1, 2], [0, 0], [np.nan, np.nan])


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3), st.floats(-5, 5)), min_size=1))
def test_scores_weighted_by_use_are_the_mean_shift(rows: list[tuple[int, int, float]]) -> None:
    """Whatever the tokens are, the scores by count add up to the mean over positions, the KL a
    token.
    """
    tokens, completions, shifts = (np.array(column) for column in zip(*rows, strict=True))
    found = intervention_scores(tokens, completions, shifts)
    assert found.mean == pytest.approx(shifts.mean(), abs=1e-9)
    assert found.counts.sum() == len(rows)
