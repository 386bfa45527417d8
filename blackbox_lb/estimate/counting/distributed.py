"""Shares: logged rollouts spread over processes or machines, with the same result as in one place.

Each share holds the lists of its own rollouts. Only a vector of the support travels a request, and
the weights once a fit. Index letters: ``n`` rollouts, ``m`` their positions, ``s`` the support.
Values in nats.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import reduce
from operator import add
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from blackbox_lb.errors import InputError
from blackbox_lb.estimate.counting.statistics import BLOCK_POSITIONS, Recipe, Statistics
from blackbox_lb.estimate.inputs.checks import Ids, Vector, vector, weight_vector
from blackbox_lb.estimate.inputs.rollouts import Rollouts
from blackbox_lb.estimate.next_token.next_token import NextToken, Sums, aligned, assembled, listed
from blackbox_lb.estimate.next_token.sparse_table import Allocate, empty
from blackbox_lb.estimate.next_token.tails import Listed, Tail, Unlisted


class Share:
    """The rollouts of one worker.

    rollouts: without their lists, None for no rollouts.
    unlisted: of their positions, None for no position. Such a share adds nothing to any sum.

    Built again from the same ``blocks`` it gives the same numbers, so a lost worker can be
    replaced.
    """

    def __init__(
        self, blocks: Iterable[Rollouts], vocab_size: int | None, allocate: Allocate = empty
    ) -> None:
        parts: list[Rollouts] = []

        def noted() -> Iterator[Rollouts]:
            for block in blocks:
                parts.append(block.without_lists())
                yield block

        self._allocate = allocate
        self._table: NextToken | None = None
        self._listed: list[Listed] = listed(noted(), vocab_size, allocate)
        self.rollouts = Rollouts.join(parts) if parts else None
        self.unlisted = Unlisted.of(self._listed) if self._listed else None

    def table(self, tail: Tail) -> NextToken:
        """The positions with the tail that all shares agreed on, kept for reuse."""
        if self._table is None:
            self._table = assembled(self._listed, tail, self._allocate).named()
        return self._table

    def sums(self, tail: Tail, delta: Vector, weights: Vector) -> Sums:
        """This share's part of the potential; weights: (m,) of these positions."""
        if self.unlisted is None:
            return Sums.of((), len(tail.token_ids))
        return self.table(tail).sums(delta, weights)

    def log_normaliser(self, tail: Tail, delta: Vector) -> Vector:
        """(m,)."""
        if self.unlisted is None:
            return np.zeros(0)
        return self.table(tail).log_normaliser(delta)

    def statistics(self, recipe: Recipe) -> Statistics:
        """The statistics of these rollouts, to be added up."""
        if self.rollouts is None:
            return Statistics.zero()
        return Statistics.gather(self.rollouts.blocks(BLOCK_POSITIONS), recipe)


class Workers(Protocol):
    """The workers that hold the shares, in a fixed order."""

    def call(
        self, method: str, common: Sequence[Any], arguments: Sequence[Sequence[Any]]
    ) -> list[Any]:
        """Call ``method`` of each share with ``common`` and then its row of ``arguments``; results
        in the order of the shares.

        An argument that is the same object as in an earlier call need not be sent again.
        """


class Shards:
    """All rollouts of all shares and their positions, in their order; of a position, given that its
    token has an id.

    workers: hold the shares. rollouts: of each share, without their lists, None for none. unlisted:
    of each share, None for no position. InputError: no share has a position.

    Attributes:
        rollouts: of all shares, joined, without their lists.
    """

    def __init__(
        self,
        workers: Workers,
        rollouts: Sequence[Rollouts | None],
        unlisted: Sequence[Unlisted | None],
    ) -> None:
        counted = [part for part in unlisted if part is not None]
        if not counted:
            raise InputError("there are no rollouts to learn from; collect completions first")
        tail = reduce(add, counted).tail()
        sizes = [0 if part is None else len(part.token_ids) for part in rollouts]
        self._workers = workers
        self._tail = tail
        self._ends = np.cumsum(sizes)
        self.rollouts = Rollouts.join([part for part in rollouts if part is not None])
        self.token_ids: Ids = tail.token_ids
        self.n_positions = len(self.rollouts.token_ids)
        self.sampled: Ids = np.searchsorted(tail.token_ids, self.rollouts.token_ids)
        self._weights: tuple[Vector, list[tuple[Vector]]] | None = None

    @property
    def next_token(self) -> Shards:
        """The next tokens at the positions: this object."""
        return self

    def statistics(self, recipe: Recipe) -> Statistics:
        """The sums of the counting estimator, added up over the shares."""
        parts: list[Statistics] = self._workers.call(
            "statistics", (recipe,), [()] * len(self._ends)
        )
        return sum(parts, Statistics.zero())

    def named(self) -> Shards:
        """The positions given that the token has an id: this object."""
        return self

    def align(self, token_ids: npt.ArrayLike, values: npt.ArrayLike) -> Vector:
        """(s,) a bias given by ids on this support; see ``NextToken.align``."""
        return aligned(self.token_ids, token_ids, values)

    def sampled_counts(self, position_weights: npt.ArrayLike | None = None) -> Vector:
        """(s,) the weighted number of positions at which each token was sampled; weights may be
        negative.
        """
        weights = None
        if position_weights is not None:
            weights = vector("position_weights", position_weights, self.n_positions)
        return np.bincount(self.sampled, weights=weights, minlength=len(self.token_ids)).astype(
            np.float64
        )

    def potential(self, delta: npt.ArrayLike, position_weights: Vector) -> tuple[float, Vector]:
        """``sum_m w_m log_normaliser_m`` and its gradient: one request to each share."""
        values = np.asarray(delta, dtype=np.float64)
        totals = self._workers.call("sums", (self._tail, values), self._cut(position_weights))
        sums = Sums.of(totals, len(self.token_ids))
        return sums.value, sums.gradient(values, self._tail.unigram)

    def expected(
        self, delta: npt.ArrayLike, position_weights: npt.ArrayLike | None = None
    ) -> Vector:
        """(s,) ``sum_m w_m pi_delta(y | m)``."""
        return self.potential(
            delta, weight_vector("position_weights", position_weights, self.n_positions)
        )[1]

    def log_normaliser(self, delta: npt.ArrayLike) -> Vector:
        """(m,) sent by the shares: eight bytes a position."""
        values = np.asarray(delta, dtype=np.float64)
        parts: list[Vector] = self._workers.call(
            "log_normaliser", (self._tail, values), [()] * len(self._ends)
        )
        return np.concatenate(parts)

    def _cut(self, weights: Vector) -> list[tuple[Vector]]:
        """The weights of each share, the same objects as long as ``weights`` is the same."""
        if self._weights is None or self._weights[0] is not weights:
            self._weights = weights, [(part,) for part in np.split(weights, self._ends[:-1])]
        return self._weights[1]
