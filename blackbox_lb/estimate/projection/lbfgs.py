"""L-BFGS for a smooth convex function of many variables without bounds, the same to the last bit on
any number of threads.

Two-loop recursion (Nocedal and Wright, "Numerical Optimization", algorithm 7.4) with a line search
that brackets and halves (Lewis and Overton, "Nonsmooth optimization via quasi-Newton methods",
2013, section 4), which on a convex function ends.
"""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from blackbox_lb.estimate.inputs.checks import Vector
from blackbox_lb.estimate.next_token.parallel import dot

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
    found = Descent(start, *function(start), 0)
    memory = deque(((s, y, bend) for s, y in pairs if (bend := dot(s, y)) > 0), maxlen=PAIRS)
    while found.iterations < max_iterations:
        if (
            np.abs(found.slope).max(initial=0.0) <= FLAT
            or dot(found.slope, found.slope) / 2 <= shortfall
        ):
            break
        following = _step(function, found, _direction(found.slope, memory))
        if following is None:
            break
        s = following.x - found.x
        y = following.slope - found.slope
        if (bend := dot(s, y)) > 0:
            memory.append((s, y, bend))
        fall = found.value - following.value
        found = following
        if fall <= LEAST_FALL * max(abs(found.value), 1.0):
            break
    return replace(found, pairs=tuple((s, y) for s, y, _ in memory))


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
