"""Standard errors of a fitted bias, token by token: the sandwich of a penalised maximum, clustered by prompt.

The fit solves ``sum_n w_n (s_n(delta) - l2/N delta) = 0`` with the score ``s_n`` of completion n. Completions of one prompt are
not independent, so the scores are summed by prompt, and what each prompt contributes is the step that the fit would take
without it, ``x_p = (H - H_p)^-1 U_p``: the sandwich with the leverage of each cluster removed, known as CR3 or the one-step
jackknife (Bell and McCaffrey, Survey Methodology 28, 2002). The plain sandwich ``H^-1 U_p`` is too small for tokens that few
prompts decide. Where lists are short, a prompt that is left out takes its samples outside the lists from the tail unigram too:
the same samples raise a tail token's count and what is expected of it, and most of the two cancels. With the unigram held fixed
the errors of tail tokens would be 1.5 to 2.5 times their spread, and without any list more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import stats

from blackbox_lb.errors import InputError
from blackbox_lb.estimate.checks import Bools, Ids, Vector, positive, vector
from blackbox_lb.estimate.derivatives import expected_by, hessian
from blackbox_lb.estimate.normaliser import NextToken
from blackbox_lb.estimate.passes import dot
from blackbox_lb.estimate.projection import Fit, Scale, reward_weights
from blackbox_lb.estimate.rollouts import Rollouts

__all__ = ["StandardErrors", "standard_errors"]

UNFINISHED = 1e-5
"""Nats per weighted position between a delta and the maximum: above it the delta is of another fit."""
SETTLED = 1e-6
"""Residual, as a share of the first, at which conjugate gradients stop: a thousandth of the standard error itself."""
MOST_STEPS = 1000
SAME = 1e-9
"""Informants this close to 1 are one group and rounding."""
MOST_GROUPS = 100
"""More units than this are dealt into this many groups; a standard error of 100 of them is itself known to 7 %."""


@dataclass(frozen=True, slots=True, eq=False)
class StandardErrors:
    """How far each value of a bias may be from what unlimited prompts would give under the same penalty per rollout.

    token_ids: (s,) sorted. delta: (s,) nats. contributions: (g, s) nats, what each of g groups of ``units`` (prompts, or rollouts
    where only one prompt earned a reward) moves delta by. informants: (s,) the effective number of groups that the weighted
    samples of each token come from, ``(sum c)^2 / sum c^2``; 0 for a token that no rewarded completion holds. usage: (s,) the
    mean probability of each token under the base model at the logged positions.
    """

    token_ids: Ids
    delta: Vector
    contributions: npt.NDArray[np.float64]
    informants: Vector
    usage: Vector
    units: str

    @property
    def groups(self) -> int:
        """g."""
        return len(self.contributions)

    @property
    def errors(self) -> Vector:
        """(s,) standard errors in nats; 0 for a token that had to stay at 0."""
        return _errors(self.contributions)

    def intervals(self, level: float = 0.95) -> tuple[Vector, Vector]:
        """(s,) lower and (s,) upper ends in nats, by Student's t with ``informants - 1`` degrees of freedom.

        A token that one group alone has sampled, or none, has no interval: from -inf to inf, unless it had to stay at 0.
        """
        if not 0 < level < 1:
            raise InputError(f"level is {level}; it must be between 0 and 1")
        reach, known = np.full(len(self.delta), np.inf), self.informants > 1 + SAME
        reach[known] = stats.t.ppf((1 + level) / 2, self.informants[known] - 1) * self.errors[known]
        reach[~self.contributions.any(axis=0)] = 0.0
        return self.delta - reach, self.delta + reach

    def distinguishable(self, level: float = 0.95) -> Bools:
        """(s,) whether each interval leaves out 0, the bias of a token that is not sent."""
        low, high = self.intervals(level)
        return (low > 0) | (high < 0)

    @property
    def signal(self) -> float:
        """``sum usage (delta - mean)^2`` less ``noise``, at least 0: nats^2 per token, about twice a KL.

        mean: the usage-weighted one, so that a common shift of all tokens, which is no change of policy, counts for nothing.
        """
        return max(float(self.usage @ self._centred(self.delta) ** 2) / float(self.usage.sum()) - self.noise, 0.0)

    @property
    def noise(self) -> float:
        """``sum usage error^2`` of the same centred bias, in the same unit: the part of it that is sampling error."""
        return float(self.usage @ _errors(self._centred(self.contributions)) ** 2) / float(self.usage.sum())

    def rollouts_needed(self, rollouts: int, noise_share: float = 0.2) -> float:
        """How many rollouts like these ``rollouts`` would leave ``noise_share`` of the learned bias to chance; inf if no signal.

        Noise falls as 1 / N and the signal stays: ``N noise (1 - share) / (signal share)``.
        """
        if not 0 < noise_share < 1:
            raise InputError(f"noise_share is {noise_share}; it must be between 0 and 1")
        if self.signal == 0:
            return float("inf")
        return rollouts * self.noise * (1 - noise_share) / (self.signal * noise_share)

    def _centred(self, values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        mean: npt.NDArray[np.float64] = values @ self.usage / self.usage.sum()
        return np.asarray(values - mean[..., None], dtype=np.float64)


def standard_errors(
    rollouts: Rollouts,
    next_token: NextToken,
    delta: Fit | npt.ArrayLike,
    *,
    tau: float,
    l2: float,
    weights: Scale = "global",
    support: npt.ArrayLike | None = None,
    seed: int = 0,
) -> StandardErrors:
    """Standard errors of a ``delta`` (s,) that ``projection`` fitted to these rollouts with the same options.

    next_token: of these rollouts. support: the ids that could be nonzero, all if None. seed: of the dealing into groups where
    there are more than 100 units.

    They are the spread around what the estimator with these lists tends to for unlimited prompts. That is not what it would tend
    to with complete lists and no penalty: the penalty shrinks delta toward 0, and the tail model gives each token the same share of
    every tail. Neither is sampling error, and neither is counted. 95 % intervals of tokens with 20 weighted samples cover that
    limit in 93 to 97 % of cases, with complete lists, with short ones and with none.

    ``next_token`` with a unigram that other rollouts lent: the error counted is that of a unigram of these rollouts.

    InputError: fewer than two completions with a reward, or a ``delta`` that is not the maximum under these options
    (a bias cut or rounded after the fit has no standard error of its own).
    """
    if next_token.n_positions != len(rollouts.token_ids):
        raise InputError(f"next_token has {next_token.n_positions} positions, the rollouts {len(rollouts.token_ids)}")
    table = next_token.named()
    values = _values(delta, table)
    w = reward_weights(rollouts, tau, weights) * (rollouts.lengths > 0)
    group_of, units = _groups(rollouts, w, seed)
    free = np.ones(len(values), dtype=np.bool_) if support is None else np.isin(table.token_ids, np.asarray(support))
    problem = _Problem(table, values, w[rollouts.rollout_of], group_of[rollouts.rollout_of], positive("l2", l2), free)
    size = np.bincount(group_of).astype(np.float64)
    shares = (size if weights == "prompt" else np.bincount(group_of, weights=w)) / len(w)
    counts, expected = problem.by_group(len(shares))
    scores = np.where(free, counts - expected - np.outer(shares * l2, values), 0.0)
    problem.check(scores.sum(axis=0))
    steps = np.stack(list(problem.steps(shares, scores, expected)))
    return StandardErrors(
        token_ids=table.token_ids,
        delta=values,
        contributions=steps,
        informants=counts.sum(axis=0) ** 2 / np.maximum((counts**2).sum(axis=0), np.finfo(np.float64).tiny),
        usage=table.expected(np.zeros(len(values))) / table.n_positions,
        units=units,
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Problem:
    """The objective around its maximum. group: (m,) of each position. free: (s,) which coordinates may move."""

    table: NextToken
    delta: Vector
    weights: Vector
    group: Ids
    l2: float
    free: Bools

    def by_group(self, groups: int) -> tuple[Vector, Vector]:
        """(g, s) each group's weighted samples of each token, and what is expected of them."""
        size = len(self.delta)
        counts: Vector = np.bincount(self.group * size + self.table.sampled, self.weights, groups * size).astype(
            np.float64
        )
        return counts.reshape(groups, size), expected_by(self.table, self.delta, self.weights, self.group, groups)

    def check(self, gradient: Vector) -> None:
        """InputError unless delta is the maximum, where the parts cancel."""
        curvature = self.table.expected(self.delta, self.weights) + self.l2
        missing = float(gradient @ (gradient / curvature)) / 2 / float(self.weights.sum())
        if not missing <= UNFINISHED:
            raise InputError(
                f"delta is {missing:.2g} nats per weighted token away from the maximum under these options, above {UNFINISHED:g}; "
                "give the tau, l2, weights and support that it was fitted with, and the values before rounding or cutting"
            )

    def steps(self, shares: Vector, scores: Vector, expected: Vector) -> Iterator[Vector]:
        """(s,) a group: how far the maximum lies from where it would be without it, to second order of the others' objective.

        scores, expected: (g, s), each group's part of the gradient, whose penalties are such that all sum to 0, and of the samples.
        """
        outside = self.table.sampled_outside
        drawn = self._samples(outside)
        without: NextToken | None = None
        whole = expected.sum(axis=0)
        for group, (share, score) in enumerate(zip(shares.tolist(), scores, strict=True)):
            gone = self._samples(outside & (self.group == group))
            if not gone.any():
                yield self._step(self.table, group, share, score, None)
                continue
            kept = np.divide(drawn - gone, drawn, out=np.ones_like(drawn), where=drawn > 0)
            without = self.table.with_unigram(self.table.unigram * kept, out=without)
            yield self._step(without, group, share, score, whole - expected[group])

    def _samples(self, where: Bools) -> Vector:
        """(s,) how often each token was sampled at the positions ``where`` (m,)."""
        return self.table.sampled_counts(where) if where.any() else np.zeros_like(self.delta)

    def _step(self, table: NextToken, group: int, share: float, score: Vector, known: Vector | None) -> Vector:
        """(s,) for one group, of whose samples the tails of ``table`` know nothing; known: (s,) expected
        of the others by those that do."""
        others = np.where(self.group == group, 0.0, self.weights)
        ridge = self.l2 * (1 - share)
        expected, along = hessian(table, self.delta, others)
        if known is not None:
            score = score + np.where(self.free, expected - known, 0.0)

        def curvature(direction: Vector) -> Vector:
            return np.where(self.free, along(direction) + ridge * direction, 0.0)

        return _conjugate_gradients(curvature, score, expected + ridge)


