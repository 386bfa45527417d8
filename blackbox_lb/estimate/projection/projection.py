"""The projection: the fixed bias closest to the reward-tilted model, with its prior, and the
concave problem that L-BFGS solves for it.

The best fixed bias for the target ``p* ~ p_0 exp(r / tau)`` (the paper, "KL-regularized optimum")
minimises ``KL(p* || p_delta)``. On logged rollouts that is

    maximise   sum_n w_n sum_t [ delta(y_nt) - log sum_y pi_0(y | x_n, y_n<t) exp(delta(y)) ]
               - l2/2 |delta - center|^2,

with ``w_n = exp(r_n / tau)`` scaled to mean 1. It is concave and never reads the sampled token's
own probability. The part of the weights that all completions share is counted by expectation and
not from samples (``linear_term``), so that equal rewards give a bias of exactly 0. The
center is 0 unless a ``Prior`` says what tokens are worth before any data.

As one problem over ``m`` positions:

    maximise   linear . delta - sum_m w_m log sum_y pi_0(y | m) exp(delta(y))
               - l2/2 |delta - center|^2.

Tokens that are ``lifted`` share a shift that costs
no penalty: the penalty then counts their distances to the center less the mean of these distances.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from blackbox_lb.errors import InputError
from blackbox_lb.estimate.inputs.checks import Ids, Vector, positive, vector, weight_vector
from blackbox_lb.estimate.inputs.rollouts import PositionWeights, Rollouts, Weighting
from blackbox_lb.estimate.next_token.next_token import LoggedPositions, NextToken, WeightedPotential
from blackbox_lb.estimate.next_token.sparse_table import dot
from blackbox_lb.estimate.reweighting import effective_sample_size, log_policy_ratios

PAIRS = 20
"""Steps remembered."""
ENOUGH = 1e-4
STEEP = 0.9
"""A step achieves at least this share of the slope's promised fall, and leaves at most this share
of the slope.
"""
MOST_TRIES = 20
LEAST_FALL = 1e-13
"""Relative fall of the value below which it has settled: the rounding of a sum over positions."""
FLAT = 1e-7
"""Largest slope at which the value has settled."""

Function = Callable[[Vector], tuple[float, Vector]]
Pair: TypeAlias = tuple[Vector, Vector]
"""A step, and its change of the slope."""


@dataclass(frozen=True, slots=True, eq=False)
class Descent:
    """The end point: ``x``, the ``value`` and the ``slope`` there, the number of ``iterations``,
    and the last ``pairs``.
    """

    x: Vector
    value: float
    slope: Vector
    iterations: int
    pairs: tuple[Pair, ...] = ()


def descend(
    function: Function,
    start: Vector,
    *,
    max_iterations: int,
    shortfall: float = 0.0,
    pairs: Iterable[Pair] = (),
) -> Descent:
    """Minimise ``function``, which gives value and slope, in coordinates where its curvature is
    about 1 or less.

    pairs: of an earlier descent of a similar function, the oldest first; they give its curvature
    before the first step.

    It ends where the largest slope is at most 1e-7, the value falls by less than 1e-13 of itself,
    or half the squared slope, an estimate of the distance to the minimum, is at most ``shortfall``.
    """
    descent = Descent(start, *function(start), 0)
    memory = deque(((s, y, bend) for s, y in pairs if (bend := dot(s, y)) > 0), maxlen=PAIRS)
    while descent.iterations < max_iterations:
        if (
            np.abs(descent.slope).max(initial=0.0) <= FLAT
            or dot(descent.slope, descent.slope) / 2 <= shortfall
        ):
            break
        following = _step(function, descent, _direction(descent.slope, memory))
        if following is None:
            break
        s = following.x - descent.x
        y = following.slope - descent.slope
        if (bend := dot(s, y)) > 0:
            memory.append((s, y, bend))
        fall = descent.value - following.value
        descent = following
        if fall <= LEAST_FALL * max(abs(descent.value), 1.0):
            break
    return replace(descent, pairs=tuple((s, y) for s, y, _ in memory))


def _direction(slope: Vector, memory: deque[tuple[Vector, Vector, float]]) -> Vector:
    """Minus the inverse curvature by the remembered steps, times the slope."""
    q = -slope
    shares = []
    for s, y, bend in reversed(memory):
        share = dot(s, q) / bend
        q -= share * y
        shares.append(share)
    if memory:
        _, y, bend = memory[-1]
        q *= bend / dot(y, y)
    for (s, y, bend), share in zip(memory, reversed(shares), strict=True):
        q += (share - dot(y, q) / bend) * s
    return q


def _step(function: Function, start: Descent, direction: Vector) -> Descent | None:
    """A step along ``direction`` with enough fall and enough length; None where rounding hides any
    fall.
    """
    promised = dot(start.slope, direction)
    length = 1.0
    low = 0.0
    high = np.inf
    for _ in range(MOST_TRIES):
        x = start.x + length * direction
        value, slope = function(x)
        if value > start.value + ENOUGH * length * promised:
            high = length
        elif dot(slope, direction) < STEEP * promised:
            low = length
        else:
            return Descent(x, value, slope, start.iterations + 1)
        length = (low + high) / 2 if np.isfinite(high) else 2 * length
    return None


TOLERANCE = 1e-7
"""Nats per weighted position. Sampling error of any real fit is thousands of times larger."""


@dataclass(frozen=True, slots=True, eq=False)
class Maximum:
    """delta: (s,) nats, 0 off the support. value: the objective without its l2 term, in nats.
    iterations: of L-BFGS.

    shortfall: estimated distance to the maximum, in nats per weighted position; converged: it is
    below 1e-7. pairs: the curvature of the potential in the free coordinates, for the next, similar
    fit.
    """

    delta: Vector
    value: float
    iterations: int
    shortfall: float
    pairs: tuple[Pair, ...] = ()

    @property
    def converged(self) -> bool:
        return self.shortfall <= TOLERANCE


@dataclass(frozen=True, slots=True, eq=False)
class Penalty:
    """``l2/2 |delta - center|^2``, where the ``lifted`` tokens may move together for nothing.

    Attributes:
        l2: in weighted tokens.
        center: (s,) nats, None for 0.
        lifted: (j,) indices into the s tokens, None for none.
    """

    l2: float
    center: Vector | None = None
    lifted: Ids | None = None

    def value(self, delta: Vector) -> float:
        """The penalty at ``delta`` (s,), in nats."""
        distance = self._distance(delta)
        return self.l2 / 2 * dot(distance, distance)

    def gradient(self, delta: Vector) -> Vector:
        """(s,) its gradient."""
        return self.l2 * self._distance(delta)

    def _distance(self, delta: Vector) -> Vector:
        distance = delta if self.center is None else delta - self.center
        if self.lifted is not None and len(self.lifted):
            distance = distance.copy()
            distance[self.lifted] -= distance[self.lifted].mean()
        return distance


@dataclass(frozen=True, slots=True, eq=False)
class _Problem:
    """The objective on the free coordinates, per weighted position, in units where the curvature is
    about 1.
    """

    linear: Vector
    positions: WeightedPotential
    weights: Vector
    total: float
    penalty: Penalty
    free: Ids
    unit: Vector

    def full(self, x: Vector) -> Vector:
        delta = np.zeros(len(self.linear))
        delta[self.free] = x * self.unit
        return delta

    def loss(self, x: Vector) -> tuple[float, Vector]:
        delta = self.full(x)
        potential, expected = self.positions.potential(delta, self.weights)
        value = potential - dot(self.linear, delta) + self.penalty.value(delta)
        slope = expected - self.linear + self.penalty.gradient(delta)
        gradient = slope[self.free] * self.unit
        return float(value / self.total), gradient / self.total


def maximise(
    linear: Vector,
    positions: WeightedPotential,
    position_weights: Vector | None = None,
    *,
    l2: float = 0.0,
    support: Ids | None = None,
    start: Vector | None = None,
    low: float = -np.inf,
    high: float = np.inf,
    max_iterations: int = 1000,
    usage: Vector | None = None,
    shortfall: float = 0.0,
    pairs: Sequence[Pair] = (),
    center: Vector | None = None,
    lifted: Ids | None = None,
) -> Maximum:
    """Maximise over delta with ``low <= delta <= high`` on ``support`` and 0 elsewhere.

    linear: (s,) weighted token counts. position_weights: (m,), 1 each if None. support: indices
    into the s tokens, all of them if None. start: (s,) the first point. l2 in the unit of the
    counts; with 0 a token that ``linear`` never counts runs off to ``low``. Coordinates are scaled
    by the curvature at delta = 0, because token frequencies differ by orders of magnitude. usage:
    (s,) ``sum_m w_m pi_0(y | m)``, computed if None. shortfall: estimated distance to the maximum,
    in nats per weighted position, that is small enough to stop; 0 goes on until rounding, and with
    bounds it is always 0. pairs: of an earlier fit on the same support, where there are no bounds:
    with any l2 they save steps and change nothing else. center: (s,) what the penalty pulls to, 0
    if None. lifted: indices into the s tokens whose common shift costs nothing, see ``Penalty``.
    """
    size = len(positions.token_ids)
    weights = weight_vector("position_weights", position_weights, positions.n_positions)
    counts = vector("linear", linear, size)
    if not l2 >= 0 or not np.isfinite(l2):
        raise InputError(f"l2 is {l2}; it must be finite and not negative")
    if not low <= 0 <= high:
        raise InputError(
            f"the range [{low}, {high}] does not hold 0, the bias of a token that is not listed"
        )
    free = np.arange(size) if support is None else np.unique(support)
    if usage is None:
        _, usage = positions.potential(np.zeros(size), weights)
    total = float(weights.sum())
    curvature = (usage + np.abs(counts))[free] / 2 + l2
    scale = np.sqrt(np.maximum(curvature, 1e-9 * total) / total)
    penalty = Penalty(l2, center, lifted)
    problem = _Problem(counts, positions, weights, total, penalty, free, 1 / scale)
    if start is not None:
        begin = vector("start", start, size)
    elif center is not None:
        begin = center
    else:
        begin = np.zeros(size)
    if not len(free) or low == high:
        return Maximum(np.zeros(size), 0.0, 0, 0.0)
    if low == -np.inf and high == np.inf:
        scaled_pairs = [(s * scale, (y + l2 * s) / scale / total) for s, y in pairs]
        descent = descend(
            problem.loss,
            begin[free] * scale,
            max_iterations=max_iterations,
            shortfall=shortfall,
            pairs=scaled_pairs,
        )
        for s, y in descent.pairs:  # in place: they are as large as the rest of a fit together
            s /= scale
            y *= scale * total
            y -= l2 * s
        missing = dot(descent.slope, descent.slope) / 2
        result = _maximum(problem, descent.x, descent.value, descent.iterations, missing)
        if lifted is not None:  # the curvature of their penalty is not l2 in every direction
            return result
        return replace(result, pairs=descent.pairs)
    maximum = _within(
        problem, np.clip(begin[free], low, high) * scale, low * scale, high * scale, max_iterations
    )
    # Scaling back may round a value at a limit beyond it, and a provider would refuse the bias.
    return replace(maximum, delta=np.clip(maximum.delta, low, high))


def _within(
    problem: _Problem, start: Vector, low: Vector, high: Vector, max_iterations: int
) -> Maximum:
    from scipy import optimize  # a quarter of a second, where a command starts

    optimum = optimize.minimize(
        problem.loss,
        start,
        jac=True,
        method="L-BFGS-B",
        bounds=optimize.Bounds(low, high),
        options={
            "maxiter": max_iterations,
            "maxfun": 2 * max_iterations,
            "maxcor": 20,
            "ftol": 1e-13,
            "gtol": 1e-7,
        },
    )
    x = np.asarray(optimum.x, dtype=np.float64)
    value, gradient = problem.loss(x)
    # At a bound only a step back into the range counts.
    step = np.clip(x - gradient, low, high) - x
    return _maximum(problem, x, value, int(optimum.nit), float(step @ step) / 2)


def _maximum(
    problem: _Problem, x: Vector, value: float, iterations: int, shortfall: float
) -> Maximum:
    delta = problem.full(x)
    objective = -value * problem.total + problem.penalty.value(delta)
    return Maximum(delta, objective, iterations, shortfall)


FARTHEST = 8.0
"""Nats from 0 to the mean of a token at most: three in ten thousand of its probability are left,
and data still find the way back."""

DEFAULT_STRENGTHS = (4.0, 1.0)
"""Of the penalty around a prior, in weighted tokens."""


def _no_ids() -> Ids:
    return np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class Prior:
    """Means of a bias before any data: the penalty is ``l2/2 |delta - means|^2``.

    Attributes:
        name: of the knowledge behind it, for the settings of a bias.
        token_ids: (k,) sorted.
        means: (k,) nats; every other token has mean 0. In the unit of the reward where ``by_tau``.
        lifted: (j,) ids whose common shift costs no penalty, such as the tokens of all labels.
        strengths: of the penalty, in weighted tokens, to try with it.
        standing: the one of them whose bias is kept unless another is shown to be better, None
            where none has such a claim.
        by_tau: whether the means are what each token earns by its own text, where a rule about the
            text is the reward. A token that earns c has the mean ``c / tau``: the value that the
            target ``exp(r / tau)`` gives it if nothing else changes. It needs no completion, and
            holds for tokens never drawn. With it, 35 completions taught as much about stock words
            in stories as 700 without.
    """

    name: str
    token_ids: Ids
    means: Vector
    lifted: Ids = field(default_factory=_no_ids)
    strengths: tuple[float, ...] = DEFAULT_STRENGTHS
    standing: float | None = None
    by_tau: bool = False

    @classmethod
    def of(
        cls,
        name: str,
        means: Mapping[int, float],
        lifted: Ids | None = None,
        strengths: tuple[float, ...] = DEFAULT_STRENGTHS,
        standing: float | None = None,
    ) -> Prior:
        """From token id -> nats.

        Raises:
            InputError: a mean is not finite.
        """
        token_ids = np.array(sorted(means), np.int64)
        values = np.array([means[token] for token in token_ids.tolist()], np.float64)
        if not np.isfinite(values).all():
            raise InputError(f"the prior {name!r} has a mean that is not finite")
        shared = _no_ids() if lifted is None else np.unique(lifted).astype(np.int64)
        return cls(name, token_ids, values, shared, strengths, standing)

    def at(self, tau: float) -> Prior:
        """The prior of a fit at ``tau``: with ``by_tau`` no mean is farther than ``FARTHEST`` nats
        from 0.
        """
        if not self.by_tau:
            return self
        means = np.clip(self.means / positive("tau", tau), -FARTHEST, FARTHEST)
        return replace(self, means=means, by_tau=False)

    @property
    def every_id(self) -> Ids:
        """Every token that the prior says something of, sorted."""
        return np.union1d(self.token_ids, self.lifted)


def linear_term(rollouts: Rollouts, table: LoggedPositions, weights: PositionWeights) -> Vector:
    """(s,) ``sum_m (w_m - b_m) 1{y_m = y} + sum_m b_m pi_0(y | m)``.

    Where all weights are equal, this is bit for bit the expected count: completions of the base
    model then teach exactly 0. table: of these rollouts, given that a token has an id.
    """
    baseline = weights.baseline_of(rollouts)
    counts = table.sampled_counts(weights.values - baseline)
    if baseline.any():
        counts += table.expected(np.zeros(len(counts)), baseline)
    return counts


def linear_terms(
    rollouts: Rollouts, table: LoggedPositions, weights: PositionWeights, delta: Vector
) -> Vector:
    """(n,) each rollout's part of ``linear_term . delta``, for ``delta`` (s,)."""
    baseline = weights.baseline_of(rollouts)
    parts = (weights.values - baseline) * delta[table.sampled]
    if baseline.any():
        parts += baseline * table.mean(delta, np.zeros(len(delta)))
    return rollouts.summed(parts)


