"""NextToken: the next-token distribution at every logged position, from the listed top-k and a tail unigram.

Index letters: ``m`` positions, ``s`` the support (every token seen listed or sampled). All values in nats.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from blackbox_lb.errors import InputError
from blackbox_lb.estimate.checks import Bools, Ids, Vector, vector, weight_vector
from blackbox_lb.estimate.lists import NO_COLUMN, Allocate, Lists, Part, TokenMasses, empty
from blackbox_lb.estimate.rollouts import Rollouts
from blackbox_lb.estimate.tails import Listed, attribute, rates, read, reattribute, support, whole

__all__ = ["NextToken"]

SPREAD = 700.0
"""Biases this far below the largest one are read as this far: exp would underflow to an impossible token."""
LEAST_NAMED = 1e-6
"""A sampled token with an id had at least this probability together with all others that have one: less is rounding."""


@dataclass(frozen=True, slots=True, eq=False)
class NextToken:
    """pi_0 at m positions: listed tokens as listed, the remaining mass over the tokens not listed there.

    The tail ``1 - sum(top-k)`` of a position goes to the tokens missing from its list in proportion to ``unigram``, the rate at
    which each is sampled outside a list: how often it was (every rollout counts once, whatever its reward), for each unit of the
    tails that it could have been sampled from, those of lists that miss it; renormalised over those missing. By the count alone
    a token that most lists hold would have too small a share of the others. Where no such token exists, the tail stays at bias
    0. Leaving every tail at bias 0, or counting only the sampled token in it, would bias tail tokens upward without limit.
    Complete lists are exact. A listed token without an id has its probability and can have no bias: it is no part of the tail,
    and its mass stays at bias 0. A position without any list is given the shares of all sampled tokens; where no position has a
    list, ``unigram`` counts those.

    token_ids: (s,) sorted. tail_mass: (m,). unnamed: (m,) listed mass of tokens without an id. sampled: (m,) index into the
    support of the sampled token. sampled_outside: (m,) whether it is missing from the list. scaled_down: (m,) whether the list
    summed to more than 1.001 and was scaled to 1. unigram: (s,) rates, times all tails. These and four more vectors, about 50
    bytes a position, are in memory. The lists are in blocks (12 bytes a listed token, where ``gather`` was told to keep them),
    and every method visits each block once. Internally ``pi_0(. | m) = scale[m] * lists[m] + spread[m] * unigram`` plus
    ``rest[m]`` at bias 0, which is ``unnamed[m]`` and a tail that nobody takes; columns: (c,) the index into the support of each
    column of ``lists``, None where they agree; scale: None for 1.
    """

    token_ids: Ids
    tail_mass: Vector
    sampled: Ids
    sampled_outside: Bools
    scaled_down: Bools
    unigram: Vector
    lists: Lists
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
        extra_ids: npt.ArrayLike = (),
    ) -> NextToken:
        """From the logged lists of one set of rollouts, in memory; see ``gather``."""
        return cls.gather([rollouts], vocab_size=vocab_size, tail=tail, extra_ids=extra_ids)

    @classmethod
    def gather(
        cls,
        blocks: Iterable[Rollouts],
        *,
        vocab_size: int | None = None,
        tail: NextToken | None = None,
        extra_ids: npt.ArrayLike = (),
        allocate: Allocate = empty,
    ) -> NextToken:
        """From the logged lists of ``blocks``, one after the other, of which only one at a time need be in memory.

        With ``vocab_size``, a list of that many tokens is complete and scaled to sum to 1. ``tail`` lends its unigram: completions
        of a biased policy sample their tails with the bias, and say nothing of pi_0. extra_ids: tokens that join the support
        whether seen or not, see ``with_tokens``. ``allocate(size, dtype)`` gives the arrays that hold the lists.

        InputError: no position at all, a NaN or positive logprob, a token listed twice, a list summing to more than
        1.25; each names the rollout key.
        """
        lists, rollouts = [], 0
        for block in blocks:
            rollouts += len(block.keys)
            if block.token_ids.size:
                lists.append(read(block, vocab_size, allocate))
        if not lists:
            raise InputError(f"{rollouts} rollouts hold no token position; collect completions first")
        return _assembled(lists, tail, allocate).with_tokens(extra_ids)

    def take(self, positions: npt.ArrayLike) -> NextToken:
        """The distributions at the indices ``positions`` (or where it is True), in that order, with the same support and unigram.

        The lists are shared, not copied. ``take(chosen[rollouts.rollout_of])`` belongs to ``rollouts.take(chosen)`` for ``chosen``
        (n,) booleans. InputError: no position.
        """
        chosen = np.asarray(positions)
        picked = np.arange(self.n_positions)[chosen if chosen.size else chosen.astype(np.int64)]
        if not len(picked):
            raise InputError("no token position was chosen; choose at least one")
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
            scale=None if self.scale is None else self.scale[picked],
        )

    def with_tokens(self, extra_ids: npt.ArrayLike) -> NextToken:
        """The same distributions on a support that holds ``extra_ids`` too: those never seen have no mass, and may have a bias.

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
            sampled=place[self.sampled],
            unigram=_moved(self.unigram, place, len(token_ids)),
            columns=place if self.columns is None else place[self.columns],
        )

    def with_unigram(self, unigram: npt.ArrayLike, *, out: NextToken | None = None) -> NextToken:
        """The same lists with their tails shared in proportion to ``unigram`` (s,), which is read to whole multiples of 2^-20.

        A position without any list, where others have one, keeps its shares. out: an earlier result of this method for the same
        table that is no longer needed: its arrays are written over, and no more memory is taken. InputError: a negative value.
        """
        counts = vector("unigram", unigram, len(self.token_ids))
        if (counts < 0).any():
            raise InputError(f"unigram holds {counts.min()}; how often a token was sampled cannot be negative")
        counts, scale = whole(counts), np.ones(1) if self.scale is None else self.scale
        tail = np.where((self.spread > 0) | (self.rest > self.unnamed), self.tail_mass, 0.0) / scale
        old, spread, parts = self.spread / scale, np.zeros(self.n_positions), []
        both = (self._on_columns(self.unigram), self._on_columns(counts))
        for number, part in enumerate(self.lists.parts):
            kept = (
                self.lists.allocate(part.table.nnz, np.float64) if out is None else out.lists.parts[number].table.data
            )
            new, spread[part.where] = reattribute(
                part, tail[part.where], old[part.where], both, float(counts.sum()), kept
            )
            parts.append(new)
        return replace(
            self,
            unigram=counts,
            lists=replace(self.lists, parts=tuple(parts)),
            spread=spread * scale,
            rest=self.unnamed + np.where(spread > 0, 0.0, tail * scale),
        )

    @property
    def overfull(self) -> int:
        """How many lists summed to more than 1.001 and were scaled to 1."""
        return int(self.scaled_down.sum())

    @property
    def named_mass(self) -> Vector:
        """(m,) the probability that the token has an id."""
        return np.maximum(1 - self.unnamed, LEAST_NAMED)

    def named(self) -> NextToken:
        """The distribution given that the token has an id: what listed samples were drawn from, all of which have one.

        A token without an id is never a sample here. It may be an end token, which some providers do not list when it is drawn;
        or a completion that drew one is left out. To count its mass as one more way that the sample could have gone would press
        the fit to raise every other token, and completions would grow longer for no reason.
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
        """(s,) a bias given by ids on this support. Ids that were never listed or sampled have no mass here and are left out."""
        ids, given = np.asarray(token_ids, dtype=np.int64), np.asarray(values, dtype=np.float64)
        if ids.shape != given.shape or ids.ndim != 1:
            raise InputError(f"token_ids {ids.shape} and values {given.shape} must have one shape (k,)")
        where = np.searchsorted(self.token_ids, ids)
        known = self.token_ids[np.minimum(where, len(self.token_ids) - 1)] == ids
        full = np.zeros(len(self.token_ids))
        full[where[known]] = given[known]
        return full

    def sampled_counts(self, position_weights: npt.ArrayLike | None = None) -> Vector:
        """(s,) the weighted number of positions at which each token was sampled."""
        weights = self._position_weights(position_weights)
        return np.bincount(self.sampled, weights=weights, minlength=len(self.token_ids)).astype(np.float64)

    def log_normaliser(self, delta: npt.ArrayLike) -> Vector:
        """(m,) ``log sum_y pi_0(y | m) exp(delta(y))`` for delta of shape (s,); 0 where delta is 0."""
        tilt, shift = self._tilt(delta)
        out = np.empty(self.n_positions)
        for part, scaled in self._scaled(tilt, shift):
            out[part.where] = shift + np.log(scaled)
        return out

    def expected(self, delta: npt.ArrayLike, position_weights: npt.ArrayLike | None = None) -> Vector:
        """(s,) ``sum_m w_m pi_delta(y | m)``: the gradient of ``sum_m w_m log_normaliser_m``."""
        return self.potential(delta, self._position_weights(position_weights))[1]

    def potential(self, delta: npt.ArrayLike, position_weights: Vector) -> tuple[float, Vector]:
        """``sum_m w_m log_normaliser_m`` and its gradient, at the price of one evaluation."""
        tilt, shift = self._tilt(delta)
        value, tail, listed = 0.0, 0.0, np.zeros(len(self.token_ids) if self.columns is None else len(self.columns))
        for part, scaled in self._scaled(tilt, shift, position_weights):
            weights = position_weights[part.where]
            q = weights / scaled
            value += float(weights @ (shift + np.log(scaled)))
            tail += float(self.spread[part.where] @ q)
            listed += part.dot_transposed(q if self.scale is None else q * self.scale[part.where])
        return value, np.maximum(tilt * (self._on_support(listed) + self.unigram * tail), 0.0)

    def kl(self, delta: npt.ArrayLike) -> Vector:
        """(m,) ``KL(pi_delta || pi_0)`` at each position in nats."""
        tilt, shift = self._tilt(delta)
        weighted = tilt * vector("delta", delta, len(self.token_ids))
        out = np.empty(self.n_positions)
        for part, scaled in self._scaled(tilt, shift):
            out[part.where] = self._sums(part, weighted) / scaled - shift - np.log(scaled)
        return np.maximum(out, 0.0)

    def by_token(self, tokens: Ids) -> TokenMasses:
        """pi_0 of the tokens at the indices ``tokens`` into the support, token by token."""
        chosen = np.asarray(tokens, dtype=np.int64)
        if self.columns is not None:
            column = np.full(len(self.token_ids), NO_COLUMN)
            column[self.columns] = np.arange(len(self.columns))
            chosen = column[chosen]
        return TokenMasses(self.lists.columns(chosen), self.unigram[tokens], self.spread, self.scale)

    def _tilt(self, delta: npt.ArrayLike) -> tuple[Vector, float]:
        values = vector("delta", delta, len(self.token_ids))
        shift = max(float(values.max(initial=0.0)), 0.0)
        return np.exp(np.maximum(values - shift, -SPREAD)), shift

    def _sums(self, part: Part, values: Vector) -> Vector:
        """The expectation of ``values`` (s,) at the positions of ``part``, ``rest`` left out."""
        listed = part.dot(self._on_columns(values))
        if self.scale is not None:
            listed *= self.scale[part.where]
        return listed + self.spread[part.where] * float(self.unigram @ values)

    def _scaled(self, tilt: Vector, shift: float, weights: Vector | None = None) -> Iterator[tuple[Part, Vector]]:
        """Block by block ``exp(log_normaliser - shift)``; blocks of which ``weights`` (m,) count nothing are left out."""
        floor, unbiased = math.exp(-SPREAD), math.exp(max(-shift, -SPREAD))
        for part in self.lists.parts:
            if weights is None or weights[part.where].any():
                yield part, np.maximum(self._sums(part, tilt) + self.rest[part.where] * unbiased, floor)

    def _on_columns(self, values: Vector) -> Vector:
        return values if self.columns is None else values[self.columns]

    def _on_support(self, listed: Vector) -> Vector:
        return listed if self.columns is None else _moved(listed, self.columns, len(self.token_ids))

    def _position_weights(self, position_weights: npt.ArrayLike | None) -> Vector:
        return weight_vector("position_weights", position_weights, self.n_positions)


def _assembled(blocks: Sequence[Listed], tail: NextToken | None, allocate: Allocate) -> NextToken:
    """One table of all blocks; their arrays become its own."""
    ids, outside, bare = (np.concatenate([getattr(b, name) for b in blocks]) for name in ("sampled", "outside", "bare"))
    token_ids = support(blocks) if tail is None else np.union1d(support(blocks), tail.token_ids)
    sampled = np.searchsorted(token_ids, ids)
    unigram, everything = _unigrams(token_ids, sampled, outside & ~bare, tail)
    if tail is None:
        unigram = _rates(blocks, token_ids, unigram)
    if bare.all():
        unigram = everything
    tables, spreads, rests = zip(*(attribute(block, token_ids, unigram) for block in blocks), strict=True)
    lists, spread, rest = Lists.of(tables, allocate), np.concatenate(spreads), np.concatenate(rests)
    if bare.any() and not bare.all():
        lists = lists.with_row(everything / everything.sum(), bare)
        spread[bare] = rest[bare] = 0.0
    unnamed = np.concatenate([block.unnamed for block in blocks])
    return NextToken(
        token_ids=token_ids,
        tail_mass=np.concatenate([block.tail for block in blocks]),
        sampled=sampled,
        sampled_outside=outside,
        scaled_down=np.concatenate([block.overfull for block in blocks]),
        unigram=unigram,
        lists=lists,
        spread=spread,
        rest=rest + unnamed,
        unnamed=unnamed,
    )


def _unigrams(token_ids: Ids, sampled: Ids, tails: Bools, tail: NextToken | None) -> tuple[Vector, Vector]:
    """(s,) how often each token was sampled outside a list, and at all; of ``tail`` where that is given."""
    size = len(token_ids)
    if tail is None:
        counts = np.bincount(sampled[tails], minlength=size), np.bincount(sampled, minlength=size)
        return counts[0].astype(np.float64), counts[1].astype(np.float64)
    place = np.searchsorted(token_ids, tail.token_ids)
    everything = tail.sampled_counts() if tail.lists.entries else tail.unigram
    return _moved(tail.unigram, place, size), _moved(everything, place, size)


def _moved(values: Vector, place: Ids, size: int) -> Vector:
    """(size,) ``values`` at the indices ``place``, 0 elsewhere."""
    out = np.zeros(size)
    out[place] = values
    return out


def _rates(blocks: Sequence[Listed], token_ids: Ids, counts: Vector) -> Vector:
    """(s,) ``counts`` for each unit of the mass that lists which miss the token leave over, times all that any list leaves over.

    A token that most lists hold is seldom sampled outside one, because it seldom could be: what it has of a tail that it is part of
    is its count there over those tails.
    """
    total, missed = 0.0, np.zeros(len(token_ids))
    for block in blocks:
        left = np.where(block.bare, 0.0, block.tail)
        held = np.bincount(
            np.searchsorted(token_ids, block.ids), np.repeat(left, np.diff(block.starts)), len(token_ids)
        )
        total, missed = total + float(left.sum()), missed + left.sum() - held
    return rates(counts, missed, total)
