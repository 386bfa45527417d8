"""Self-normalised inverse propensities: each token's mean weight over its own shares, shrunk by its number of rollouts."""

from __future__ import annotations

import numpy as np

from blackbox_lb.estimate.counting.ratio import Shrunk
from blackbox_lb.estimate.counting.statistics import Statistics
from blackbox_lb.estimate.inputs.checks import Ids, Vector


class SNIPS(Shrunk):
    """``Z(y) = sum_n v_n u_n(y) / sum_n u_n(y)`` with ``u_n(y) = sum_t 1{y_nt = y} / pi_0(y | x, y_<t)``, shrunk by ess(y).

    ``ess(y) = (sum_n u_n)^2 / sum_n u_n^2`` is the number of equally weighted rollouts with the precision of Z(y) (Kish 1965,
    section 11.7; the self-normalised estimator is Swaminathan and Joachims 2015, "The self-normalized estimator for counterfactual
    learning"). In the limit Z(y) is the mean of exp(r / tau) after ``do(y_t = y)`` over all positions t of all completions, so it
    credits no token with 1 / |Y| as the paper's Z_avg does where completions end at different lengths. Where P of T_n positions
    were drawn, u_n is T_n / P times their sum.

    One draw at a tiny pi_0 outweighs all others of its token. A ``clip`` in ``Statistics.of`` bounds that; as it falls to 1 the
    shares become counts and Z(y) the conditional ratio's.
    """

    def __init__(self, statistics: Statistics) -> None:
        """Raise InputError if there is no completion with a token, or no token with a logprob."""
        statistics.require("snips")
        sampled = statistics.token_ids
        # Z and ess do not depend on a token's scale; 1 / pi_0 may be beyond what float64 can square.
        sums, exponents = statistics.sums["shares"].scaled
        totals = sums[sampled, -1]
        ess = _effective_sizes(totals, exponents[sampled], statistics, sampled)
        super().__init__(statistics, sums[sampled, :-1], totals, ess)

    @property
    def ess(self) -> Vector:
        """(s,) the effective number of rollouts behind each token."""
        return self.evidence


def _effective_sizes(totals: Vector, exponents: Ids, statistics: Statistics, sampled: Ids) -> Vector:
    """(s,) ``(sum_n u)^2 / sum_n u^2``, 0 for a token without a share; ``sum_n u = totals 2**exponents``."""
    squares, powers = statistics.sums["squares"].scaled
    shared = totals > 0
    ratio = np.divide(totals**2, squares[sampled, 0], out=np.zeros_like(totals), where=shared)
    ess: Vector = np.ldexp(ratio, 2 * exponents - powers[sampled])
    # By Cauchy and Schwarz; rounding may leave the interval by an ulp.
    return np.where(shared, np.clip(ess, 1.0, statistics.cells[sampled]), 0.0)
