"""Coordinate search over integer biases: from the rounded values, one unit at a time, while the KL divergence falls."""

from __future__ import annotations

import math

import numpy as np
from scipy import sparse

from blackbox_lb.estimate.checks import Ids, Vector
from blackbox_lb.estimate.normaliser import NextToken

__all__ = ["integer_search"]

MOST_SWEEPS = 20


def integer_search(
    next_token: NextToken, weights: Vector, usage: Vector, start: Vector, chosen: Ids, low: float, high: float
) -> Vector:
    """(s,) integers in [low, high] on ``chosen``, 0 elsewhere, never further from the target than ``start`` rounded.

    low, high: whole or infinite. usage: (s,) the target policy's expected counts ``sum_m w_m pi_target(y | m)``;
    weights: (m,) the w_m. The target enters through them alone: ``W KL(target || v)`` is a constant
    ``- usage . v + sum_m w_m log_normaliser_m(v)``. Along one coordinate that is convex, so single steps from the
    rounded value find the coordinate's best integer.
    """
    values = np.zeros_like(start)
    values[chosen] = np.clip(np.rint(start[chosen]), low, high)
    log_normaliser = next_token.log_normaliser(values)
    order = chosen[np.argsort(-usage[chosen], kind="stable")]
    by_token = next_token.listed.tocsc()
    for _ in range(MOST_SWEEPS):
        moved = False
        for token in order:
            rows, mass = _column(next_token, by_token, int(token))
            probability = mass * np.exp(values[token] - log_normaliser[rows])
            step, change = _best_step(probability, weights[rows], float(usage[token]))
            if step and low <= values[token] + step <= high:
                values[token] += step
                log_normaliser[rows] += change
                moved = True
        if not moved:
            break
    return values


def _column(next_token: NextToken, by_token: sparse.csc_array[np.float64], token: int) -> tuple[Ids | slice, Vector]:
    """The positions at which a token has mass under pi_0, and that mass."""
    part = slice(by_token.indptr[token], by_token.indptr[token + 1])
    if next_token.unigram[token] == 0:
        return by_token.indices[part].astype(np.int64), by_token.data[part]
    mass = next_token.spread * next_token.unigram[token]
    mass[by_token.indices[part]] += by_token.data[part]
    return slice(None), np.maximum(mass, 0.0)


def _best_step(probability: Vector, weights: Vector, usage: float) -> tuple[int, Vector]:
    """-1, 0 or +1, and what it adds to the log normalisers: the direction is downhill, the size a whole unit."""
    step = 1 if usage > weights @ probability else -1
    change = np.log1p(np.minimum(probability, 1.0) * math.expm1(step))
    return (step, change) if weights @ change - usage * step < 0 else (0, change)
