"""Statistics: all that the inverse-propensity estimator needs of a set of rollouts, as a monoid.

Any order, any sharding and any repetition of the same rollouts give bit-identical numbers, because rows are kept per
rollout, sorted by key, and summed only when an estimate is asked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from scipy import sparse

from blackbox_lb.errors import InputError
from blackbox_lb.estimate.checks import Bools, Ids, Vector, positive, sampled_ids
from blackbox_lb.estimate.positions import draw, inverse_propensities
from blackbox_lb.estimate.rollouts import Rollouts

__all__ = ["Statistics", "Unobserved"]

Unobserved: TypeAlias = Literal["bound", "drop"]

ROW_COLUMNS = ("rewards", "lengths", "drawn", "observed")
CELL_COLUMNS = ("token_ids", "counts", "inverse", "removed", "clipped")


@dataclass(frozen=True, slots=True, eq=False)
class Statistics:
    """Per rollout, sorted by key: its reward and its row of the paper's matrix M (the paper, appendix "Matrix form").

    keys: n sorted unique strings. rewards: (n,) nats. lengths: (n,) T_n, the positions of each completion.
    drawn: (n,) P_n, how many of them were drawn. observed: (n,) at how many of the T_n the provider gave the sampled token's
    logprob. starts: (n + 1,) where each row begins in the columns below, which hold one entry for each different token of a
    completion, sorted by id: token_ids; counts, how often it was sampled at any position; inverse,
    ``1/P_n sum_p 1{y_t = y} / pi_0(y | x, y_<t)`` over the drawn positions, which is M without its 1/N; removed, what clipping
    took away from that; clipped, at how many drawn positions it did.

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

    **Clipping.** With ``clip`` = C every 1 / pi_0 above C counts as C (Ionides 2008, "Truncated importance sampling"): less
    variance for an expectation that is at most Z(y). ``inverse + removed`` is the row without clipping. A bounded position is
    clipped like any other, at its bound: ``removed`` is then what clipping took beyond what the bound did, and both lower Z. One
    that is dropped is never clipped.
    """

    keys: tuple[str, ...]
    rewards: Vector
    lengths: Ids
    drawn: Ids
    observed: Ids
    starts: Ids
    token_ids: Ids
    counts: Ids
    inverse: Vector
    removed: Vector
    clipped: Ids

    @classmethod
    def zero(cls) -> Statistics:
        """The statistics of no rollouts: the neutral element of ``+``."""
        none, nothing = np.zeros(0, np.int64), np.zeros(0)
        starts = np.zeros(1, np.int64)
        return cls((), nothing, none, none, none, starts, none, none, nothing, nothing, none)

    @classmethod
    def of(
        cls,
        rollouts: Rollouts,
        *,
        positions: int | None = None,
        seed: int = 0,
        unobserved: Unobserved = "bound",
        clip: float | None = None,
    ) -> Statistics:
        """Statistics of these rollouts, drawing min(``positions``, T_n) positions of each without replacement.

        ``positions`` None takes all. The draw is seeded by (seed, rollout key), so it does not depend on which other
        rollouts are present. ``unobserved``: what to do with bounded positions, see the class; without any it makes no difference.
        ``clip``: the largest 1 / pi_0 that counts, None for any.
        InputError: a NaN, positive or missing (-inf, -9999) logprob, naming the rollout key; rollouts of another policy than the
        base, whose logprobs are not pi_0's.
        """
        _check(rollouts, positions, unobserved, clip)
        n, rows = len(rollouts.keys), rollouts.rollout_of
        usable = ~rollouts.is_bounded if unobserved == "drop" else np.ones(len(rows), dtype=np.bool_)
        kept = draw(rollouts, usable, positions, seed)
        drawn = np.bincount(rows[kept], minlength=n)
        row_of, cells = _cells(rollouts, rows, kept, np.inf if clip is None else clip)
        for name in ("inverse", "removed"):
            cells[name] /= np.maximum(drawn[row_of], 1)
        unsorted = cls(
            keys=rollouts.keys,
            rewards=rollouts.rewards.astype(np.float64),
            lengths=rollouts.lengths.astype(np.int64),
            drawn=drawn,
            observed=np.bincount(rows[~rollouts.is_bounded], minlength=n),
            starts=np.searchsorted(row_of, np.arange(n + 1)).astype(np.int64),
            **cells,
        )
        return unsorted._take(sorted(range(n), key=rollouts.keys.__getitem__))

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
            np.array_equal(getattr(self, name), getattr(other, name))
            for name in (*ROW_COLUMNS, "starts", *CELL_COLUMNS)
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

    def weights(self, tau: float) -> tuple[Vector, float]:
        """(n,) ``exp(r / tau) / exp(log_scale)``, 0 for completions without a position, and log_scale = max r / tau in nats.

        InputError if tau is not above 0 or no completion earned a reward (all are -inf).
        """
        used = self.lengths > 0
        exponents = np.where(used, self.rewards / positive("tau", tau), -np.inf)
        log_scale = float(exponents.max(initial=-np.inf))
        if log_scale == -np.inf:
            raise InputError(
                f"no completion earned a reward: all {self.n_used} that hold a token are -inf; collect more rollouts, or use a "
                f"reward that the model sometimes earns"
            )
        return np.exp(exponents - log_scale), log_scale

    def by_token(self, values: Vector | Ids) -> sparse.csr_array[np.float64]:
        """(s, n) a column of cells (``counts``, ``inverse``, ...), one row for each id of ``token_counts``."""
        ids, where = np.unique(self.token_ids, return_inverse=True)
        columns = np.repeat(np.arange(len(self)), np.diff(self.starts))
        cells = sparse.coo_array((values.astype(np.float64), (where, columns)), shape=(len(ids), len(self)))
        table = sparse.csr_array(cells)
        table.eliminate_zeros()
        return table

    def matrix(self, vocab_size: int) -> sparse.csr_array[np.float64]:
        """The paper's M with its 1/N, shape (n, vocab_size): ``Zhat = exp(rewards / tau) @ M``.

        InputError if a sampled token id is not below ``vocab_size``.
        """
        self.fits(vocab_size)
        values: Vector = self.inverse / float(max(self.n_used, 1))
        full: sparse.csr_array[np.float64] = sparse.csr_array(
            (values, self.token_ids, self.starts), shape=(len(self), vocab_size)
        )
        full.eliminate_zeros()
        return full

    def fits(self, vocab_size: int) -> None:
        """InputError if a sampled token id is not below ``vocab_size``."""
        if self.token_ids.size and int(self.token_ids.max()) >= vocab_size:
            raise InputError(
                f"token id {int(self.token_ids.max())} was sampled, but the vocabulary has {vocab_size} entries; "
                f"give the size of the model's output layer"
            )

    def require_tokens(self) -> None:
        """InputError if no completion has a token."""
        if self.n_used == 0:
            raise InputError(f"{len(self)} rollouts hold no token position; collect completions first")

    def require_propensities(self) -> None:
        """InputError if no completion has a token, or none of the tokens a logprob."""
        self.require_tokens()
        if not self.observed.any():
            raise InputError(
                f"none of the {self.lengths.sum()} sampled tokens has a logprob, which inverse propensities are made of; use "
                f"--estimator ratio, which needs none"
            )

    def _take(self, rows: list[int]) -> Statistics:
        chosen = np.asarray(rows, dtype=np.int64)
        sizes = np.diff(self.starts)[chosen]
        starts = np.concatenate(([0], np.cumsum(sizes))).astype(np.int64)
        cells = np.repeat(self.starts[chosen] - starts[:-1], sizes) + np.arange(starts[-1])
        columns: dict[str, Any] = {name: getattr(self, name)[chosen] for name in ROW_COLUMNS}
        columns |= {name: getattr(self, name)[cells] for name in CELL_COLUMNS}
        return Statistics(keys=tuple(self.keys[row] for row in rows), starts=starts, **columns)

    def _refuse_conflicts(self, order: list[int]) -> None:
        for one, next_ in pairwise(order):
            if self.keys[one] == self.keys[next_] and self._take([one]) != self._take([next_]):
                raise InputError(
                    f"rollout {self.keys[one]} occurs twice with different contents; use one reward, one number of "
                    f"positions, one seed, one clip and one rule for bounded positions for all shards, and one key for each "
                    f"completion"
                )


def _concatenate(a: Statistics, b: Statistics) -> Statistics:
    columns: dict[str, Any] = {
        name: np.concatenate((getattr(a, name), getattr(b, name))) for name in (*ROW_COLUMNS, *CELL_COLUMNS)
    }
    return Statistics(keys=a.keys + b.keys, starts=np.concatenate((a.starts, b.starts[1:] + a.starts[-1])), **columns)


def _cells(rollouts: Rollouts, rows: Ids, kept: Bools, clip: float) -> tuple[Ids, dict[str, Any]]:
    """The rollout of each cell, and the columns of cells with sums over drawn positions in place of means."""
    ids, inverse = sampled_ids(rollouts, rows), inverse_propensities(rollouts, rows)
    width = 1 + int(ids.max(initial=0))
    cells, cell_of = np.unique(rows * width + ids, return_inverse=True)

    def summed(values: Vector | Bools) -> Vector:
        # bincount adds in position order within each cell, so a row never depends on its neighbours.
        return np.bincount(cell_of, weights=np.where(kept, values, 0.0), minlength=len(cells)).astype(np.float64)

    return cells // width, {
        "token_ids": cells % width,
        "counts": np.bincount(cell_of, minlength=len(cells)),
        "inverse": summed(np.minimum(inverse, clip)),
        "removed": summed(np.maximum(inverse - clip, 0.0)),
        "clipped": summed(inverse > clip).astype(np.int64),
    }


def _check(rollouts: Rollouts, positions: int | None, unobserved: str, clip: float | None) -> None:
    if positions is not None and positions < 1:
        raise InputError(f"positions is {positions}; draw at least 1 of each completion, or None for all")
    if unobserved not in get_args(Unobserved):
        raise InputError(f"unobserved {unobserved!r} is unknown; choose 'bound' or 'drop'")
    if clip is not None and not 1 <= clip < np.inf:
        raise InputError(
            f"clip is {clip}; the largest inverse propensity must be a number from 1, or None for no limit"
        )
    if rollouts.tilt.any():
        raise InputError(
            f"{np.count_nonzero(rollouts.tilt)} of {len(rollouts.keys)} rollouts were drawn from another policy than the base, so "
            "that neither their logprobs nor their counts are the base's; use the projection, which reweights them"
        )
