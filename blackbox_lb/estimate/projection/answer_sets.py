"""Given answers with several spellings: the likelihood is that of the set of spellings.

    maximise   sum_x log sum_{y in A(x)} exp(score(y | x)) - l2/2 |delta|^2,
    score(y | x) = sum_t log pi_delta(y_t | x, y_<t),

where A(x) are the accepted spellings of prompt x. Where a prompt has several answers a with wanted
shares s(a | x), the objective is the sum of ``s(a | x) log sum_{y in A(a)} exp(score)``; at its
maximum without a penalty the expected share of each answer over all prompts is the wanted one
(moment matching at temperature 1, whatever the split among spellings).

A spelling weighs its posterior share, ``exp(score(y)) / sum exp(score)``; with these weights fixed
the objective is the projection's, which lies below this one and touches it at delta
(majorise-minimise). So solving and renewing the
shares in turn never lowers it. Without it a fit moves probability from "Yes" to "yes".
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from blackbox_lb.estimate.inputs.checks import Vector
from blackbox_lb.estimate.inputs.rollouts import Rollouts
from blackbox_lb.estimate.next_token.potential import LoggedPositions
from blackbox_lb.estimate.projection.projection import Fit
from blackbox_lb.estimate.reweighting.divergence import log_policy_ratios

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
        moved = (
            np.nanmax(np.abs(shares - rollouts.shares), initial=0.0)
            if rollouts.shares is not None
            else 0.0
        )
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
    given = rollouts.given
    shares = np.full(len(given), np.nan)
    if not given.any():
        return shares, 0.0
    base = np.bincount(rollouts.rollout_of, weights=rollouts.logprobs, minlength=len(given))
    scores = (base + log_policy_ratios(rollouts, table, delta))[given]
    answers = np.unique(rollouts.weighed_together[given], return_inverse=True)[1]
    highest = np.full(int(answers.max()) + 1, -np.inf)
    np.maximum.at(highest, answers, scores)
    parts = np.exp(scores - highest[answers])
    totals = np.bincount(answers, weights=parts)
    before = (rollouts.shares if rollouts.shares is not None else np.ones(len(given)))[given]
    weights = np.bincount(answers, weights=before)
    shares[given] = parts / totals[answers] * weights[answers]
    return shares, float((weights @ (highest + np.log(totals))) / weights.sum())
