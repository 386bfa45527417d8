"""Importance: how likely logged completions are under a biased policy, against the policy that drew them.

Index letters: ``n`` completions, ``m`` their positions. Values in nats.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from blackbox_lb.errors import InputError
from blackbox_lb.estimate.checks import Vector
from blackbox_lb.estimate.normaliser import NextToken
from blackbox_lb.estimate.rollouts import Rollouts

__all__ = ["log_policy_ratios"]


def log_policy_ratios(rollouts: Rollouts, next_token: NextToken, delta: npt.ArrayLike) -> Vector:
    """(n,) ``log p_delta(y_n) - log p_0(y_n) = sum_t [delta(y_nt) - log sum_y pi_0(y | prefix_nt) exp(delta(y))]``.

    next_token: of these rollouts, ``delta``: (s,) nats on its support. Tokens without an id are conditioned out of both policies
    (see ``NextToken.named``). A completion without a token has 0. InputError: ``next_token`` is of other rollouts.
    """
    if next_token.n_positions != len(rollouts.token_ids):
        raise InputError(f"next_token has {next_token.n_positions} positions, the rollouts {len(rollouts.token_ids)}")
    table, bias = next_token.named(), np.asarray(delta, dtype=np.float64)
    steps = bias[table.sampled] - table.log_normaliser(bias)
    return np.bincount(rollouts.rollout_of, weights=steps, minlength=len(rollouts.keys)).astype(np.float64)
