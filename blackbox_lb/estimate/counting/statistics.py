"""Statistics: the sums over rollouts from which the estimators compute a token's value, and the
cells of the paper's matrix M that they add up.

They are gathered block by block in memory that does not grow with the rollouts. Blocks are added in
their order, so that any number of threads gives the same bits; other blocks, another order or
shards differ by rounding.

Index letters: ``n`` the rollouts of the block, ``m`` their positions, ``c`` cells, ``v`` tokens
from 0 to the largest id.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse

from blackbox_lb.errors import InputError
from blackbox_lb.estimate.inputs.checks import Bools, Ids, Vector
from blackbox_lb.estimate.inputs.rollouts import Rollouts, clean_logprobs, sampled_ids
from blackbox_lb.estimate.inputs.sweep import Unobserved, positive
from blackbox_lb.estimate.next_token.sparse_table import in_order

LOWEST_LOGPROB = -700.0
"""Smallest logprob: below it 1 / pi_0 leaves float64. No float32 softmax of a real model gets
there; censoring marks (-9999) do.
"""


@dataclass(frozen=True, slots=True)
class Recipe:
    """The settings of a sum; only statistics of one recipe can be added. ``Sweep`` checks them.

    tau: a completion weighs exp(r / tau), one column of sums for each. highest: the reward that
    weighs 1, in nats: at least the highest of all completions with a token (-inf where none earned
    one). positions: number drawn of each completion, None for all; the draw is seeded by (seed,
    rollout key). unobserved: the rule for bounded positions. clip: the largest 1 / pi_0 that
    counts, None for any.
    """

    tau: tuple[float, ...]
    highest: float
    positions: int | None = None
    seed: int = 0
    unobserved: Unobserved = "bound"
    clip: float | None = None

    def weights(self, rollouts: Rollouts) -> Vector:
        """(n, j) ``exp((r - highest) / tau)``, 0 for completions without a position."""
        rewards = np.where(rollouts.lengths > 0, rollouts.rewards, -np.inf)
        if self.highest == -np.inf:
            return np.zeros((len(rewards), len(self.tau)))
        weights: Vector = np.exp((rewards - self.highest)[:, None] / np.array(self.tau))
        return weights


@dataclass(frozen=True, slots=True, eq=False)
class Cells:
    """The tokens of one block of rollouts.

    starts: (v + 1,) where the cells of each token begin. rows: (c,) the rollout of each. inverse:
    (c,) ``1/P_n sum_p 1{y_t = y} / pi_0(y | x, y_<t)`` over the P_n drawn positions, which is M
    without its 1/N. drawn: (n,) P_n. sampled, drawn_tokens: (v,) times each token was sampled, and
    drawn.
    """

    starts: Ids
    rows: npt.NDArray[np.int32]
    inverse: Vector
    drawn: Ids
    sampled: Ids
    drawn_tokens: Ids

    @classmethod
    def of(cls, rollouts: Rollouts, recipe: Recipe) -> Cells:
        """The cells of these rollouts; see ``Statistics.gather`` for the errors."""
        n = len(rollouts.keys)
        rows = rollouts.rollout_of
        ids = sampled_ids(rollouts)
        inverse = inverse_propensities(rollouts, rows)
        mask = drawn_positions(rollouts, recipe)
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
        if recipe.clip is not None:
            inverse = np.minimum(inverse, recipe.clip)
        # bincount adds in position order within each cell, so a cell never depends on its
        # neighbours.
        sums = np.bincount(cell_of, weights=inverse, minlength=len(begins))
        return cls(
            starts=np.append(cell_of, len(begins))[positions_from],
            rows=cell_rows,
            inverse=np.asarray(sums / share, np.float64),
            drawn=lengths,
            sampled=sampled,
            drawn_tokens=drawn_tokens,
        )


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


def drawn_positions(rollouts: Rollouts, recipe: Recipe) -> Bools | None:
    """(m,) whether each is drawn: ``positions`` of a completion's usable ones, uniformly without
    replacement; None where all are.

    The draw of a completion depends on its key, its own positions and the seed, and on no other
    completion.
    """
    mask = np.ones(len(rollouts.token_ids), dtype=np.bool_)
    if recipe.unobserved == "drop":
        mask = ~rollouts.bounded
    positions = recipe.positions
    if positions is None:
        return None if mask.all() else mask
    ends = np.cumsum(rollouts.lengths)
    for key, end, length in zip(rollouts.keys, ends, rollouts.lengths, strict=True):
        if length > positions:
            own = slice(end - length, end)
            mask[own] = _draw_one(key, mask[own], positions, recipe.seed)
    return mask


def _draw_one(key: str, usable: Bools, positions: int, seed: int) -> Bools:
    # Raw PCG64 output is fixed by numpy's compatibility policy; Generator methods such as choice
    # are not.
    words = np.frombuffer(hashlib.sha256(f"{seed}\0{key}".encode()).digest(), dtype="<u4")
    order = np.argsort(np.random.PCG64(words.tolist()).random_raw(len(usable)), kind="stable")
    mask = np.zeros(len(usable), dtype=np.bool_)
    mask[order[usable[order]][:positions]] = True
    return mask


BLOCK_POSITIONS = 1 << 20
"""Positions in a thread's work at a time, in about 100 MB."""
TOTALS = ("counts", "drawn_tokens", "inverse")
NUMBERS = ("rollouts", "n_empty", "tokens", "observed", "drawn")


