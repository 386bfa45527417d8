"""Means for each token. The conditional ratio: the weight of completions at a token's sampled
positions, against their weight at all positions. Self-normalised inverse propensities: each token's
mean weight over its own shares, shrunk by its rollouts.

Index letters: ``n`` rollouts, ``s`` the sampled tokens, ``j`` the taus of the statistics.
"""

import numpy as np

from blackbox_lb.estimate.counting.statistics import Statistics
from blackbox_lb.estimate.inputs.checks import Ids, Vector, positive


class Shrunk:
    """``delta(y) = log[(kappa zbar + e(y) Z(y)) / (kappa + e(y))] - log zbar``: a mean for each
    token, shrunk to that of all.

    ``Z(y) = sum_n v_n u_n(y) / sum_n u_n(y)`` with v = exp(r / tau); the shares u and the evidence
    e differ between estimators. A constant reward gives exactly 0. ``zbar = sum_n T_n v_n / sum_n
    T_n`` is the mean over token positions, T_n of each completion: the average of Z(y) over the
    tokens sampled there. The mean over completions would lie above it where long ones are bad, and
    so every common token below every token that was never sampled.

    token_ids: (s,) the sampled tokens, sorted; all others are at 0. evidence: (s,) e(y).
    """

    token_ids: Ids
    evidence: Vector

    def __init__(
        self, statistics: Statistics, sums: Vector, totals: Vector, evidence: Vector
    ) -> None:
        """sums: (s, j) ``sum_n v_n u_n(y)``, totals: (s,) ``sum_n u_n(y)``, both up to one factor
        for each token.
        """
        self.token_ids = statistics.token_ids
        self.evidence = evidence
        self._statistics, self._sums, self._totals = statistics, sums, totals

    def relative(self, tau: float) -> Vector:
        """(s,) ``Z(y) / zbar`` without shrinkage; 1 for a token without a share in any completion.

        Raises InputError: the statistics lack this tau, or no completion earned a reward (all are
        -inf).
        """
        sums: Vector = self._sums[:, self._statistics.column(tau)]
        zbar = self._statistics.total_weights(tau)[1] / self._statistics.tokens
        return np.divide(sums, self._totals * zbar, out=np.ones_like(sums), where=self._totals > 0)

    def delta(self, tau: float, kappa: float) -> Vector:
        """(s,) the bias in nats. ``kappa``: above 0, in the unit of the evidence: where e(y) =
        kappa, Z(y) counts half.
        """
        prior = positive("kappa", kappa)
        return np.log(prior + self.evidence * self.relative(tau)) - np.log(prior + self.evidence)


class Ratio(Shrunk):
    """``log[(kappa zbar + sum_n v_n c_n(y)) / (kappa + sum_n c_n(y))] - log zbar``, c_n(y) the
    samples of y in n.

    It needs no logprobs. The shares are counts, and so is the evidence. It estimates ``E[v | y was
    sampled]``, observation and not intervention: a token that good prefixes tend to sample gets
    credit for their reward without it.
    """

    def __init__(self, statistics: Statistics) -> None:
        """Raise InputError if there is no completion with a token."""
        statistics.require("ratio")
        sampled = statistics.token_ids
        counts = statistics.counts[sampled].astype(np.float64)
        super().__init__(statistics, statistics.sums["counted"][sampled], counts, counts)


class SNIPS(Shrunk):
    """``Z(y) = sum_n v_n u_n(y) / sum_n u_n(y)`` with ``u_n(y) = sum_t 1{y_nt = y} / pi_0(y | x,
    y_<t)``, shrunk by ess(y).

    ``ess(y) = (sum_n u_n)^2 / sum_n u_n^2`` is the number of equally weighted rollouts with the
    precision of Z(y) (Kish 1965, section 11.7; the self-normalised estimator is Swaminathan and
    Joachims 2015, "The self-normalized estimator for counterfactual learning"). In the limit Z(y)
    is the mean of exp(r / tau) after ``do(y_t = y)`` over all positions t of all completions, so it
    credits no token with 1 / |Y| as the paper's Z_avg does where completions end at different
    lengths. Where P of T_n positions were drawn, u_n is T_n / P times their sum.

    One draw at a tiny pi_0 outweighs all others of its token. A ``clip`` in the recipe bounds that;
    as it falls to 1 the shares become counts and Z(y) the conditional ratio's.
    """

    def __init__(self, statistics: Statistics) -> None:
        """Raise InputError if there is no completion with a token, or no token with a logprob."""
        statistics.require("snips")
        sampled = statistics.token_ids
        sums = statistics.sums["shares"][sampled]
        totals = sums[:, -1]
        squares = statistics.sums["squares"][sampled, 0]
        shared = totals > 0
        ess = np.divide(totals**2, squares, out=np.zeros_like(totals), where=shared)
        # By Cauchy and Schwarz; rounding may leave the interval by an ulp.
        ess = np.where(shared, np.clip(ess, 1.0, statistics.cells[sampled]), 0.0)
        super().__init__(statistics, sums[:, :-1], totals, ess)
