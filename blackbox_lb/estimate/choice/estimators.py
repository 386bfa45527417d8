"""The estimators as classes with ``fit``: token by token, one bias from logged positions.

    fit = Projection(l2=5.0).fit(positions, RewardTilt(tau=0.5))
    fit.bias_

Index letters: ``k`` tokens with a value, ``n`` rollouts. Values in nats at temperature 1.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property, partial
from typing import Self

from blackbox_lb.errors import InputError
from blackbox_lb.estimate.choice.estimator import IPS_OF_TOKENS, LoggedHere, weighed_projection
from blackbox_lb.estimate.inputs.checks import Ids, Vector
from blackbox_lb.estimate.inputs.rollouts import RewardTilt, Weighting
from blackbox_lb.estimate.inputs.sweep import AlphaScale, Sweep, Unobserved, positive
from blackbox_lb.estimate.projection.projection import fit_sets, posterior_shares
from blackbox_lb.estimate.projection.standard_errors import standard_errors


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

    def fit(self, positions: LoggedHere, weights: Weighting) -> Self:
        """Learn from ``positions`` with any weights: ``RewardTilt``, ``RewardToGo``,
        ``GivenAnswers``, or a sum of them. Raises InputError: no completion earned a reward.
        """
        table = positions.next_token
        named = table.named()
        shares, _ = posterior_shares(positions.rollouts, named)
        solve = partial(weighed_projection, rule=weights, l2=self.l2, next_token=table)
        self._fit, rollouts = fit_sets(replace(positions.rollouts, shares=shares), named, solve)
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
        rollouts, table, rule = self._learned_from
        weights = rule.weights(rollouts)
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

    def fit(self, positions: LoggedHere, weights: Weighting) -> Self:
        """Learn from the completions of ``positions``. Raises InputError: other weights than
        ``RewardTilt(tau)``, given answers, or no completion earned a reward.
        """
        if not isinstance(weights, RewardTilt) or weights.scale != "global":
            raise InputError(
                "ips weighs completions by exp(r / tau), all on one scale; give RewardTilt(tau), or"
                " use Projection"
            )
        if positions.rollouts.given.any():
            raise InputError("ips learns from drawn completions only; use Projection for answers")
        sweep = Sweep(
            tau=(weights.tau,),
            alpha=(self.alpha,),
            alpha_scale=self.alpha_scale,
            positions=self.draws,
            clip=self.clip,
            seed=self.seed,
            unobserved=self.unobserved,
        )
        (learned,) = IPS_OF_TOKENS.learn(positions, sweep)
        self.token_ids_ = learned.token_ids
        self.values_ = learned.values
        return self
