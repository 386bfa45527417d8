"""The projection: the fixed bias closest to the reward-tilted model, by reward-weighted maximum
likelihood.

The best fixed bias for the target ``p* ~ p_0 exp(r / tau)`` (the paper, "KL-regularized optimum")
minimises ``KL(p* || p_delta)``. On logged rollouts that is

    maximise   sum_n w_n sum_t [ delta(y_nt) - log sum_y pi_0(y | x_n, y_n<t) exp(delta(y)) ]
               - l2/2 |delta - center|^2,

with ``w_n = exp(r_n / tau)`` scaled to mean 1. It is concave and never reads the sampled token's
own probability. The part of the weights that all completions share is counted by expectation and
not from samples (``linear_term``), so that equal rewards give a bias of exactly 0. The
center is 0 unless a ``Prior`` says what tokens are worth before any data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from blackbox_lb.errors import InputError
from blackbox_lb.estimate.inputs.checks import Ids, Vector, positive
from blackbox_lb.estimate.inputs.prior import Prior
from blackbox_lb.estimate.inputs.rollouts import BASE, Rollouts
from blackbox_lb.estimate.inputs.weightings import PositionWeights, Weighting
from blackbox_lb.estimate.next_token.next_token import NextToken
from blackbox_lb.estimate.next_token.potential import LoggedPositions
from blackbox_lb.estimate.projection.concave_problem import maximise
from blackbox_lb.estimate.reweighting.divergence import log_policy_ratios
from blackbox_lb.estimate.reweighting.weight_diagnostics import effective_sample_size


def linear_term(rollouts: Rollouts, table: LoggedPositions, weights: PositionWeights) -> Vector:
    """(s,) ``sum_m (w_m - b_m) 1{y_m = y} + sum_m b_m pi(y | m)``, pi the policy that drew m.

    Where all weights are equal, this is bit for bit the expected count: completions of the base
    model then teach exactly 0. table: of these rollouts, given that a token has an id.
    """
    counts = table.sampled_counts(differences(rollouts, weights))
    for bias, baseline in by_policy(rollouts, table, weights):
        counts += table.expected(bias, baseline)
    return counts


def linear_terms(
    rollouts: Rollouts, table: LoggedPositions, weights: PositionWeights, delta: Vector
) -> Vector:
    """(n,) each rollout's part of ``linear_term . delta``, for ``delta`` (s,)."""
    parts = differences(rollouts, weights) * delta[table.sampled]
    for bias, baseline in by_policy(rollouts, table, weights):
        parts += baseline * table.mean(delta, bias)
    return rollouts.summed(parts)


def differences(rollouts: Rollouts, weights: PositionWeights) -> Vector:
    """(m,) the part of each weight that samples count: above or below the baseline."""
    return weights.values - np.repeat(weights.baseline, rollouts.lengths)


def by_policy(
    rollouts: Rollouts, table: LoggedPositions, weights: PositionWeights
) -> Iterator[tuple[Vector, Vector]]:
    """The bias (s,) of each policy that drew completions with a baseline, 0 for the base model, and
    the baseline (m,) of its positions, 0 at the others.
    """
    size = len(table.token_ids)
    for number in range(len(rollouts.policies) + 1):
        group_baseline = weights.baseline
        if rollouts.origins is not None:
            group_baseline = np.where(rollouts.origins == number, group_baseline, 0.0)
        baseline = np.repeat(group_baseline, rollouts.lengths)
        if not baseline.any():
            continue
        if number == BASE:
            yield np.zeros(size), baseline
        else:
            policy = rollouts.policies[number - 1]
            yield table.align(policy.token_ids, policy.values), baseline


MOST_TURNS = 30
"""Most solves of one fit: shares settle within a handful, as one spelling soon has nearly all of
the weight.
"""
SETTLED = 1e-6
"""Largest change of a share for which no further solve is needed: none would change a bias by a
thousandth of a nat.
"""