def _conjugate_gradients(product: Callable[[Vector], Vector], right: Vector, diagonal: Vector) -> Vector:
    """``A^-1 right`` for a positive definite A given by ``product``, preconditioned by about its ``diagonal``."""
    x, residual = np.zeros_like(right), right.copy()
    scaled = residual / diagonal
    direction, size = scaled, dot(residual, scaled)
    goal = SETTLED**2 * size
    for _ in range(MOST_STEPS):
        if size <= goal:
            return x
        turned = product(direction)
        length = size / dot(direction, turned)
        x, residual = x + length * direction, residual - length * turned
        scaled = residual / diagonal
        before, size = size, dot(residual, scaled)
        direction = scaled + size / before * direction
    raise InputError(
        f"standard errors did not settle in {MOST_STEPS} steps; a larger l2 makes the fit better determined"
    )


def _groups(rollouts: Rollouts, w: Vector, seed: int) -> tuple[Ids, str]:
    """(n,) the group of each rollout, and what groups are made of."""
    alive = np.unique(rollouts.prompts[w > 0])
    units = "prompts" if len(alive) > 1 else "rollouts"
    if np.count_nonzero(w) < 2:
        raise InputError(
            f"{np.count_nonzero(w)} of {len(w)} completions earned a reward; a standard error needs at least 2: "
            "collect more rollouts"
        )
    names = rollouts.prompts if units == "prompts" else np.arange(len(w))
    number = np.unique(names, return_inverse=True)[1].astype(np.int64)
    earned = np.bincount(number, weights=w)
    if len(earned) > MOST_GROUPS:  # units with a reward are dealt first, so that no group has them all
        order = np.lexsort((np.random.default_rng(seed).random(len(earned)), earned == 0))
        number = (np.argsort(order) % MOST_GROUPS)[number]
    return number, units


def _values(delta: Fit | npt.ArrayLike, table: NextToken) -> Vector:
    if isinstance(delta, Fit):
        return table.align(delta.token_ids, delta.delta)
    return vector("delta", delta, len(table.token_ids))


def _errors(contributions: npt.NDArray[np.float64]) -> Vector:
    """(s,) by the jackknife over groups; their mean is not taken out, which can only widen."""
    groups = len(contributions)
    return np.asarray(np.sqrt((groups - 1) / groups * (contributions**2).sum(axis=0)), dtype=np.float64)
