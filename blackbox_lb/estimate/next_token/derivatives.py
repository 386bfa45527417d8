"""Derivatives of the potential beyond its gradient: along a direction, group by group, and their
squares; each in one visit.

Index letters: ``m`` positions, ``s`` the support, ``g`` groups, ``b`` positions of one part. All
values in nats.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from blackbox_lb.estimate.inputs.checks import Ids, Vector
from blackbox_lb.estimate.next_token.next_token import NextToken, Sums, tilted
from blackbox_lb.estimate.next_token.sparse_table import Part, Table, dot, in_order, with_values


def hessian(
    next_token: NextToken, delta: Vector, weights: Vector
) -> tuple[Vector, Callable[[Vector], Vector]]:
    """(s,) ``expected`` at ``delta``, and a function from a direction v (s,) to its change along v,
    ``sum_m w_m Cov_m(y, v)`` (s,).

    weights: (m,). Each call costs about as much as a ``potential``.
    """
    tilt, shift = tilted(delta, len(next_token.token_ids))
    counting = [part for part in next_token.lists.parts if weights[part.where].any()]
    once = np.zeros(len(weights))

    def first(part: Part) -> Sums:
        with part.wide() as table:
            q = weights[part.where] / next_token.total_at(
                part, next_token.mean_at(part, table, tilt), shift
            )
            up = np.asarray(table.T @ part.summed(next_token.times_scale(part, q)))
        once[part.where] = np.divide(q * q, weights[part.where], out=np.zeros_like(q), where=q > 0)
        return Sums(0.0, up, dot(next_token.spread[part.where], q))

    sums = Sums.of(in_order(first, counting), next_token.lists.width)
    usage = replace(sums, listed=next_token.on_support(sums.listed)).gradient(
        delta, next_token.unigram
    )

    def along(direction: Vector) -> Vector:
        values = tilt * direction

        def one(part: Part) -> Sums:
            with part.wide() as table:
                mean = next_token.mean_at(part, table, values) * once[part.where]
                up = np.asarray(table.T @ part.summed(next_token.times_scale(part, mean)))
            return Sums(0.0, up, dot(next_token.spread[part.where], mean))

        sums = Sums.of(in_order(one, counting), next_token.lists.width)
        both = next_token.on_support(sums.listed) + next_token.unigram * sums.tail
        return np.asarray(usage * direction - tilt * both)

    return usage, along


def expected_by(
    next_token: NextToken, delta: Vector, weights: Vector, group: Ids, groups: int
) -> tuple[Vector, Vector]:
    """(g, s) ``expected`` of the positions of each of ``groups``, and (g, s) ``sum_m w_m pi_delta(y
    | m)^2``; group: (m,).
    """
    tilt, shift = tilted(delta, len(next_token.token_ids))
    width = next_token.lists.width
    unigram = next_token.unigram
    listed = np.zeros((2, groups * width))
    tails = np.zeros((2, groups))
    listed_unigram = unigram if next_token.columns is None else unigram[next_token.columns]

    def one(part: Part) -> tuple[npt.NDArray[np.integer], Vector, Vector, Vector]:
        groups_of_rows = group[part.where]
        w = weights[part.where]
        spread = next_token.spread[part.where]
        with part.wide() as table:
            once = 1 / next_token.total_at(part, next_token.mean_at(part, table, tilt), shift)
            if part.rows is None:
                rows = table
                lengths = np.diff(table.indptr)
            else:
                rows, lengths = _rows(table, part.rows)
            at = np.repeat(groups_of_rows * np.int64(width), lengths) + rows.indices
            masses = rows.data * np.repeat(next_token.times_scale(part, once), lengths)
        first = masses * np.repeat(w, lengths)
        second = first * (
            masses + 2 * np.repeat(once * spread, lengths) * listed_unigram[rows.indices]
        )
        tail = [
            np.bincount(groups_of_rows, w * (once * spread) ** power, groups) for power in (1, 2)
        ]
        return at, first, second, np.array(tail, dtype=np.float64)

    for at, first, second, tail in in_order(
        one, [part for part in next_token.lists.parts if weights[part.where].any()]
    ):
        np.add.at(listed[0], at, first)
        np.add.at(listed[1], at, second)
        tails += tail
    results = []
    for power, rows, tail in zip((1, 2), listed.reshape(2, groups, width), tails, strict=True):
        if next_token.columns is None:
            out = rows
        else:
            out = np.stack([next_token.on_support(row) for row in rows])
        for row, share in zip(out, tail.tolist(), strict=True):
            row += share * unigram**power
            row *= tilt**power
        results.append(np.maximum(out, 0.0, out=out))
    return results[0], results[1]


def _rows(table: Table, rows: Ids) -> tuple[Table, npt.NDArray[np.int32]]:
    chosen = table[rows]
    return chosen, np.diff(chosen.indptr)


def squares(next_token: NextToken, weights: Vector) -> tuple[Vector, Vector]:
    """(s,) ``sum_m w_m b_m(y)^2`` and ``sum_m w_m spread_m b_m(y)``, where b is pi_0 less ``spread
    * unigram``.
    """

    def one(part: Part) -> tuple[Vector, Vector]:
        once = next_token.times_scale(part, weights[part.where])
        with part.wide() as table:
            cross = np.asarray(table.T @ part.summed(once * next_token.spread[part.where]))
            twice = with_values(table, table.data**2).T @ part.summed(
                next_token.times_scale(part, once)
            )
        return np.asarray(twice), cross

    both = np.zeros((2, next_token.lists.width))
    for pair in in_order(one, next_token.lists.parts):
        both[0] += pair[0]
        both[1] += pair[1]
    return next_token.on_support(both[0]), next_token.on_support(both[1])