MOST_TURNS = 30
"""Most solves of one fit: shares settle within a handful, as one spelling soon has nearly all of
the weight.
"""
SETTLED = 1e-6
"""Largest change of a share for which no further solve is needed: none would change a bias by a
thousandth of a nat.
"""


def fit_sets(
    rollouts: Rollouts, table: LoggedPositions, solve: Callable[..., Fit]
) -> tuple[Fit, Rollouts]:
    """Solve and renew the shares in turn until they settle. ``solve``: fits the projection to
    rollouts, starting at the fit ``start``. Returns the last fit, and the rollouts with the shares
    of the spellings under it.
    """
    fit = solve(rollouts, start=None)
    for _ in range(MOST_TURNS):
        shares, _ = posterior_shares(rollouts, table, table.align(fit.token_ids, fit.delta))
        moved = 0.0
        if rollouts.shares is not None:
            moved = np.nanmax(np.abs(shares - rollouts.shares), initial=0.0)
        rollouts = replace(rollouts, shares=shares)
        if moved <= SETTLED:
            break
        fit = solve(rollouts, start=fit)
    return fit, rollouts


def posterior_shares(
    rollouts: Rollouts, table: LoggedPositions, delta: Vector
) -> tuple[Vector, float]:
    """Compute (n,) shares of the given answers under the bias ``delta`` (s,) nats, and the sets'
    mean log-likelihood in nats.

    The spellings of an answer keep the sum of their shares, which is its weight; drawn completions
    keep NaN.
    """
    is_given = rollouts.given
    shares = np.full(len(is_given), np.nan)
    if not is_given.any():
        return shares, 0.0
    base = np.bincount(rollouts.rollout_of, weights=rollouts.logprobs, minlength=len(is_given))
    scores = (base + log_policy_ratios(rollouts, table, delta))[is_given]
    answers = np.unique(rollouts.weighed_together[is_given], return_inverse=True)[1]
    highest = np.full(int(answers.max()) + 1, -np.inf)
    np.maximum.at(highest, answers, scores)
    parts = np.exp(scores - highest[answers])
    totals = np.bincount(answers, weights=parts)
    before = (rollouts.shares if rollouts.shares is not None else np.ones(len(is_given)))[is_given]
    weights = np.bincount(answers, weights=before)
    shares[is_given] = parts / totals[answers] * weights[answers]
    return shares, float((weights @ (highest + np.log(totals))) / weights.sum())


