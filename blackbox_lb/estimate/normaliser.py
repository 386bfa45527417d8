"""NextToken: the next-token distribution at every logged position, from the listed top-k and a tail unigram.

Index letters: ``m`` positions, ``s`` the support (every token seen listed or sampled). All values in nats.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from scipy import sparse

from blackbox_lb.errors import InputError
from blackbox_lb.estimate.checks import Bools, Ids, Vector, clean_logprobs, sampled_ids, vector, weight_vector
from blackbox_lb.estimate.rollouts import Rollouts
from blackbox_lb.types import NO_TOKEN, UNNAMED

__all__ = ["NextToken"]

SPREAD = 700.0
"""Biases this far below the largest one are read as this far: exp would underflow to an impossible token."""
ROUNDING = 1e-6
"""Less than this of unlisted mass is float32 rounding of a complete list, not a tail."""
LEAST_NAMED = 1e-6
"""A sampled token with an id had at least this probability together with all others that have one: less is rounding."""
OVERFULL = 1e-3
"""Lists summing to more than 1 by this are counted: the provider rounds its logprobs coarsely."""
LARGEST_SUM = 1.25
"""Lists summing to more than this are corrupt; quantising to 1/16 nat cannot do it."""


@dataclass(frozen=True, slots=True, eq=False)
class NextToken:
    """pi_0 at m positions: listed tokens as listed, the remaining mass over the tokens not listed there.

    The tail ``1 - sum(top-k)`` of a position goes to the tokens missing from its list in proportion to ``unigram``, how
    often each was sampled outside a list anywhere (every rollout counts once, whatever its reward), renormalised over
    those missing. Where no such token exists, the tail stays at bias 0. Leaving every tail at bias 0, or counting only the
    sampled token in it, would bias tail tokens upward without limit. Complete lists are exact. A listed token without an id
    has its probability and can have no bias: it is no part of the tail, and its mass stays at bias 0.

    token_ids: (s,) sorted. tail_mass: (m,). unnamed: (m,) listed mass of tokens without an id. sampled: (m,) index into the
    support of the sampled token. sampled_outside: (m,) whether it is missing from the list. overfull: lists that summed to
    more than 1.001 and were scaled to 1. unigram: (s,) counts. Internally ``pi_0(. | m) = listed[m] + spread[m] * unigram``
    plus ``rest[m]`` at bias 0, which is ``unnamed[m]`` and a tail that nobody takes; ``listed`` already subtracts the share of
    the unigram that the listed tokens must not get twice.
    """

    token_ids: Ids
    tail_mass: Vector
    sampled: Ids
    sampled_outside: Bools
    overfull: int
    unigram: Vector
    listed: sparse.csr_array[np.float64]
    spread: Vector
    rest: Vector
    unnamed: Vector

    @classmethod
    def of(cls, rollouts: Rollouts, *, vocab_size: int | None = None, tail: NextToken | None = None) -> NextToken:
        """From the logged lists. With ``vocab_size``, a list of that many tokens is complete and scaled to sum to 1.

        ``tail`` lends its unigram: completions of a biased policy sample their tails with the bias, and say nothing of pi_0.

        InputError: no position at all, a NaN or positive logprob, a token listed twice, a list summing to more than
        1.25; each names the rollout key.
        """
        if not rollouts.token_ids.size:
            raise InputError(f"{len(rollouts.keys)} rollouts hold no token position; collect completions first")
        rows = rollouts.rollout_of
        ids = sampled_ids(rollouts, rows)
        seen = np.union1d(ids, rollouts.top_ids[rollouts.top_ids >= 0])
        token_ids = (seen if tail is None else np.union1d(seen, tail.token_ids)).astype(np.int64)
        lists = _table(rollouts, rows, token_ids), _unnamed(rollouts, rows)
        table, unnamed, mass, overfull = _tails(*lists, rollouts, rows, vocab_size)
        outside = ~(rollouts.top_ids == rollouts.token_ids[:, None]).any(axis=1)
        sampled = np.searchsorted(token_ids, ids).astype(np.int64)
        unigram = np.bincount(sampled[outside], minlength=len(token_ids)).astype(np.float64)
        if tail is not None:
            unigram = np.zeros(len(token_ids))
            unigram[np.searchsorted(token_ids, tail.token_ids)] = tail.unigram
        listed, spread, rest = _attribute(table, mass, unigram)
        return cls(token_ids, mass, sampled, outside, overfull, unigram, listed, spread, rest + unnamed, unnamed)

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
            listed=sparse.csr_array(sparse.diags_array(scale) @ self.listed),
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
        return shift + np.log(self._scaled(tilt, shift))

    def expected(self, delta: npt.ArrayLike, position_weights: npt.ArrayLike | None = None) -> Vector:
        """(s,) ``sum_m w_m pi_delta(y | m)``: the gradient of ``sum_m w_m log_normaliser_m``."""
        tilt, shift = self._tilt(delta)
        weights = self._position_weights(position_weights)
        return self._expected(tilt, weights / self._scaled(tilt, shift))

    def potential(self, delta: npt.ArrayLike, position_weights: Vector) -> tuple[float, Vector]:
        """``sum_m w_m log_normaliser_m`` and its gradient, at the price of one evaluation."""
        tilt, shift = self._tilt(delta)
        scaled = self._scaled(tilt, shift)
        value = float(position_weights @ (shift + np.log(scaled)))
        return value, self._expected(tilt, position_weights / scaled)

    def kl(self, delta: npt.ArrayLike) -> Vector:
        """(m,) ``KL(pi_delta || pi_0)`` at each position in nats."""
        tilt, shift = self._tilt(delta)
        scaled = self._scaled(tilt, shift)
        mean = self._sum(tilt * vector("delta", delta, len(self.token_ids))) / scaled
        return np.maximum(mean - shift - np.log(scaled), 0.0)

    def _tilt(self, delta: npt.ArrayLike) -> tuple[Vector, float]:
        values = vector("delta", delta, len(self.token_ids))
        shift = max(float(values.max(initial=0.0)), 0.0)
        return np.exp(np.maximum(values - shift, -SPREAD)), shift

    def _sum(self, tilt: Vector) -> Vector:
        return np.asarray(self.listed @ tilt, dtype=np.float64) + self.spread * float(self.unigram @ tilt)

    def _scaled(self, tilt: Vector, shift: float) -> Vector:
        floor = math.exp(-SPREAD)
        return np.maximum(self._sum(tilt) + self.rest * math.exp(max(-shift, -SPREAD)), floor)

    def _expected(self, tilt: Vector, q: Vector) -> Vector:
        return np.maximum(tilt * (self.listed.T @ q + self.unigram * (self.spread @ q)), 0.0)

    def _position_weights(self, position_weights: npt.ArrayLike | None) -> Vector:
        return weight_vector("position_weights", position_weights, self.n_positions)


def _table(rollouts: Rollouts, rows: Ids, token_ids: Ids) -> sparse.csr_array[np.float64]:
    """(m, s) the listed probabilities of tokens with an id."""
    present = rollouts.top_ids >= 0
    sizes = present.sum(axis=1)
    row_of = np.repeat(rows, sizes)
    logprobs = clean_logprobs("listed logprob", rollouts.top_logprobs[present], rollouts, row_of)
    columns = np.searchsorted(token_ids, rollouts.top_ids[present])
    starts = np.concatenate(([0], np.cumsum(sizes)))
    table = sparse.csr_array((np.exp(logprobs), columns, starts), shape=(len(present), len(token_ids)))
    table.sort_indices()
    where = np.repeat(np.arange(len(present)), sizes)
    twice = np.flatnonzero((np.diff(table.indices) == 0) & (np.diff(where) == 0))
    if twice.size:
        token, key = token_ids[table.indices[twice[0]]], rollouts.keys[int(row_of[twice[0]])]
        raise InputError(f"token {token} is listed twice at one position of rollout {key}; a list may name it once")
    return table


def _unnamed(rollouts: Rollouts, rows: Ids) -> Vector:
    """(m,) the listed probability of tokens without an id."""
    where = rollouts.top_ids == UNNAMED
    row_of = np.repeat(rows, where.sum(axis=1))
    mass = np.zeros(where.shape)
    mass[where] = np.exp(clean_logprobs("listed logprob", rollouts.top_logprobs[where], rollouts, row_of))
    return np.asarray(mass.sum(axis=1), dtype=np.float64)


def _tails(
    table: sparse.csr_array[np.float64], unnamed: Vector, rollouts: Rollouts, rows: Ids, vocab_size: int | None
) -> tuple[sparse.csr_array[np.float64], Vector, Vector, int]:
    """The table and the unnamed mass with overfull and complete lists scaled to 1, the tails, and how many were overfull."""
    sums: Vector = np.asarray(table.sum(axis=1), dtype=np.float64).reshape(-1) + unnamed
    sizes = (rollouts.top_ids != NO_TOKEN).sum(axis=1)
    worst = int(np.argmax(sums))
    if sums[worst] > LARGEST_SUM:
        raise InputError(
            f"a list in rollout {rollouts.keys[int(rows[worst])]} sums to probability {sums[worst]:.3f}, above the limit "
            f"{LARGEST_SUM}; are these logprobs of the unbiased model at temperature 1?"
        )
    complete = (sums > 1 - ROUNDING) | ((sizes > 0) & (sizes >= (np.inf if vocab_size is None else vocab_size)))
    scale = np.where(complete, sums, 1.0)
    data = table.data / np.repeat(scale, np.diff(table.indptr))
    scaled = sparse.csr_array((data, table.indices, table.indptr), shape=table.shape)
    return scaled, unnamed / scale, np.where(complete, 0.0, 1.0 - sums), int((sums > 1 + OVERFULL).sum())


def _attribute(
    table: sparse.csr_array[np.float64], tail: Vector, unigram: Vector
) -> tuple[sparse.csr_array[np.float64], Vector, Vector]:
    """``listed``, ``spread`` and ``rest`` of the class: who gets the tail at each position."""
    sizes = np.diff(table.indptr)
    where = np.repeat(np.arange(len(tail)), sizes)
    taken = np.bincount(where, weights=unigram[table.indices], minlength=len(tail))
    missing = unigram.sum() - taken  # counts are whole numbers, so "none missing" is exactly 0
    spread = np.divide(tail, missing, out=np.zeros_like(tail), where=missing > 0)
    data = table.data - spread[where] * unigram[table.indices]
    listed = sparse.csr_array((data, table.indices, table.indptr), shape=table.shape)
    return listed, spread, np.where(missing > 0, 0.0, tail)
