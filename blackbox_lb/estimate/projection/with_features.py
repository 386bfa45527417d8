"""The projection with features: one common vector, and one vector for each feature of a position,
by maximum likelihood.

    delta(m) = delta_0 + sum_j phi_j(m) delta_j,
    maximise   sum_m w_m [ delta(m)(y_m) - log sum_y pi_0(y | m) exp(delta(m)(y)) ]
               - l2/2 |delta_0|^2 - slope_l2/2 sum_j |delta_j|^2.

It is the projection's objective, its baseline included, and concave: a multinomial logistic
regression whose offsets are the model's own logits. Without features it is the projection itself,
whose feature matrix is a column of ones. Positions with the same features are one *context*: those
of a prompt, or of a prompt in one phase of its completions. The table of next tokens is visited in
blocks of contexts; nothing of the size positions x features or positions x tokens is made.

Index letters: ``c`` contexts, ``f`` features, ``m`` positions, ``s`` tokens that may be biased.
Values in nats.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy import sparse

from blackbox_lb.errors import InputError
from blackbox_lb.estimate.inputs.checks import Bools, Ids, Vector
from blackbox_lb.estimate.inputs.rollouts import PositionWeights
from blackbox_lb.estimate.inputs.sweep import positive
from blackbox_lb.estimate.next_token.next_token import NextToken
from blackbox_lb.estimate.next_token.sparse_table import dot
from blackbox_lb.estimate.problem import Problem

BLOCK = 4_096
"""Contexts of a block: with 300 tokens its bias takes 10 MB."""
LEAST = 1e-300
"""Sum of a position's tilted probabilities, as a share of its context's largest tilt: less is 690
nats behind.
"""
LEAST_REST = 1e-12
"""Probability of the tokens outside the support, below which it is rounding."""

FeatureTable: TypeAlias = sparse.csr_array[Any]
"""(c, f) the value of each feature in each context, 0 where nothing is stored."""


@dataclass(frozen=True, slots=True, eq=False)
class FeatureFit:
    """What was learned.

    token_ids: (s,) sorted.
    common: (s,) nats, ``delta_0``.
    slopes: (f, s) nats a unit of each feature.
    """

    token_ids: Ids
    common: Vector
    slopes: npt.NDArray[np.float64]

    def bias(self, features: FeatureTable) -> npt.NDArray[np.float64]:
        """(c, s) the bias of each context."""
        return np.asarray(self.common + features @ self.slopes)

    def impact(self, features: FeatureTable, usage: Vector) -> Vector:
        """(s,) how much each token's bias moves: its root mean square over contexts, times the
        root of ``usage`` (s,).
        """
        square = np.zeros(len(self.common))
        for start in range(0, features.shape[0], BLOCK):
            square += (self.bias(features[start : start + BLOCK]) ** 2).sum(axis=0)
        return np.asarray(np.sqrt(square / max(features.shape[0], 1) * usage))


@dataclass(frozen=True, slots=True, eq=False)
class FeaturePositions:
    """The weighted positions of c contexts, for tokens that may be biased.

    token_ids: (s,) sorted. masses: (m, s) their listed probabilities. tails: (m,) the unlisted
    probability that ``unigram`` (s,) shares out. contexts: (m,) ascending. weights: (m,). counts:
    (c, s) the weighted number of times each was the answer, and the baseline's expected count in
    lists (see ``linear_term``). tail_counts: (c,) its expected count in tails, that ``unigram``
    shares out.
    """

    token_ids: Ids
    masses: sparse.csr_array[Any]
    tails: Vector
    unigram: Vector
    contexts: Ids
    weights: Vector
    counts: sparse.csr_array[Any]
    tail_counts: Vector
    _rest: Vector = field(init=False)

    def __post_init__(self) -> None:
        rest = 1.0 - np.asarray(self.masses.sum(axis=1)) - self.tails * self.unigram.sum()
        object.__setattr__(self, "_rest", np.maximum(rest, LEAST_REST))

    @classmethod
    def of(
        cls,
        table: NextToken,
        weights: PositionWeights,
        token_ids: Ids,
        contexts: Ids,
        size: int,
    ) -> FeaturePositions:
        """Make the positions of a fit with features.

        table: of the positions.
        weights: of the same.
        token_ids: the tokens that may be biased.
        contexts: (m,) the context of each position, a number below ``size``, c.

        InputError: none of ``token_ids`` was ever listed or sampled, or no position has a weight.
        """
        named = table.named()
        chosen = np.flatnonzero(np.isin(named.token_ids, token_ids))
        if not len(chosen) or not weights.values.any():
            raise InputError(
                "nothing can depend on features: no position has both a weight and a token that may"
                " be biased"
            )
        masses = named.by_token(chosen)
        m = named.n_positions
        listed = masses.listed
        scale = np.ones(m) if masses.scale is None else masses.scale
        columns = np.repeat(np.arange(len(chosen)), np.diff(listed.starts))
        rows = listed.rows.astype(np.int64)
        all_masses = sparse.csr_array(
            (listed.values * scale[rows], (rows, columns)), shape=(m, len(chosen))
        )
        place = np.full(len(named.token_ids), -1)
        place[chosen] = np.arange(len(chosen))
        sampled = place[named.sampled]
        baseline = weights.baseline
        token_weights = weights.values - baseline
        is_chosen = (sampled >= 0) & (token_weights != 0)
        counts = sparse.csr_array(
            (token_weights[is_chosen], (contexts[is_chosen], sampled[is_chosen])),
            shape=(size, len(chosen)),
        )
        tail_counts = np.zeros(size)
        if baseline.any():
            no_bias = np.zeros(len(named.token_ids))
            once = baseline * np.exp(-named.log_normaliser(no_bias))
            summing = sparse.csr_array((once, (contexts, np.arange(m))), shape=(size, m))
            counts = counts + summing @ all_masses
            tail_counts = np.asarray(summing @ named.spread)
        order = np.argsort(contexts, kind="stable")
        order = order[weights.values[order] > 0]
        return cls(
            named.token_ids[chosen],
            all_masses[order],
            named.spread[order],
            named.unigram[chosen],
            contexts[order],
            weights.values[order],
            sparse.csr_array(counts),
            tail_counts,
        )

    @property
    def usage(self) -> Vector:
        """(s,) the weighted probability of each token under the base model."""
        return np.asarray(self.masses.T @ self.weights) + self.unigram * dot(
            self.weights, self.tails
        )

    @property
    def occurrence(self) -> Vector:
        """(s,) the weighted number of times that each token was likely or the answer."""
        return np.asarray(self.usage + np.abs(self._counted))

    @property
    def _counted(self) -> Vector:
        """(s,) the linear term of all contexts."""
        return np.asarray(self.counts.sum(axis=0) + self.tail_counts.sum() * self.unigram)

    def only(self, chosen: Bools) -> FeaturePositions:
        """The positions of the contexts where ``chosen`` (c,) is True; the others count nothing."""
        is_chosen = chosen[self.contexts]
        rows = (
            self.masses[is_chosen],
            self.tails[is_chosen],
            self.unigram,
            self.contexts[is_chosen],
            self.weights[is_chosen],
        )
        return FeaturePositions(self.token_ids, *rows, *self._amounts(chosen.astype(np.float64)))

    def times(self, amounts: Vector) -> FeaturePositions:
        """The same where each context counts ``amounts`` (c,) times."""
        counts, tail_counts = self._amounts(amounts)
        return replace(
            self,
            weights=self.weights * amounts[self.contexts],
            counts=counts,
            tail_counts=tail_counts,
        )

    def _amounts(self, amounts: Vector) -> tuple[sparse.csr_array[Any], Vector]:
        """``counts`` and ``tail_counts`` where each context counts ``amounts`` (c,) times."""
        counts = sparse.csr_array(sparse.diags_array(amounts) @ self.counts)
        return counts, self.tail_counts * amounts

    def _linear(self, rows: slice) -> npt.NDArray[np.float64]:
        """(b, s) the linear term of some contexts."""
        row, column, amounts = _entries(self.counts, rows)
        counted = np.outer(self.tail_counts[rows], self.unigram)
        counted[row, column] += amounts
        return counted

    def problem(self, features: FeatureTable, *, l2: float, slope_l2: float) -> Problem:
        """The fit of the module docstring, where x (1 + f, s) holds the common vector and below it
        that of each feature.

        features: (c, f). l2, slope_l2: pull of the common vector and of the others to 0, in
        weighted positions.
        """
        blocks = []  # scipy takes longer to cut a small table than a visit takes
        for contexts, positions in self._blocks(features.shape[0]):
            table = features
            if contexts.stop - contexts.start < features.shape[0]:
                table = features[contexts]
            blocks.append((contexts.start, positions, table, table.T))

        def potential(x: Vector) -> tuple[float, Vector]:
            value = 0.0
            gradient = np.zeros(x.shape)
            for first, positions, table, transposed in blocks:
                delta = x[0] + table @ x[1:]
                log_z, slope = self._block(delta, first, positions)
                value += dot(self.weights[positions], log_z)
                gradient[0] += slope.sum(axis=0)
                gradient[1:] += transposed @ slope
            return value, gradient

        linear = np.empty((1 + features.shape[1], len(self.token_ids)))
        linear[0] = self._counted
        linear[1:] = (features.T @ self.counts).toarray()
        linear[1:] += np.outer(features.T @ self.tail_counts, self.unigram)
        squares = np.asarray((features * features).sum(axis=0)) / max(features.shape[0], 1)
        return Problem(
            potential,
            linear,
            float(self.weights.sum()),
            l2=np.append(l2, np.full(features.shape[1], slope_l2)),
            curvature=np.append(1.0, squares)[:, None] * self.occurrence / 2,
        )

    def log_likelihood(self, delta: npt.NDArray[np.float64]) -> Vector:
        """(c,) the weighted log-likelihood of each context's tokens under its own bias ``delta``
        (c, s), over no bias, with the baseline in its linear term.
        """
        likelihood = np.zeros(len(delta))
        for rows, positions in self._blocks(len(delta)):
            block = delta[rows]
            likelihood[rows] = (self._linear(rows) * block).sum(axis=1)
            log_z, _ = self._block(block, rows.start, positions)
            np.subtract.at(likelihood, self.contexts[positions], self.weights[positions] * log_z)
        return likelihood

    def _blocks(self, size: int) -> Iterator[tuple[slice, slice]]:
        """Blocks of contexts with their positions."""
        for start in range(0, size, BLOCK):
            stop = min(start + BLOCK, size)
            low, high = np.searchsorted(self.contexts, (start, stop)).tolist()
            yield slice(start, stop), slice(low, high)

    def _block(
        self, delta: npt.NDArray[np.float64], first: int, positions: slice
    ) -> tuple[Vector, npt.NDArray[np.float64]]:
        """Under the bias ``delta`` (b, s) of the contexts from ``first`` on: (p,) the
        log-normalisers, and the gradient (b, s) of their weighted sum in the bias of each context.
        """
        top = np.maximum(delta.max(axis=1), 0.0)
        tilt = np.exp(delta - top[:, None])
        row, column, masses = _entries(self.masses, positions)
        owner = self.contexts[positions] - first
        at = owner[row] * tilt.shape[1] + column
        tilted = masses * tilt.ravel()[at]
        z = (
            self._rest[positions] * np.exp(-top)[owner]
            + np.bincount(row, tilted, len(owner))
            + self.tails[positions] * (tilt @ self.unigram)[owner]
        )
        z = np.maximum(z, LEAST)
        once = self.weights[positions] / z
        slope = np.bincount(at, tilted * once[row], delta.size).reshape(delta.shape)
        tails = np.bincount(owner, once * self.tails[positions], len(delta))
        return np.log(z) + top[owner], slope + tails[:, None] * tilt * self.unigram


def _entries(
    table: sparse.csr_array[Any], rows: slice
) -> tuple[Ids, npt.NDArray[np.int32], Vector]:
    """(l,) row, counted from the first of ``rows``, column and value of each entry there, without a
    copy of the table.
    """
    starts = table.indptr[rows.start : rows.stop + 1]
    entries = slice(int(starts[0]), int(starts[-1]))
    row: Ids = np.repeat(np.arange(rows.stop - rows.start), np.diff(starts))
    column: npt.NDArray[np.int32] = table.indices[entries]
    values: Vector = table.data[entries]
    return row, column, values


def fit_features(
    positions: FeaturePositions,
    features: FeatureTable,
    *,
    l2: float,
    slope_l2: float,
    start: FeatureFit | None = None,
    max_iterations: int = 500,
) -> FeatureFit:
    """Fit the bias of the module docstring.

    l2, slope_l2: pull of the common vector and of the others to 0, in weighted positions. start: a
    fit to begin from, of the same tokens and features. InputError: a strength that is not above 0.
    """
    problem = positions.problem(
        features, l2=positive("l2", l2), slope_l2=positive("slope_l2", slope_l2)
    )
    begin = None
    if start is not None:
        begin = np.vstack([start.common, start.slopes])
    x = problem.solve(begin, max_iterations=max_iterations, shortfall=1e-9).x
    return FeatureFit(positions.token_ids, x[0], x[1:])


def standard_errors(
    positions: FeaturePositions,
    features: FeatureTable,
    fit: FeatureFit,
    *,
    l2: float,
    slope_l2: float,
    draws: int,
    prompts: Ids,
    seed: int = 0,
) -> tuple[Vector, npt.NDArray[np.float64]]:
    """Standard errors of ``common`` (s,) and ``slopes`` (f, s) over other prompts of the same kind,
    in the units of ``fit``.

    prompts: (c,) that of each context.

    The Bayesian bootstrap (Rubin 1981): each draw weighs the prompts by exponential numbers of mean
    1 and fits anew from ``fit``. The pull to 0 is the same in each, so these are spreads of the
    estimate, not distances from the truth.
    """
    rng = np.random.default_rng(seed)
    fits = []
    for _ in range(draws):
        amounts = rng.standard_exponential(int(prompts.max(initial=0)) + 1)
        resample = positions.times(amounts[prompts])
        again = fit_features(
            resample, features, l2=l2, slope_l2=slope_l2, start=fit, max_iterations=50
        )
        fits.append(np.vstack([again.common, again.slopes]))
    spread = np.std(fits, axis=0, ddof=1)
    return spread[0], spread[1:]
