"""The one concave problem behind the projection and the sparse refit, solved by L-BFGS-B.

maximise over delta   linear . delta - sum_m w_m log sum_y pi_0(y | m) exp(delta(y)) - l2/2 |delta|^2
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import optimize

from blackbox_lb.errors import InputError
from blackbox_lb.estimate.checks import Ids, Vector, vector, weight_vector
from blackbox_lb.estimate.normaliser import NextToken

__all__ = ["Maximum", "maximise"]

TOLERANCE = 1e-7
"""Nats per weighted position. Sampling error of any real fit is thousands of times larger."""


@dataclass(frozen=True, slots=True, eq=False)
class Maximum:
    """delta: (s,) nats, 0 off the support. value: the objective without its l2 term, in nats. iterations: of L-BFGS-B.

    shortfall: an estimate of what is missing to the maximum, in nats per weighted position; converged: it is below 1e-7.
    """

    delta: Vector
    value: float
    iterations: int
    shortfall: float

    @property
    def converged(self) -> bool:
        """Whether the shortfall is negligible."""
        return self.shortfall <= TOLERANCE


@dataclass(frozen=True, slots=True, eq=False)
class _Problem:
    """The objective on the free coordinates, per weighted position, in units where the curvature is about 1."""

    linear: Vector
    next_token: NextToken
    weights: Vector
    l2: float
    free: Ids
    unit: Vector

    def full(self, x: Vector) -> Vector:
        delta = np.zeros(len(self.linear))
        delta[self.free] = x * self.unit
        return delta

    def loss(self, x: Vector) -> tuple[float, Vector]:
        delta, total = self.full(x), self.weights.sum()
        potential, expected = self.next_token.potential(delta, self.weights)
        value = potential - self.linear @ delta + self.l2 / 2 * (delta @ delta)
        gradient = (expected - self.linear + self.l2 * delta)[self.free] * self.unit
        return float(value / total), gradient / total


def maximise(
    linear: Vector,
    next_token: NextToken,
    position_weights: Vector | None = None,
    *,
    l2: float = 0.0,
    support: Ids | None = None,
    start: Vector | None = None,
    low: float = -np.inf,
    high: float = np.inf,
    max_iterations: int = 1000,
) -> Maximum:
    """The best delta with ``low <= delta <= high`` on ``support`` and 0 elsewhere.

    linear: (s,) weighted token counts. position_weights: (m,), 1 each if None. support: indices into the s tokens, all
    of them if None. start: (s,) where to begin. l2 in the unit of the counts; with 0 a token that ``linear`` never
    counts runs off to ``low``. Coordinates are scaled by the curvature at delta = 0, because token frequencies differ
    by orders of magnitude.
    """
    size = len(next_token.token_ids)
    weights = weight_vector("position_weights", position_weights, next_token.n_positions)
    counts = vector("linear", linear, size)
    if not l2 >= 0 or not np.isfinite(l2):
        raise InputError(f"l2 is {l2}; it must be finite and not negative")
    if not low <= 0 <= high:
        raise InputError(f"the range [{low}, {high}] does not hold 0, the bias of a token that is not listed")
    free = np.arange(size) if support is None else np.unique(support)
    curvature = (next_token.expected(np.zeros(size), weights) + np.abs(counts))[free] / 2 + l2
    scale = np.sqrt(np.maximum(curvature, 1e-9 * weights.sum()) / weights.sum())
    problem = _Problem(counts, next_token, weights, l2, free, 1 / scale)
    begin = np.zeros(size) if start is None else vector("start", start, size)
    return _solve(problem, np.clip(begin[free], low, high) * scale, low * scale, high * scale, max_iterations)


def _solve(problem: _Problem, start: Vector, low: Vector, high: Vector, max_iterations: int) -> Maximum:
    if not (low < high).any():  # nothing is free, or in a range that holds 0 alone, and L-BFGS-B never starts
        return Maximum(np.zeros(len(problem.linear)), 0.0, 0, 0.0)
    found = optimize.minimize(
        problem.loss,
        start,
        jac=True,
        method="L-BFGS-B",
        bounds=optimize.Bounds(low, high),
        options={"maxiter": max_iterations, "maxfun": 2 * max_iterations, "maxcor": 20, "ftol": 1e-13, "gtol": 1e-7},
    )
    x = np.asarray(found.x, dtype=np.float64)
    value, gradient = problem.loss(x)
    delta = problem.full(x)
    # At a bound only a step back into the range counts.
    step = np.clip(x - gradient, low, high) - x
    objective = -value * problem.weights.sum() + problem.l2 / 2 * float(delta @ delta)
    return Maximum(delta, objective, int(found.nit), float(step @ step) / 2)
