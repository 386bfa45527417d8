"""The linear term of the projection: weighted counts of the sampled tokens, less their noise.

Index letters: ``n`` rollouts, ``m`` positions, ``s`` the support. See ``inputs.weightings`` for the
baseline, which stands for the same counts by their expectation.
"""

from collections.abc import Iterator

import numpy as np

from blackbox_lb.estimate.inputs.checks import Vector
from blackbox_lb.estimate.inputs.rollouts import BASE, Rollouts
from blackbox_lb.estimate.inputs.weightings import PositionWeights
from blackbox_lb.estimate.next_token.potential import LoggedPositions


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
        own = weights.baseline
        if rollouts.origins is not None:
            own = np.where(rollouts.origins == number, own, 0.0)
        baseline = np.repeat(own, rollouts.lengths)
        if not baseline.any():
            continue
        if number == BASE:
            yield np.zeros(size), baseline
        else:
            policy = rollouts.policies[number - 1]
            yield table.align(policy.token_ids, policy.values), baseline
