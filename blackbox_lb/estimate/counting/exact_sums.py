"""Exact sums: every term becomes a whole multiple of one small unit, and integers add up to the same in any order.

Floating-point addition rounds each partial sum, so its result depends on the order. Here each term is rounded once, to a grid
that depends on nothing but its own value, and the multiples of the grid are added as integers: blocks, threads, shards and
their order do not change the result. It is the pre-rounding of Demmel and Nguyen 2015 ("Parallel reproducible summation") on
grids that are fixed in advance, so that no second pass has to find the largest term.

Index letters: ``v`` tokens, ``n`` rollouts, ``c`` cells (a token in a rollout), ``j`` columns of factors, ``k`` limbs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy import sparse

from blackbox_lb.estimate.inputs.checks import Ids, Vector

Ints: TypeAlias = npt.NDArray[np.int64]
Rows: TypeAlias = npt.NDArray[np.int32]

LIMB = 30
"""Bits of a limb."""
MASK = (1 << LIMB) - 1
LOWEST = 52
"""The unit is 2**-52: a term is off by at most 2**-53, the rounding error of float64 in a sum near 1."""
HIGHEST = 14
"""Terms below 2**14 are on the finest grid, so that the sums of a block, in units of 2**-22, stay below 2**53 and so are exact."""
STEP = 15
"""Each 15 bits more, the grid is 15 bits coarser: a term on such a grid is off by 2**-52 of its value where its factor is 1."""
BLOCK = 1 << 15
"""Cells processed at a time: with ten columns 5 MB."""
ROOM = 1 << 23
"""Rollouts that a table of 64-bit integers can hold, each adding at most one term below 2**36 to an entry."""


@dataclass(frozen=True, slots=True, eq=False)
class ExactSums:
    """(v, j) sums of terms that are not negative, as integers: ``sum_k limbs[k] 2**(30 k - 52)``.

    limbs: (k, v, j), each from 0 to 2**30 - 1, the last one not all 0 unless it is the only one: equal sums have equal limbs.
    """

    limbs: npt.NDArray[np.int32]

    @classmethod
    def zero(cls, columns: int) -> ExactSums:
        return cls(np.zeros((1, 0, columns), np.int32))

    def __add__(self, other: ExactSums) -> ExactSums:
        """The sums of all terms of both; missing tokens count as 0."""
        wide = max(self.limbs.shape[1], other.limbs.shape[1])
        deep = 1 + max(len(self.limbs), len(other.limbs))
        total = np.zeros((deep, wide, self.limbs.shape[2]), np.int64)
        for each in (self, other):
            total[: len(each.limbs), : each.limbs.shape[1]] += each.limbs
        return _normal(total)

    def __eq__(self, other: object) -> bool:
        """The same numbers for the same tokens, bit for bit."""
        if not isinstance(other, ExactSums):
            return NotImplemented
        return np.array_equal(self.limbs, other.limbs)

    __hash__ = None  # type: ignore[assignment]

    @property
    def values(self) -> Vector:
        """(v, j) the sums as float64; infinite where it cannot hold them."""
        numbers, exponents = self.scaled
        with np.errstate(over="ignore"):
            values: Vector = np.ldexp(numbers, exponents[:, None])
        return values

    @property
    def scaled(self) -> tuple[Vector, Ids]:
        """(v, j) numbers and (v,) exponents: the sums of token v are ``numbers[v] 2**exponents[v]``, whatever their size."""
        used: npt.NDArray[np.bool_] = np.any(self.limbs, axis=2)
        tops = np.where(used.any(axis=0), len(used) - 1 - used[::-1].argmax(axis=0), 0)
        total: Vector = np.zeros(self.limbs.shape[1:])
        for k, limb in enumerate(self.limbs):
            total += np.ldexp(limb, (LIMB * (k - tops))[:, None])
        return total, LIMB * tops - LOWEST


class Accumulator:
    """Running sums over cells: ``sum_c values[c] factors[rows[c], j]`` for each token, exact in any order."""

    def __init__(self, columns: int) -> None:
        self._columns = columns
        self._tables: dict[int, Ints] = {}
        self._room = ROOM
        self._folded = ExactSums.zero(columns)

    def add(self, starts: Ids, rows: Rows, values: Vector, factors: Vector, exponents: npt.NDArray[np.int32] | None = None) -> None:
        """Add the cells of one block of rollouts.

        starts: (v + 1,) where the cells of each token begin. rows: (c,) the rollout of each, at most one for a token and a rollout.
        values: (c,) not negative, finite, times ``2**exponents`` where these are given. factors: (n, j) from 0 to 1, not NaN.
        """
        self._make_room(len(factors))
        grid = np.ascontiguousarray(factors) * 2.0 ** (LOWEST - LIMB)
        if exponents is None:
            above = np.flatnonzero(values >= 2.0**HIGHEST)
            fine = values
            if above.size:
                fine = values.copy()
                fine[above] = 0.0
            self._add(0, starts, rows, fine, grid)
            if not above.size:
                return
            powers = np.zeros(len(above), np.int32)
        else:
            above, powers = np.arange(len(values)), exponents
        starts, rows = np.searchsorted(above, starts), rows[above]
        mantissas, own = np.frexp(values[above])
        powers = powers + own
        levels = np.maximum(-(-(powers - HIGHEST) // STEP), 0)
        for level in np.unique(levels):
            here = np.flatnonzero(levels == level)
            scaled = np.ldexp(mantissas[here], powers[here] - STEP * level)
            self._add(int(level), np.searchsorted(here, starts), rows[here], scaled, grid)

    def sums(self) -> ExactSums:
        if not self._tables:
            return self._folded
        wide = max(table.shape[0] for table in self._tables.values())
        limbs = np.zeros((max(self._tables) // LIMB + 4, wide, self._columns), np.int64)
        for offset, table in self._tables.items():
            k, shift = divmod(offset, LIMB)
            used: Any = slice(0, len(table)) if offset in (0, LIMB) else np.flatnonzero(table.any(axis=1))
            limbs[k, used] += (table[used] & MASK) << shift
            limbs[k + 1, used] += (table[used] >> LIMB) << shift
        whole = _normal(limbs)
        return self._folded + whole if self._folded.limbs.size else whole

    def absorb(self, other: Accumulator) -> None:
        self._folded = self._folded + other._folded
        self._make_room(ROOM - other._room)
        for offset, table in other._tables.items():
            self._table(offset, len(table))[: len(table)] += table

    def _make_room(self, rollouts: int) -> None:
        self._room -= rollouts
        if self._room < 0:
            self._folded, self._tables, self._room = self.sums(), {}, ROOM - rollouts

    def _add(self, level: int, starts: Ids, rows: Rows, values: Vector, grid: Vector) -> None:
        """Add cells with terms below 2**14 in units of the level's own scale."""
        coarse, fine = (self._table(STEP * level + offset, len(starts) - 1) for offset in (LIMB, 0))
        every = np.arange(BLOCK + 1, dtype=np.int32)
        ones = np.ones(BLOCK)
        for begin in range(0, len(rows), BLOCK):
            end = min(begin + BLOCK, len(rows))
            size = end - begin
            first = int(np.searchsorted(starts, begin, side="right")) - 1
            last = int(np.searchsorted(starts, end, side="left"))
            spread = _csr(values[begin:end], rows[begin:end], every[: size + 1], len(grid))
            by_token = _csr(
                ones[:size], every[:size], (np.clip(starts[first : last + 1], begin, end) - begin).astype(np.int32), size
            )
            terms = spread @ grid
            whole = np.rint(terms)
            terms -= whole
            terms *= 2.0**LIMB
            np.rint(terms, out=terms)
            coarse[first:last] += (by_token @ whole).astype(np.int64)
            fine[first:last] += (by_token @ terms).astype(np.int64)

    def _table(self, offset: int, tokens: int) -> Ints:
        table = self._tables.get(offset)
        if table is None or len(table) < tokens:
            grown = np.zeros((tokens, self._columns), np.int64)
            if table is not None:
                grown[: len(table)] = table
            self._tables[offset] = table = grown
        return table


def _csr(data: Vector, indices: Rows, starts: Rows, width: int) -> Any:
    return sparse.csr_array((data, indices, starts), shape=(len(starts) - 1, width))


def _normal(limbs: Ints) -> ExactSums:
    """``limbs`` with all carries done, in place; the last limb must have room for its carry."""
    for k in range(len(limbs) - 1):
        carried = limbs[k] >> LIMB
        if carried.any():
            limbs[k + 1] += carried
            limbs[k] &= MASK
    deep = len(limbs)
    while deep > 1 and not limbs[deep - 1].any():
        deep -= 1
    return ExactSums(limbs[:deep].astype(np.int32))
