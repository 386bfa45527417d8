"""Coordinate search over integer biases: from the rounded values, one unit at a time, while the KL divergence falls."""

from __future__ import annotations

import math

import numpy as np

from blackbox_lb.estimate.checks import Ids, Vector
from blackbox_lb.estimate.normaliser import NextToken

__all__ = ["integer_search"]

MOST_SWEEPS = 20


def integer_search(
    next_token: NextToken, weights: Vector, usage: Vector, start: Vector, chosen: Ids, low: float, high: float
) -> Vector:
    """(s,) integers in [low, high] on ``chosen``, 0 elsewhere, no further from the target than ``start`` rounded, or than all 0.

    low, high: whole or infinite. usage: (s,) the target policy's expected counts ``sum_m w_m pi_target(y | m)``;
    weights: (m,) the w_m. The target enters through them alone: ``W KL(target || v)`` is a constant
    ``- usage . v + sum_m w_m log_normaliser_m(v)``. Along one coordinate that is convex, so single steps from the
    rounded value find the coordinate's best integer. Where tokens move together, no single step leads back from a bad rounding:
    a result that is worse than no bias is given up for a search from there.
    """
    order = chosen[np.argsort(-usage[chosen], kind="stable")]
    masses = next_token.by_token(order)

    def descend(values: Vector) -> tuple[Vector, float]:
        """The search from ``values``, changed in place, and how much further its end is from the target than no bias."""
        log_normaliser = next_token.log_normaliser(values)
        for _ in range(MOST_SWEEPS):
            moved = False
            for index, token in enumerate(order):
                rows, mass = masses.mass(index)
                probability = mass * np.exp(values[token] - log_normaliser[rows])
                step, change = _best_step(probability, weights[rows], float(usage[token]))
                if step and low <= values[token] + step <= high:
                    values[token] += step
                    log_normaliser[rows] += change
                    moved = True
            if not moved:
                break
        return values, float(weights @ log_normaliser - usage @ values)

    rounded = np.zeros_like(start)
    rounded[chosen] = np.clip(np.rint(start[chosen]), low, high)
    values, further = descend(rounded)
    return values if further <= 0 else descend(np.zeros_like(start))[0]


def _best_step(probability: Vector, weights: Vector, usage: float) -> tuple[int, Vector]:
    """-1, 0 or +1, and what it adds to the log normalisers: the direction is downhill, the size a whole unit."""
    step = 1 if usage > weights @ probability else -1
    change = np.log1p(np.minimum(probability, 1.0) * math.expm1(step))
    return (step, change) if weights @ change - usage * step < 0 else (0, change)
