"""Tails: the logged lists of each position, the mass they leave over, and the samples from outside
them.

Index letters: ``m`` positions, ``k`` listed tokens, ``l`` all listed tokens with an id, laid end to
end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse

from blackbox_lb.errors import InputError
from blackbox_lb.estimate.inputs.checks import Bools, Ids, Vector
from blackbox_lb.estimate.inputs.rollouts import MOST_TOKENS, Rollouts, clean_logprobs, sampled_ids
from blackbox_lb.estimate.next_token.sparse_table import (
    Allocate,
    Part,
    Table,
    borrowed,
    in_order,
    with_values,
)
from blackbox_lb.types import NO_TOKEN, UNNAMED


@dataclass(frozen=True, slots=True, eq=False)
class Tail:
    """The data that all positions must share before any of them can distribute its unlisted mass.

    token_ids: (s,) sorted. unigram: (s,) the rate at which each token is sampled outside lists.
    everything: (s,) times each was sampled at all. listless: whether no position has a list.
    entries: number of listed tokens in all, which decides their precision; None where the positions
    at hand decide.
    """

    token_ids: Ids
    unigram: Vector
    everything: Vector
    listless: bool | None = None
    entries: int | None = None

    def on(self, token_ids: Ids) -> Tail:
        """The same on a larger support."""
        place = np.searchsorted(token_ids, self.token_ids)
        size = len(token_ids)
        unigram, everything = (
            moved(values, place, size) for values in (self.unigram, self.everything)
        )
        return Tail(token_ids, unigram, everything, self.listless, self.entries)


@dataclass(frozen=True, slots=True, eq=False)
class Unlisted:
    """Sums over positions, to be added to those of others.

    token_ids: (s,) sorted, every token that was listed or sampled. outside, everything: (s,) times
    each was sampled outside a list, and at all. held: (s,) the mass left over by the lists that
    hold the token. left: the mass left over by all lists. listless: whether no position has a list.
    entries: number of listed tokens in all.
    """

    token_ids: Ids
    outside: Vector
    everything: Vector
    held: Vector
    left: float
    listless: bool
    entries: int

    @classmethod
    def of(cls, blocks: Sequence[Listed]) -> Unlisted:
        """The sums of the positions of ``blocks``, before their ids are columns."""
        token_ids = support(blocks)
        column_of = columns_of(token_ids)
        size = len(token_ids)

        def one(block: Listed) -> tuple[Vector, float]:
            masses = np.where(block.bare, 0.0, block.tail)
            sampled = column_of(block.sampled)
            counted = (
                np.bincount(sampled[block.outside & ~block.bare], minlength=size),
                np.bincount(sampled, minlength=size),
                np.bincount(column_of(block.ids), np.repeat(masses, block.lengths), size),
            )
            return np.array(counted, dtype=np.float64), float(masses.sum())

        counts = np.zeros((3, size))
        mass = 0.0
        for block_counts, rest in in_order(one, blocks):
            counts += block_counts
            mass += rest
        listless = all(bool(block.bare.all()) for block in blocks)
        return cls(
            token_ids,
            counts[0],
            counts[1],
            counts[2],
            mass,
            listless,
            sum(len(block.ids) for block in blocks),
        )

    def __add__(self, other: Unlisted) -> Unlisted:
        token_ids = np.union1d(self.token_ids, other.token_ids)
        counts = np.zeros((3, len(token_ids)))
        for part in (self, other):
            counts[:, np.searchsorted(token_ids, part.token_ids)] += (
                part.outside,
                part.everything,
                part.held,
            )
        mass = self.left + other.left
        listless = self.listless and other.listless
        entries = self.entries + other.entries
        return Unlisted(token_ids, counts[0], counts[1], counts[2], mass, listless, entries)

    def tail(self) -> Tail:
        """The unigram: a token's count for each unit of the mass left over by the lists that miss
        it, times all mass left over.

        A token that most lists hold is seldom sampled outside one, because it seldom could be: its
        share of a tail that it belongs to is its count there over those tails.
        """
        if self.listless:
            unigram = self.everything
        else:
            unigram = rates(self.outside, self.left - self.held, self.left)
        return Tail(self.token_ids, unigram, self.everything, self.listless, self.entries)


def moved(values: Vector, place: Ids, size: int) -> Vector:
    """(size,) ``values`` at the indices ``place``, 0 elsewhere."""
    out = np.zeros(size)
    out[place] = values
    return out


ROUNDING = 1e-6
"""Largest unlisted mass of a complete list, by float32 rounding."""
OVERFULL = 1e-3
"""Excess of a list's sum over 1 from which it is counted: the provider rounds its logprobs
coarsely.
"""
LARGEST_SUM = 1.25
"""Largest sum of a valid list; quantising to 1/16 nat cannot exceed it."""
FINEST = 2.0**-20
"""The unit of tail counts, so that their sums are exact and "no token missing" is exactly 0."""
PART = 1 << 19
"""Positions and listed tokens of a part: 25,000 positions with 20 each. In float64 they fit in a
processor's cache, and there are few enough parts that adding up a vector of the support for each
costs little."""
EXACT = 1 << 19
"""Most listed tokens of a table in float64, which fits in a processor's cache. A larger one is in
float32.
"""


@dataclass(frozen=True, slots=True, eq=False)
class Listed:
    """The lists of a block of positions.

    sampled: (m,) token ids. outside: (m,) whether the sampled token is missing from its list. bare:
    (m,) whether there is no list. tail: (m,) unlisted mass. unnamed: (m,) listed mass of tokens
    without an id. scale: (m,) the factor from ``values`` to probabilities, 1 but for complete
    lists. overfull: (m,) whether the list summed to more than 1.001. lengths: (m,) the number of
    its own ``ids`` (l,), sorted within a position, and ``values`` (l,).
    """

    sampled: npt.NDArray[np.int32]
    outside: Bools
    bare: Bools
    tail: Vector
    unnamed: Vector
    scale: Vector
    overfull: Bools
    lengths: npt.NDArray[np.int32]
    ids: npt.NDArray[np.int32]
    values: npt.NDArray[np.float32]

    def cut(self, low: int, high: int) -> Listed:
        """The positions from ``low`` to ``high``, as views."""
        first = int(self.lengths[:low].sum())
        last = int(self.lengths[:high].sum())
        entries = ("ids", "values")
        pieces = (
            slice(first, last) if field.name in entries else slice(low, high)
            for field in fields(self)
        )
        return Listed(
            *(
                getattr(self, field.name)[piece]
                for field, piece in zip(fields(self), pieces, strict=True)
            )
        )


def read(rollouts: Rollouts, vocab_size: int | None) -> Listed:
    """Read the lists of ``rollouts``; overfull ones, and complete ones of ``vocab_size`` tokens,
    are scaled to sum to 1.

    InputError: a NaN or positive logprob, a token listed twice, a list summing to more than 1.25;
    each names the rollout key.
    """
    rows = rollouts.rollout_of
    sampled = sampled_ids(rollouts)
    table = _table(rollouts, rows)
    unnamed = _unnamed(rollouts, rows)
    where = np.repeat(np.arange(len(rows)), np.diff(table.indptr))
    sums: Vector = np.bincount(where, table.data, len(rows)) + unnamed
    _require_possible(sums, rollouts, rows)
    sizes = (rollouts.top_ids != NO_TOKEN).sum(axis=1)
    complete = (sums > 1 - ROUNDING) | (
        (sizes > 0) & (sizes >= (np.inf if vocab_size is None else vocab_size))
    )
    scale = 1 / np.where(complete, sums, 1.0)
    return Listed(
        sampled=sampled.astype(np.int32),
        outside=~(rollouts.top_ids == rollouts.token_ids[:, None]).any(axis=1),
        bare=sizes == 0,
        tail=np.where(complete, 0.0, 1.0 - sums),
        unnamed=unnamed * scale,
        scale=scale,
        overfull=sums > 1 + OVERFULL,
        lengths=np.diff(table.indptr).astype(np.int32),
        ids=table.indices,
        values=table.data,
    )


def regular(blocks: Iterable[Listed], allocate: Allocate) -> Iterator[Listed]:
    """The same positions in parts with borders that depend on the lists alone, not on the borders
    of ``blocks``.

    So no sum over parts depends on it either. ``allocate`` gives the arrays of ids and values.
    """
    waiting: list[Listed] = []
    before = 0
    number = 0
    for block in blocks:
        ends = before + np.cumsum(block.lengths + np.int64(1))
        numbers = (ends - 1 - block.lengths) // PART  # of the lists before each position
        before = int(ends[-1])
        borders = np.flatnonzero(np.diff(numbers, prepend=number))
        low = 0
        for high in borders.tolist():
            waiting.append(block.cut(low, high))
            yield _joined(waiting, allocate)
            waiting = []
            low = high
        waiting.append(block.cut(low, len(numbers)))
        number = int(numbers[-1])
    if waiting:
        yield _joined(waiting, allocate)


def _joined(pieces: Sequence[Listed], allocate: Allocate) -> Listed:
    size = sum(len(piece.ids) for piece in pieces)
    ids = allocate(size, np.int32)
    values = allocate(size, np.float32)
    np.concatenate([piece.ids for piece in pieces], out=ids)
    np.concatenate([piece.values for piece in pieces], out=values)
    joined: dict[str, npt.NDArray[Any]] = {"ids": ids, "values": values}
    for field in fields(Listed):
        if field.name not in joined:
            joined[field.name] = end_to_end([getattr(piece, field.name) for piece in pieces])
    return Listed(**joined)


def end_to_end(parts: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """All ``parts`` as one array; where all numbers are equal, as a view of one number that takes
    no memory.

    Most positions have no listed token without an id, and no complete list: this saves eight bytes
    for each of the two.
    """
    first = parts[0][:1]
    if all(bool((part == first).all()) for part in parts):
        return np.broadcast_to(first[0] if first.size else first, sum(len(part) for part in parts))
    return np.concatenate(parts)


def support(blocks: Sequence[Listed]) -> Ids:
    """The sorted ids of all tokens listed or sampled in ``blocks``."""
    highest = max(
        max(int(block.ids.max(initial=0)), int(block.sampled.max(initial=0))) for block in blocks
    )
    is_present = np.zeros(highest + 1, dtype=np.bool_)
    for block in blocks:
        is_present[block.ids] = is_present[block.sampled] = True
    return np.flatnonzero(is_present)


def columns_of(token_ids: Ids) -> Callable[..., npt.NDArray[np.int32]]:
    """A function from ids of the sorted support ``token_ids`` (s,) to their columns, written to
    ``out``.
    """
    column_of = np.zeros(int(token_ids[-1]) + 1, dtype=np.int32)
    column_of[token_ids] = np.arange(len(token_ids))

    def taken(ids: Ids, out: npt.NDArray[np.int32] | None = None) -> npt.NDArray[np.int32]:
        return np.asarray(np.take(column_of, ids, out=out, mode="clip"))

    return taken


def tables(blocks: Sequence[Listed], token_ids: Ids) -> list[Table]:
    """Each block's lists over the sorted support ``token_ids`` (s,). The ids of ``blocks`` are
    changed into columns.
    """
    column_of = columns_of(token_ids)
    pieces = []
    for block in blocks:
        column_of(block.ids, out=block.ids)
        starts = np.concatenate(([0], np.cumsum(block.lengths))).astype(np.int32)
        pieces.append(
            sparse.csr_array(
                (block.values, block.ids, starts), shape=(len(block.lengths), len(token_ids))
            )
        )
    return pieces


@dataclass(frozen=True, slots=True, eq=False)
class Shares:
    """The distribution of the tails of a part: token y has ``spread * unigram[y]`` everywhere,
    because the table already lacks the share that listed tokens must not get twice.

    spread: (b,), 0 where no token takes the tail. rounding: (b,) the loss of each row to float32.
    """

    part: Part
    spread: Vector
    rounding: Vector


def share(
    part: Part,
    tail: Vector,
    unigram: Vector,
    total: float,
    old: tuple[Vector, Vector] | Vector,
    values: npt.NDArray[Any],
) -> Shares:
    """Distribute the tails of ``part`` (b,) over the tokens missing from its lists, in proportion
    to ``unigram`` (c,).

    total: of the unigram over the support, in whole multiples of FINEST: a sum of them is exact,
    and "none missing" is exactly 0. old: the ``spread`` (b,) and unigram (c,) of the earlier
    distribution; without one, (b,) the factor of the listed values. values: the place of the new
    table's entries; a share larger than a probability needs float64, because its rounding would be
    larger too.
    """
    missing = total - part.sum_over_tokens(unigram)
    spread = np.divide(tail, missing, out=np.zeros_like(tail), where=missing > 0)
    table = part.table
    lengths = np.diff(part.table.indptr)
    with borrowed(table.nnz) as exact, borrowed(table.nnz) as change:
        exact[:] = table.data
        if isinstance(old, tuple):
            exact += _shares(part, *old, change)
        else:
            exact *= np.repeat(part.of_rows(old), lengths)
        exact -= _shares(part, spread, unigram, change)
        if values.dtype != np.float64 and float(np.abs(exact).max(initial=0.0)) > 1:
            values = np.empty(table.nnz)
        values[:] = exact
        exact -= values
        lost = np.asarray(with_values(table, exact) @ np.ones(table.shape[1]))
    return Shares(replace(part, table=with_values(table, values)), spread, part.of_positions(lost))


def _shares(part: Part, spread: Vector, unigram: Vector, out: Vector) -> Vector:
    """(l,) ``spread * unigram`` of each entry, in ``out``."""
    np.take(unigram, part.table.indices, out=out, mode="clip")  # "raise" would work on a copy
    out *= np.repeat(part.of_rows(spread), np.diff(part.table.indptr))
    return out


def whole(counts: Vector) -> Vector:
    """``counts`` in whole multiples of FINEST; positive ones stay positive."""
    return np.where(counts > 0, np.maximum(np.round(counts / FINEST), 1.0) * FINEST, 0.0)


def rates(counts: Vector, missed: Vector, total: float) -> Vector:
    """(s,) the times each token was sampled outside a list, for each unit of the mass left over by
    the lists that ``missed`` it, times the ``total`` left over by all lists.

    Expected counts below the observed one are rounding of the lists: no token has more than the
    whole tail.
    """
    return whole(
        np.divide(counts, np.maximum(missed, counts), out=np.zeros_like(counts), where=counts > 0)
        * total
    )


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
    masses = np.exp(logprobs).astype(np.float32)
    table = sparse.csr_array(
        (masses, ids, starts), shape=(len(present), 1 + int(ids.max(initial=0)))
    )
    table.sort_indices()
    if table.shape[1] > MOST_TOKENS:
        at = int(np.argmax(ids))
        raise InputError(
            f"token id {ids[at]} is listed in rollout {rollouts.keys[int(row_of[at])]}; ids go up"
            f" to {MOST_TOKENS - 1:,}: discard this rollout"
        )
    same = np.flatnonzero(table.indices[1:] == table.indices[:-1])
    twice = same[~np.isin(same + 1, starts)] if same.size else same
    if twice.size:
        token = table.indices[twice[0]]
        key = rollouts.keys[int(row_of[twice[0]])]
        raise InputError(
            f"token {token} is listed twice at one position of rollout {key}; a list may name it"
            " once"
        )
    return table


def _unnamed(rollouts: Rollouts, rows: Ids) -> Vector:
    """(m,) the listed probability of tokens without an id."""
    where = rollouts.top_ids == UNNAMED
    if not where.any():
        return np.zeros(len(where))
    row_of = np.repeat(rows, where.sum(axis=1))
    mass = np.zeros(where.shape)
    logprobs = clean_logprobs("listed logprob", rollouts.top_logprobs[where], rollouts, row_of)
    mass[where] = np.exp(logprobs).astype(np.float32)  # with the same precision as those with an id
    return np.asarray(mass.sum(axis=1), dtype=np.float64)


def _require_possible(sums: Vector, rollouts: Rollouts, rows: Ids) -> None:
    worst = int(np.argmax(sums))
    if sums[worst] > LARGEST_SUM:
        raise InputError(
            f"a list in rollout {rollouts.keys[int(rows[worst])]} sums to probability"
            f" {sums[worst]:.3f}, above the limit {LARGEST_SUM}; are these logprobs of the unbiased"
            " model at temperature 1?"
        )