@dataclass(frozen=True, slots=True, eq=False)
class Fit:
    """A learned bias: ``delta`` (s,) in nats at temperature 1 for the sorted ``token_ids`` (s,); 0
    for any other token.

    gain: weighted log-likelihood over delta = 0, with the baseline in its linear term, nats per
    weighted token. shortfall: estimated distance to the maximum in the same unit; converged: it is
    below 1e-7. effective_sample_size: of the rollouts' mean weights. rollouts: their number.
    """

    token_ids: Ids
    delta: Vector
    gain: float
    converged: bool
    shortfall: float
    iterations: int
    effective_sample_size: float
    rollouts: int


def projection(
    rollouts: Rollouts,
    rule: Weighting,
    *,
    l2: float,
    support: npt.ArrayLike | None = None,
    start: Fit | None = None,
    next_token: LoggedPositions | None = None,
    prior: Prior | None = None,
) -> Fit:
    """Fit the bias, as in the module docstring, with the weights of ``rule``.

    l2: a pseudocount-like pull to 0 in weighted tokens. support: ids that may be nonzero (a sparse
    refit); all seen tokens if None. start: a fit to begin from, on any support. next_token:
    ``NextToken.of(rollouts)`` if available. prior: what the penalty pulls to, 0 if None; what it
    says of tokens off the support of ``next_token`` is left out. Raises InputError: bad options, no
    reward anywhere.
    """
    positive("l2", l2)
    positions: LoggedPositions = NextToken.of(rollouts) if next_token is None else next_token
    table = positions.named()
    if table.n_positions != len(rollouts.token_ids):
        raise InputError(
            f"next_token has {table.n_positions} positions, the rollouts {len(rollouts.token_ids)}"
        )
    weights = rule.weights(rollouts)
    if not weights.values.any():
        raise InputError(
            "no completion with a reward holds a token; raise max_tokens or check the reward"
        )
    center = None
    lifted = None
    if prior is not None:
        center = table.align(prior.token_ids, prior.means)
        lifted = None
        if len(prior.lifted):
            lifted = _support(table, prior.lifted)
    begin = None
    if start is not None:
        begin = table.align(start.token_ids, start.delta)
    maximum = maximise(
        linear_term(rollouts, table, weights),
        table,
        weights.values,
        l2=l2,
        support=_support(table, support),
        start=begin,
        center=center,
        lifted=lifted,
    )
    return Fit(
        token_ids=table.token_ids,
        delta=maximum.delta,
        gain=maximum.value / float(weights.values.sum()),
        converged=maximum.converged,
        shortfall=maximum.shortfall,
        iterations=maximum.iterations,
        effective_sample_size=effective_sample_size(weights.of_rollouts(rollouts)),
        rollouts=len(rollouts.keys),
    )


def _support(table: LoggedPositions, support: npt.ArrayLike | None) -> Ids | None:
    """Indices of the wanted tokens that were seen."""
    if support is None:
        return None
    token_ids = np.unique(np.asarray(support, dtype=np.int64))
    _, indices, _ = np.intersect1d(table.token_ids, token_ids, return_indices=True)
    return indices.astype(np.int64)
