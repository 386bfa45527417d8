"""Derivatives of the potential beyond its gradient: along a direction, group by group, and their squares; each in one visit.

Index letters: ``m`` positions, ``s`` the support, ``g`` groups, ``b`` positions of one part. All values in nats.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import sparse

from blackbox_lb.estimate.checks import Ids, Vector
from blackbox_lb.estimate.lists import Part, with_values
from blackbox_lb.estimate.normaliser import NextToken
from blackbox_lb.estimate.passes import dot, in_order
from blackbox_lb.estimate.sums import Sums, tilted

__all__ = ["expected_by", "hessian", "squares"]


def hessian(next_token: NextToken, delta: Vector, weights: Vector) -> tuple[Vector, Callable[[Vector], Vector]]:
    """(s,) ``expected`` at ``delta``, and what turns a direction v (s,) into its change along v, ``sum_m w_m Cov_m(y, v)`` (s,).

    weights: (m,). Each call costs about as much as a ``potential``.
    """
    tilt, shift = tilted(delta, len(next_token.token_ids))
    once = weights * np.exp(2 * (shift - next_token.log_normaliser(delta)))
    usage = next_token.expected(delta, weights)
    counting = [part for part in next_token.lists.parts if weights[part.where].any()]

    def along(direction: Vector) -> Vector:
        values = tilt * direction

        def one(part: Part) -> Sums:
            with part.wide() as table:
                mean = next_token.mean_at(part, table, values) * once[part.where]
                up = np.asarray(table.T @ part.summed(next_token.times_scale(part, mean)))
            return Sums(0.0, up, dot(next_token.spread[part.where], mean))

        found = Sums.of(in_order(one, counting), next_token.lists.width)
        both = next_token.on_support(found.listed) + next_token.unigram * found.tail
        return np.asarray(usage * direction - tilt * both)

    return usage, along


def expected_by(next_token: NextToken, delta: Vector, weights: Vector, group: Ids, groups: int) -> Vector:
    """(g, s) ``expected`` of the positions of each of ``groups``; group: (m,) of each position."""
    tilt, shift = tilted(delta, len(next_token.token_ids))
    width = next_token.lists.width
    listed, tails = np.zeros(groups * width), np.zeros(groups)

    def one(part: Part) -> tuple[sparse.csr_array[Any], Vector]:
        own, q = group[part.where], weights[part.where] / next_token.scaled_at(part, tilt, shift)
        rows = np.arange(len(q)) if part.rows is None else part.rows
        shape = (groups, part.table.shape[0])
        by_group = sparse.csr_array((next_token.times_scale(part, q), (own, rows)), shape=shape)
        with part.wide() as table:
            found = sparse.csr_array(by_group @ table)
        return found, np.bincount(own, q * next_token.spread[part.where], groups).astype(np.float64)

    for found, tail in in_order(one, next_token.lists.parts):
        listed[np.repeat(np.arange(groups) * width, np.diff(found.indptr)) + found.indices] += found.data
        tails += tail
    out = np.stack([next_token.on_support(row) for row in listed.reshape(groups, width)])
    out += tails[:, None] * next_token.unigram
    out *= tilt
    return np.maximum(out, 0.0, out=out)


def squares(next_token: NextToken, weights: Vector) -> tuple[Vector, Vector]:
    """(s,) ``sum_m w_m b_m(y)^2`` and ``sum_m w_m spread_m b_m(y)``, where b is what pi_0 has beyond ``spread * unigram``."""

    def one(part: Part) -> tuple[Vector, Vector]:
        once = next_token.times_scale(part, weights[part.where])
        with part.wide() as table:
            cross = np.asarray(table.T @ part.summed(once * next_token.spread[part.where]))
            twice = with_values(table, table.data**2).T @ part.summed(next_token.times_scale(part, once))
        return np.asarray(twice), cross

    both = np.zeros((2, next_token.lists.width))
    for each in in_order(one, next_token.lists.parts):
        both[0] += each[0]
        both[1] += each[1]
    return next_token.on_support(both[0]), next_token.on_support(both[1])
