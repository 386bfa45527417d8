"""Diagnostics against exact values."""

from __future__ import annotations

import numpy as np
import pytest

from blackbox_lb.errors import InputError
from blackbox_lb.estimate.diagnosis.headroom import headroom
from blackbox_lb.estimate.inputs import thresholds
from blackbox_lb.estimate.inputs.thresholds import Threshold
from blackbox_lb.estimate.next_token.next_token import NextToken
from blackbox_lb.estimate.reweighting import (
    Touched,
    effective_sample_size,
    learned_record,
    reward_variance,
    tail_coverage,
)
from tests.support.errors import raises_naming
from tests.support.exact import ExactModel
from tests.support.truth import Exact


def reward(tokens: tuple[int, ...], prompt: int) -> float:
    """1 for a correct answer, less a little for length: the range is bounded."""
    return float(prompt in tokens) - 0.1 * len(tokens)


def test_effective_sample_size() -> None:
    """n equal weights count n, one weight counts 1, none counts 0, and scale does not matter."""
    assert effective_sample_size(np.full(7, 0.3)) == pytest.approx(7)
    assert effective_sample_size([0, 0, 5]) == 1
    assert effective_sample_size([0, 0]) == 0
    assert effective_sample_size([1e300, 1e300, 0]) == pytest.approx(2)
    with raises_naming(InputError, "weights"):
        effective_sample_size([1.0, -1.0])


def test_reward_variance_estimates_v0() -> None:
    """V_0 of 30,000 rollouts is the exact within-prompt variance."""
    model = ExactModel(4, 3, seed=1, end=True, prompts=3)
    exact = Exact(model, reward)
    p0 = exact.probabilities()
    within = 0.0
    for prompt in range(3):
        mine = exact.prompts == prompt
        p, r = p0[mine] * 3, exact.rewards[mine]
        within += (p @ r**2 - (p @ r) ** 2) / 3
    rollouts = model.rollouts(30_000, reward, 5)
    assert reward_variance(rollouts.rewards, rollouts.prompts)[0] == pytest.approx(within, rel=0.03)


def test_reward_variance_by_eye() -> None:
    """Two completions each: variances .5 and 2 with the n - 1 divisor, so V_0 = 1.25, and a
    standard error of .75.
    """
    assert reward_variance([0.0, 1.0, 0.0, 2.0], [7, 7, 9, 9]) == pytest.approx((1.25, 0.75))


def test_nothing_to_learn() -> None:
    """A reward that differs between prompts and not within them has V_0 = 0, whatever prompts have
    one completion.
    """
    assert reward_variance([1.0, 1.0, 0.0, 0.0, 0.5], [0, 0, 1, 1, 2]) == (0, 0)


def test_a_log_reward_has_no_variance() -> None:
    """-inf is refused with the remedy, and single completions are too."""
    with raises_naming(InputError, "-inf", "exp(rewards)"):
        reward_variance([0.0, -np.inf], [0, 0])
    with raises_naming(InputError, "2 prompts", "twice"):
        reward_variance([0.0, 1.0], [0, 1])


def test_tail_coverage_matches_the_model() -> None:
    """The mean mass outside a top-5 list, all of which has a token to go to."""
    model = ExactModel(40, 2, seed=2)
    rollouts = model.rollouts(5_000, lambda *_: 0.0, 3, top=5)
    found = tail_coverage(NextToken.of(rollouts))
    assert found.tail_mass == pytest.approx(
        1 - np.exp(rollouts.top_logprobs.astype(float)).sum(1).mean(), abs=1e-9
    )
    assert found.unattributed == 0


def test_statistics_of_a_bias_by_eye() -> None:
    """Two of ten tokens at +4 and +1: mean .5, so the others are at -.5, and only the first passes
    five medians.
    """
    found = learned_record(np.array([4.0, 1.0]), 10)
    assert (found.low, found.high, found.sampled_fraction, found.selected_fraction) == (
        -0.5,
        3.5,
        0.2,
        0.1,
    )
    assert found.sigma == pytest.approx(np.std([4, 1] + [0] * 8))


def test_statistics_of_a_bias_of_nothing() -> None:
    """A bias of zeros selects no coordinate; more values than tokens are refused."""
    assert learned_record(np.zeros(3), 10).selected_fraction == 0
    with raises_naming(InputError, "3", "2"):
        learned_record(np.zeros(3), 2)


