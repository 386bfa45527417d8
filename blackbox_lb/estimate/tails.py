"""Tails: what the logged lists say of each position, what they leave over, and which tokens get that.

Index letters: ``m`` positions, ``k`` listed tokens, ``l`` all listed tokens with an id, laid end to end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from scipy import sparse

from blackbox_lb.errors import InputError
from blackbox_lb.estimate.checks import Bools, Ids, Vector, clean_logprobs, sampled_ids
from blackbox_lb.estimate.lists import Allocate, Part, Table
from blackbox_lb.estimate.rollouts import Rollouts
from blackbox_lb.types import NO_TOKEN, UNNAMED

__all__ = ["FINEST", "ROUNDING", "Listed", "attribute", "rates", "read", "reattribute", "support", "whole"]

ROUNDING = 1e-6
"""Less than this of unlisted mass is float32 rounding of a complete list, not a tail."""
OVERFULL = 1e-3
"""Lists summing to more than 1 by this are counted: the provider rounds its logprobs coarsely."""
LARGEST_SUM = 1.25
"""Lists summing to more than this are corrupt; quantising to 1/16 nat cannot do it."""
FINEST = 2.0**-20
"""Tail counts are whole multiples of this, so that sums of them are exact and "no token missing" is exactly 0."""


@dataclass(frozen=True, slots=True, eq=False)
class Listed:
    """The lists of a block of positions.

    sampled: (m,) token ids. outside: (m,) whether the sampled token is missing from its list. bare: (m,) whether there is no list.
    tail: (m,) unlisted mass. unnamed: (m,) listed mass of tokens without an id. overfull: (m,) whether the list summed to more
    than 1.001. starts: (m + 1,) where each position begins in ``ids`` (l,), sorted within it, and ``values`` (l,) probabilities.
    """

    sampled: Ids
    outside: Bools
    bare: Bools
    tail: Vector
    unnamed: Vector
    overfull: Bools
    starts: npt.NDArray[np.int32]
    ids: npt.NDArray[np.int32]
    values: Vector


def read(rollouts: Rollouts, vocab_size: int | None, allocate: Allocate) -> Listed:
    """The lists of ``rollouts``; overfull ones, and complete ones of ``vocab_size`` tokens, are scaled to sum to 1.

    InputError: a NaN or positive logprob, a token listed twice, a list summing to more than 1.25; each names the rollout key.
    """
    rows = rollouts.rollout_of
    sampled = sampled_ids(rollouts, rows)
    table, unnamed = _table(rollouts, rows), _unnamed(rollouts, rows)
    sums: Vector = np.asarray(table.sum(axis=1), dtype=np.float64).reshape(-1) + unnamed
    _require_possible(sums, rollouts, rows)
    sizes = (rollouts.top_ids != NO_TOKEN).sum(axis=1)
    complete = (sums > 1 - ROUNDING) | ((sizes > 0) & (sizes >= (np.inf if vocab_size is None else vocab_size)))
    scale = np.where(complete, sums, 1.0)
    ids, values = allocate(table.nnz, np.int32), allocate(table.nnz, np.float64)
    ids[:] = table.indices
    np.divide(table.data, np.repeat(scale, np.diff(table.indptr)), out=values)
    return Listed(
        sampled=sampled,
        outside=~(rollouts.top_ids == rollouts.token_ids[:, None]).any(axis=1),
        bare=sizes == 0,
        tail=np.where(complete, 0.0, 1.0 - sums),
        unnamed=unnamed / scale,
        overfull=sums > 1 + OVERFULL,
        starts=table.indptr,
        ids=ids,
        values=values,
    )


def support(blocks: Sequence[Listed]) -> Ids:
    """Every token id that any of ``blocks`` lists or saw sampled, sorted."""
    seen = np.zeros(0, dtype=np.int64)
    for block in blocks:
        seen = np.union1d(seen, np.unique(np.concatenate([block.ids, block.sampled])))
    return seen


def attribute(listed: Listed, token_ids: Ids, unigram: Vector) -> tuple[Table, Vector, Vector]:
    """The table over the sorted support ``token_ids`` (s,), and (m,) ``spread`` and ``rest``: who gets the tail.

    A tail goes to the tokens missing from its list in proportion to ``unigram`` (s,): token y has ``table[m, y] + spread[m]
    unigram[y]`` everywhere, because the table already lacks the share that listed tokens must not get twice. Where no token of
    the unigram is missing, the tail is ``rest``. The arrays of ``listed`` are changed into those of the table.
    """
    columns, values = listed.ids, listed.values
    columns[:] = np.searchsorted(token_ids, listed.ids)
    where = np.repeat(np.arange(len(listed.tail)), np.diff(listed.starts))
    counts = unigram[columns]
    taken = np.bincount(where, weights=counts, minlength=len(listed.tail))
    missing = unigram.sum() - taken  # counts are whole numbers, so "none missing" is exactly 0
    spread = np.divide(listed.tail, missing, out=np.zeros_like(listed.tail), where=missing > 0)
    values -= spread[where] * counts
    table = sparse.csr_array((values, columns, listed.starts), shape=(len(listed.tail), len(token_ids)))
    return table, spread, np.where(missing > 0, 0.0, listed.tail)


def whole(counts: Vector) -> Vector:
    """``counts`` in whole multiples of FINEST; what is above 0 stays above it."""
    return np.where(counts > 0, np.maximum(np.round(counts / FINEST), 1.0) * FINEST, 0.0)


def rates(counts: Vector, missed: Vector, total: float) -> Vector:
    """(s,) how often each token was sampled outside a list, for each unit of the mass that lists which ``missed`` it left over,
    times the ``total`` that all lists left over.

    Expected counts below the observed one are rounding of the lists: no token has more than the whole tail.
    """
    return whole(np.divide(counts, np.maximum(missed, counts), out=np.zeros_like(counts), where=counts > 0) * total)


def reattribute(
    part: Part, tail: Vector, spread: Vector, unigrams: tuple[Vector, Vector], total: float, values: Vector
) -> tuple[Part, Vector]:
    """``part`` as ``attribute`` would make it of another unigram, and (b,) the new ``spread``: 0 where no token takes the tail.

    tail, spread: (b,) what its positions leave over and how that was given out. unigrams: (c,) of the columns, the former and the
    new one, which sums to ``total`` over the support. values: where the entries of the new table go.
    """
    table, (before, after) = part.table, unigrams
    rows = slice(None) if part.rows is None else part.rows
    where = np.repeat(np.arange(table.shape[0]), np.diff(table.indptr))
    left, old = np.zeros(table.shape[0]), np.zeros(table.shape[0])
    left[rows], old[rows] = tail, spread
    counts = after[table.indices]
    missing = total - np.bincount(where, weights=counts, minlength=table.shape[0])
    new = np.divide(left, missing, out=np.zeros_like(left), where=missing > 0)
    np.add(table.data, old[where] * before[table.indices] - new[where] * counts, out=values)
    return replace(part, table=sparse.csr_array((values, table.indices, table.indptr), shape=table.shape)), new[rows]


def _table(rollouts: Rollouts, rows: Ids) -> Table:
    """(m, ids) the listed probabilities of tokens with an id, sorted by id."""
    present = rollouts.top_ids >= 0
    sizes = present.sum(axis=1)
    row_of = np.repeat(rows, sizes)
    logprobs = clean_logprobs("listed logprob", rollouts.top_logprobs[present], rollouts, row_of)
    starts = np.concatenate(([0], np.cumsum(sizes)))
    starts = starts.astype(
        np.int32 if starts[-1] <= np.iinfo(np.int32).max else np.int64
    )  # int64 would make scipy copy
    ids = rollouts.top_ids[present]
    table = sparse.csr_array((np.exp(logprobs), ids, starts), shape=(len(present), 1 + int(ids.max(initial=0))))
    table.sort_indices()
    where = np.repeat(np.arange(len(present)), sizes)
    twice = np.flatnonzero((np.diff(table.indices) == 0) & (np.diff(where) == 0))
    if twice.size:
        token, key = table.indices[twice[0]], rollouts.keys[int(row_of[twice[0]])]
        raise InputError(f"token {token} is listed twice at one position of rollout {key}; a list may name it once")
    return table


def _unnamed(rollouts: Rollouts, rows: Ids) -> Vector:
    """(m,) the listed probability of tokens without an id."""
    where = rollouts.top_ids == UNNAMED
    if not where.any():
        return np.zeros(len(where))
    row_of = np.repeat(rows, where.sum(axis=1))
    mass = np.zeros(where.shape)
    mass[where] = np.exp(clean_logprobs("listed logprob", rollouts.top_logprobs[where], rollouts, row_of))
    return np.asarray(mass.sum(axis=1), dtype=np.float64)


def _require_possible(sums: Vector, rollouts: Rollouts, rows: Ids) -> None:
    worst = int(np.argmax(sums))
    if sums[worst] > LARGEST_SUM:
        raise InputError(
            f"a list in rollout {rollouts.keys[int(rows[worst])]} sums to probability {sums[worst]:.3f}, above the limit "
            f"{LARGEST_SUM}; are these logprobs of the unbiased model at temperature 1?"
        )
