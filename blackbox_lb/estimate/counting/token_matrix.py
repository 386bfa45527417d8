"""Cells: a block of the paper's matrix M, one entry for each distinct token of each rollout, sorted
by token; the positions of each completion that enter it, and their inverse propensities.

Index letters: ``n`` the rollouts of the block, ``m`` their positions, ``c`` cells, ``v`` tokens
from 0 to the largest id.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import sparse

from blackbox_lb.errors import InputError
from blackbox_lb.estimate.inputs.checks import Bools, Ids, Vector, clean_logprobs
from blackbox_lb.estimate.inputs.rollouts import Rollouts

MOST_TOKENS = 1 << 22
"""Sixteen times the largest vocabulary in use; a table over more is not worth its memory."""
LOWEST_LOGPROB = -700.0
"""Smallest logprob: below it 1 / pi_0 leaves float64. No float32 softmax of a real model gets
there; censoring marks (-9999) do.
"""


@dataclass(frozen=True, slots=True, eq=False)
class Cells:
    """The tokens of one block of rollouts.

    starts: (v + 1,) where the cells of each token begin. rows: (c,) the rollout of each. begins:
    (c,) where its positions begin, all positions being sorted by token and rollout. inverse: (c,)
    ``1/P_n sum_p 1{y_t = y} / pi_0(y | x, y_<t)`` over the P_n drawn positions, which is M without
    its 1/N. drawn: (n,) P_n. sampled, drawn_tokens: (v,) times each token was sampled, and drawn.
    """

    starts: Ids
    rows: npt.NDArray[np.int32]
    begins: Ids
    inverse: Vector
    drawn: Ids
    sampled: Ids
    drawn_tokens: Ids

    @property
    def counts(self) -> Ids:
        """(c,) times the token was sampled, at any position."""
        return np.diff(self.begins, append=self.sampled.sum())

    @classmethod
    def of(
        cls,
        rollouts: Rollouts,
        *,
        positions: int | None = None,
        seed: int = 0,
        drop: bool = False,
        clip: float = np.inf,
    ) -> Cells:
        """The cells of these rollouts; see ``Recipe`` for the settings, ``Statistics.gather`` for
        the errors.
        """
        n = len(rollouts.keys)
        rows = rollouts.rollout_of
        ids = _checked(rollouts)
        inverse = inverse_propensities(rollouts, rows)
        mask = _kept(rollouts, positions, seed, drop)
        if mask is not None:
            inverse[~mask] = 0.0
        size = 1 + int(ids.max(initial=-1))
        ends = np.concatenate(([0], np.cumsum(rollouts.lengths))).astype(np.int32)
        by_token = sparse.csr_array((inverse, ids, ends), shape=(n, size)).tocsc()
        positions_from = by_token.indptr
        row_of = by_token.indices
        inverse = by_token.data
        # tocsc is a counting sort: within a token the rollouts ascend, and so do the positions of
        # each.
        new = np.ones(len(row_of), dtype=np.bool_)
        np.not_equal(row_of[1:], row_of[:-1], out=new[1:])
        new[positions_from[:-1][positions_from[:-1] < positions_from[1:]]] = True
        begins = np.flatnonzero(new)
        cell_of = np.cumsum(new) - 1
        lengths = rollouts.lengths if mask is None else np.bincount(rows[mask], minlength=n)
        cell_rows = row_of[begins]
        share = np.maximum(lengths, 1).astype(np.float64)[cell_rows]
        sampled = np.diff(positions_from).astype(np.int64)
        drawn_tokens = sampled
        if mask is not None:
            drawn_tokens = np.bincount(ids[mask], minlength=size)
        return cls(
            starts=np.append(cell_of, len(begins))[positions_from],
            rows=cell_rows,
            begins=begins,
            inverse=_summed(
                cell_of, inverse if clip == np.inf else np.minimum(inverse, clip), len(begins)
            )
            / share,
            drawn=lengths,
            sampled=sampled,
            drawn_tokens=drawn_tokens,
        )


def _summed(cell_of: Ids, values: Vector, cells: int) -> Vector:
    # bincount adds in position order within each cell, so a cell never depends on its neighbours.
    sums: Vector = np.bincount(cell_of, weights=values, minlength=cells).astype(
        np.float64, copy=False
    )
    return sums


def _kept(rollouts: Rollouts, positions: int | None, seed: int, drop: bool) -> Bools | None:
    """(m,) the drawn positions; None for all."""
    drop = drop and rollouts.bounded is not None and bool(rollouts.bounded.any())
    if positions is None and not drop:
        return None
    usable = ~rollouts.is_bounded if drop else np.ones(len(rollouts.token_ids), dtype=np.bool_)
    return draw(rollouts, usable, positions, seed)


def _checked(rollouts: Rollouts) -> npt.NDArray[np.int32]:
    """(m,) the sampled ids. Raises InputError, naming the rollout: an invalid one."""
    ids = rollouts.token_ids
    if ids.size and not 0 <= int(ids.min()) <= int(ids.max()) < MOST_TOKENS:
        at = int(np.flatnonzero((ids < 0) | (ids >= MOST_TOKENS))[0])
        raise InputError(
            f"token id {ids[at]} in rollout {rollouts.keys[int(rollouts.rollout_of[at])]}; ids of"
            f" sampled tokens go from 0 to {MOST_TOKENS - 1:,}: discard this rollout"
        )
    return ids.astype(np.int32, copy=False)


def inverse_propensities(rollouts: Rollouts, rows: Ids) -> Vector:
    """(m,) 1 / pi_0 of the sampled tokens, its lower bound where only a bound is known.

    rows: (m,) the rollout of each position. Raises InputError with the rollout key: a NaN, positive
    or missing (-inf, -9999) value.
    """
    logprobs = clean_logprobs("sampled logprob", rollouts.logprobs, rollouts, rows)
    missing = np.flatnonzero(logprobs < LOWEST_LOGPROB)
    if missing.size:
        raise InputError(
            f"sampled logprob {logprobs[missing[0]]:g} in rollout"
            f" {rollouts.keys[int(rows[missing[0]])]} is a mark for 'not given', below the limit"
            f" {LOWEST_LOGPROB:g} ({missing.size} of {logprobs.size} are): inverse propensities"
            " need the probability of every sampled token, or a bound that is marked as one; use"
            " the projection, which needs neither"
        )
    return np.exp(-logprobs)


def draw(rollouts: Rollouts, usable: Bools, positions: int | None, seed: int) -> Bools:
    """(m,) whether each is drawn: ``positions`` of a completion's ``usable`` ones, uniformly
    without replacement; None for all.

    The draw of a completion depends on its key, its own positions and ``seed``, and on no other
    completion.
    """
    mask = usable.copy()
    if positions is None:
        return mask
    ends = np.cumsum(rollouts.lengths)
    for key, end, length in zip(rollouts.keys, ends, rollouts.lengths, strict=True):
        if length > positions:
            mask[end - length : end] = _draw_one(key, usable[end - length : end], positions, seed)
    return mask


def _draw_one(key: str, usable: Bools, positions: int, seed: int) -> Bools:
    # Raw PCG64 output is fixed by numpy's compatibility policy; Generator methods such as choice
    # are not.
    words = np.frombuffer(hashlib.sha256(f"{seed}\0{key}".encode()).digest(), dtype="<u4")
    order = np.argsort(np.random.PCG64(words.tolist()).random_raw(len(usable)), kind="stable")
    mask = np.zeros(len(usable), dtype=np.bool_)
    mask[order[usable[order]][:positions]] = True
    return mask
