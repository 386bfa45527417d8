"""A tall sparse table of probabilities, cut into parts of about equal size for several cores.

Index letters: ``m`` positions, ``c`` columns of the table, ``b`` positions of one part, ``l`` its
entries.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain, islice
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
from scipy import sparse

from blackbox_lb.estimate.inputs.checks import Ids, Vector

T = TypeVar("T")
R = TypeVar("R")

AHEAD = 2
"""Results that may wait for an earlier one, for each core: one is as large as the support."""

STRETCH = 1 << 18
"""Positions per temporary array, where there may be many millions."""

_spare: list[bytearray] = []
_thread_limit: int | None = None
_this_thread = threading.local()


def limit_threads(threads: int) -> None:
    """Let this process compute with at most ``threads`` threads."""
    global _thread_limit
    _thread_limit = threads


def cores() -> int:
    """The number of processor cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):  # neither on Windows nor on macOS
        available = len(os.sched_getaffinity(0))
    else:
        available = os.cpu_count() or 1
    if _thread_limit is None:
        return available
    return min(_thread_limit, available)


def in_order(
    work: Callable[[T], R], items: Iterable[T], *, ahead: int = AHEAD, threads: int | None = None
) -> Iterator[R]:
    """Yield ``work`` of each item, in the order of the items: their sum does not depend on the
    number of threads.

    The items are made in the calling thread, which also does the work where it is the only one, or
    where it does a part of other such work. ahead: results and items that may wait, for each
    thread; ``threads`` None is one a core.
    """
    threads = threads or cores()
    if threads == 1 or getattr(_this_thread, "is_worker", False):
        yield from map(work, items)
        return
    rest = iter(items)
    first_two = list(islice(rest, 2))
    is_single = len(first_two) < 2
    items = chain(first_two, rest)
    del first_two  # items may be large
    if is_single:
        yield from map(work, items)
        return
    pool = _workers(threads)
    waiting: deque[Future[R]] = deque()
    try:
        for item in items:
            waiting.append(pool.submit(work, item))
            if len(waiting) > ahead * threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:  # also where the caller takes no more, or a part failed
        wait([future for future in waiting if not future.cancel()])


@cache
def _workers(threads: int) -> ThreadPoolExecutor:
    """The pool of so many threads. It is kept, because a search evaluates thousands of times, and
    each time a new thread would take longer to start than its part of the work.
    """
    return ThreadPoolExecutor(threads, "blb-estimate", initializer=_mark_worker)


def _mark_worker() -> None:
    _this_thread.is_worker = True


if hasattr(os, "register_at_fork"):  # a process that was forked has none of the threads
    os.register_at_fork(after_in_child=_workers.cache_clear)


def stretches(size: int) -> Iterator[slice]:
    """Slices that cover ``size`` positions in order, ``STRETCH`` at a time."""
    return (slice(start, start + STRETCH) for start in range(0, size, STRETCH))


def tally(
    out: npt.NDArray[Any], index: npt.NDArray[np.integer], weights: Vector | None = None
) -> None:
    """Add ``weights`` (m,), or 1, to ``out`` at ``index`` (m,), in order.

    The result has the same bits as ``np.bincount``, which would copy an index of another type.
    """
    for at in stretches(len(index)):
        amount: Vector | int = 1
        if weights is not None:
            amount = weights[at]
        np.add.at(out, index[at].astype(np.intp, copy=False), amount)


@contextmanager
def borrowed(size: int) -> Iterator[Vector]:
    """Lend an array (size,) of any content for as long as the context lasts; the next caller gets
    the same memory.

    The operating system takes longer to supply fresh memory than the calculation takes.
    """
    try:
        memory = _spare.pop()
    except IndexError:
        memory = bytearray()
    if len(memory) < 8 * size:
        memory = bytearray(8 * size)
    try:
        # The slice makes a view of a whole array: scipy copies an array that is a part of another.
        yield np.frombuffer(memory, np.float64, size)[:]
    finally:
        _spare.append(memory)


