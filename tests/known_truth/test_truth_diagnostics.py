"""Diagnostics against exact values."""

from __future__ import annotations

import numpy as np
import pytest

from blackbox_lb.errors import InputError
from blackbox_lb.estimate.diagnostics import delta_statistics, effective_sample_size, reward_variance, tail_coverage
from blackbox_lb.estimate.normaliser import NextToken
from blackbox_lb.testing import Exact, ExactModel


def reward(tokens: tuple[int, ...], prompt: int) -> float:
    """1 for a correct answer, less a little for length: the range is bounded."""
    return float(prompt in tokens) - 0.1 * len(tokens)


def test_effective_sample_size() -> None:
    """n equal weights count n, one weight counts 1, none counts 0, and scale does not matter."""
    assert effective_sample_size(np.full(7, 0.3)) == pytest.approx(7)
    assert effective_sample_size([0, 0, 5]) == 1
    assert effective_sample_size([0, 0]) == 0
    assert effective_sample_size([1e300, 1e300, 0]) == pytest.approx(2)
    with pytest.raises(InputError, match="not negative"):
        effective_sample_size([1.0, -1.0])


@pytest.mark.parametrize("tau", [0.2, 1.0])
def test_reward_variance_estimates_v0_and_bounds_the_optimum(tau: float) -> None:
    """V_0 of 30,000 rollouts is the exact within-prompt variance, and the paper's bound is below the exact gain of p*."""
    model = ExactModel(4, 3, seed=1, end=True, prompts=3)
    exact = Exact(model, reward)
    p0 = exact.probabilities()
    within, gain = 0.0, 0.0
    for prompt in range(3):
        mine = exact.prompts == prompt
        p, r = p0[mine] * 3, exact.rewards[mine]
        within += (p @ r**2 - (p @ r) ** 2) / 3
        tilted = p * np.exp(r / tau)
        gain += (tilted @ r / tilted.sum() - p @ r) / 3
    rollouts = model.rollouts(30_000, reward, 5)
    found = reward_variance(rollouts.rewards, rollouts.prompts, tau)
    assert found.v0 == pytest.approx(within, rel=0.03)
    assert found.reward_range == pytest.approx(np.ptp(exact.rewards), abs=1e-9)
    assert found.optimum_gain == pytest.approx(
        within / np.ptp(exact.rewards) * (1 - np.exp(-np.ptp(exact.rewards) / tau)), rel=0.03
    )
    assert 0 < found.optimum_gain < gain
    assert (found.prompts, found.prompts_skipped) == (3, 0)


def test_reward_variance_by_eye() -> None:
    """Two completions each: variances .5 and 2 with the n - 1 divisor, so V_0 = 1.25, and R = 2."""
    found = reward_variance([0.0, 1.0, 0.0, 2.0], [7, 7, 9, 9], tau=1.0)
    assert found.v0 == pytest.approx(1.25)
    assert found.optimum_gain == pytest.approx(1.25 / 2 * (1 - np.exp(-2)))


def test_nothing_to_learn() -> None:
    """A reward that differs between prompts and not within them has V_0 = 0 and promises nothing."""
    found = reward_variance([1.0, 1.0, 0.0, 0.0, 0.5], [0, 0, 1, 1, 2])
    assert (found.v0, found.optimum_gain, found.prompts, found.prompts_skipped) == (0, 0, 2, 1)
    assert reward_variance([1.0, 1.0], [0, 0]).optimum_gain == 0


def test_a_log_reward_has_no_variance() -> None:
    """-inf is refused with the remedy, and single completions are too."""
    with pytest.raises(InputError, match=r"pass exp\(rewards\)"):
        reward_variance([0.0, -np.inf], [0, 0])
    with pytest.raises(InputError, match="at least twice"):
        reward_variance([0.0, 1.0], [0, 1])


def test_tail_coverage_matches_the_model() -> None:
    """Mean mass outside a top-5 list and the share of tokens sampled there estimate the same number."""
    model = ExactModel(40, 2, seed=2)
    rollouts = model.rollouts(5_000, lambda *_: 0.0, 3, top=5)
    found = tail_coverage(NextToken.of(rollouts))
    assert found.tail_mass == pytest.approx(1 - np.exp(rollouts.top_logprobs.astype(float)).sum(1).mean(), abs=1e-9)
    assert found.sampled_outside == pytest.approx(found.tail_mass, abs=0.02)
    assert (found.positions, found.unattributed, found.overfull) == (10_000, 0, 0)


def test_delta_statistics_by_eye() -> None:
    """Two of ten tokens at +4 and +1: mean .5, so the others are at -.5, and only the first passes five medians."""
    found = delta_statistics(np.array([4.0, 1.0]), 10)
    assert (found.low, found.high, found.sampled_fraction, found.selected_fraction) == (-0.5, 3.5, 0.2, 0.1)
    assert found.sigma == pytest.approx(np.std([4, 1] + [0] * 8))


def test_delta_statistics_of_nothing() -> None:
    """A bias of zeros selects no coordinate; more values than tokens are refused."""
    assert delta_statistics(np.zeros(3), 10).selected_fraction == 0
    with pytest.raises(InputError, match="do not fit"):
        delta_statistics(np.zeros(3), 2)
