"""Lists: a tall sparse table of probabilities, kept in blocks of rows that are visited one after the other.

Index letters: ``m`` positions, ``c`` columns of the table, ``b`` the rows of one block.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy import sparse

from blackbox_lb.estimate.checks import Ids, Vector

__all__ = ["NO_COLUMN", "Allocate", "Columns", "Lists", "Part", "TokenMasses", "empty"]

NO_COLUMN = -1
"""Stands for a column that no list has."""

Table: TypeAlias = sparse.csr_array[np.float64]


class Allocate(Protocol):
    """Where large arrays live: ``numpy.empty``, or memory-mapped files that an outer layer hands in."""

    def __call__(self, size: int, dtype: type[np.generic], /) -> npt.NDArray[Any]:
        """A writable array of shape (size,)."""


def empty(size: int, dtype: type[np.generic], /) -> npt.NDArray[Any]:
    """In memory."""
    return np.empty(size, dtype)


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """What one block says of some positions. where: which of the m positions. rows: the block's row of each, None for all in order.

    Several positions may share a row.
    """

    table: Table
    where: slice | Ids
    rows: Ids | None = None

    def positions(self, indices: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The positions among the m that stand at ``indices`` in this part."""
        return np.asarray(indices + self.where.start if isinstance(self.where, slice) else self.where[indices])

    def dot(self, values: Vector) -> Vector:
        """One number a position: its row times ``values`` (c,)."""
        product = np.asarray(self.table @ values)
        return product if self.rows is None else product[self.rows]

    def dot_transposed(self, values: Vector) -> Vector:
        """(c,) the sum over the positions of their rows, each times its number in ``values``."""
        full = values if self.rows is None else np.bincount(self.rows, values, self.table.shape[0])
        return np.asarray(self.table.T @ full)


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """Some columns of the table. starts: (c + 1,) where each begins in ``rows``, the positions with an entry, and ``values``."""

    starts: Ids
    rows: npt.NDArray[np.int32]
    values: Vector

    def column(self, index: int) -> tuple[npt.NDArray[np.int32], Vector]:
        """Positions and entries of one column."""
        part = slice(int(self.starts[index]), int(self.starts[index + 1]))
        return self.rows[part], self.values[part]


@dataclass(frozen=True, slots=True, eq=False)
class TokenMasses:
    """pi_0 of a few tokens at all positions: ``scale * listed + spread * unigram`` with (m,) scale and spread."""

    listed: Columns
    unigram: Vector
    spread: Vector
    scale: Vector | None

    def mass(self, index: int) -> tuple[Ids | slice, Vector]:
        """Of one of the tokens: positions that hold all of its mass, and the probability at each of them."""
        rows, values = self.listed.column(index)
        if self.scale is not None:
            values = values * self.scale[rows]
        if self.unigram[index] == 0:
            return rows.astype(np.int64), values
        mass = self.spread * self.unigram[index]
        mass[rows] += values
        return slice(None), np.maximum(mass, 0.0)


@dataclass(frozen=True, slots=True, eq=False)
class Lists:
    """An (m, c) table in ``parts`` that hold every position once. allocate: where what is derived from it lives."""

    parts: tuple[Part, ...]
    n_positions: int
    allocate: Allocate = empty

    @classmethod
    def of(cls, tables: Sequence[Table], allocate: Allocate = empty) -> Lists:
        """The rows of all ``tables``, one below the other."""
        ends = np.cumsum([table.shape[0] for table in tables]).tolist()
        parts = [Part(table, slice(end - table.shape[0], end)) for table, end in zip(tables, ends, strict=True)]
        return cls(tuple(parts), ends[-1], allocate)

    @property
    def entries(self) -> int:
        """How many entries are stored."""
        return sum(part.table.nnz for part in self.parts)

    def take(self, positions: Ids) -> Lists:
        """The rows at ``positions``, in that order, any of them several times; nothing is copied but where they are."""
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

    def with_row(self, row: Vector, where: npt.NDArray[np.bool_]) -> Lists:
        """The same table but for the positions ``where`` (m,), which share ``row`` (c,)."""
        m = self.n_positions
        parts = (*self.parts, Part(sparse.csr_array(row[None, :]), slice(m, m + 1)))
        return replace(self, parts=parts, n_positions=m + 1).take(np.where(where, m, np.arange(m)))

    def columns(self, chosen: Ids) -> Columns:
        """The columns at the indices ``chosen``, gathered block by block; NO_COLUMN is empty."""
        known = chosen != NO_COLUMN
        counts = np.zeros(len(chosen), dtype=np.int64)
        for _, table in self._by_column(chosen[known]):
            counts[known] += np.diff(table.indptr)
        starts = np.concatenate(([0], np.cumsum(counts)))
        rows, values = self.allocate(int(starts[-1]), np.int32), self.allocate(int(starts[-1]), np.float64)
        free = starts[:-1][known]
        for part, table in self._by_column(chosen[known]):
            sizes = np.diff(table.indptr)
            to = np.repeat(free - table.indptr[:-1], sizes) + np.arange(table.nnz)
            rows[to] = part.positions(table.indices)
            values[to] = table.data
            free += sizes
        return Columns(starts, rows, values)

    def _by_column(self, chosen: Ids) -> Iterator[tuple[Part, sparse.csc_array[np.float64]]]:
        for part in self.parts:
            table = part.table[:, chosen]
            yield part, (table if part.rows is None else table[part.rows]).tocsc()


def _part(table: Table, where: Ids, rows: Ids) -> Part:
    """The part with runs of numbers written as such, so that whole blocks stay as fast as they were."""
    whole = len(rows) == table.shape[0] and bool((np.diff(rows) == 1).all())
    run = int(where[-1]) - int(where[0]) == len(where) - 1
    return Part(table, slice(int(where[0]), int(where[-1]) + 1) if run else where, None if whole else rows)
