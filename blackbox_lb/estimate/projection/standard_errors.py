"""Standard errors of a fitted bias, token by token: the sandwich of a penalised maximum, clustered
by prompt.

The fit solves ``sum_n w_n (s_n(delta) - l2/N delta) = 0`` with the score ``s_n`` of completion n,
whose part that is the baseline's is counted by expectation (see ``inputs.rollouts``).
Completions of one prompt are not independent, so the scores are summed by prompt. The contribution
of a prompt is the step of the fit without it,
``x_p = (H - H_p)^-1 U_p``: the sandwich with the leverage of each cluster removed, known as CR3 or
the one-step jackknife (Bell and McCaffrey, Survey Methodology 28, 2002). The plain sandwich ``H^-1
U_p`` is too small for tokens that few prompts decide. Where lists are short, a prompt that is left
out takes its samples outside the lists from the tail unigram too: the same samples raise a tail
token's count and its expectation, and most of the two cancels. With a fixed unigram the errors of
tail tokens would be 1.5 to 2.5 times their spread, and without any list more.

The scores ``U_p`` and the diagonal of ``H - H_p`` are of all positions. Where these are many,
evenly spaced parts of them give the off-diagonal curvature and the effect of the prompt on the
tail: each group takes about 15 visits. That moves a standard error by less than the sampling error
that 100 groups leave in it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from blackbox_lb.errors import InputError
from blackbox_lb.estimate.inputs.checks import Bools, Ids, Vector
from blackbox_lb.estimate.inputs.rollouts import PositionWeights, Rollouts
from blackbox_lb.estimate.inputs.sweep import positive
from blackbox_lb.estimate.next_token.derivatives import expected_by, hessian
from blackbox_lb.estimate.next_token.next_token import NextToken
from blackbox_lb.estimate.next_token.sparse_table import dot, stretches
from blackbox_lb.estimate.problem import penalty
from blackbox_lb.estimate.projection.projection import Fit, Prior
from blackbox_lb.estimate.reweighting import effective_sample_size

UNFINISHED = 1e-5
"""Nats per weighted position to the maximum: a delta farther away is of another fit."""
SETTLED = 1e-4
"""Residual, as a share of the first, at which conjugate gradients stop: 99 % of standard errors are
then within 1 in 4,000, and none is out by more than 1 in 300."""
MOST_STEPS = 1000
RARE = 1e-6
"""Least distance of a token's probability from certainty."""
ROUNDS = 3
"""Rounds of scaling the ties between tokens to their sums: the first guess is right where a token's
ties are those of all data.
"""
CURVED = 1 << 16
"""Effective positions, by weight, that give the curvature; more are not read again for each group.
"""
MOST_GROUPS = 100
"""Most groups; more units than this are dealt into them: a standard error of 100 groups is itself
known to 7 %.
"""


