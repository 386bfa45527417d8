"""NextToken: the next-token distribution at every logged position, from the listed top-k and a tail
unigram, and the potential of a fit as a sum over these positions.

Index letters: ``m`` positions, ``s`` the support (every token seen listed or sampled). All values
in nats.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt

from blackbox_lb.errors import InputError
from blackbox_lb.estimate.inputs.checks import Bools, Ids, Vector, vector, weight_vector
from blackbox_lb.estimate.inputs.rollouts import Rollouts
from blackbox_lb.estimate.next_token.sparse_table import (
    NO_COLUMN,
    Allocate,
    Part,
    SparseTable,
    Table,
    TokenMasses,
    cores,
    dot,
    empty,
    in_order,
    tally,
)
from blackbox_lb.estimate.next_token.tails import (
    EXACT,
    ROUNDING,
    Listed,
    Shares,
    Tail,
    Unlisted,
    columns_of,
    end_to_end,
    moved,
    read,
    regular,
    share,
    support,
    tables,
    whole,
)

SPREAD = 700.0
"""Biases further below the largest one are raised to this distance: exp would underflow to an
impossible token.
"""


class LoggedPositions(Protocol):
    """The interface of learning to logged positions. ``NextToken`` is one; several of them,
    wherever they are, can be another, which adds up the ``NextToken.sums`` of tables with one
    support and one unigram, in a fixed order.
    """

    @property
    def token_ids(self) -> Ids:
        """(s,) sorted."""

    @property
    def n_positions(self) -> int:
        """m."""

    @property
    def sampled(self) -> npt.NDArray[np.integer]:
        """(m,) index into the support of the sampled token."""

    def named(self) -> LoggedPositions:
        """Given that the token has an id."""

    def align(self, token_ids: npt.ArrayLike, values: npt.ArrayLike) -> Vector:
        """(s,) a bias given by ids."""

    def sampled_counts(self, position_weights: npt.ArrayLike | None = None) -> Vector:
        """(s,) the weighted number of positions at which each token was sampled; weights may be
        negative.
        """

    def log_normaliser(self, delta: npt.ArrayLike) -> Vector:
        """(m,)."""

    def potential(self, delta: npt.ArrayLike, position_weights: Vector) -> tuple[float, Vector]:
        """``sum_m w_m log_normaliser_m(delta)`` and its gradient (s,) in delta."""

    def expected(
        self, delta: npt.ArrayLike, position_weights: npt.ArrayLike | None = None
    ) -> Vector:
        """(s,) ``sum_m w_m pi_delta(y | m)``."""


@dataclass(frozen=True, slots=True, eq=False)
class Sums:
    """Sums over some positions: ``value``, ``sum_m w_m log_normaliser_m``; ``listed`` (s,), ``sum_m
    w_m (pi_0(y | m) - spread_m unigram(y)) / z_m`` where z is the normaliser over exp of the
    largest bias; ``tail``, ``sum_m w_m spread_m / z_m``.

    Those of tables with one support and one unigram can be added. A sum in a fixed order is the
    same to the last bit.
    """

    value: float
    listed: Vector
    tail: float

    @classmethod
    def of(cls, parts: Iterable[Sums], size: int) -> Sums:
        """The sum of all ``parts``, in their order; 0 for none. size: s."""
        value = 0.0
        listed = np.zeros(size)
        tail = 0.0
        for part in parts:
            value += part.value
            listed += part.listed
            tail += part.tail
        return cls(value, listed, tail)

    def gradient(self, delta: npt.ArrayLike, unigram: Vector) -> Vector:
        """(s,) ``sum_m w_m pi_delta(y | m)``."""
        tilt, _ = tilted(delta, len(unigram))
        return np.maximum(tilt * (self.listed + unigram * self.tail), 0.0)


def aligned(support: Ids, token_ids: npt.ArrayLike, values: npt.ArrayLike) -> Vector:
    """(s,) a bias given by ids, on the sorted ``support``; other ids are left out. InputError: not
    of one shape (k,).
    """
    ids = np.asarray(token_ids, dtype=np.int64)
    numbers = np.asarray(values, dtype=np.float64)
    if ids.shape != numbers.shape or ids.ndim != 1:
        raise InputError(
            f"token_ids {ids.shape} and values {numbers.shape} must have one shape (k,)"
        )
    where = np.searchsorted(support, ids)
    is_supported = support[np.minimum(where, len(support) - 1)] == ids
    full = np.zeros(len(support))
    full[where[is_supported]] = numbers[is_supported]
    return full


def tilted(delta: npt.ArrayLike, size: int) -> tuple[Vector, float]:
    """(s,) ``exp(delta - shift)`` and the shift, the largest bias or 0. InputError: not (size,)
    finite numbers.
    """
    values = vector("delta", delta, size)
    shift = max(float(values.max(initial=0.0)), 0.0)
    return np.exp(np.maximum(values - shift, -SPREAD)), shift


READERS = 2
"""Cores that turn blocks of rollouts into lists, beside the reader: each holds a block of its own.
"""
LEAST_NAMED = 1e-6
"""Least joint probability of all tokens with an id where one was sampled: less is rounding."""


@dataclass(frozen=True, slots=True, eq=False)
class NextToken:
    """pi_0 at m positions: listed tokens as listed, the remaining mass over the tokens not listed
    there.

    The tail ``1 - sum(top-k)`` of a position goes to the tokens missing from its list in proportion
    to ``unigram``: the times a token was sampled outside a list (every rollout counts once,
    whatever its reward), per unit of the tails of the lists that miss it; renormalised over the
    missing ones. By the count alone a token that most lists hold would have too small a share of
    the others. Where no such token exists, the tail stays at bias 0. Leaving every tail at bias 0,
    or counting only the sampled token in it, would bias tail tokens upward without limit. Complete
    lists are exact. A listed token without an id has its probability and can have no bias: it is no
    part of the tail, and its mass stays at bias 0. A position without any list gets the shares of
    all sampled tokens; where no position has a list, ``unigram`` counts those.

    token_ids: (s,) sorted. tail_mass: (m,). unnamed: (m,) listed mass of tokens without an id.
    sampled: (m,) index into the support of the sampled token. sampled_outside: (m,) whether it is
    missing from the list. scaled_down: (m,) whether the list summed to more than 1.001 and was
    scaled to 1. unigram: (s,) rates, times all tails. These and four more vectors, about 50 bytes a
    position, are in memory. The lists are in parts (8 bytes a listed token, where ``gather`` keeps
    them) with borders that depend on the lists alone: every method visits each part once, on all
    cores, and adds up in their order, so that no number depends on the order of the rollouts or the
    number of cores. Internally ``pi_0(. | m) = scale[m] * lists[m] + spread[m] * unigram`` plus
    ``rest[m]`` at bias 0: ``unnamed[m]``, a tail without a taker, and the loss of a large table to
    float32; columns: (c,) the index into the support of each column of ``lists``, None where they
    agree; scale: None for 1.
    """

    token_ids: Ids
    tail_mass: Vector
    sampled: npt.NDArray[np.int32]
    sampled_outside: Bools
    scaled_down: Bools
    unigram: Vector
    lists: SparseTable
    spread: Vector
    rest: Vector
    unnamed: Vector
    columns: Ids | None = None
    scale: Vector | None = None

    @classmethod
    def of(
        cls,
        rollouts: Rollouts,
        *,
        vocab_size: int | None = None,
        tail: NextToken | None = None,
    ) -> NextToken:
        """From the logged lists of one set of rollouts, in memory; see ``gather``."""
        return cls.gather([rollouts], vocab_size=vocab_size, tail=tail)

    @classmethod
    def gather(
        cls,
        blocks: Iterable[Rollouts],
        *,
        vocab_size: int | None = None,
        tail: NextToken | None = None,
        allocate: Allocate = empty,
    ) -> NextToken:
        """Build the table from the logged lists of ``blocks``, with only one block in memory at a
        time.

        With ``vocab_size``, a list of that many tokens is complete and scaled to sum to 1. ``tail``
        lends its unigram: completions of a biased policy sample their tails with the bias, and do
        not show pi_0's. ``allocate(size, dtype)`` returns the arrays for the lists.

        Raises InputError: no position at all, a NaN or positive logprob, a token listed twice, a
        list summing to more than 1.25; each names the rollout key.
        """
        lent = None
        if tail is not None:
            lent = tail.lent()
        return assembled(listed(blocks, vocab_size, allocate), lent, allocate)

    def take(self, positions: npt.ArrayLike) -> NextToken:
        """The distributions at the indices ``positions`` (or where it is True), in that order, with
        the same support and unigram.

        The lists are shared, not copied. ``take(chosen[rollouts.rollout_of])`` belongs to
        ``rollouts.take(chosen)`` for ``chosen`` (n,) booleans. InputError: no position.
        """
        chosen = np.asarray(positions)
        picked = np.arange(self.n_positions)[chosen if chosen.size else chosen.astype(np.int64)]
        if not len(picked):
            raise InputError("no token position was chosen; choose at least one")
        scale = None
        if self.scale is not None:
            scale = self.scale[picked]
        return replace(
            self,
            tail_mass=self.tail_mass[picked],
            sampled=self.sampled[picked],
            sampled_outside=self.sampled_outside[picked],
            scaled_down=self.scaled_down[picked],
            lists=self.lists.take(picked),
            spread=self.spread[picked],
            rest=self.rest[picked],
            unnamed=self.unnamed[picked],
            scale=scale,
        )

    def with_tokens(self, extra_ids: npt.ArrayLike) -> NextToken:
        """The same distributions on a support with ``extra_ids`` too: those never seen have no
        mass, and may have a bias.

        Such a bias changes nothing at the logged positions. InputError: a negative id.
        """
        extra = np.asarray(extra_ids, dtype=np.int64).reshape(-1)
        if extra.size and int(extra.min()) < 0:
            raise InputError(f"token id {extra.min()} cannot join the support; ids start at 0")
        token_ids = np.union1d(self.token_ids, extra)
        if len(token_ids) == len(self.token_ids):
            return self
        place = np.searchsorted(token_ids, self.token_ids)
        return replace(
            self,
            token_ids=token_ids,
            sampled=place.astype(np.int32)[self.sampled],
            unigram=moved(self.unigram, place, len(token_ids)),
            columns=place if self.columns is None else place[self.columns],
        )

    def with_unigram(self, unigram: npt.ArrayLike, *, out: NextToken | None = None) -> NextToken:
        """The same lists with their tails shared in proportion to ``unigram`` (s,), rounded to
        whole multiples of 2^-20.

        A position without any list, where others have one, keeps its shares. out: an earlier result
        of this method for the same table that is no longer needed: its arrays are reused.
        InputError: a negative value.
        """
        counts = vector("unigram", unigram, len(self.token_ids))
        if (counts < 0).any():
            raise InputError(
                f"unigram holds {counts.min()}; how often a token was sampled cannot be negative"
            )
        counts = whole(counts)
        scale = np.ones(1) if self.scale is None else self.scale
        nobody = self.rest - self.unnamed > ROUNDING * scale / 2
        tail = np.where((self.spread > 0) | nobody, self.tail_mass, 0.0) / scale
        before = self._on_columns(self.unigram)
        after = self._on_columns(counts)
        total = float(counts.sum())
        old = self.spread / scale

        def one(numbered: tuple[int, Part]) -> Shares:
            number, part = numbered
            table = part.table if out is None else out.lists.parts[number].table
            if out is None:
                storage = self.lists.allocate(table.nnz, table.dtype.type)
            else:
                storage = table.data
            return share(part, tail[part.where], after, total, (old[part.where], before), storage)

        lists, spread, rounding = _shared(self.lists, one)
        lost = self.rest - self.unnamed - np.where(nobody, self.tail_mass, 0.0)
        rest = self.unnamed + lost + (np.where(spread > 0, 0.0, tail) + rounding) * scale
        return replace(self, unigram=counts, lists=lists, spread=spread * scale, rest=rest)

    def lent(self) -> Tail:
        """The unigram, for other positions."""
        everything = self.sampled_counts() if self.lists.entries else self.unigram
        return Tail(self.token_ids, self.unigram, everything)

    @property
    def overfull(self) -> int:
        """The number of lists that summed to more than 1.001 and were scaled to 1."""
        return int(self.scaled_down.sum())

    @property
    def named_mass(self) -> Vector:
        """(m,) the probability that the token has an id."""
        return np.maximum(1 - self.unnamed, LEAST_NAMED)

    def named(self) -> NextToken:
        """The distribution given that the token has an id: listed samples all have one, and were
        drawn from it.

        A token without an id is never a sample here. It may be an end token, which some providers
        do not list when it is drawn; a completion that drew another is left out. With its mass as
        one more alternative to the sample, the fit would raise every other token, and completions
        would grow longer for no reason.
        """
        if not self.unnamed.any():
            return self
        scale = 1 / self.named_mass
        return replace(
            self,
            tail_mass=self.tail_mass * scale,
            scale=scale if self.scale is None else self.scale * scale,
            spread=self.spread * scale,
            rest=(self.rest - self.unnamed) * scale,
            unnamed=np.zeros_like(self.unnamed),
        )

    @property
    def n_positions(self) -> int:
        """m."""
        return len(self.tail_mass)

    def align(self, token_ids: npt.ArrayLike, values: npt.ArrayLike) -> Vector:
        """(s,) a bias given by ids, on this support. Ids that were never listed or sampled have no
        mass here and are left out.
        """
        return aligned(self.token_ids, token_ids, values)

    def sampled_counts(self, position_weights: npt.ArrayLike | None = None) -> Vector:
        """(s,) the weighted number of positions at which each token was sampled; weights may be
        negative.
        """
        weights = None
        if position_weights is not None:
            weights = vector("position_weights", position_weights, self.n_positions)
        counts = np.zeros(len(self.token_ids))
        tally(counts, self.sampled, weights)
        return counts

    def log_normaliser(self, delta: npt.ArrayLike) -> Vector:
        """(m,) ``log sum_y pi_0(y | m) exp(delta(y))`` for delta of shape (s,); 0 where delta is
        0.
        """
        tilt, shift = tilted(delta, len(self.token_ids))
        return self._positions(lambda part: shift + np.log(self.scaled_at(part, tilt, shift)))

    def expected(
        self, delta: npt.ArrayLike, position_weights: npt.ArrayLike | None = None
    ) -> Vector:
        """(s,) ``sum_m w_m pi_delta(y | m)``: the gradient of ``sum_m w_m log_normaliser_m``."""
        return self.potential(
            delta, weight_vector("position_weights", position_weights, self.n_positions)
        )[1]

    def mean(self, values: Vector, delta: npt.ArrayLike) -> Vector:
        """(m,) ``sum_y pi_delta(y | m) values(y)`` for ``values`` and ``delta`` (s,)."""
        tilt, shift = tilted(delta, len(self.token_ids))
        weighted = tilt * vector("values", values, len(self.token_ids))

        def one(part: Part) -> Vector:
            scaled = self.scaled_at(part, tilt, shift)
            with part.wide() as table:
                return self.mean_at(part, table, weighted) / scaled

        return self._positions(one)

    def potential(self, delta: npt.ArrayLike, position_weights: Vector) -> tuple[float, Vector]:
        """``sum_m w_m log_normaliser_m`` and its gradient, at the price of one evaluation."""
        sums = self.sums(delta, position_weights)
        return sums.value, sums.gradient(delta, self.unigram)

    def sums(self, delta: npt.ArrayLike, position_weights: Vector) -> Sums:
        """The parts of the ``potential``, to be added up with those of other positions;
        position_weights: (m,).
        """
        tilt, shift = tilted(delta, len(self.token_ids))
        on_columns = self._on_columns(tilt)
        everywhere = dot(self.unigram, tilt)

        def one(part: Part) -> Sums:
            weights = position_weights[part.where]
            spread = self.spread[part.where]
            with part.wide() as table:
                listed = self.times_scale(part, part.of_positions(np.asarray(table @ on_columns)))
                scaled = self.total_at(part, listed + spread * everywhere, shift)
                q = weights / scaled
                up = np.asarray(table.T @ part.summed(self.times_scale(part, q)))
            return Sums(dot(weights, shift + np.log(scaled)), up, dot(spread, q))

        counting = [part for part in self.lists.parts if position_weights[part.where].any()]
        totals = Sums.of(in_order(one, counting), len(on_columns))
        return replace(totals, listed=self.on_support(totals.listed))

    def by_token(self, tokens: Ids) -> TokenMasses:
        """pi_0 of the tokens at the indices ``tokens`` into the support, token by token."""
        chosen = np.asarray(tokens, dtype=np.int64)
        if self.columns is not None:
            column = np.full(len(self.token_ids), NO_COLUMN)
            column[self.columns] = np.arange(len(self.columns))
            chosen = column[chosen]
        return TokenMasses(
            self.lists.columns(chosen), self.unigram[tokens], self.spread, self.scale
        )

    def _positions(self, of_part: Callable[[Part], Vector]) -> Vector:
        """(m,) ``of_part`` of the positions of each part."""
        out = np.empty(self.n_positions)
        for part, values in zip(self.lists.parts, in_order(of_part, self.lists.parts), strict=True):
            out[part.where] = values
        return out

    def times_scale(self, part: Part, values: Vector) -> Vector:
        """``values`` (b,) at the positions of ``part``, times ``scale``."""
        if self.scale is None:
            return values
        return values * self.scale[part.where]

    def mean_at(self, part: Part, table: Table, values: Vector) -> Vector:
        """(b,) the expectation of ``values`` (s,) at the positions of ``part``, without
        ``rest``.
        """
        listed = part.of_positions(np.asarray(table @ self._on_columns(values)))
        return self.times_scale(part, listed) + self.spread[part.where] * dot(self.unigram, values)

    def total_at(self, part: Part, mean: Vector, shift: float) -> Vector:
        """(b,) ``mean`` of exp of the bias less ``shift``, with the mass at bias 0, and never 0."""
        return np.maximum(
            mean + self.rest[part.where] * math.exp(max(-shift, -SPREAD)), math.exp(-SPREAD)
        )

    def scaled_at(self, part: Part, tilt: Vector, shift: float) -> Vector:
        """(b,) ``exp(log_normaliser - shift)``."""
        with part.wide() as table:
            return self.total_at(part, self.mean_at(part, table, tilt), shift)

    def _on_columns(self, values: Vector) -> Vector:
        if self.columns is None:
            return values
        return values[self.columns]

    def on_support(self, listed: Vector) -> Vector:
        """(s,) from (c,) values of columns."""
        if self.columns is None:
            return listed
        return moved(listed, self.columns, len(self.token_ids))


def listed(
    blocks: Iterable[Rollouts], vocab_size: int | None, allocate: Allocate = empty
) -> list[Listed]:
    """The lists of all ``blocks`` in regular parts, with their ids; none where there is no
    position. InputError: see ``gather``.
    """
    filled = (block for block in blocks if block.token_ids.size)
    lists = in_order(
        lambda block: read(block, vocab_size), filled, ahead=1, threads=min(cores(), READERS)
    )
    return list(regular(lists, allocate))


def assembled(blocks: list[Listed], tail: Tail | None, allocate: Allocate = empty) -> NextToken:
    """Join all blocks into one table, and remove them from the list. tail: that of more positions
    than these; None for their own.

    InputError: no blocks.
    """
    if not blocks:
        raise InputError("the rollouts hold no token position; collect completions first")
    names = ("outside", "bare", "overfull", "tail", "unnamed", "scale")
    outside, bare, overfull, remainder, unnamed, scale = (
        end_to_end([getattr(b, name) for b in blocks]) for name in names
    )
    if tail is None:
        tail = Unlisted.of(blocks).tail()
    else:
        tail = tail.on(np.union1d(support(blocks), tail.token_ids))
    token_ids = tail.token_ids
    everything = tail.everything
    lists = SparseTable.of(tables(blocks, token_ids), allocate)
    sampled = columns_of(token_ids)(np.concatenate([block.sampled for block in blocks]))
    blocks.clear()  # this frees half of the memory of each position
    listless = bool(bare.all()) if tail.listless is None else tail.listless
    unigram = everything if listless else tail.unigram
    total = float(unigram.sum())
    entries = lists.entries if tail.entries is None else tail.entries

    def one(numbered: tuple[int, Part]) -> Shares:
        part = numbered[1]
        storage = allocate(part.table.nnz, np.float64) if entries <= EXACT else part.table.data
        return share(part, remainder[part.where], unigram, total, scale[part.where], storage)

    lists, spread, rounding = _shared(lists, one)
    rest = rounding
    np.add(rest, remainder, out=rest, where=spread <= 0)
    if bare.any() and not listless:
        lists = lists.with_row(everything / everything.sum(), bare)
        spread[bare] = rest[bare] = 0.0
    unlisted = rest
    if unnamed.any():
        unlisted = rest + unnamed
    return NextToken(
        token_ids=token_ids,
        tail_mass=remainder,
        sampled=sampled,
        sampled_outside=outside,
        scaled_down=overfull,
        unigram=unigram,
        lists=lists,
        spread=spread,
        rest=unlisted,
        unnamed=unnamed,
    )


def _shared(
    lists: SparseTable, of_part: Callable[[tuple[int, Part]], Shares]
) -> tuple[SparseTable, Vector, Vector]:
    """The lists with their tails distributed by ``of_part``, and (m,) spread and rounding."""
    spread = np.empty(lists.n_positions)
    rounding = np.empty(lists.n_positions)
    parts = []
    for shares in in_order(of_part, list(enumerate(lists.parts))):
        where = shares.part.where
        parts.append(shares.part)
        spread[where] = shares.spread
        rounding[where] = shares.rounding
    return replace(lists, parts=tuple(parts)), spread, rounding
