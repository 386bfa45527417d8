"""Unlisted: counts of samples from outside the lists, the mass left over by the lists, and the tail
estimated from both.

Index letters: ``m`` positions, ``s`` the support.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from blackbox_lb.estimate.inputs.checks import Ids, Vector
from blackbox_lb.estimate.next_token.parallel import in_order
from blackbox_lb.estimate.next_token.tails import Listed, columns_of, rates, support


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
            left = np.where(block.bare, 0.0, block.tail)
            sampled = column_of(block.sampled)
            counted = (
                np.bincount(sampled[block.outside & ~block.bare], minlength=size),
                np.bincount(sampled, minlength=size),
                np.bincount(column_of(block.ids), np.repeat(left, block.lengths), size),
            )
            return np.array(counted, dtype=np.float64), float(left.sum())

        counts = np.zeros((3, size))
        left = 0.0
        for each, rest in in_order(one, blocks):
            counts += each
            left += rest
        listless = all(bool(block.bare.all()) for block in blocks)
        return cls(
            token_ids,
            counts[0],
            counts[1],
            counts[2],
            left,
            listless,
            sum(len(block.ids) for block in blocks),
        )

    def __add__(self, other: Unlisted) -> Unlisted:
        token_ids = np.union1d(self.token_ids, other.token_ids)
        counts = np.zeros((3, len(token_ids)))
        for each in (self, other):
            counts[:, np.searchsorted(token_ids, each.token_ids)] += (
                each.outside,
                each.everything,
                each.held,
            )
        left = self.left + other.left
        listless = self.listless and other.listless
        entries = self.entries + other.entries
        return Unlisted(token_ids, counts[0], counts[1], counts[2], left, listless, entries)

    def tail(self) -> Tail:
        """The unigram: a token's count for each unit of the mass left over by the lists that miss
        it, times all mass left over.

        A token that most lists hold is seldom sampled outside one, because it seldom could be: its
        share of a tail that it belongs to is its count there over those tails.
        """
        unigram = (
            self.everything
            if self.listless
            else rates(self.outside, self.left - self.held, self.left)
        )
        return Tail(self.token_ids, unigram, self.everything, self.listless, self.entries)


def moved(values: Vector, place: Ids, size: int) -> Vector:
    """(size,) ``values`` at the indices ``place``, 0 elsewhere."""
    out = np.zeros(size)
    out[place] = values
    return out
