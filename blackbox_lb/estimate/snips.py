"""Self-normalised inverse propensities: each token's mean weight over its own shares, shrunk by how many rollouts it rests on."""

from __future__ import annotations

import numpy as np
from scipy import sparse

from blackbox_lb.estimate.checks import Vector
from blackbox_lb.estimate.ratio import Shrunk
from blackbox_lb.estimate.statistics import Statistics

__all__ = ["SNIPS"]


class SNIPS(Shrunk):
    """``Z(y) = sum_n v_n u_n(y) / sum_n u_n(y)`` with ``u_n(y) = sum_t 1{y_nt = y} / pi_0(y | x, y_<t)``, shrunk by ess(y).

    ``ess(y) = (sum_n u_n)^2 / sum_n u_n^2`` is the number of equally weighted rollouts that Z(y) is as good as (Kish 1965, section
    11.7; the self-normalised estimator is Swaminathan and Joachims 2015, "The self-normalized estimator for counterfactual
    learning"). In the limit Z(y) is the mean of exp(r / tau) after ``do(y_t = y)`` over all positions t of all completions, so it
    credits no token with 1 / |Y| as the paper's Z_avg does where completions end at different lengths. Where P of T_n positions
    were drawn, u_n is T_n / P times the sum over those.

    One draw at a tiny pi_0 outweighs all others of its token. A ``clip`` in ``Statistics.of`` bounds that; as it falls to 1 the
    shares become counts and Z(y) the conditional ratio's.
    """

    def __init__(self, statistics: Statistics) -> None:
        """InputError if there is no completion with a token, or no token with a logprob."""
        statistics.require_propensities()
        inverse = statistics.by_token(statistics.inverse)
        # Z and ess do not depend on a token's scale; 1 / pi_0 may be beyond what float64 can square.
        highest = np.maximum(inverse.max(axis=1).toarray().reshape(-1), 1.0)
        lengths = statistics.lengths.astype(np.float64)
        shares = sparse.csr_array(sparse.diags_array(1 / highest) @ inverse @ sparse.diags_array(lengths))
        super().__init__(statistics, shares, _effective_sizes(shares))

    @property
    def ess(self) -> Vector:
        """(s,) the effective number of rollouts behind each token."""
        return self.evidence


def _effective_sizes(shares: sparse.csr_array[np.float64]) -> Vector:
    """(s,) ``(sum_n u)^2 / sum_n u^2``, 0 for a token without a share."""
    sums = np.asarray(shares.sum(axis=1), dtype=np.float64)
    squares = np.asarray(shares.power(2).sum(axis=1), dtype=np.float64)
    return np.divide(sums**2, squares, out=np.zeros_like(sums), where=squares > 0)
