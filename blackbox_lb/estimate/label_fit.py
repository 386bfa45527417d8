"""The fit of labels: one slope of their scores and an offset each, by the right answers.

Index letters: ``n`` rows, ``c`` labels, ``k`` coordinates of the offsets, ``v`` fits.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from blackbox_lb.estimate.inputs.checks import Ids, Vector
from blackbox_lb.estimate.next_token.sparse_table import dot
from blackbox_lb.estimate.problem import Problem

LABEL_L2 = 0.1
"""Pull of an offset to 0, in prompts: a tenth of one keeps an offset finite where every prompt
wants it larger.
"""


class SlopePull(NamedTuple):
    """A slope is pulled to ``center`` by ``l2`` rows, (v,) for so many fits, and is at least
    ``least``.
    """

    center: float
    l2: float | Vector
    least: float = -np.inf


FREE_SLOPE = SlopePull(0.0, LABEL_L2)
"""For labels whose lists may say nothing at all."""


def label_fit(
    scores: Vector,
    labels: Ids,
    rivals: Vector | None = None,
    *,
    slope: SlopePull | None = None,
    l2: float = LABEL_L2,
    weights: Vector | None = None,
) -> tuple[float, Vector]:
    """Fit ``softmax(slope * scores + offsets)`` to the right labels by maximum likelihood.

    Args:
        scores: (n, c) nats.
        labels: (n,) numbers of the right ones.
        rivals: (n,) the logprob of one alternative more, number c, without slope and offset.
        slope: its pull; None keeps it at 1.
        l2: pull of the offsets to 0, in rows.
        weights: (n,) what each row counts, 1 if None.

    Returns:
        The slope, and (c,) offsets in nats.
    """
    basis = np.eye(scores.shape[1])
    slopes, offsets = label_fits(
        scores, labels, basis, np.array([l2]), slope, rivals=rivals, weights=weights
    )
    return float(slopes[0]), offsets[0]


def label_fits(
    scores: Vector,
    labels: Ids,
    basis: Vector,
    l2: Vector,
    slope: SlopePull | None,
    *,
    rivals: Vector | None = None,
    weights: Vector | None = None,
    shortfall: float = 0.0,
) -> tuple[Vector, Vector]:
    """``label_fit`` at several strengths, which is one problem.

    Args:
        scores, labels, slope, rivals, weights: see ``label_fit``.
        basis: (c, k) offsets are ``basis @ coordinates``.
        l2: (v,) pull of the coordinates to 0; that of the slope where there are none.
        shortfall: see ``Problem.solve``.

    Returns:
        (v,) slopes, and (v, c) offsets in nats.
    """
    counts = np.ones(len(labels)) if weights is None else weights
    size, columns = basis.shape
    is_ours = labels < size
    # The slope in the unit in which its pull is as strong as that of the offsets.
    units = np.ones(len(l2))
    if slope is not None:
        units = np.sqrt(l2 / slope.l2)

    def logits_at(x: Vector) -> Vector:
        shifts = x[:, x.shape[1] - columns :] @ basis.T
        if slope is None:
            return np.asarray(scores + shifts[:, None])
        return np.asarray((units * x[:, 0])[:, None, None] * scores + shifts[:, None])

    def potential(x: Vector) -> tuple[float, Vector]:
        logits = logits_at(x)
        alternatives = logits
        if rivals is not None:
            column = np.broadcast_to(rivals[:, None], (*logits.shape[:2], 1))
            alternatives = np.concatenate([logits, column], axis=2)
        log_totals = log_sums(alternatives)
        shares = np.exp(logits - log_totals[..., None]) * counts[:, None]
        gradient = shares.sum(axis=1) @ basis
        if slope is not None:
            by_slope = units * np.einsum("vnc,nc->v", shares, scores)
            gradient = np.column_stack([by_slope, gradient])
        return float(np.einsum("vn,n->", log_totals, counts)), gradient

    total = float(counts.sum())
    right_counts = np.bincount(labels[is_ours], counts[is_ours], size).astype(np.float64)
    linear = np.tile(right_counts @ basis, (len(l2), 1))
    # The same for all labels: a step then moves no offsets together, which only the pull resists.
    curvature = np.tile((basis**2).sum(axis=0) * (total / size), (len(l2), 1))
    center = None
    low: float | Vector = -np.inf
    if slope is not None:
        right = dot(counts[is_ours], scores[is_ours, labels[is_ours]])
        linear = np.column_stack([units * right, linear])
        spread = dot(counts, scores.var(axis=1))
        curvature = np.column_stack([units**2 * spread, curvature])
        center = np.zeros(linear.shape)
        center[:, 0] = slope.center / units
        low = np.full(linear.shape, -np.inf)
        low[:, 0] = slope.least / units
    problem = Problem(
        potential, linear, len(l2) * total, l2=l2, center=center, low=low, curvature=curvature
    )
    x = problem.solve(shortfall=shortfall).x
    offsets = x[:, x.shape[1] - columns :] @ basis.T
    if slope is None:
        return units, offsets
    return units * x[:, 0], offsets


def softmax(logits: Vector) -> Vector:
    """(n, c) probabilities of each row, in proportion to the exponentials of ``logits``."""
    return np.asarray(np.exp(logits - log_sums(logits)[:, None]))


def log_sums(rows: Vector) -> Vector:
    """The logarithm of the sum of exp along the last axis: scipy's takes longer than all else of a
    step.
    """
    top = rows.max(axis=-1)
    return np.asarray(top + np.log(np.exp(rows - top[..., None]).sum(axis=-1)))
