"""Importance: the likelihood of logged completions under a biased policy, relative to the base.

Index letters: ``n`` completions, ``m`` their positions, ``s`` the support. Values in nats.
"""

import numpy as np
import numpy.typing as npt

from blackbox_lb.errors import InputError
from blackbox_lb.estimate.inputs.checks import Vector
from blackbox_lb.estimate.inputs.rollouts import Rollouts
from blackbox_lb.estimate.next_token.parallel import stretches, tally
from blackbox_lb.estimate.next_token.potential import LoggedPositions


def log_policy_ratios(rollouts: Rollouts, next_token: LoggedPositions, delta: npt.ArrayLike) -> Vector:
    """(n,) ``log p_delta(y_n) - log p_0(y_n) = sum_t [delta(y_nt) - log sum_y pi_0(y | prefix_nt) exp(delta(y))]``.

    next_token: of these rollouts, ``delta``: (s,) nats on its support. The sum is over all tokens, those without an id at bias
    0, because a bias on the others makes these rarer or commoner. A completion without a token has 0, and so has an end token that
    the provider does not list. Raises InputError: ``next_token`` is of other rollouts.
    """
    if next_token.n_positions != len(rollouts.token_ids):
        raise InputError(f"next_token has {next_token.n_positions} positions, the rollouts {len(rollouts.token_ids)}")
    bias, owner = np.asarray(delta, dtype=np.float64), np.arange(len(rollouts.keys), dtype=np.int32)
    steps = next_token.log_normaliser(bias)
    for at in stretches(len(steps)):
        steps[at] = bias[next_token.sampled[at]] - steps[at]
    ratios = np.zeros(len(rollouts.keys))
    tally(ratios, np.repeat(owner, rollouts.lengths), steps)
    return ratios
