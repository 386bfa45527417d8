"""Weightings: what every token position of a set of rollouts weighs in a fit, and its baseline.

Index letters: ``n`` rollouts, ``m`` their token positions laid end to end.

A fit raises a token by the weights of the positions where it was sampled. Where the policy that
drew a completion is known, the sampled token has an expectation, ``E[1{y_t = y}] = pi(y |
prefix_t)``. So the part ``b`` of the weights that all positions share need not be counted from
samples:

    sum_t w_t 1{y_t = y}   becomes   sum_t (w_t - b) 1{y_t = y} + b sum_t pi(y | prefix_t).

Both have the same expectation, and the second has less noise: a control variate, or baseline.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from blackbox_lb.errors import InputError
from blackbox_lb.estimate.inputs.checks import Bools, Ids, Vector, positive
from blackbox_lb.estimate.inputs.recipe import Scale
from blackbox_lb.estimate.inputs.rollouts import Rollouts


@dataclass(frozen=True, slots=True, eq=False)
class PositionWeights:
    """The weights of a fit.

    Attributes:
        values: (m,) the weight of each position, at least 0.
        baseline: (n,) the part of the weights of each rollout's positions that is counted by
            expectation; 0 for a given answer, and where the policy that drew it is not known.
    """

    values: Vector
    baseline: Vector

    def __add__(self, other: PositionWeights) -> PositionWeights:
        return PositionWeights(self.values + other.values, self.baseline + other.baseline)

    def of_rollouts(self, rollouts: Rollouts) -> Vector:
        """(n,) the mean weight of each rollout's positions; 0 for one without a position."""
        totals = rollouts.summed(self.values)
        lengths = rollouts.lengths
        return np.divide(totals, lengths, out=np.zeros(len(totals)), where=lengths > 0)


class Weighting(Protocol):
    """A rule that weighs the positions of rollouts."""

    @property
    def scale(self) -> Scale:
        """The set over which the weights have mean 1."""

    def __add__(self, other: Weighting) -> Weighting:
        """The weights of both, added up."""

    def weights(self, rollouts: Rollouts, among: Bools | None = None) -> PositionWeights:
        """The weights of ``rollouts``.

        Args:
            rollouts: n scored completions and given answers.
            among: (n,) whether each counts, all if None; the others have weights and baselines 0.

        Raises:
            InputError: a setting out of range, or no completion earned a reward.
        """


@dataclass(frozen=True, slots=True)
class RewardTilt:
    """Every position of a drawn completion weighs ``exp(r / tau)`` of its reward r.

    tau: strength, in the unit of the rewards; smaller is stronger. scale: the weights have mean 1
    over all completions ("global") or over those of each prompt ("prompt", the paper's Z(x)). Given
    answers weigh 0: add ``GivenAnswers()`` to learn from them, too.
    """

    tau: float
    scale: Scale = "global"

    def __add__(self, other: Weighting) -> Weighting:
        return SumOfWeightings((self, other))

    def weights(self, rollouts: Rollouts, among: Bools | None = None) -> PositionWeights:
        """See ``Weighting.weights``. A prompt whose completions all have reward -inf weighs 0."""
        exponents = rollouts.rewards / positive("tau", self.tau)
        is_sampled = ~rollouts.given if among is None else ~rollouts.given & among
        weights, shared = _with_mean_one(
            exponents, rollouts.prompts, is_sampled, self.scale, rollouts
        )
        return PositionWeights(
            np.repeat(weights, rollouts.lengths), np.where(rollouts.policy_is_known, shared, 0.0)
        )


@dataclass(frozen=True, slots=True)
class RewardToGo:
    """A position weighs by the part of the reward that was earned from it on.

    Where the reward is a sum over positions, ``r = sum_t c_t``, the token at t cannot have changed
    what was earned before it. So position t weighs

        exp(sum_{s >= t} gamma^(s - t) c_s / tau),

    scaled to mean 1 over the *positions* of all drawn completions, or of those of each prompt: the
    mean over completions, which ``RewardTilt`` sets to 1, has no counterpart where the weights of
    one completion differ, and with mean 1 over positions l2 stays in weighted tokens.

    tau: strength, in the unit of the rewards. gamma: 0 to 1, the share of an effect that counts one
    position earlier; 1 is the objective of ``RewardTilt`` with less noise, and less than 1 forgets
    far effects. scale: as in ``RewardTilt``.
    """

    tau: float
    gamma: float = 1.0
    scale: Scale = "global"

    def __add__(self, other: Weighting) -> Weighting:
        return SumOfWeightings((self, other))

    def weights(self, rollouts: Rollouts, among: Bools | None = None) -> PositionWeights:
        """See ``Weighting.weights``. InputError: the reward is no sum over positions."""
        tau = positive("tau", self.tau)
        if not 0 <= self.gamma <= 1:
            raise InputError(f"gamma is {self.gamma}; it must be from 0 to 1")
        if rollouts.costs is None:
            raise InputError(
                "the reward is one number for each completion and not a sum over its positions, so"
                " no position has a reward to go; use RewardTilt, or give the rollouts costs"
            )
        of = rollouts.rollout_of
        is_sampled = ~rollouts.given
        counted = (is_sampled if among is None else is_sampled & among)[of]
        to_go = rewards_to_go(rollouts.costs, rollouts.lengths, self.gamma)
        weights, shared = _with_mean_one(
            to_go / tau, rollouts.prompts[of], counted, self.scale, rollouts
        )
        baseline = np.zeros(len(rollouts.keys))
        baseline[of] = shared  # the positions of one rollout share it
        return PositionWeights(weights, np.where(rollouts.policy_is_known, baseline, 0.0))


