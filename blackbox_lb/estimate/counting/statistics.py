"""Statistics: the sums over rollouts from which the estimators compute a token's value.

They are gathered block by block in memory that does not grow with the rollouts. Blocks are added in
their order, so that any number of threads gives the same bits; other blocks, another order or
shards differ by rounding.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any

import numpy as np
from scipy import sparse

from blackbox_lb.errors import InputError
from blackbox_lb.estimate.counting.token_matrix import Cells
from blackbox_lb.estimate.inputs.checks import Ids, Vector, positive
from blackbox_lb.estimate.inputs.recipe import Counted, Recipe
from blackbox_lb.estimate.inputs.rollouts import Rollouts
from blackbox_lb.estimate.next_token.sparse_table import in_order

BLOCK_POSITIONS = 1 << 20
"""Positions in a thread's work at a time, in about 100 MB."""
REMEMBERED = 4096
"""Keys kept to detect sets that share rollouts: every overlap of sets this small, and in larger
ones any overlap of half a per cent, because the keys of a store are random."""
TOTALS = ("counts", "drawn_tokens")
NUMBERS = ("rollouts", "n_empty", "tokens", "observed", "drawn")


@dataclass(frozen=True, slots=True, eq=False)
class Statistics:
    """Sums over rollouts, a monoid: ``zero()`` and ``+``. Index letters: ``v`` tokens by id, ``j``
    the taus of the recipe; v_n = exp((r_n - highest) / tau) and T_n are the weight and the
    positions of rollout n.

    Attributes:
        rollouts: number of all rollouts.
        n_empty: those without any token position, which do not enter N.
        tokens: number of positions.
        observed: positions with the sampled token's logprob.
        drawn: positions drawn.
        counts: (v,) times each token was sampled.
        drawn_tokens: (v,) times each token was drawn.
        keys: the least keys, at most 4,096.
        weights: (2, j) ``sum_n v_n`` and ``sum_n T_n v_n``.
        sums: (v, j) by name: "inverse" is ``sum_n v_n inverse_n(y)``, N times Zhat, with
            ``inverse_n(y) = 1/P_n sum_p 1{y_t = y} / pi_0(y | x, y_<t)``; "counted" is
            ``sum_n v_n c_n(y)``, c_n(y) the samples of y in rollout n.

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
    keys: tuple[str, ...] = ()
    weights: Vector = field(default_factory=lambda: np.zeros((2, 0)))
    sums: Mapping[str, Vector] = field(default_factory=dict)

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
        cells = Cells.of(
            block,
            positions=recipe.positions,
            seed=recipe.seed,
            drop=recipe.unobserved == "drop",
            clip=np.inf if recipe.clip is None else recipe.clip,
        )
        weights = recipe.weights(block)
        lengths = block.lengths.astype(np.float64)
        n = len(block.keys)
        if not n:
            return cls.zero()

        def sums(values: Vector, factors: Vector) -> Vector:
            """(v, j) ``sum_c values[c] factors[rows[c], j]`` over the cells of each token."""
            return np.asarray(
                sparse.csr_array(
                    (values, cells.rows, cells.starts), shape=(len(cells.starts) - 1, n)
                )
                @ factors
            )

        totals = dict[str, Vector]()
        if "ips" in recipe.estimators:
            totals["inverse"] = sums(cells.inverse, weights)
        if "ratio" in recipe.estimators:
            totals["counted"] = sums(cells.counts.astype(np.float64), weights)
        return cls(
            recipe=recipe,
            rollouts=n,
            n_empty=int((block.lengths == 0).sum()),
            tokens=len(block.token_ids),
            observed=len(block.token_ids)
            - (0 if block.bounded is None else int(block.bounded.sum())),
            drawn=int(cells.drawn.sum()),
            counts=cells.sampled,
            drawn_tokens=cells.drawn_tokens,
            keys=tuple(sorted(block.keys)[:REMEMBERED]),
            weights=np.stack((weights.sum(axis=0), lengths @ weights)),
            sums=totals,
        )

    def __add__(self, other: Statistics) -> Statistics:
        """The statistics of both sets. Raises InputError: different recipes, or a rollout known to
        be in both.
        """
        if self.recipe is None or other.recipe is None:
            if self.recipe is None:
                return other
            return self
        if self.recipe != other.recipe:
            names = [
                recipe_field.name
                for recipe_field in fields(Recipe)
                if getattr(self.recipe, recipe_field.name)
                != getattr(other.recipe, recipe_field.name)
            ]
            raise InputError(
                f"two parts of the statistics have another {', '.join(names)}: use one highest"
                " reward, one number of positions, one seed, one clip and one rule for bounded"
                " positions for all of them, and the same tau and estimators"
            )
        both = set(self.keys).intersection(other.keys)
        if both:
            raise InputError(
                f"rollout {min(both)} is in both parts of the statistics, and may be one of many:"
                " give each rollout to one part"
            )
        counted: dict[str, Any] = {
            name: getattr(self, name) + getattr(other, name) for name in NUMBERS
        }
        counted |= {name: _padded_sum(getattr(self, name), getattr(other, name)) for name in TOTALS}
        return Statistics(
            recipe=self.recipe,
            keys=tuple(sorted(self.keys + other.keys)[:REMEMBERED]),
            weights=self.weights + other.weights,
            sums={name: _padded_sum(self.sums[name], other.sums[name]) for name in self.sums},
            **counted,
        )

    def __len__(self) -> int:
        """The number of rollouts."""
        return self.rollouts

    @property
    def n_used(self) -> int:
        """N of the estimators: completions with at least one position."""
        return self.rollouts - self.n_empty

    @property
    def token_ids(self) -> Ids:
        """(s,) ids of every sampled token, sorted."""
        return np.flatnonzero(self.counts)

    def column(self, tau: float) -> int:
        """The column of ``tau`` in the sums. InputError: there is none, tau is not above 0, or no
        completion earned a reward.
        """
        if self.recipe is None or positive("tau", tau) not in self.recipe.tau:
            strengths = "none"
            if self.recipe:
                strengths = ", ".join(f"{value:g}" for value in self.recipe.tau)
            raise InputError(
                f"these statistics were gathered for tau {strengths}, and not {tau:g}; gather them"
                " again for that"
            )
        if self.recipe.highest == -np.inf:
            raise InputError(
                f"no completion earned a reward: all {self.n_used} that hold a token are -inf;"
                " collect more rollouts, or use a reward that the model sometimes earns"
            )
        return self.recipe.tau.index(tau)

    def log_scale(self, tau: float) -> float:
        """``highest / tau`` in nats: the log of the factor divided out of all weights."""
        self.column(tau)
        if self.recipe is None:
            return 0.0
        return self.recipe.highest / tau

    def total_weights(self, tau: float) -> tuple[float, float]:
        """``sum_n v_n`` and ``sum_n T_n v_n``, both over exp(log_scale)."""
        plain, by_length = self.weights[:, self.column(tau)]
        return float(plain), float(by_length)

    def require(self, estimator: Counted) -> None:
        """Raise InputError if no completion has a token, no token the needed logprob, or the sums
        were not gathered.
        """
        if self.n_used == 0:
            raise InputError(
                f"{len(self)} rollouts hold no token position; collect completions first"
            )
        if estimator != "ratio" and not self.observed:
            raise InputError(
                f"none of the {self.tokens} sampled tokens has a logprob, which inverse"
                " propensities are made of; use ``estimator=ratio``, which needs none"
            )
        if self.recipe is None or estimator not in self.recipe.estimators:
            raise InputError(
                f"these statistics were not gathered for {estimator}; name it among the estimators"
                " of the recipe"
            )


def _padded_sum(one: Any, other: Any) -> Any:
    """The sum of two tables with a row a token; the rows that one lacks count as 0."""
    short, long = sorted((one, other), key=len)
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
        statistics.require("ips")
        self._statistics = statistics
        self.n_used = statistics.n_used
        self.token_ids: Ids = np.flatnonzero(statistics.drawn_tokens)
        self.counts: Ids = statistics.counts[self.token_ids]
        self._inverse = statistics.sums["inverse"][self.token_ids]

    def scaled(self, tau: float) -> tuple[Vector, float]:
        """(s,) ``Zhat / exp(log_scale)`` and log_scale = max r / tau in nats, without overflow or
        loss, with ``Zhat(y) = 1/N sum_n exp(r_n / tau) 1/P_n sum_p 1{y_t = y} / pi_0(y | x,
        y_<t)``, unbiased unless clipped.

        A reward of -inf weighs 0 at every tau. Raises InputError: the statistics lack this tau, or
        no completion earned a reward (all are -inf).
        """
        values: Vector = self._inverse[:, self._statistics.column(tau)] / self.n_used
        return values, self._statistics.log_scale(tau)

    def delta(self, tau: float, alpha: float, *, relative: bool = False) -> Vector:
        """(s,) ``log(alpha + Zhat(y)) - log(alpha)`` in nats: the paper's bias shifted so that
        unsampled tokens are at 0.

        ``alpha`` is the paper's absolute pseudocount, or, if ``relative``, a multiple of the mean
        weight ``1/N sum_n exp(r_n / tau)``, which keeps its meaning when rewards or tau change
        scale.
        """
        values, log_scale = self.scaled(tau)
        with np.errstate(
            divide="ignore"
        ):  # a token seen only in completions of weight 0 has Zhat = 0 and delta = 0
            ratio = np.log(values) + log_scale - self._log_alpha(tau, alpha, relative)
        return np.logaddexp(0.0, ratio)

    def _log_alpha(self, tau: float, alpha: float, relative: bool) -> float:
        log_alpha = math.log(positive("alpha", alpha))
        if not relative:
            return log_alpha
        total, _ = self._statistics.total_weights(tau)
        return log_alpha + self._statistics.log_scale(tau) + math.log(total / self.n_used)


class TokenRatio:
    """``log[(kappa zbar + sum_n v_n c_n(y)) / (kappa + sum_n c_n(y))] - log zbar``, with
    v = exp(r / tau) and c_n(y) the samples of y in rollout n.

    A mean for each token, shrunk to that of all; a constant reward gives exactly 0.
    ``zbar = sum_n T_n v_n / sum_n T_n`` is the mean over token positions, T_n of each completion:
    the average of the tokens' means over the tokens sampled there. The mean over completions would
    lie above it where long ones are bad, and so every common token below every token that was
    never sampled.

    It needs no logprobs. It estimates ``E[v | y was sampled]``, observation and not intervention:
    a token that good prefixes tend to sample gets credit for their reward without it.

    Attributes:
        token_ids: (s,) the sampled tokens, sorted; all others are at 0.
        counts: (s,) times each was sampled.
    """

    token_ids: Ids
    counts: Vector

    def __init__(self, statistics: Statistics) -> None:
        """Raise InputError if there is no completion with a token."""
        statistics.require("ratio")
        self.token_ids = statistics.token_ids
        self.counts = statistics.counts[self.token_ids].astype(np.float64)
        self._sums = statistics.sums["counted"][self.token_ids]
        self._statistics = statistics

    def relative(self, tau: float) -> Vector:
        """(s,) each token's mean weight over ``zbar``, without shrinkage.

        Raises InputError: the statistics lack this tau, or no completion earned a reward (all are
        -inf).
        """
        sums: Vector = self._sums[:, self._statistics.column(tau)]
        zbar = self._statistics.total_weights(tau)[1] / self._statistics.tokens
        return sums / (self.counts * zbar)

    def delta(self, tau: float, kappa: float) -> Vector:
        """(s,) the bias in nats. ``kappa``: above 0, in samples of a token: a token sampled kappa
        times counts half.
        """
        prior = positive("kappa", kappa)
        return np.log(prior + self.counts * self.relative(tau)) - np.log(prior + self.counts)
