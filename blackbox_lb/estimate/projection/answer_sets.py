"""Given answers with several spellings: the likelihood is that of the set of spellings.

    maximise   sum_x log sum_{y in A(x)} exp(score(y | x)) - l2/2 |delta|^2,
    score(y | x) = sum_t log pi_delta(y_t | x, y_<t),

where A(x) are the accepted spellings of prompt x. A spelling weighs its posterior share,
``exp(score(y)) / sum exp(score)``; with these weights fixed the objective is the projection's,
which lies below this one and touches it at delta (majorise-minimise). So solving and renewing the
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

    The shares of a prompt keep their sum, which is the weight of the prompt; drawn completions keep
    NaN.
    """
    given = rollouts.given
    shares = np.full(len(given), np.nan)
    if not given.any():
        return shares, 0.0
    base = np.bincount(rollouts.rollout_of, weights=rollouts.logprobs, minlength=len(given))
    scores = (base + log_policy_ratios(rollouts, table, delta))[given]
    prompts = np.unique(rollouts.prompts[given], return_inverse=True)[1]
    highest = np.full(int(prompts.max()) + 1, -np.inf)
    np.maximum.at(highest, prompts, scores)
    parts = np.exp(scores - highest[prompts])
    totals = np.bincount(prompts, weights=parts)
    before = (rollouts.shares if rollouts.shares is not None else np.ones(len(given)))[given]
    weights = np.bincount(prompts, weights=before)
    shares[given] = parts / totals[prompts] * weights[prompts]
    return shares, float((weights @ (highest + np.log(totals))) / weights.sum())
