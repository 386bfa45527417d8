"""Censored probabilities against the uncensored truth: what each rule for them does, and that the
projection does not notice.
"""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import Any

import numpy as np
import pytest
from scipy import stats

from blackbox_lb.errors import InputError
from blackbox_lb.estimate.choice.candidates import CompileLimits, candidates
from blackbox_lb.estimate.counting.statistics import TokenIPS
from blackbox_lb.estimate.inputs.rollouts import Rollouts
from blackbox_lb.estimate.inputs.sweep import Sweep, Unobserved
from blackbox_lb.estimate.next_token.next_token import NextToken
from blackbox_lb.estimate.reweighting import censoring_of
from blackbox_lb.rollouts.positions import Positions
from tests.support.errors import raises_naming
from tests.support.exact import ExactModel
from tests.support.fits import projection
from tests.support.statistics import statistics_of, zhat_of
from tests.support.truth import Exact

TAU, TOP = 0.8, 3
MODEL = ExactModel(8, 3, seed=7, end=True, prompts=2, sharpness=0.4, unigram=-0.8 * np.arange(8))
"""Token 0 is always among the three likeliest and token 6 never is; the list holds 91 % of the
probability.
"""
ALWAYS, NEVER = 0, 6


def reward(tokens: tuple[int, ...], prompt: int) -> float:
    """Depends on content, length and prompt."""
    return 0.4 * tokens.count(6) - 0.3 * len(tokens) + 0.2 * prompt * (tokens[-1] == 1)


def rollouts(n: int, seed: int, *, censored: bool = True, top: int = TOP) -> Rollouts:
    """Completions with the logprobs of unlisted sampled tokens, or without."""
    return MODEL.rollouts(n, reward, seed, top=top, censored=censored)


def zhat(
    data: Rollouts, rule: Unobserved = "bound", positions: int | None = None, seed: int = 0
) -> np.ndarray:
    """(v,) Zhat of every token."""
    ips = TokenIPS(statistics_of(data, TAU, positions=positions, seed=seed, unobserved=rule))
    out = np.zeros(MODEL.vocab_size)
    out[ips.token_ids] = zhat_of(ips, TAU)
    return out


def drawn_outside(data: Rollouts) -> np.ndarray:
    """(v,) how many of the sampled tokens were outside their lists, by token."""
    return np.bincount(data.token_ids[data.bounded], minlength=MODEL.vocab_size)


def test_the_model_is_as_it_is_described() -> None:
    """The two tokens are what their names say at every prefix, or the tests below would prove
    nothing.
    """
    data = rollouts(5_000, 1)
    assert (data.top_ids == ALWAYS).any(axis=1).all()
    assert not (data.top_ids == NEVER).any()
    assert drawn_outside(data)[NEVER] > 20


def test_the_bound_is_at_least_the_probability() -> None:
    """Only sampled tokens that are not listed are bounded, by the least listed logprob, which is
    never below the true one.
    """
    data, truth = rollouts(500, 1), rollouts(500, 1, censored=False)
    assert not truth.bounded.any()
    outside = ~(data.top_ids == data.token_ids[:, None]).any(axis=1)
    np.testing.assert_array_equal(data.bounded, outside)
    np.testing.assert_array_equal(data.logprobs[outside], data.top_logprobs[outside, -1])
    assert (data.logprobs[outside] >= truth.logprobs[outside]).all()
    np.testing.assert_array_equal(data.logprobs[~outside], truth.logprobs[~outside])


@pytest.mark.parametrize("positions", [None, 2])
def test_the_bound_never_exceeds_the_truth(positions: int | None) -> None:
    """On the same rollouts Zhat with bounds is at most Zhat with all logprobs, and the same for
    tokens that were always listed.
    """
    for seed in range(5):
        whole = zhat(rollouts(300, seed, censored=False), positions=positions, seed=seed)
        bound = zhat(rollouts(300, seed), positions=positions, seed=seed)
        assert (bound <= whole).all()
        listed = drawn_outside(rollouts(300, seed)) == 0
        np.testing.assert_array_equal(bound[listed], whole[listed])
        assert listed[ALWAYS]
    assert bound[NEVER] < 0.8 * whole[NEVER]


def test_dropping_is_too_high_where_nothing_is_censored_and_zero_where_all_is() -> None:
    """On the same rollouts "drop" is above the truth for a token that is always listed, 0 for one
    that never is.
    """
    for seed in range(5):
        whole, drop = zhat(rollouts(300, seed, censored=False)), zhat(rollouts(300, seed), "drop")
        assert drop[ALWAYS] > whole[ALWAYS]
        assert drop[NEVER] == 0