@pytest.mark.parametrize(("tau", "error"), [(0.3, 0.1), (1.0, 0.03)])
def test_headroom_is_the_gain_of_the_unconstrained_optimum(tau: float, error: float) -> None:
    """From eight completions a prompt the jackknifed gain is near the exact one of p*, where a
    plain one is too small.
    """
    model = ExactModel(4, 3, seed=1, end=True, prompts=3)
    exact = Exact(model, reward)
    p0, gain = exact.probabilities(), 0.0
    for prompt in range(3):
        p, r = p0[exact.prompts == prompt] * 3, exact.rewards[exact.prompts == prompt]
        tilted = p * np.exp(r / tau)
        gain += (tilted @ r / tilted.sum() - p @ r) / 3
    rollouts = model.rollouts(24_000, reward, 5)
    groups = rollouts.prompts + 3 * (np.arange(24_000) // 24)
    found = headroom(rollouts.rewards, groups, rollouts.rewards, tau=tau)
    assert found.gain == pytest.approx(gain, rel=error)
    assert (found.prompts, found.decision) == (3_000, "enough")


def test_headroom_covers_after_fifty_prompts() -> None:
    """Normal rewards gain their variance over tau: the 95 % interval of 50 prompts with 10
    completions holds it in 92 to 98 %.
    """
    rng, held = np.random.default_rng(0), 0
    prompts = np.repeat(np.arange(50), 10)
    for _ in range(150):
        rewards = rng.standard_normal(50)[prompts] + 0.5 * rng.standard_normal(500)
        found = headroom(rewards, prompts, rewards, tau=1.0)
        held += found.low <= 0.25 <= found.high
    assert 0.92 <= held / 150 <= 0.98


def test_headroom_of_a_log_reward_by_eye() -> None:
    """One of two is right in one prompt, none in another: the optimum is always right in the first
    and changes nothing else.
    """
    found = headroom([0.0, -np.inf, -np.inf, -np.inf], [0, 0, 1, 1], [1.0, 0.0, 0.0, 0.0], tau=0.5)
    assert (found.v0, found.ceiling) == (0.25, 0.25)
    assert found.gain == pytest.approx(0.5)
    assert (found.varying, found.prompts, found.decision) == (1, 2, "unknown")


def test_headroom_decides() -> None:
    """The same rewards everywhere are nothing, from 30 prompts on; a rare or weak difference is
    little; a common one enough.
    """
    rng, prompts = np.random.default_rng(1), np.repeat(np.arange(50), 10)
    same = rng.standard_normal(50)[prompts]
    coin, rare = (rng.random(500) < p for p in (0.5, 0.97))
    assert headroom(same, prompts, same, tau=1.0).decision == "nothing"
    assert "at most 6% of prompts differ" in headroom(same, prompts, same, tau=1.0).sentence
    assert headroom(same[:200], prompts[:200], same[:200], tau=1.0).decision == "unknown"
    assert headroom(coin * 1.0, prompts, coin * 1.0, tau=0.5).decision == "enough"
    assert headroom(coin * 1.0, prompts, coin * 1.0, tau=500.0).decision == "nothing"
    assert headroom(rare * 1.0, prompts, rare * 1.0, tau=0.1).decision == "little"


def test_headroom_survives_any_tau() -> None:
    """At a tau of 1e-6 the optimum takes the best completion; nothing overflows or cancels."""
    rewards = np.array([1e4, -3.0, 0.5, 0.5, -1e4, 2.0, 2.0, 1.0])
    found = headroom(rewards, np.repeat([0, 1], 4), rewards, tau=1e-6)
    assert np.isfinite([found.gain, found.ceiling, found.v0_error]).all()
    one = headroom([0.0, 1.0], [0, 0], [0.0, 1.0], tau=1.0)
    assert (one.high, one.decision, one.v0_error) == (np.inf, "unknown", np.inf)


def test_headroom_refuses_what_has_no_gain() -> None:
    """A NaN reward, an infinite value and single completions are errors with a remedy."""
    with raises_naming(InputError, "rewards", "(2,)", "-inf"):
        headroom([np.nan, 0.0], [0, 0], [1.0, 0.0], tau=1.0)
    with raises_naming(InputError, "-inf", "exp(rewards)"):
        headroom([-np.inf, 0.0], [0, 0], [-np.inf, 0.0], tau=1.0)
    with raises_naming(InputError, "2 prompts", "twice"):
        headroom([0.0, 1.0], [0, 1], [0.0, 1.0], tau=1.0)
    with raises_naming(InputError, "tau", "0.0"):
        headroom([0.0, 1.0], [0, 0], [0.0, 1.0], tau=0.0)


def test_touched_is_the_probability_of_the_biased_tokens() -> None:
    """Of a model without context the biased token has its own probability, and its tilted one with
    the bias.
    """
    model = ExactModel(5, 1, seed=3)
    rollouts = model.rollouts(50, lambda *_: 0.0, 1)
    table = NextToken.of(rollouts)
    p = float(np.exp(model.logprobs())[2])
    found = Touched.of(rollouts, table, table.align([2], [1.0]))
    assert found.base == pytest.approx(p, rel=1e-5)
    assert found.biased == pytest.approx(p * np.e / (1 - p + p * np.e), rel=1e-5)
    assert (found.entries, found.tokens) == (1, 1)
    assert Touched.of(rollouts, table, np.zeros(5)).per_completion == 0


def test_a_threshold_never_fails_open() -> None:
    """Between good and bad is INCONCLUSIVE, and inf and NaN never PASS."""
    for rising, values in ((True, (0.9, 0.6, 0.1)), (False, (-0.9, -0.6, -0.1))):
        sign = 1 if rising else -1
        limit = Threshold(sign * 0.8, sign * 0.5, rising)
        assert [limit.judge(value) for value in values] == ["PASS", "INCONCLUSIVE", "FAIL"]
        assert {limit.judge(bad) for bad in (np.inf, -np.inf, np.nan)} == {"FAIL"}
        assert limit.judge(None) == "NOT CHECKED"


def test_every_threshold_is_ordered_as_it_claims() -> None:
    """All are finite, and good is on the better side of bad."""
    limits = [value for value in vars(thresholds).values() if isinstance(value, Threshold)]
    assert len(limits) >= 6
    for limit in limits:
        assert np.isfinite([limit.good, limit.bad]).all()
        assert limit.good >= limit.bad if limit.rising else limit.good <= limit.bad