@dataclass(frozen=True, slots=True, eq=False)
class Statistics:
    """Sums over rollouts, a monoid: ``zero()`` and ``+``. Index letters: ``v`` tokens by id, ``j``
    the taus of the recipe; v_n = exp((r_n - highest) / tau) is the weight of rollout n.

    Attributes:
        rollouts: number of all rollouts.
        n_empty: those without any token position, which do not enter N.
        tokens: number of positions.
        observed: positions with the sampled token's logprob.
        drawn: positions drawn.
        counts: (v,) times each token was sampled.
        drawn_tokens: (v,) times each token was drawn.
        weights: (j,) ``sum_n v_n``.
        inverse: (v, j) ``sum_n v_n inverse_n(y)``, N times Zhat, with
            ``inverse_n(y) = 1/P_n sum_p 1{y_t = y} / pi_0(y | x, y_<t)``.

    **Estimand.** With rows v = exp(r / tau), ``mean_n v_n inverse_n(y)`` has the expectation

        Z(y) = E_x sum_t Pr(still running at t) E[exp(r / tau) / |Y|],
        Y ~ p_0(. | x, running at t, do(y_t = y)),

    where |Y| is the length of the completion after the intervention, the end token counted where it
    is listed. When every completion has T positions this is the paper's Z_avg(y), t uniform over
    1..T. When completions end at different lengths t is uniform over each completion's own
    positions, and 1/|Y| stays inside the expectation: a token that makes completions short is
    credited with that even under a constant reward. Drawing P_n < T_n positions changes the
    variance and not the expectation. Completions without any position are kept, counted in
    ``n_empty``, and left out of N.

    **Bounded positions.** Where the provider gave no probability for a sampled token, only ``pi_0
    <= bound`` is known. "bound" uses the bound as the probability: every such term is too small, so
    the expectation is at most Z(y), for every y, and equal to it for tokens that are never bounded;
    tokens of the tail get too low a bias. "drop" draws from the other positions only: a token that
    is always bounded when sampled has Zhat 0, as if never sampled, and one that never is gets too
    high a bias, because P_n shrinks. A completion whose positions are all dropped stays in N with
    an empty row.

    **Clipping.** With ``clip`` = C every 1 / pi_0 above C counts as C (Ionides 2008, "Truncated
    importance sampling"): less variance for an expectation that is at most Z(y). A bounded position
    is clipped like any other, at its bound: both lower Z.
    """

    recipe: Recipe | None = None
    rollouts: int = 0
    n_empty: int = 0
    tokens: int = 0
    observed: int = 0
    drawn: int = 0
    counts: Ids = field(default_factory=lambda: np.zeros(0, np.int64))
    drawn_tokens: Ids = field(default_factory=lambda: np.zeros(0, np.int64))
    weights: Vector = field(default_factory=lambda: np.zeros(0))
    inverse: Vector = field(default_factory=lambda: np.zeros((0, 0)))

    @classmethod
    def zero(cls) -> Statistics:
        """The statistics of no rollouts: the neutral element of ``+``, of any recipe."""
        return cls()

    @classmethod
    def gather(
        cls, blocks: Iterable[Rollouts], recipe: Recipe, *, threads: int | None = None
    ) -> Statistics:
        """Statistics of all ``blocks``, each processed by one of ``threads`` (None: one a core).

        Few blocks are held at a time. No rollout may be in two of them. Raises InputError: a NaN,
        positive or missing (-inf, -9999) logprob (with the rollout key), the first block's first.
        """
        return sum(in_order(partial(cls._of, recipe), blocks, ahead=1, threads=threads), cls.zero())

    @classmethod
    def _of(cls, recipe: Recipe, block: Rollouts) -> Statistics:
        cells = Cells.of(block, recipe)
        weights = recipe.weights(block)
        n = len(block.keys)
        if not n:
            return cls.zero()
        matrix = sparse.csr_array(
            (cells.inverse, cells.rows, cells.starts), shape=(len(cells.starts) - 1, n)
        )
        return cls(
            recipe=recipe,
            rollouts=n,
            n_empty=int((block.lengths == 0).sum()),
            tokens=len(block.token_ids),
            observed=len(block.token_ids) - int(block.bounded.sum()),
            drawn=int(cells.drawn.sum()),
            counts=cells.sampled,
            drawn_tokens=cells.drawn_tokens,
            weights=weights.sum(axis=0),
            inverse=np.asarray(matrix @ weights),
        )

    def __add__(self, other: Statistics) -> Statistics:
        """The statistics of both sets, which have one recipe and no rollout in common."""
        if self.recipe is None:
            return other
        if other.recipe is None:
            return self
        counted: dict[str, Any] = {
            name: getattr(self, name) + getattr(other, name) for name in NUMBERS
        }
        counted |= {name: _padded_sum(getattr(self, name), getattr(other, name)) for name in TOTALS}
        return Statistics(recipe=self.recipe, weights=self.weights + other.weights, **counted)

    @property
    def n_used(self) -> int:
        """N of the estimators: completions with at least one position."""
        return self.rollouts - self.n_empty


