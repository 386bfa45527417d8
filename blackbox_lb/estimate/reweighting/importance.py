"""Importance: the likelihood of logged completions under a biased policy, relative to the policies that drew them.

Index letters: ``n`` completions, ``m`` their positions, ``s`` the support, ``j`` rounds. Values in nats.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from blackbox_lb.errors import InputError
from blackbox_lb.estimate.inputs.checks import Vector
from blackbox_lb.estimate.inputs.rollouts import Rollouts
from blackbox_lb.estimate.next_token.next_token import NextToken
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


def log_mixture_ratios(rollouts: Rollouts, next_token: NextToken, deltas: Sequence[npt.ArrayLike], counts: Sequence[int]) -> Vector:
    """(n,) ``log p_0(y_n) - log sum_j (N_j / N) p_{delta_j}(y_n)``: the balance heuristic of multiple importance sampling.

    deltas: the bias (s,) of each round. counts: N_j, the number of its rollouts. With the weights exp of this estimate, averages of
    all rollouts, from any round, are averages under the base (Veach and Guibas, "Optimally combining sampling techniques for Monte
    Carlo rendering", 1995). A weight is at most N / N_j of a round without a bias, so later rounds can never drown the
    base's completions. InputError: no round, or counts that do not add up to the rollouts.
    """
    if len(deltas) != len(counts) or sum(counts) != len(rollouts.keys) or min(counts, default=0) < 1:
        raise InputError(
            f"{len(deltas)} biases drew {list(counts)} rollouts, {len(rollouts.keys)} are given; each bias must have drawn at "
            f"least one, and all together as many as there are"
        )
    shares = np.log(np.asarray(counts, dtype=np.float64) / sum(counts))
    terms = [share + log_policy_ratios(rollouts, next_token, delta) for share, delta in zip(shares, deltas, strict=True)]
    return np.asarray(-np.logaddexp.reduce(terms, axis=0), dtype=np.float64)