@dataclass(frozen=True, slots=True)
class GivenAnswers:
    """Given answers have their shares as weights, and no baseline; drawn completions weigh 0."""

    scale: Scale = "global"

    def __add__(self, other: Weighting) -> Weighting:
        return SumOfWeightings((self, other))

    def weights(self, rollouts: Rollouts, among: Bools | None = None) -> PositionWeights:
        """See ``Weighting.weights``."""
        is_given = rollouts.given
        weights = np.zeros(len(rollouts.keys))
        if among is not None:
            is_given = is_given & among
        if rollouts.shares is not None:
            weights[is_given] = rollouts.shares[is_given]
        return PositionWeights(np.repeat(weights, rollouts.lengths), np.zeros(len(weights)))


@dataclass(frozen=True, slots=True)
class SumOfWeightings:
    """The weights of all ``parts`` added up, such as those of drawn completions and of answers."""

    parts: tuple[Weighting, ...]

    @property
    def scale(self) -> Scale:
        """That of the first part."""
        return self.parts[0].scale

    def __add__(self, other: Weighting) -> Weighting:
        return SumOfWeightings((*self.parts, other))

    def weights(self, rollouts: Rollouts, among: Bools | None = None) -> PositionWeights:
        """See ``Weighting.weights``."""
        total = self.parts[0].weights(rollouts, among)
        for part in self.parts[1:]:
            total += part.weights(rollouts, among)
        return total


def weighting(tau: float, scale: Scale = "global", gamma: float | None = None) -> Weighting:
    """That of a fit: rewards (to go, with a ``gamma``) for what was drawn, shares for answers."""
    if gamma is None:
        return RewardTilt(tau, scale) + GivenAnswers(scale)
    return RewardToGo(tau, gamma, scale) + GivenAnswers(scale)


def rewards_to_go(costs: Vector, lengths: Ids, gamma: float) -> Vector:
    """(m,) ``sum_{s >= t} gamma^(s - t) c_s`` within each rollout, for ``costs`` (m,)."""
    to_go = costs.astype(np.float64)
    ends = np.cumsum(lengths)
    running = np.flatnonzero(lengths > 1)
    for back in range(2, int(lengths.max(initial=0)) + 1):
        running = running[lengths[running] >= back]
        at = ends[running] - back
        to_go[at] += gamma * to_go[at + 1]
    return to_go


def _with_mean_one(
    exponents: Vector, prompts: Ids, counted: Bools, scale: Scale, rollouts: Rollouts
) -> tuple[Vector, Vector]:
    """``exp(exponents)`` over their mean where ``counted``, over all or by prompt, else 0; and that
    mean after scaling, 1, or 0 where every weight is 0.

    exponents, prompts, counted: of one shape, by rollout or by position.
    """
    if scale not in ("global", "prompt"):
        raise InputError(f"weights {scale!r} are unknown; choose 'global' or 'prompt'")
    weights = np.zeros(len(exponents))
    shared = np.zeros(len(exponents))
    values = exponents[counted]
    if not (values > -np.inf).any():
        if rollouts.given.any():
            return weights, shared
        sampled = int(np.count_nonzero(~rollouts.given))
        raise InputError(
            f"no completion earned a reward: all {sampled} are -inf; collect more rollouts, allow"
            " more tokens, or use a reward that the model sometimes earns"
        )
    groups = np.zeros(len(values), np.int64)
    if scale == "prompt":
        groups = np.unique(prompts[counted], return_inverse=True)[1]
    highest = np.full(int(groups.max()) + 1, -math.inf)
    np.maximum.at(highest, groups, values)
    tilted = np.exp(values - np.where(np.isfinite(highest), highest, 0.0)[groups])
    totals = np.bincount(groups, weights=tilted)
    means = totals / np.bincount(groups)
    weights[counted] = tilted / np.where(totals > 0, means, 1.0)[groups]
    shared[counted] = (totals > 0)[groups]
    return weights, shared
