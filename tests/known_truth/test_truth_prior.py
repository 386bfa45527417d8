"""A projection with a prior against a general optimiser, and what a prior is worth."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import optimize

from blackbox_lb import RewardTilt
from blackbox_lb.errors import InputError
from blackbox_lb.estimate.choice.candidates import CompileLimits, candidates
from blackbox_lb.estimate.inputs.rollouts import weighting
from blackbox_lb.estimate.inputs.sweep import Sweep
from blackbox_lb.estimate.next_token.next_token import NextToken
from blackbox_lb.estimate.projection.projection import (
    FARTHEST,
    Prior,
    linear_term,
    projection,
)
from blackbox_lb.estimate.projection.standard_errors import standard_errors
from blackbox_lb.rollouts.positions import Positions
from tests.support.exact import ExactModel
from tests.support.truth import Exact

VOCABULARY, UNSEEN = 8, 11
MODEL = ExactModel(VOCABULARY, 4, seed=5, end=True, prompts=30, sharpness=0.7)
LIMITS = CompileLimits(None, -100.0, 100.0, integers=False)


def count(tokens: tuple[int, ...], _: int) -> float:
    """A cost for each of two tokens."""
    return -0.8 * sum(token in (1, 4) for token in tokens)


ROLLOUTS = MODEL.rollouts(300, count, 1)
TABLE = NextToken.of(ROLLOUTS).with_tokens([UNSEEN])
RULE = RewardTilt(0.7)
LIFTED = np.array([2, 3, 5])


@pytest.mark.parametrize("lifted", [None, LIFTED])
def test_it_is_the_maximum_of_the_penalised_likelihood(lifted: np.ndarray | None) -> None:
    """With the distance to the means in the penalty; lifted tokens pay for their distances to their
    common shift alone. A token that nobody drew or listed has its mean.
    """
    prior = Prior.of("rule", {1: -2.0, 4: -1.0, UNSEEN: -3.0}, lifted)
    weights = RULE.weights(ROLLOUTS)
    fit = projection(ROLLOUTS, weights, l2=4.0, next_token=TABLE, prior=prior)
    linear = linear_term(TABLE, weights)
    means = TABLE.align(prior.token_ids, prior.means)
    shared = np.isin(TABLE.token_ids, prior.lifted)

    def loss(delta: np.ndarray) -> float:
        distance = delta - means
        if lifted is not None:
            distance = np.where(shared, distance - distance[shared].mean(), distance)
        potential, _ = TABLE.potential(delta, weights.values)
        return float(potential - linear @ delta + 2.0 * distance @ distance)

    best = optimize.minimize(loss, means, method="BFGS", options={"gtol": 1e-6})
    assert fit.delta == pytest.approx(best.x, abs=2e-3)
    assert dict(zip(fit.token_ids.tolist(), fit.delta, strict=True))[UNSEEN] == pytest.approx(-3.0)


def test_a_shared_lift_costs_nothing() -> None:
    """However strong the penalty is, the lifted tokens move together as far as the data say, and
    keep their distances.
    """
    means = {2: 0.4, 3: -0.4, 5: 0.0}
    prior = Prior.of("labels", means, LIFTED)

    def wanted(tokens: tuple[int, ...], _: int) -> float:
        return float(tokens[0] in (2, 3, 5))

    rollouts = MODEL.rollouts(400, wanted, 3)
    weights = RewardTilt(0.5).weights(rollouts)
    fit = projection(rollouts, weights, l2=1e6, next_token=NextToken.of(rollouts), prior=prior)
    values = dict(zip(fit.token_ids.tolist(), fit.delta.tolist(), strict=True))
    lift = np.mean([values[token] for token in means])
    assert lift > 0.1
    for token, mean in means.items():
        assert values[token] - lift == pytest.approx(mean, abs=1e-3)
    for token in set(values) - set(means):
        assert values[token] == pytest.approx(0.0, abs=1e-2)


def test_standard_errors_know_the_prior() -> None:
    """They accept the maximum around the means, and refuse it as one around 0."""
    prior = Prior.of("rule", {1: -2.0, 4: -1.0})
    table = NextToken.of(ROLLOUTS)
    weights = weighting(0.7).weights(ROLLOUTS)
    fit = projection(ROLLOUTS, weights, l2=4.0, next_token=table, prior=prior)
    errors = standard_errors(ROLLOUTS, table, fit, weights, l2=4.0, prior=prior)
    assert (errors.errors > 0).all()
    with pytest.raises(InputError):
        standard_errors(ROLLOUTS, table, fit, weights, l2=4.0)


def test_few_completions_with_a_prior_are_worth_many_without() -> None:
    """Ten completions and the right prior earn more than eighty without it, in the mean over
    draws.
    """
    exact = Exact(ExactModel(VOCABULARY, 4, seed=5, end=True, prompts=4, sharpness=0.7), count)
    costs = Prior("avoid", np.array([1, 4]), np.array([-0.8, -0.8]), by_tau=True)

    def earned(size: int, priors: tuple[Prior, ...], seed: int) -> float:
        rollouts = MODEL.rollouts(size, count, seed)
        table = NextToken.of(rollouts).with_tokens(costs.token_ids)
        sweep = Sweep(tau=(0.4,), l2=(4.0,))
        made = list(candidates(Positions(rollouts, table), sweep, LIMITS, priors=priors))[-1]
        delta = np.zeros(VOCABULARY)
        delta[made.sparse.token_ids] = made.sparse.values
        return exact.expected_reward(delta)

    seeds = range(40, 52)
    few = np.mean([earned(10, (costs,), seed) for seed in seeds])
    many = np.mean([earned(80, (), seed) for seed in seeds])
    assert few > many > exact.expected_reward()


def test_means_are_what_the_target_gives_a_token_and_bounded() -> None:
    """c / tau, no farther than some nats; a prior must be finite."""
    costs = Prior("avoid", np.array([1, 4]), np.array([-0.5, -50.0]), by_tau=True)
    assert costs.at(0.5).means.tolist() == [-1.0, -FARTHEST]
    with pytest.raises(InputError):
        Prior.of("rule", {1: float("-inf")})