@dataclass(frozen=True, slots=True, eq=False)
class StandardErrors:
    """Standard errors of each value of a bias, around the value from unlimited prompts under the
    same penalty per rollout.

    token_ids: (s,) sorted. delta: (s,) nats. contributions: (g, s) nats, the effect on delta of
    each of g groups of prompts, or of rollouts where only one prompt earned a reward. usage: (s,)
    the mean probability of each token under the base model at the logged positions.
    """

    token_ids: Ids
    delta: Vector
    contributions: npt.NDArray[np.float64]
    usage: Vector

    @property
    def errors(self) -> Vector:
        """(s,) standard errors in nats; 0 for a token that had to stay at 0."""
        return _errors(self.contributions)

    @property
    def signal(self) -> float:
        """``sum usage (delta - mean)^2`` less ``noise``, at least 0: nats^2 per token, about twice
        a KL.

        mean: usage-weighted, so that a common shift of all tokens, which is no change of policy,
        counts for nothing.
        """
        return max(
            float(self.usage @ self._centred(self.delta) ** 2) / float(self.usage.sum())
            - self.noise,
            0.0,
        )

    @property
    def noise(self) -> float:
        """``sum usage error^2`` of the same centred bias, in the same unit: its sampling error."""
        return float(self.usage @ _errors(self._centred(self.contributions)) ** 2) / float(
            self.usage.sum()
        )

    def _centred(self, values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        mean: npt.NDArray[np.float64] = values @ self.usage / self.usage.sum()
        return np.asarray(values - mean[..., None], dtype=np.float64)


def standard_errors(
    rollouts: Rollouts,
    next_token: NextToken,
    fit: Fit,
    weights: PositionWeights,
    *,
    l2: float,
    support: npt.ArrayLike | None = None,
    prior: Prior | None = None,
) -> StandardErrors:
    """Standard errors of the ``fit`` that ``projection`` made of these rollouts with the same
    options.

    next_token: of these rollouts. support: the ids that could be nonzero, all if None.

    They are the spread around the limit of the estimator with these lists for unlimited prompts.
    With complete lists and no penalty it would have another limit: the penalty shrinks delta toward
    0, and the tail model gives each token the same share of every tail. Neither is sampling error,
    and neither is counted. 95 % intervals of tokens with 20 weighted samples, by Student's t with
    as many degrees of freedom as groups that sampled the token, less 1, cover the limit in 93 to
    97 % of cases, with complete lists, with short ones and with none.

    Where other rollouts lent ``next_token`` its unigram, the counted error is that of a unigram of
    these rollouts.

    InputError: fewer than two completions with a reward, or a ``fit`` that is not the maximum
    under these options (a bias cut or rounded after the fit has no standard error of its own).
    """
    table = next_token.named()
    values = table.align(fit.token_ids, fit.delta)
    w = weights.of_rollouts(rollouts)
    group_of = _groups(rollouts, w)
    if support is None:
        free = np.ones(len(values), dtype=np.bool_)
    else:
        free = np.isin(table.token_ids, np.asarray(support))
    group = np.repeat(group_of, rollouts.lengths)
    problem = _Problem(
        table, values, weights.values, weights.baseline, group, positive("l2", l2), free
    )
    size = np.bincount(group_of).astype(np.float64)
    shares = size if weights.scale == "prompt" else np.bincount(group_of, weights=w)
    shares = shares / shares.sum()  # rollouts that weigh nothing bear no part of the penalty
    scores = problem.tallied(len(shares), weights.values - weights.baseline)
    shared = problem.baseline_by(len(shares))
    if shared is not None:
        scores += shared
    expected, squares = problem.expected_by(len(shares))
    scores -= expected
    center = None
    lifted = None
    if prior is not None:
        center = table.align(prior.token_ids, prior.means)
        lifted = np.flatnonzero(np.isin(table.token_ids, prior.lifted))
    _, pull = penalty(values, l2, center, lifted)
    scores -= np.outer(shares, pull)
    scores[:, ~free] = 0.0
    problem.check(scores.sum(axis=0), expected.sum(axis=0))
    steps = problem.steps(shares, scores, expected, squares, shared)
    return StandardErrors(
        token_ids=table.token_ids,
        delta=values,
        contributions=steps,
        usage=table.expected(np.zeros(len(values))) / table.n_positions,
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Problem:
    """The objective around its maximum. baseline: (m,) the part of each weight that
    is counted by expectation. group: (m,) of each position. free: (s,) whether each coordinate may
    move.
    """

    table: NextToken
    delta: Vector
    weights: Vector
    baseline: Vector
    group: Ids
    l2: float
    free: Bools

    def expected_by(self, groups: int) -> tuple[Vector, Vector]:
        """(g, s) the expectation at each group's positions; see ``expected_by``."""
        return expected_by(self.table, self.delta, self.weights, self.group, groups)

    def baseline_by(self, groups: int) -> Vector | None:
        """(g, s) the expected counts of each group's baseline; None where there is none."""
        if not self.baseline.any():
            return None
        no_bias = np.zeros(len(self.delta))
        # a copy, so that the squares beside it are let go
        return expected_by(self.table, no_bias, self.baseline, self.group, groups)[0].copy()

    def baseline_without(self, table: NextToken, group: int) -> Vector:
        """(s,) the expected counts of the baseline under ``table``, without that of ``group``."""
        no_bias = np.zeros(len(self.delta))
        others = np.where(self.group == group, 0.0, self.baseline)
        if not others.any():
            return no_bias
        return table.expected(no_bias, others)

    def tallied(self, groups: int, weights: Vector | Bools) -> Vector:
        """(g, s) the sum of ``weights`` (m,) over each group's samples of each token."""
        size = len(self.delta)
        sums = np.zeros(groups * size)
        for at in stretches(len(weights)):
            nonzero = np.flatnonzero(weights[at])
            np.add.at(
                sums,
                self.group[at][nonzero] * np.int64(size) + self.table.sampled[at][nonzero],
                weights[at][nonzero],
            )
        return sums.reshape(groups, size)

    def check(self, gradient: Vector, expected: Vector) -> None:
        """Raise InputError unless delta is the maximum, where the parts cancel."""
        curvature = expected + self.l2
        missing = float(gradient @ (gradient / curvature)) / 2 / float(self.weights.sum())
        if not missing <= UNFINISHED:
            raise InputError(
                f"delta is {missing:.2g} nats per weighted token away from the maximum under these"
                f" options, above {UNFINISHED:g}; give the tau, l2, weights and support that it was"
                " fitted with, and the values before rounding or cutting"
            )

    def steps(
        self,
        shares: Vector,
        scores: Vector,
        expected: Vector,
        squares: Vector,
        shared: Vector | None,
    ) -> Vector:
        """(g, s) the distance of the maximum from that without each group, to second order of the
        others' objective.

        scores, expected: (g, s), each group's part of the gradient, whose penalties are such that
        all sum to 0, and of the samples. squares: (g, s), see ``expected_by``. shared: (g, s), see
        ``baseline_by``.
        """
        part = self._part()
        if part is self:
            part_usage = expected
            part_squares = squares
        else:
            part_usage, part_squares = part.expected_by(len(shares))
        growth = float(self.weights.sum() / part.weights.sum())
        part_shared = shared if part is self else part.baseline_by(len(shares))
        outside = self.tallied(len(shares), self.table.sampled_outside)
        counts = outside.sum(axis=0)
        everything = _Others(expected, squares)
        part_of = everything if part is self else _Others(part_usage, part_squares)
        without: NextToken | None = None
        steps = np.empty_like(scores)
        for group, (share, gone) in enumerate(zip(shares.tolist(), outside, strict=True)):
            table = part.table
            if gone.any():
                shares_left = np.divide(
                    counts - gone, counts, out=np.ones_like(counts), where=counts > 0
                )
                table = without = table.with_unigram(table.unigram * shares_left, out=without)
            usage, curvature = hessian(
                table, self.delta, np.where(part.group == group, 0.0, part.weights)
            )
            usage_without, bend = everything.without(group)
            seen_of_it, seen_bend = part_of.without(group)
            change = growth * (usage - seen_of_it) if gone.any() else np.zeros_like(usage)
            right = scores[group] + np.where(self.free, change, 0.0)
            ridge = self.l2 * (1 - share)
            if gone.any() and part_shared is not None:  # the baseline's expectation changes, too
                before = part_shared.sum(axis=0) - part_shared[group]
                moved = part.baseline_without(table, group) - before
                right -= np.where(self.free, growth * moved, 0.0)
            diagonal = np.maximum(usage_without + change, 0.0) * bend
            if part is not self:
                curvature = _matched(curvature, usage, usage * seen_bend, diagonal, growth)
            steps[group] = self._solved(right, curvature, diagonal + ridge, ridge)
        return steps

    def _part(self) -> _Problem:
        """The same problem on some parts of a large table, evenly spaced, which is enough for its
        curvature.
        """
        parts = [part for part in self.table.lists.parts if self.weights[part.where].any()]
        count = math.ceil(len(parts) * CURVED / effective_sample_size(self.weights))
        if count >= len(parts):
            return self
        chosen = [parts[number] for number in (np.arange(count) * len(parts) // count).tolist()]
        rows = np.concatenate([part.positions(np.arange(part.size)) for part in chosen])
        return replace(
            self,
            table=self.table.take(rows),
            weights=self.weights[rows],
            baseline=self.baseline[rows],
            group=self.group[rows],
        )

    def _solved(
        self, right: Vector, product: Callable[[Vector], Vector], diagonal: Vector, ridge: float
    ) -> Vector:
        """(s,) ``right`` over the curvature of the free coordinates: ``product`` and ``ridge``,
        with about that ``diagonal``.
        """
        return _conjugate_gradients(
            lambda direction: np.where(self.free, product(direction) + ridge * direction, 0.0),
            right,
            diagonal,
        )


def _matched(
    product: Callable[[Vector], Vector],
    usage: Vector,
    counts: Vector,
    diagonal: Vector,
    growth: float,
) -> Callable[[Vector], Vector]:
    """Scale the curvature ``product`` of a part of the positions, (s,) ``counts`` its diagonal, to
    ``growth`` times as many, with the known ``diagonal`` (s,).

    A curvature is the Laplacian of a graph: tokens are tied by how often one could have stood for
    the other, and to the rest, which has no bias and is often nothing: then nothing resists a shift
    of all tokens. So the ties are scaled, ``s(y) s(z)``, until they add up to the diagonal
    (Sinkhorn). A matrix scaled from both sides resists such a shift, and with a penalty that is
    small beside the counts this would decide all. Tokens without a tie in this part are tied to the
    mean of all.
    """
    tied = counts > usage * RARE
    rest = math.sqrt(growth) * np.maximum(product(np.ones_like(counts)), 0.0)
    scale = np.divide(diagonal, counts * math.sqrt(growth), out=np.zeros_like(counts), where=tied)
    for _ in range(ROUNDS):
        ties = scale * (counts * scale - product(scale) + rest)
        scale *= np.sqrt(
            np.divide(diagonal, ties, out=np.ones_like(ties), where=ties > RARE * diagonal)
        )
    shift = scale * (product(scale) - rest)
    alone = np.where(tied, 0.0, diagonal)
    mean = diagonal / diagonal.sum()

    def matched(direction: Vector) -> Vector:
        loose = alone * (direction - dot(mean, direction))
        return np.asarray(
            scale * product(scale * direction) - shift * direction + loose - mean * loose.sum()
        )

    return matched


class _Others:
    """The expectations of all groups but one. expected, squares: (g, s)."""

    def __init__(self, expected: Vector, squares: Vector) -> None:
        self._expected = expected
        self._squares = squares
        self._all = expected.sum(axis=0), squares.sum(axis=0)

    def without(self, group: int) -> tuple[Vector, Vector]:
        """(s,) expected, and (s,) its share on the diagonal of the curvature: 1 less the mean
        probability.
        """
        usage = self._all[0] - self._expected[group]
        squares = self._all[1] - self._squares[group]
        mean = np.divide(squares, usage, out=np.zeros_like(usage), where=usage > 0)
        return usage, 1 - np.clip(mean, 0.0, 1 - RARE)


def _conjugate_gradients(
    product: Callable[[Vector], Vector], right: Vector, diagonal: Vector
) -> Vector:
    """``A^-1 right`` for a positive definite A given by ``product``, preconditioned by about its
    ``diagonal``.
    """
    x = np.zeros_like(right)
    residual = right.copy()
    scaled = residual / diagonal
    direction = scaled
    size = dot(residual, scaled)
    goal = SETTLED**2 * size
    for _ in range(MOST_STEPS):
        if size <= goal:
            return x
        turned = product(direction)
        length = size / dot(direction, turned)
        x = x + length * direction
        residual = residual - length * turned
        scaled = residual / diagonal
        before = size
        size = dot(residual, scaled)
        direction = scaled + size / before * direction
    raise InputError(
        f"standard errors did not settle in {MOST_STEPS} steps; a larger l2 makes the fit better"
        " determined"
    )


def _groups(rollouts: Rollouts, w: Vector) -> Ids:
    """(n,) the group of each rollout. Units are prompts, or rollouts where only one prompt earned a
    reward.
    """
    if np.count_nonzero(w) < 2:
        raise InputError(
            f"{np.count_nonzero(w)} of {len(w)} completions earned a reward; a standard error needs"
            " at least 2: collect more rollouts"
        )
    units = rollouts.prompts
    if len(np.unique(units[w > 0])) == 1:
        units = np.arange(len(w))
    number = np.unique(units, return_inverse=True)[1].astype(np.int64)
    earned = np.bincount(number, weights=w)
    if (
        len(earned) > MOST_GROUPS
    ):  # units with a reward are dealt first, so that no group has them all
        order = np.lexsort((np.random.default_rng(0).random(len(earned)), earned == 0))
        number = (np.argsort(order) % MOST_GROUPS)[number]
    return number.astype(np.int32)


def _errors(contributions: npt.NDArray[np.float64]) -> Vector:
    """(s,) by the jackknife over groups; their mean stays in, which can only widen the errors."""
    groups = len(contributions)
    return np.asarray(
        np.sqrt((groups - 1) / groups * (contributions**2).sum(axis=0)), dtype=np.float64
    )
