"""The estimators as classes with ``fit``: token by token, one bias from logged positions.

    fit = Projection(l2=5.0).fit(positions, RewardTilt(tau=0.5))
    fit.bias_

Index letters: ``k`` tokens with a value, ``n`` rollouts. Values in nats at temperature 1.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Protocol, Self

import numpy as np

from blackbox_lb.errors import InputError
from blackbox_lb.estimate.counting.statistics import BLOCK_POSITIONS, Statistics, TokenIPS
from blackbox_lb.estimate.inputs.checks import Ids, Vector, positive
from blackbox_lb.estimate.inputs.recipe import AlphaScale, Recipe, Unobserved
from blackbox_lb.estimate.inputs.rollouts import RewardTilt, Rollouts, Weighting
from blackbox_lb.estimate.next_token.next_token import NextToken
from blackbox_lb.estimate.projection.projection import Fit, fit_sets, posterior_shares, projection
from blackbox_lb.estimate.projection.standard_errors import standard_errors


class Logged(Protocol):
    """Scored completions with the model's next tokens at each of their positions: ``Positions``."""

    @property
    def rollouts(self) -> Rollouts:
        """The completions."""

    @property
    def next_token(self) -> NextToken:
        """The next-token distributions at their positions."""


class FittedEstimator:
    """What every estimator has after ``fit``.

    Attributes:
        token_ids_: (k,) sorted, the tokens with a value; all others are at 0.
        values_: (k,) nats.
    """

    token_ids_: Ids
    values_: Vector

    @property
    def bias_(self) -> dict[int, float]:
        """Token id -> nats, of the tokens whose value is not 0. InputError: before ``fit``."""
        if not hasattr(self, "values_"):
            raise InputError("nothing is fitted yet; call fit(positions, weights) first")
        pairs = zip(self.token_ids_.tolist(), self.values_.tolist(), strict=True)
        return {token: value for token, value in pairs if value}


class Projection(FittedEstimator):
    """The fixed bias closest to the reward-tilted model: weighted maximum likelihood.

    l2: a pull to 0, in weighted tokens.
    """

    def __init__(self, l2: float = 5.0) -> None:
        """Raise InputError: ``l2`` is not a finite number above 0."""
        self.l2 = positive("l2", l2)

    def fit(self, positions: Logged, weights: Weighting) -> Self:
        """Learn from ``positions`` with any weights: ``RewardTilt``, ``RewardToGo``,
        ``GivenAnswers``, or a sum of them. Raises InputError: no completion earned a reward.
        """
        rollouts = positions.rollouts
        table = positions.next_token

        def solve(rollouts: Rollouts, start: Fit | None = None) -> Fit:
            return projection(rollouts, weights, l2=self.l2, start=start, next_token=table)

        if rollouts.given.any():
            named = table.named()
            shares, _ = posterior_shares(rollouts, named, np.zeros(len(named.token_ids)))
            self._fit, rollouts = fit_sets(replace(rollouts, shares=shares), named, solve)
        else:
            self._fit = solve(rollouts)
        self._learned_from = rollouts, table, weights
        self.token_ids_ = self._fit.token_ids
        self.values_ = self._fit.delta
        self.__dict__.pop("standard_errors_", None)
        return self

    @cached_property
    def standard_errors_(self) -> Vector:
        """(k,) nats, computed when first read. InputError: fewer than two rewarded completions."""
        if not hasattr(self, "_fit"):
            raise InputError("nothing is fitted yet; call fit(positions, weights) first")
        rollouts, table, weights = self._learned_from
        return standard_errors(rollouts, table, self._fit, weights, l2=self.l2).errors


class IPS(FittedEstimator):
    """The paper's estimator, ``log(alpha + Zhat) - log(alpha)``, by inverse propensities.

    alpha: a multiple of the mean weight, or, with ``alpha_scale`` "absolute", the paper's
    pseudocount. draws: positions of each completion that are drawn (seeded by ``seed``), all if
    None. clip: the largest inverse propensity that counts. unobserved: "bound" or "drop", where the
    provider gave only a bound of the sampled token's logprob.
    """

    def __init__(
        self,
        alpha: float = 0.05,
        *,
        alpha_scale: AlphaScale = "relative",
        draws: int | None = None,
        clip: float | None = None,
        unobserved: Unobserved = "bound",
        seed: int = 0,
    ) -> None:
        """Raise InputError: ``alpha`` is not a finite number above 0."""
        self.alpha = positive("alpha", alpha)
        self.alpha_scale = alpha_scale
        self.draws = draws
        self.clip = clip
        self.unobserved = unobserved
        self.seed = seed

    def fit(self, positions: Logged, weights: Weighting) -> Self:
        """Learn from the completions of ``positions``. Raises InputError: other weights than
        ``RewardTilt(tau)``, given answers, or no completion earned a reward.
        """
        if not isinstance(weights, RewardTilt) or weights.scale != "global":
            raise InputError(
                "ips weighs completions by exp(r / tau), all on one scale; give RewardTilt(tau), or"
                " use Projection"
            )
        rollouts = positions.rollouts
        if rollouts.given.any():
            raise InputError("ips learns from drawn completions only; use Projection for answers")
        highest = float(rollouts.rewards[rollouts.lengths > 0].max(initial=-np.inf))
        recipe = Recipe((weights.tau,), highest, self.draws, self.seed, self.unobserved, self.clip)
        statistics = Statistics.zero()
        if rollouts.keys:
            statistics = Statistics.gather(rollouts.blocks(BLOCK_POSITIONS), recipe)
        estimate = TokenIPS(statistics)
        relative = self.alpha_scale == "relative"
        self.token_ids_ = estimate.token_ids
        self.values_ = estimate.delta(weights.tau, self.alpha, relative=relative)
        return self