def _padded_sum(first: Any, second: Any) -> Any:
    """The sum of two tables with a row a token; the rows that one lacks count as 0."""
    short, long = sorted((first, second), key=len)
    total = long.copy()
    total[: len(short)] += short
    return total


class TokenIPS:
    """Zhat for each tau of the statistics (the paper, sections "Method" and "Matrix form").

    ``token_ids``: (s,) the sampled tokens, sorted. Every other token has Zhat = 0. ``counts``: (s,)
    times sampled.
    """

    def __init__(self, statistics: Statistics) -> None:
        """Raise InputError if there is no completion with a token, or no token with a logprob."""
        if statistics.recipe is None or statistics.n_used == 0:
            raise InputError(
                f"{statistics.rollouts} rollouts hold no token position; collect completions first"
            )
        if not statistics.observed:
            raise InputError(
                f"none of the {statistics.tokens} sampled tokens has a logprob, which inverse"
                " propensities are made of; use a provider that returns them, or the projection"
            )
        self._recipe = statistics.recipe
        self._weights = statistics.weights
        self.n_used = statistics.n_used
        self.token_ids: Ids = np.flatnonzero(statistics.drawn_tokens)
        self.counts: Ids = statistics.counts[self.token_ids]
        self._inverse = statistics.inverse[self.token_ids]

    def scaled(self, tau: float) -> tuple[Vector, float]:
        """(s,) ``Zhat / exp(log_scale)`` and log_scale = max r / tau in nats, without overflow or
        loss, with ``Zhat(y) = 1/N sum_n exp(r_n / tau) 1/P_n sum_p 1{y_t = y} / pi_0(y | x,
        y_<t)``, unbiased unless clipped.

        tau: one of the recipe. A reward of -inf weighs 0 at every tau. Raises InputError: no
        completion earned a reward (all are -inf).
        """
        if self._recipe.highest == -np.inf:
            raise InputError(
                f"no completion earned a reward: all {self.n_used} that hold a token are -inf;"
                " collect more rollouts, or use a reward that the model sometimes earns"
            )
        values: Vector = self._inverse[:, self._recipe.tau.index(tau)] / self.n_used
        return values, self._recipe.highest / tau

    def delta(self, tau: float, alpha: float, *, relative: bool = False) -> Vector:
        """(s,) ``log(alpha + Zhat(y)) - log(alpha)`` in nats: the paper's bias shifted so that
        unsampled tokens are at 0.

        ``alpha`` is the paper's absolute pseudocount, or, if ``relative``, a multiple of the mean
        weight ``1/N sum_n exp(r_n / tau)``, which keeps its meaning when rewards or tau change
        scale.
        """
        values, log_scale = self.scaled(tau)
        log_alpha = math.log(positive("alpha", alpha))
        if relative:
            total = float(self._weights[self._recipe.tau.index(tau)])
            log_alpha = log_alpha + log_scale + math.log(total / self.n_used)
        with np.errstate(
            divide="ignore"
        ):  # a token seen only in completions of weight 0 has Zhat = 0 and delta = 0
            ratio = np.log(values) + log_scale - log_alpha
        return np.logaddexp(0.0, ratio)