def dot(a: Vector, b: Vector) -> float:
    """The inner product, the same to the last bit for any number of threads in the linear algebra
    library.
    """
    return float(np.einsum("i,i->", a, b))


NO_COLUMN = -1
"""The index of a column that no list has."""

Table: TypeAlias = sparse.csr_array[Any]
"""Type of a large table: float32, as exact as the logprobs, which are float32 too. Sums are in
float64.
"""


class Allocate(Protocol):
    """Allocator of large arrays: ``numpy.empty``, or memory-mapped files from an outer layer.
    Several threads may call it.
    """

    def __call__(self, size: int, dtype: type[np.generic], /) -> npt.NDArray[Any]:
        """A writable array of shape (size,)."""


def empty(size: int, dtype: type[np.generic], /) -> npt.NDArray[Any]:
    return np.empty(size, dtype)


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """The lists of some positions, in one block.

    table: the block, a list in each row.
    where: the indices of the b positions among the m.
    rows: the row of each position, None where row i is of position i. Positions may share a row.
    """

    table: Table
    where: slice | Ids
    rows: Ids | None = None

    @property
    def size(self) -> int:
        """b."""
        if isinstance(self.where, slice):
            return int(self.where.stop - self.where.start)
        return len(self.where)

    def positions(self, indices: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The positions among the m with ``indices`` in this part."""
        if isinstance(self.where, slice):
            return np.asarray(indices + self.where.start)
        return np.asarray(self.where[indices])

    def summed(self, values: Vector) -> Vector:
        """(rows,) the sum of ``values`` (b,) over the positions of each row of the block."""
        if self.rows is None:
            return values
        return np.bincount(self.rows, values, self.table.shape[0]).astype(np.float64)

    def of_rows(self, values: Vector) -> Vector:
        """(rows,) from one number a position, ``values`` (b,)."""
        if self.rows is None:
            return values
        out = np.zeros(self.table.shape[0])
        out[self.rows] = values
        return out

    def of_positions(self, values: Vector) -> Vector:
        """(b,) from one number a row of the block."""
        if self.rows is None:
            return values
        return values[self.rows]

    def sum_over_tokens(self, values: Vector) -> Vector:
        """(b,) the sum of ``values`` (c,) over the tokens that each position lists."""
        with self._ones() as ones:
            return self.of_positions(np.asarray(ones @ values))

    @contextmanager
    def wide(self) -> Iterator[Table]:
        """The block in float64, for as long as the context lasts."""
        if self.table.dtype == np.float64:
            yield self.table
            return
        with borrowed(self.table.nnz) as values:
            values[:] = self.table.data
            yield with_values(self.table, values)

    @contextmanager
    def _ones(self) -> Iterator[Table]:
        with borrowed(self.table.nnz) as ones:
            ones.fill(1.0)
            yield with_values(self.table, ones)


def with_values(table: Table, values: npt.NDArray[Any]) -> Table:
    """``table`` with other entries (l,)."""
    return sparse.csr_array((values, table.indices, table.indptr), shape=table.shape)


@dataclass(frozen=True, slots=True, eq=False)
class TableColumns:
    """Some columns of the table. starts: (c + 1,) where each begins in ``rows``, the positions with
    an entry, and ``values``.
    """

    starts: Ids
    rows: npt.NDArray[np.int32]
    values: Vector

    def column(self, index: int) -> tuple[npt.NDArray[np.int32], Vector]:
        """Positions and entries of one column."""
        part = slice(int(self.starts[index]), int(self.starts[index + 1]))
        return self.rows[part], self.values[part]


@dataclass(frozen=True, slots=True, eq=False)
class TokenMasses:
    """pi_0 of a few tokens at all positions: ``scale * listed + spread * unigram`` with (m,) scale
    and spread.
    """

    listed: TableColumns
    unigram: Vector
    spread: Vector
    scale: Vector | None

    def mass(self, index: int) -> tuple[Ids | slice, Vector]:
        """One token's mass: positions that hold all of it, and the probability at each of them."""
        rows, values = self.listed.column(index)
        if self.scale is not None:
            values = values * self.scale[rows]
        if self.unigram[index] == 0:
            return rows.astype(np.int64), values
        mass = self.spread * self.unigram[index]
        mass[rows] += values
        return slice(None), np.maximum(mass, 0.0)


@dataclass(frozen=True, slots=True, eq=False)
class SparseTable:
    """An (m, c) table in ``parts`` that hold every position once. allocate: for derived arrays."""

    parts: tuple[Part, ...]
    n_positions: int
    allocate: Allocate = empty

    @classmethod
    def of(cls, tables: Sequence[Table], allocate: Allocate = empty) -> SparseTable:
        """The rows of all ``tables``, one below the other."""
        ends = np.cumsum([table.shape[0] for table in tables]).tolist()
        parts = [
            Part(table, slice(end - table.shape[0], end))
            for table, end in zip(tables, ends, strict=True)
        ]
        return cls(tuple(parts), ends[-1], allocate)

    @property
    def entries(self) -> int:
        return sum(part.table.nnz for part in self.parts)

    @property
    def width(self) -> int:
        """c."""
        return int(self.parts[0].table.shape[1])

    def take(self, positions: Ids) -> SparseTable:
        """The rows at ``positions``, in that order, with repeats; only their indices are copied."""
        part_of = np.empty(self.n_positions, dtype=np.int32)
        row_of = np.empty(self.n_positions, dtype=np.int64)
        for number, part in enumerate(self.parts):
            part_of[part.where] = number
            row_of[part.where] = np.arange(part.table.shape[0]) if part.rows is None else part.rows
        chosen = part_of[positions]
        order = np.argsort(chosen, kind="stable")
        cuts = np.searchsorted(chosen[order], np.arange(len(self.parts) + 1))
        parts = [
            _part(part.table, order[low:high], row_of[positions[order[low:high]]])
            for part, low, high in zip(self.parts, cuts[:-1], cuts[1:], strict=True)
            if high > low
        ]
        return replace(self, parts=tuple(parts), n_positions=len(positions))

    def with_row(self, row: Vector, where: npt.NDArray[np.bool_]) -> SparseTable:
        """The same table, with ``row`` (c,) at the positions ``where`` (m,)."""
        m = self.n_positions
        parts = (*self.parts, Part(sparse.csr_array(row[None, :]), slice(m, m + 1)))
        return replace(self, parts=parts, n_positions=m + 1).take(np.where(where, m, np.arange(m)))

    def columns(self, chosen: Ids) -> TableColumns:
        """The columns at the indices ``chosen``, gathered block by block; NO_COLUMN is empty."""
        has_column = chosen != NO_COLUMN
        counts = np.zeros(len(chosen), dtype=np.int64)
        for _, table in self._by_column(chosen[has_column]):
            counts[has_column] += np.diff(table.indptr)
        starts = np.concatenate(([0], np.cumsum(counts)))
        rows = self.allocate(int(starts[-1]), np.int32)
        values = self.allocate(int(starts[-1]), np.float64)
        free = starts[:-1][has_column]
        for part, table in self._by_column(chosen[has_column]):
            sizes = np.diff(table.indptr)
            to = np.repeat(free - table.indptr[:-1], sizes) + np.arange(table.nnz)
            rows[to] = part.positions(table.indices)
            values[to] = table.data
            free += sizes
        return TableColumns(starts, rows, values)

    def _by_column(self, chosen: Ids) -> Iterator[tuple[Part, sparse.csc_array[np.float64]]]:
        for part in self.parts:
            table = part.table[:, chosen]
            yield part, (table if part.rows is None else table[part.rows]).tocsc()


def _part(table: Table, where: Ids, rows: Ids) -> Part:
    """The part of these positions. Neighbours become a slice, which numpy copies faster than
    indices.
    """
    first = int(where[0])
    last = int(where[-1])
    place: slice | Ids = where
    if last - first == len(where) - 1:
        place = slice(first, last + 1)
    if len(rows) == table.shape[0] and bool((np.diff(rows) == 1).all()):
        return Part(table, place)
    return Part(table, place, rows)
