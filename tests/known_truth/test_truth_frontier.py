"""Reward against KL at equal rollouts, with known truth: the projection from five logprobs against
the paper's estimator.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.support.frontier.curves import Curve, Point
from tests.support.frontier.exact import SUBJECT, Plan, compare, curve, measure
from tests.support.frontier.problems import PROBLEMS


def point(kl: float, reward: float) -> Point:
    """A point of which only these two count."""
    return Point("any", 1, 1.0, "", reward, kl, 1.0)


def test_a_frontier_by_eye() -> None:
    """Dominated points drop out; between two biases the frontier is the straight line that mixing
    them reaches.
    """
    found = Curve(
        [point(1.0, 2.0), point(1.5, 1.9), point(3.0, 3.0), point(0.5, 0.9), point(4.0, 2.0)], 0.0
    )
    assert found.hull == [(0.0, 0.0), (1.0, 2.0), (3.0, 3.0)]
    assert [found.kl_at(reward) for reward in (-1.0, 1.0, 2.5, 3.0)] == pytest.approx(
        [0.0, 0.5, 2.0, 3.0]
    )
    assert found.kl_at(3.1) == math.inf
    assert found.objective(1.0) == 1.0
    assert found.objective(10.0) == 0.0
    assert found.level(0.5) == 1.5


def test_a_frontier_of_nothing_better_is_the_base() -> None:
    """Where no bias beats the base model, or no KL is known, the frontier is the base model
    alone.
    """
    for points in ([], [point(1.0, -1.0)], [point(math.nan, 5.0)]):
        assert Curve(points, 0.5).hull == [(0.0, 0.5)]


def test_the_model_is_as_peaked_as_it_is_described() -> None:
    """Five tokens hold about .74 of the probability and twenty about .91; completions have about
    five tokens.
    """
    problem = PROBLEMS["rare"]
    found = problem.model().rollouts(600, problem.reward, 1, top=20)
    mass = np.exp(found.top_logprobs.astype(np.float64)).cumsum(axis=1).mean(axis=0)
    assert mass[4] == pytest.approx(0.74, abs=0.03)
    assert mass[19] == pytest.approx(0.91, abs=0.02)
    assert found.lengths.mean() == pytest.approx(5.3, abs=0.5)
    assert found.rewards.mean() == pytest.approx(0.095, abs=0.04)


def test_a_rare_good_token_costs_a_fraction_of_the_kl_and_of_the_rollouts() -> None:
    """Quick: 400 rollouts with five logprobs beat 2,000 of ips on E[r] - tau KL, and its best
    reward costs under half of its KL.
    """
    plan = Plan(rollouts=(400, 2000), draws=1, completions=500)
    base, points = measure(PROBLEMS["rare"], plan)
    found = compare(PROBLEMS["rare"], base, points)
    assert len(found.rollouts) == 2
    assert found.fifth_suffices == 1
    assert found.kl_ratio < 0.5
    assert curve(points, base, SUBJECT, 2000).highest > base + 0.15


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rare", "answer"])
def test_what_depends_on_content_needs_a_fifth_of_the_rollouts(name: str) -> None:
    """Means of four draws: a fifth of the rollouts of ips suffices, at a quarter of its KL."""
    base, points = measure(PROBLEMS[name], Plan(), processes=2)
    found = compare(PROBLEMS[name], base, points)
    assert found.fifth_suffices == 1
    assert found.kl_ratio <= 0.25
