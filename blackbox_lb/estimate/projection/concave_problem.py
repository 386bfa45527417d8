"""The one concave problem behind the projection and the sparse refit, solved by L-BFGS.

maximise over delta   linear . delta - sum_m w_m log sum_y pi_0(y | m) exp(delta(y))
                      - l2/2 |delta - center|^2

The center is 0 unless a prior says otherwise. Tokens that are ``lifted`` share a shift that costs
no penalty: the penalty then counts their distances to the center less the mean of these distances.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from blackbox_lb.errors import InputError
from blackbox_lb.estimate.inputs.checks import Ids, Vector, vector, weight_vector
from blackbox_lb.estimate.next_token.potential import WeightedPotential
from blackbox_lb.estimate.next_token.sparse_table import dot

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


def _step(function: Function, found: Descent, direction: Vector) -> Descent | None:
    """A step along ``direction`` with enough fall and enough length; None where rounding hides any
    fall.
    """
    promised = dot(found.slope, direction)
    length = 1.0
    low = 0.0
    high = np.inf
    for _ in range(MOST_TRIES):
        x = found.x + length * direction
        value, slope = function(x)
        if value > found.value + ENOUGH * length * promised:
            high = length
        elif dot(slope, direction) < STEEP * promised:
            low = length
        else:
            return Descent(x, value, slope, found.iterations + 1)
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
    return _within(
        problem, np.clip(begin[free], low, high) * scale, low * scale, high * scale, max_iterations
    )


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
