"""Statistics: all that the inverse-propensity estimator needs of a set of rollouts, as a monoid.

Any order, any sharding and any repetition of the same rollouts give bit-identical numbers, because rows are kept per
rollout, sorted by key, and summed only when an estimate is asked for.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, TypeAlias, get_args

import numpy as np
from scipy import sparse

from blackbox_lb.errors import InputError
from blackbox_lb.estimate.checks import Bools, Ids, Vector, clean_logprobs, sampled_ids
from blackbox_lb.estimate.rollouts import Rollouts

__all__ = ["Statistics", "Unobserved"]

Unobserved: TypeAlias = Literal["bound", "drop"]

LOWEST_LOGPROB = -700.0
"""Below this 1 / pi_0 leaves float64. No float32 softmax of a real model gets there; censoring marks (-9999) do."""


@dataclass(frozen=True, slots=True, eq=False)
class Statistics:
    """Per rollout, sorted by key: its reward and its row of the paper's matrix M (the paper, appendix "Matrix form").

    keys: n sorted unique strings. rewards: (n,) nats. lengths: (n,) T_n, the positions of each completion.
    drawn: (n,) P_n, how many of them were drawn. starts: (n + 1,) where each row begins in the three columns below,
    which hold one entry for each different token of a completion, sorted by id: token_ids; counts, how often it was
    sampled at any position; inverse, ``1/P_n sum_p 1{y_t = y} / pi_0(y | x, y_<t)`` over the drawn positions, which is
    M without its 1/N.

    **What is estimated.** With rows v = exp(r / tau), ``mean_n v_n inverse[n, y]`` has the expectation

        Z(y) = E_x sum_t Pr(still running at t) E[exp(r / tau) / |Y|],  Y ~ p_0(. | x, running at t, do(y_t = y)),

    where |Y| is the length of the completion after the intervention, the end token counted where it is listed. When
    every completion has T positions this is the paper's Z_avg(y), t uniform over 1..T. When completions end at
    different lengths t is uniform over each completion's own positions, and 1/|Y| stays inside the expectation: a
    token that makes completions short is credited with that even under a constant reward. Drawing P_n < T_n positions
    changes the variance and not the expectation. Completions without any position are kept, counted in ``n_empty``,
    and left out of N.

    **Bounded positions.** Where the provider gave no probability for a sampled token, only ``pi_0 <= bound`` is known. "bound"
    takes the bound for the probability: every such term is too small, so the expectation is at most Z(y), for every y, and equal
    to it for tokens that are never bounded; tokens of the tail come out with too low a bias. "drop" draws from the other
    positions only: a token that is always bounded when sampled has Zhat 0, as if it had never been sampled, and one that never is
    comes out too high, because P_n shrinks. A completion whose positions are all dropped stays in N with an empty row.
    """

    keys: tuple[str, ...]
    rewards: Vector
    lengths: Ids
    drawn: Ids
    starts: Ids
    token_ids: Ids
    counts: Ids
    inverse: Vector

    @classmethod
    def zero(cls) -> Statistics:
        """The statistics of no rollouts: the neutral element of ``+``."""
        none = np.zeros(0, np.int64)
        return cls((), np.zeros(0), none, none, np.zeros(1, np.int64), none, none, np.zeros(0))

    @classmethod
    def of(
        cls, rollouts: Rollouts, *, positions: int | None = None, seed: int = 0, unobserved: Unobserved = "bound"
    ) -> Statistics:
        """Statistics of these rollouts, drawing min(``positions``, T_n) positions of each without replacement.

        ``positions`` None takes all. The draw is seeded by (seed, rollout key), so it does not depend on which other
        rollouts are present. ``unobserved``: what to do with bounded positions, see the class; without any it makes no difference.
        InputError: a NaN, positive or missing (-inf, -9999) logprob, naming the rollout key.
        """
        if positions is not None and positions < 1:
            raise InputError(f"positions is {positions}; draw at least 1 of each completion, or None for all")
        if unobserved not in get_args(Unobserved):
            raise InputError(f"unobserved {unobserved!r} is unknown; choose 'bound' or 'drop'")
        rows = rollouts.rollout_of
        ids, logprobs = sampled_ids(rollouts, rows), _propensities(rollouts, rows)
        usable = ~rollouts.is_bounded if unobserved == "drop" else np.ones(len(ids), dtype=np.bool_)
        kept = _draw(rollouts, usable, positions, seed)
        drawn = np.bincount(rows[kept], minlength=len(rollouts.keys))
        width = 1 + int(ids.max(initial=0))
        cells, cell_of = np.unique(rows * width + ids, return_inverse=True)
        row_of = cells // width
        counts = np.bincount(cell_of, minlength=len(cells))
        # bincount adds in position order within each cell, so a row never depends on its neighbours.
        sums = np.bincount(cell_of, weights=np.where(kept, np.exp(-logprobs), 0.0), minlength=len(cells))
        starts = np.searchsorted(row_of, np.arange(len(rollouts.keys) + 1))
        unsorted = cls(
            keys=rollouts.keys,
            rewards=rollouts.rewards.astype(np.float64),
            lengths=rollouts.lengths.astype(np.int64),
            drawn=drawn,
            starts=starts.astype(np.int64),
            token_ids=cells % width,
            counts=counts,
            inverse=sums / np.maximum(drawn[row_of], 1),
        )
        return unsorted._take(sorted(range(len(rollouts.keys)), key=rollouts.keys.__getitem__))

    def __add__(self, other: Statistics) -> Statistics:
        """Union by key; a rollout in both counts once. InputError if its contents differ."""
        both = _concatenate(self, other)
        order = sorted(range(len(both.keys)), key=both.keys.__getitem__)
        first = [row for i, row in enumerate(order) if i == 0 or both.keys[row] != both.keys[order[i - 1]]]
        if len(first) < len(order):
            both._refuse_conflicts(order)
        return both._take(first)

    def __eq__(self, other: object) -> bool:
        """Bit-identical contents."""
        if not isinstance(other, Statistics):
            return NotImplemented
        return self.keys == other.keys and all(
            np.array_equal(a, b) for a, b in zip(self._columns(), other._columns(), strict=True)
        )

    __hash__ = None  # type: ignore[assignment]

    def __len__(self) -> int:
        """How many rollouts."""
        return len(self.keys)

    @property
    def n_empty(self) -> int:
        """Completions without a single token position; they do not enter N."""
        return int((self.lengths == 0).sum())

    @property
    def n_used(self) -> int:
        """N of the estimator: completions with at least one position."""
        return len(self) - self.n_empty

    def token_counts(self) -> tuple[Ids, Ids]:
        """(s,) ids of every sampled token, sorted, and (s,) how often each was sampled at any position."""
        ids, where = np.unique(self.token_ids, return_inverse=True)
        return ids, np.bincount(where, weights=self.counts, minlength=len(ids)).astype(np.int64)

    def matrix(self, vocab_size: int) -> sparse.csr_array[np.float64]:
        """The paper's M with its 1/N, shape (n, vocab_size): ``Zhat = exp(rewards / tau) @ M``.

        InputError if a sampled token id is not below ``vocab_size``.
        """
        if self.token_ids.size and int(self.token_ids.max()) >= vocab_size:
            raise InputError(
                f"token id {int(self.token_ids.max())} was sampled, but the vocabulary has {vocab_size} entries; "
                f"give the size of the model's output layer"
            )
        values: Vector = self.inverse / float(max(self.n_used, 1))
        full: sparse.csr_array[np.float64] = sparse.csr_array(
            (values, self.token_ids, self.starts), shape=(len(self), vocab_size)
        )
        full.eliminate_zeros()
        return full

    def _columns(self) -> tuple[Vector, Ids, Ids, Ids, Ids, Ids, Vector]:
        return self.rewards, self.lengths, self.drawn, self.starts, self.token_ids, self.counts, self.inverse

    def _take(self, rows: list[int]) -> Statistics:
        chosen = np.asarray(rows, dtype=np.int64)
        sizes = np.diff(self.starts)[chosen]
        starts = np.concatenate(([0], np.cumsum(sizes))).astype(np.int64)
        cells = np.repeat(self.starts[chosen] - starts[:-1], sizes) + np.arange(starts[-1])
        return Statistics(
            keys=tuple(self.keys[row] for row in rows),
            rewards=self.rewards[chosen],
            lengths=self.lengths[chosen],
            drawn=self.drawn[chosen],
            starts=starts,
            token_ids=self.token_ids[cells],
            counts=self.counts[cells],
            inverse=self.inverse[cells],
        )

    def _refuse_conflicts(self, order: list[int]) -> None:
        for one, next_ in pairwise(order):
            if self.keys[one] == self.keys[next_] and self._take([one]) != self._take([next_]):
                raise InputError(
                    f"rollout {self.keys[one]} occurs twice with different contents; use one reward, one number of "
                    f"positions, one seed and one rule for bounded positions for all shards, and one key for each completion"
                )


def _concatenate(a: Statistics, b: Statistics) -> Statistics:
    return Statistics(
        keys=a.keys + b.keys,
        rewards=np.concatenate((a.rewards, b.rewards)),
        lengths=np.concatenate((a.lengths, b.lengths)),
        drawn=np.concatenate((a.drawn, b.drawn)),
        starts=np.concatenate((a.starts, b.starts[1:] + a.starts[-1])),
        token_ids=np.concatenate((a.token_ids, b.token_ids)),
        counts=np.concatenate((a.counts, b.counts)),
        inverse=np.concatenate((a.inverse, b.inverse)),
    )


def _propensities(rollouts: Rollouts, rows: Ids) -> Vector:
    logprobs = clean_logprobs("sampled logprob", rollouts.logprobs, rollouts, rows)
    missing = np.flatnonzero(logprobs < LOWEST_LOGPROB)
    if missing.size:
        raise InputError(
            f"sampled logprob {logprobs[missing[0]]:g} in rollout {rollouts.keys[int(rows[missing[0]])]} is a mark for "
            f"'not given', below the limit {LOWEST_LOGPROB:g} ({missing.size} of {logprobs.size} are): inverse "
            f"propensities need the probability of every sampled token, or a bound that is marked as one; use the projection, "
            f"which needs neither"
        )
    return logprobs


def _draw(rollouts: Rollouts, usable: Bools, positions: int | None, seed: int) -> Bools:
    """(m,) which of the ``usable`` positions are drawn."""
    kept = usable.copy()
    if positions is None:
        return kept
    ends = np.cumsum(rollouts.lengths)
    for key, end, length in zip(rollouts.keys, ends, rollouts.lengths, strict=True):
        if length > positions:
            kept[end - length : end] = _draw_one(key, usable[end - length : end], positions, seed)
    return kept


def _draw_one(key: str, usable: Bools, positions: int, seed: int) -> Bools:
    # Raw PCG64 output is fixed by numpy's compatibility policy; Generator methods such as choice are not.
    words = np.frombuffer(hashlib.sha256(f"{seed}\0{key}".encode()).digest(), dtype="<u4")
    order = np.argsort(np.random.PCG64(words.tolist()).random_raw(len(usable)), kind="stable")
    kept = np.zeros(len(usable), dtype=np.bool_)
    kept[order[usable[order]][:positions]] = True
    return kept
