"""The penalised multinomial fit: the one concave problem behind every learned vector.

    maximise   linear . x - potential(x) - 1/2 sum_i l2_i (x_i - center_i)^2,   low <= x <= high,

with ``potential(x) = sum_m w_m log sum_y exp(offset_m(y) + x . features_m(y))``, the weighted
log-normalisers of softmaxes, and ``linear = sum_m w_m features_m(y_m)``, the weighted counts of the
right answers. Values are in nats.

| fit | x | offsets | features |
|---|---|---|---|
| projection, compiled bias | (s,) | log pi_0 at each position | the token |
| projection with features | (1 + f, s) | log pi_0 at each position | the token, times a context |
| offsets of labels, shift of an opening | (l,) | logprobs of the labels | the label |
| calibration of labels, mended decisions | (1 + l,) | none | the label's logprob, the label |

The solver is L-BFGS (Nocedal and Wright 2006, algorithm 7.5) with a bisection for the weak Wolfe
conditions. It begins with the curvature of each coordinate, because frequencies of tokens differ by
orders of magnitude. Bounds hold by two-metric projection (Bertsekas 1982): coordinates that the
slope presses against a bound rest. Without bounds it needs .4 to .7 of the visits to the data that
scipy's L-BFGS-B needs, and with them as many.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np

from blackbox_lb.estimate.inputs.checks import Bools, Ids, Vector
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
"""Relative fall of the loss below which it has settled: the rounding of a sum over positions."""
FLAT = 1e-7
"""Largest slope at which the loss has settled, in coordinates where its curvature is about 1."""
LEAST_CURVATURE = 1e-9
"""Of a coordinate, as a share of the total weight."""

Function: TypeAlias = Callable[[Vector], tuple[float, Vector]]
"""From x to a value in nats and its gradient, in the shape of x."""
Steps: TypeAlias = deque[tuple[Vector, Vector, float]]
"""Steps, their changes of the slope, and the products of the two, the oldest first."""


@dataclass(frozen=True, slots=True, eq=False)
class Solution:
    """The maximum.

    Attributes:
        x: in the shape of ``linear``, 0 where it is not free.
        value: the objective without its penalty, in nats.
        iterations: of the solver.
    """

    x: Vector
    value: float
    iterations: int


class _Point(NamedTuple):
    """x: (k,) the free coordinates in units where the loss is about 1 curved. loss: in nats per
    weighted position. slope: (k,) its gradient.
    """

    x: Vector
    loss: float
    slope: Vector


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """The objective of the module docstring; x has the shape of ``linear``, (s,) or (v, s), where v
    vectors have a strength of the penalty each.

    Attributes:
        potential: a convex function, in nats.
        linear: the weighted counts.
        total: the weight of all positions.
        l2: strength of the penalty in weighted positions, or (v,) that of each vector.
        center: what the penalty pulls to, 0 if None.
        lifted: indices of coordinates that move together for nothing: the penalty counts their
            distances to the center less the mean of these.
        free: (k,) sorted flat indices of what may differ from 0, everything if None.
        low, high: the range of x, which holds 0, of all coordinates or of each. Without ``l2`` what
            is never counted runs off to ``low``.
        curvature: estimate of that of the potential, in the shape of x. None takes half of what is
            counted and expected at 0.
    """

    potential: Function
    linear: Vector
    total: float
    l2: float | Vector = 0.0
    center: Vector | None = None
    lifted: Ids | None = None
    free: Ids | None = None
    low: float | Vector = -np.inf
    high: float | Vector = np.inf
    curvature: Vector | None = None

    def loss(self, x: Vector) -> tuple[float, Vector]:
        """Minus the objective in nats, and its gradient in the shape of ``x``."""
        potential, expected = self.potential(x)
        price, pull = penalty(x, self.l2, self.center, self.lifted)
        value = potential - dot(self.linear.ravel(), x.ravel()) + price
        return value, expected - self.linear + pull

    def solve(
        self,
        start: Vector | None = None,
        *,
        max_iterations: int = 1000,
        shortfall: float = 0.0,
    ) -> Solution:
        """Find the maximum.

        It ends where half the squared slope, in coordinates of curvature 1 and per weighted
        position, is at most ``shortfall``, where no slope is above 1e-7, or where the loss falls by
        less than 1e-13 of itself.

        Args:
            start: the first point, the center if None.
            max_iterations: steps at most.
            shortfall: what is small enough, in nats per weighted position.
        """
        free = slice(None) if self.free is None else self.free
        scale = self._scale(free)
        unit = 1 / scale
        low = np.broadcast_to(self.low, self.linear.shape).ravel()[free] * scale
        high = np.broadcast_to(self.high, self.linear.shape).ravel()[free] * scale

        def full(x: Vector) -> Vector:
            values = np.zeros(self.linear.size)
            values[free] = x * unit
            return values.reshape(self.linear.shape)

        def at(x: Vector) -> _Point:
            loss, slope = self.loss(full(x))
            return _Point(x, loss / self.total, slope.ravel()[free] * unit / self.total)

        if start is None:
            start = np.zeros(self.linear.shape) if self.center is None else self.center
        point = at(np.clip(start.ravel()[free] * scale, low, high))
        steps: Steps = deque(maxlen=PAIRS)
        iterations = 0
        while iterations < max_iterations:
            rests = _rests(point, low, high)
            slope = np.where(rests, 0.0, point.slope)
            if np.abs(slope).max(initial=0.0) <= FLAT or dot(slope, slope) / 2 <= shortfall:
                break
            if rests.any():
                moving = ~rests
                direction = np.zeros_like(slope)
                direction[moving] = _direction(slope[moving], _along(steps, moving))
            else:
                direction = _direction(slope, steps)
            following = _step(at, point, direction, low, high)
            if following is None:
                break
            iterations += 1
            _remember(steps, following.x - point.x, following.slope - point.slope)
            fall = point.loss - following.loss
            point = following
            if fall <= LEAST_FALL * max(abs(point.loss), 1.0):
                break
        x = np.clip(full(point.x), self.low, self.high)  # rounding may leave the range
        price, _ = penalty(x, self.l2, self.center, self.lifted)
        return Solution(x, price - point.loss * self.total, iterations)

    def _scale(self, free: Ids | slice) -> Vector:
        """(k,) coordinates of curvature 1 for a unit of x: frequencies of tokens differ by orders
        of magnitude.
        """
        curvature = self.curvature
        if curvature is None:
            _, expected = self.potential(np.zeros(self.linear.shape))
            curvature = (np.abs(expected) + np.abs(self.linear)) / 2
        penalised = curvature + np.expand_dims(self.l2, -1)
        least = LEAST_CURVATURE * self.total
        return np.asarray(np.sqrt(np.maximum(penalised.ravel()[free], least) / self.total))


def penalty(
    x: Vector, l2: float | Vector, center: Vector | None, lifted: Ids | None
) -> tuple[float, Vector]:
    """That of ``Problem``, with its attributes, in nats, and its gradient in the shape of ``x``."""
    distance = x if center is None else x - center
    if lifted is not None and len(lifted):
        distance = distance.copy()
        distance[lifted] -= distance[lifted].mean()
    strengths = np.asarray(l2)
    squares = np.einsum("...s,...s->...", distance, distance)
    return float((strengths / 2 * squares).sum()), strengths[..., None] * distance


def _rests(point: _Point, low: Vector, high: Vector) -> Bools:
    """(k,) what the slope presses against a bound."""
    is_at_low = (point.x <= low) & (point.slope > 0)
    is_at_high = (point.x >= high) & (point.slope < 0)
    return is_at_low | is_at_high


def _step(
    at: Callable[[Vector], _Point], start: _Point, direction: Vector, low: Vector, high: Vector
) -> _Point | None:
    """A step along ``direction`` with enough fall and enough length; None where rounding hides any
    fall.
    """
    length = 1.0
    shortest = 0.0
    longest = np.inf
    for _ in range(MOST_TRIES):
        ahead = start.x + length * direction
        point = at(np.clip(ahead, low, high))
        moved = point.x - start.x
        promised = dot(start.slope, moved)
        is_lower = point.loss <= start.loss + ENOUGH * promised  # never where it is NaN
        is_steep = dot(point.slope, moved) < STEEP * promised
        if not is_lower:
            longest = length
        elif is_steep and np.array_equal(point.x, ahead):
            shortest = length
        else:
            return point
        length = (shortest + longest) / 2 if np.isfinite(longest) else 2 * length
    return None


def _remember(steps: Steps, step: Vector, slope_change: Vector) -> None:
    bend = dot(step, slope_change)
    if bend > 0:
        steps.append((step, slope_change, bend))


def _along(steps: Steps, moving: Bools) -> Steps:
    """The remembered steps in the coordinates that are moving: with the others among them, bounded
    fits take three times the visits.
    """
    reduced: Steps = deque()
    for step, slope_change, _ in steps:
        _remember(reduced, step[moving], slope_change[moving])
    return reduced


def _direction(slope: Vector, steps: Steps) -> Vector:
    """Minus the inverse curvature by the remembered steps, times the slope."""
    direction = -slope
    shares = []
    for step, slope_change, bend in reversed(steps):
        share = dot(step, direction) / bend
        direction -= share * slope_change
        shares.append(share)
    if steps:
        _, slope_change, bend = steps[-1]
        direction *= bend / dot(slope_change, slope_change)
    for (step, slope_change, bend), share in zip(steps, reversed(shares), strict=True):
        direction += (share - dot(slope_change, direction) / bend) * step
    return direction