@cache
def replicated(rule: Unobserved, positions: int | None = None) -> np.ndarray:
    """(200, v) Zhat of so many sets of 100 rollouts."""
    return np.array([zhat(rollouts(100, seed), rule, positions, seed) for seed in range(200)])


@pytest.mark.parametrize(
    ("rule", "token", "side"), [("bound", NEVER, -1), ("bound", ALWAYS, 0), ("drop", ALWAYS, 1)]
)
def test_the_direction_of_the_bias_against_the_exact_truth(
    rule: Unobserved, token: int, side: int
) -> None:
    """Over 200 replications the mean of Zhat is off the exact Z_avg by more than 4 standard errors,
    to the side that is said, and within sampling error where none is.
    """
    draws = replicated(rule)[:, token]
    error = draws.std(ddof=1) / np.sqrt(len(draws))
    z = (draws.mean() - Exact(MODEL, reward).z_avg(TAU)[token]) / error
    assert side * z > 4 if side else abs(z) < stats.norm.isf(0.0005)


def test_drawing_fewer_positions_does_not_move_what_drop_estimates() -> None:
    """With one position a completion "drop" has the expectation that it has with all, token by
    token.
    """
    few, all_ = replicated("drop", 1), replicated("drop")
    seen = all_.any(axis=0)
    difference = (few - all_)[:, seen]
    z = difference.mean(0) / (difference.std(0, ddof=1) / np.sqrt(len(difference)))
    assert np.abs(z).max() < stats.norm.isf(0.0005 / seen.sum())


@pytest.mark.parametrize("top", [1, TOP])
def test_the_projection_does_not_notice(top: int) -> None:
    """With and without censoring the projection, its table and every candidate are the same bit for
    bit.
    """
    whole, censored = rollouts(800, 2, censored=False, top=top), rollouts(800, 2, top=top)
    assert censored.bounded.any()
    one, other = projection(whole, tau=TAU), projection(censored, tau=TAU)
    assert one.delta.tobytes() == other.delta.tobytes()
    limits = CompileLimits(entries=4, low=-100.0, high=100.0, integers=False)
    tables = NextToken.of(whole), NextToken.of(censored)
    for first, second in zip(
        *(candidates(Positions(whole, table), Sweep(), limits) for table in tables), strict=True
    ):
        assert first.logit_bias == second.logit_bias


def test_the_rule_reaches_the_candidates() -> None:
    """A sweep of ips with "drop" leaves the never listed token at 0; with "bound" it has a bias."""
    data = rollouts(800, 2)
    table, limits = (
        NextToken.of(data),
        CompileLimits(entries=None, low=-100.0, high=100.0, integers=False),
    )
    where = table.token_ids.tolist().index(NEVER)
    learned = {
        rule: next(
            candidates(Positions(data, table), Sweep(("ips",), unobserved=rule), limits)
        ).values
        for rule in ("bound", "drop")
    }
    assert learned["drop"][where] == 0 < learned["bound"][where]


@pytest.mark.parametrize("top", [1, TOP])
def test_censoring_is_counted_and_its_chance_is_the_unlisted_mass(top: int) -> None:
    """Counts are those of the rollouts, and the mean unlisted mass predicts the share of censored
    tokens.
    """
    data = rollouts(5_000, 4, top=top)
    found = censoring_of(data, NextToken.of(data))
    outside = ~(data.top_ids == data.token_ids[:, None]).any(axis=1)
    assert (found.positions, found.outside, found.bounded) == (
        len(outside),
        outside.sum(),
        outside.sum(),
    )
    unlisted = 1 - np.exp(data.top_logprobs.astype(np.float64)).sum(axis=1)
    assert found.mass == pytest.approx(
        unlisted.mean(), abs=1e-8
    )  # listed probabilities are read to float32, as logprobs are
    spread = np.sqrt((unlisted * (1 - unlisted)).sum()) / len(outside)
    assert found.outside / found.positions == pytest.approx(found.mass, abs=4 * spread)
    whole = rollouts(5_000, 4, top=top, censored=False)
    assert censoring_of(whole, NextToken.of(whole)) == found.replacing(bounded=0)


def test_bounds_of_another_shape_are_refused() -> None:
    """One boolean a position, nothing else."""
    data = rollouts(10, 1)
    wrongs: list[Any] = [data.bounded[:-1], data.bounded.astype(np.int8)]
    for wrong in wrongs:
        with raises_naming(InputError, "bounded"):
            dataclasses.replace(data, bounded=wrong)