def fit_sets(
    rollouts: Rollouts, table: LoggedPositions, solve: Callable[..., Fit]
) -> tuple[Fit, Rollouts]:
    """Solve and renew the shares in turn until they settle. ``solve``: fits the projection to
    rollouts, starting at the fit ``start``. Returns the last fit, and the rollouts with the shares
    of the spellings under it."""
    fit = solve(rollouts, start=None)
    for _ in range(MOST_TURNS):
        shares, _ = posterior_shares(rollouts, table, table.align(fit.token_ids, fit.delta))
        moved = 0.0
        if rollouts.shares is not None:
            moved = np.nanmax(np.abs(shares - rollouts.shares), initial=0.0)
        rollouts = replace(rollouts, shares=shares)
        if moved <= SETTLED:
            break
        fit = solve(rollouts, start=fit)
    return fit, rollouts


def posterior_shares(
    rollouts: Rollouts, table: LoggedPositions, delta: Vector
) -> tuple[Vector, float]:
    """Compute (n,) shares of the given answers under the bias ``delta`` (s,) nats, and the sets'
    mean log-likelihood in nats.

    The spellings of an answer keep the sum of their shares, which is its weight; drawn completions
    keep NaN.
    """
    is_given = rollouts.given
    shares = np.full(len(is_given), np.nan)
    if not is_given.any():
        return shares, 0.0
    base = np.bincount(rollouts.rollout_of, weights=rollouts.logprobs, minlength=len(is_given))
    scores = (base + log_policy_ratios(rollouts, table, delta))[is_given]
    answers = np.unique(rollouts.weighed_together[is_given], return_inverse=True)[1]
    highest = np.full(int(answers.max()) + 1, -np.inf)
    np.maximum.at(highest, answers, scores)
    parts = np.exp(scores - highest[answers])
    totals = np.bincount(answers, weights=parts)
    before = (rollouts.shares if rollouts.shares is not None else np.ones(len(is_given)))[is_given]
    weights = np.bincount(answers, weights=before)
    shares[is_given] = parts / totals[answers] * weights[answers]
    return shares, float((weights @ (highest + np.log(totals))) / weights.sum())


@dataclass(frozen=True, slots=True, eq=False)
class Fit:
    """A learned bias: ``delta`` (s,) in nats at temperature 1 for the sorted ``token_ids`` (s,); 0
    for any other token.

    gain: weighted log-likelihood over delta = 0, with the baseline in its linear term, nats per
    weighted token. shortfall: estimated distance to the maximum in the same unit; converged: it is
    below 1e-7. effective_sample_size: of the rollouts' mean weights. rollouts: their number.
    """

    token_ids: Ids
    delta: Vector
    gain: float
    converged: bool
    shortfall: float
    iterations: int
    effective_sample_size: float
    rollouts: int


def projection(
    rollouts: Rollouts,
    rule: Weighting,
    *,
    l2: float,
    support: npt.ArrayLike | None = None,
    start: Fit | None = None,
    next_token: LoggedPositions | None = None,
    prior: Prior | None = None,
) -> Fit:
    """Fit the bias, as in the module docstring, with the weights of ``rule``.

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
    weights = rule.weights(rollouts)
    if not weights.values.any():
        raise InputError(
            "no completion with a reward holds a token; raise max_tokens or check the reward"
        )
    center = None
    lifted = None
    if prior is not None:
        center = table.align(prior.token_ids, prior.means)
        lifted = None
        if len(prior.lifted):
            lifted = _support(table, prior.lifted)
    begin = None
    if start is not None:
        begin = table.align(start.token_ids, start.delta)
    maximum = maximise(
        linear_term(rollouts, table, weights),
        table,
        weights.values,
        l2=l2,
        support=_support(table, support),
        start=begin,
        center=center,
        lifted=lifted,
    )
    return Fit(
        token_ids=table.token_ids,
        delta=maximum.delta,
        gain=maximum.value / float(weights.values.sum()),
        converged=maximum.converged,
        shortfall=maximum.shortfall,
        iterations=maximum.iterations,
        effective_sample_size=effective_sample_size(weights.of_rollouts(rollouts)),
        rollouts=len(rollouts.keys),
    )


def _support(table: LoggedPositions, support: npt.ArrayLike | None) -> Ids | None:
    """Indices of the wanted tokens that were seen."""
    if support is None:
        return None
    token_ids = np.unique(np.asarray(support, dtype=np.int64))
    _, indices, _ = np.intersect1d(table.token_ids, token_ids, return_indices=True)
    return indices.astype(np.int64)
