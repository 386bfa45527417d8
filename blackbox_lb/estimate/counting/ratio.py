"""The conditional ratio: the weight of completions at a token's sampled positions, against their weight at all positions.

Index letters: ``n`` rollouts, ``s`` the sampled tokens, ``j`` the taus of the statistics.
"""

from __future__ import annotations

import numpy as np

from blackbox_lb.estimate.counting.statistics import Statistics
from blackbox_lb.estimate.inputs.checks import Ids, Vector, positive


class Shrunk:
    """``delta(y) = log[(kappa zbar + e(y) Z(y)) / (kappa + e(y))] - log zbar``: a mean for each token, shrunk to that of all.

    ``Z(y) = sum_n v_n u_n(y) / sum_n u_n(y)`` with v = exp(r / tau); the shares u and the evidence e differ between estimators.
    A constant reward gives exactly 0. ``zbar = sum_n T_n v_n / sum_n T_n`` is the mean over token positions, T_n of each
    completion: the average of Z(y) over the tokens sampled there. The mean over completions would lie above it where long ones
    are bad, and so every common token below every token that was never sampled.

    token_ids: (s,) the sampled tokens, sorted; all others are at 0. counts: (s,) times sampled. evidence: (s,) e(y).
    """

    token_ids: Ids
    counts: Ids
    evidence: Vector

    def __init__(self, statistics: Statistics, sums: Vector, totals: Vector, evidence: Vector) -> None:
        """sums: (s, j) ``sum_n v_n u_n(y)``, totals: (s,) ``sum_n u_n(y)``, both up to one factor for each token."""
        self.token_ids = statistics.token_ids
        self.counts = statistics.counts[self.token_ids]
        self.evidence = evidence
        self._statistics, self._sums, self._totals = statistics, sums, totals

    def relative(self, tau: float) -> Vector:
        """(s,) ``Z(y) / zbar`` without shrinkage; 1 for a token without a share in any completion.

        Raises InputError: the statistics lack this tau, or no completion earned a reward (all are -inf).
        """
        sums: Vector = self._sums[:, self._statistics.column(tau)]
        zbar = self._statistics.total_weights(tau)[1] / self._statistics.tokens
        return np.divide(sums, self._totals * zbar, out=np.ones_like(sums), where=self._totals > 0)

    def delta(self, tau: float, kappa: float) -> Vector:
        """(s,) the bias in nats. ``kappa``: above 0, in the unit of the evidence: where e(y) = kappa, Z(y) counts half."""
        prior = positive("kappa", kappa)
        return np.log(prior + self.evidence * self.relative(tau)) - np.log(prior + self.evidence)


class Ratio(Shrunk):
    """``log[(kappa zbar + sum_n v_n c_n(y)) / (kappa + sum_n c_n(y))] - log zbar``, c_n(y) the samples of y in n.

    It needs no logprobs. The shares are counts, and so is the evidence. It estimates ``E[v | y was sampled]``, observation and not
    intervention: a token that good prefixes tend to sample gets credit for their reward without it.
    """

    def __init__(self, statistics: Statistics) -> None:
        """Raise InputError if there is no completion with a token."""
        statistics.require("ratio")
        sampled = statistics.token_ids
        counts = statistics.counts[sampled].astype(np.float64)
        super().__init__(statistics, statistics.sums["counted"].values[sampled], counts, counts)
