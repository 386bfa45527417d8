"""The projection: the fixed bias closest to the reward-tilted model, with its prior, and the
concave problem (``Problem``) that it is.

The best fixed bias for the target ``p* ~ p_0 exp(r / tau)`` (the paper, "KL-regularized optimum")
minimises ``KL(p* || p_delta)``. On logged rollouts that is

    maximise   sum_n w_n sum_t [ delta(y_nt) - log sum_y pi_0(y | x_n, y_n<t) exp(delta(y)) ]
               - l2/2 |delta - center|^2,

with ``w_n = exp(r_n / tau)`` scaled to mean 1. It is concave and never reads the sampled token's
own probability. The part of the weights that all completions share is counted by expectation and
not from samples (``linear_term``), so that equal rewards give a bias of exactly 0. The
center is 0 unless a ``Prior`` says what tokens are worth before any data.

As one problem over ``m`` positions:

    maximise   linear . delta - sum_m w_m log sum_y pi_0(y | m) exp(delta(y))
               - l2/2 |delta - center|^2.

Tokens that are ``lifted`` share a shift that costs
no penalty: the penalty then counts their distances to the center less the mean of these distances.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from blackbox_lb.errors import InputError
from blackbox_lb.estimate.inputs.checks import Ids, Vector
from blackbox_lb.estimate.inputs.rollouts import PositionWeights, Rollouts
from blackbox_lb.estimate.inputs.sweep import positive
from blackbox_lb.estimate.next_token.next_token import LoggedPositions, NextToken
from blackbox_lb.estimate.problem import Problem
from blackbox_lb.estimate.reweighting import log_policy_ratios

FARTHEST = 8.0
"""Nats from 0 to the mean of a token at most: three in ten thousand of its probability are left,
and data still find the way back."""

DEFAULT_STRENGTHS = (4.0, 1.0)
"""Of the penalty around a prior, in weighted tokens."""


def _no_ids() -> Ids:
    return np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class Prior:
    """Means of a bias before any data: the penalty is ``l2/2 |delta - means|^2``.

    Attributes:
        name: of the knowledge behind it, for the settings of a bias.
        token_ids: (k,) sorted.
        means: (k,) nats; every other token has mean 0. In the unit of the reward where ``by_tau``.
        lifted: (j,) ids whose common shift costs no penalty, such as the tokens of all labels.
        strengths: of the penalty, in weighted tokens, to try with it.
        standing: the one of them whose bias is kept unless another is shown to be better, None
            where none has such a claim.
        by_tau: whether the means are what each token earns by its own text, where a rule about the
            text is the reward. A token that earns c has the mean ``c / tau``: the value that the
            target ``exp(r / tau)`` gives it if nothing else changes. It needs no completion, and
            holds for tokens never drawn. With it, 35 completions taught as much about stock words
            in stories as 700 without.
    """

    name: str
    token_ids: Ids
    means: Vector
    lifted: Ids = field(default_factory=_no_ids)
    strengths: tuple[float, ...] = DEFAULT_STRENGTHS
    standing: float | None = None
    by_tau: bool = False

    @classmethod
    def of(
        cls,
        name: str,
        means: Mapping[int, float],
        lifted: Ids | None = None,
        strengths: tuple[float, ...] = DEFAULT_STRENGTHS,
        standing: float | None = None,
    ) -> Prior:
        """From token id -> nats.

        Raises:
            InputError: a mean is not finite.
        """
        token_ids = np.array(sorted(means), np.int64)
        values = np.array([means[token] for token in token_ids.tolist()], np.float64)
        if not np.isfinite(values).all():
            raise InputError(f"the prior {name!r} has a mean that is not finite")
        shared = _no_ids() if lifted is None else np.unique(lifted).astype(np.int64)
        return cls(name, token_ids, values, shared, strengths, standing)

    def at(self, tau: float) -> Prior:
        """The prior of a fit at ``tau``: with ``by_tau`` no mean is farther than ``FARTHEST`` nats
        from 0.
        """
        if not self.by_tau:
            return self
        means = np.clip(self.means / positive("tau", tau), -FARTHEST, FARTHEST)
        return replace(self, means=means, by_tau=False)

    @property
    def every_id(self) -> Ids:
        """Every token that the prior says something of, sorted."""
        return np.union1d(self.token_ids, self.lifted)


def linear_term(table: LoggedPositions, weights: PositionWeights) -> Vector:
    """(s,) ``sum_m (w_m - b_m) 1{y_m = y} + sum_m b_m pi_0(y | m)``.

    Where all weights are equal, this is bit for bit the expected count: completions of the base
    model then teach exactly 0. table: of these positions, given that a token has an id.
    """
    counts = table.sampled_counts(weights.values - weights.baseline)
    if weights.baseline.any():
        counts += table.expected(np.zeros(len(counts)), weights.baseline)
    return counts


MOST_TURNS = 30
"""Most solves of one fit: shares settle within a handful, as one spelling soon has nearly all of
the weight.
"""
SETTLED = 1e-6
"""Largest change of a share for which no further solve is needed: none would change a bias by a
thousandth of a nat.
"""


def fit_sets(
    rollouts: Rollouts,
    table: LoggedPositions,
    solve: Callable[..., Fit],
    start: Fit | None = None,
) -> tuple[Fit, Rollouts]:
    """Solve, and with given answers also renew the shares of their spellings, in turn until they
    settle.

    solve: fits the projection to rollouts, starting at the fit ``start``. start: of the first solve
    where no answers are given. Returns the last fit, and the rollouts with the shares of the
    spellings under it.
    """
    if not rollouts.given.any():
        return solve(rollouts, start=start), rollouts
    fit = solve(rollouts, start=None)  # shares begin at the base model, and so does their fit
    for _ in range(MOST_TURNS):
        shares, _ = posterior_shares(rollouts, table, table.align(fit.token_ids, fit.delta))
        moved = np.nanmax(np.abs(shares - rollouts.shares), initial=0.0)
        rollouts = replace(rollouts, shares=shares)
        if moved <= SETTLED:
            break
        fit = solve(rollouts, start=fit)
    return fit, rollouts


def posterior_shares(
    rollouts: Rollouts, table: LoggedPositions, delta: Vector | None = None
) -> tuple[Vector, float]:
    """Compute (n,) shares of the given answers under the bias ``delta`` (s,) nats, 0 if None, and
    the sets' mean log-likelihood in nats.

    The spellings of an answer keep the sum of their shares, which is its weight; drawn completions
    keep NaN.
    """
    is_given = rollouts.given
    shares = np.full(len(is_given), np.nan)
    if not is_given.any():
        return shares, 0.0
    if delta is None:
        delta = np.zeros(len(table.token_ids))
    base = np.bincount(rollouts.rollout_of, weights=rollouts.logprobs, minlength=len(is_given))
    scores = (base + log_policy_ratios(rollouts, table, delta))[is_given]
    answers = np.unique(rollouts.weighed_together[is_given], return_inverse=True)[1]
    highest = np.full(int(answers.max()) + 1, -np.inf)
    np.maximum.at(highest, answers, scores)
    parts = np.exp(scores - highest[answers])
    totals = np.bincount(answers, weights=parts)
    weights = np.bincount(answers, weights=rollouts.shares[is_given])
    shares[is_given] = parts / totals[answers] * weights[answers]
    return shares, float((weights @ (highest + np.log(totals))) / weights.sum())


@dataclass(frozen=True, slots=True, eq=False)
class Fit:
    """A learned bias: ``delta`` (s,) in nats at temperature 1 for the sorted ``token_ids`` (s,); 0
    for any other token.

    gain: weighted log-likelihood over delta = 0, with the baseline in its linear term, nats per
    weighted token. iterations: of the solver. rollouts: their number.
    """

    token_ids: Ids
    delta: Vector
    gain: float
    iterations: int
    rollouts: int


def projection(
    rollouts: Rollouts,
    weights: PositionWeights,
    *,
    l2: float,
    support: npt.ArrayLike | None = None,
    start: Fit | None = None,
    next_token: LoggedPositions | None = None,
    prior: Prior | None = None,
) -> Fit:
    """Fit the bias, as in the module docstring, with these weights of the positions.

    l2: a pseudocount-like pull to 0 in weighted tokens. support: ids that may be nonzero (a sparse
    refit); all seen tokens if None. start: a fit to begin from, on any support. next_token:
    ``NextToken.of(rollouts)`` if available. prior: what the penalty pulls to, 0 if None; what it
    says of tokens off the support of ``next_token`` is left out. Raises InputError: bad options, no
    reward anywhere.
    """
    positive("l2", l2)
    positions: LoggedPositions = NextToken.of(rollouts) if next_token is None else next_token
    table = positions.named()
    if table.n_positions != len(rollouts.token_ids):
        raise InputError(
            f"next_token has {table.n_positions} positions, the rollouts {len(rollouts.token_ids)}"
        )
    if not weights.values.any():
        raise InputError(
            "no completion with a reward holds a token; raise max_tokens or check the reward"
        )
    center = None
    lifted = None
    if prior is not None:
        center = table.align(prior.token_ids, prior.means)
        if len(prior.lifted):
            lifted = _support(table, prior.lifted)
    begin = None
    if start is not None:
        begin = table.align(start.token_ids, start.delta)
    total = float(weights.values.sum())
    problem = Problem(
        lambda delta: table.potential(delta, weights.values),
        linear_term(table, weights),
        total,
        l2=l2,
        center=center,
        lifted=lifted,
        free=_support(table, support),
    )
    solution = problem.solve(begin)
    return Fit(
        token_ids=table.token_ids,
        delta=solution.x,
        gain=solution.value / total,
        iterations=solution.iterations,
        rollouts=len(rollouts.keys),
    )


def _support(table: LoggedPositions, support: npt.ArrayLike | None) -> Ids | None:
    """Indices of the wanted tokens that were seen."""
    if support is None:
        return None
    token_ids = np.unique(np.asarray(support, dtype=np.int64))
    _, indices, _ = np.intersect1d(table.token_ids, token_ids, return_indices=True)
    return indices.astype(np.int64)
