"""The conditional ratio: the weight of completions at a token's sampled positions, against their
weight at all positions.

Index letters: ``n`` rollouts, ``s`` the sampled tokens, ``j`` the taus of the statistics.
"""

import numpy as np

from blackbox_lb.estimate.counting.statistics import Statistics
from blackbox_lb.estimate.inputs.checks import Ids, Vector, positive


class TokenRatio:
    """``log[(kappa zbar + sum_n v_n c_n(y)) / (kappa + sum_n c_n(y))] - log zbar``, with
    v = exp(r / tau) and c_n(y) the samples of y in rollout n.

    A mean for each token, shrunk to that of all; a constant reward gives exactly 0.
    ``zbar = sum_n T_n v_n / sum_n T_n`` is the mean over token positions, T_n of each completion:
    the average of the tokens' means over the tokens sampled there. The mean over completions would
    lie above it where long ones are bad, and so every common token below every token that was
    never sampled.

    It needs no logprobs. It estimates ``E[v | y was sampled]``, observation and not intervention:
    a token that good prefixes tend to sample gets credit for their reward without it.

    Attributes:
        token_ids: (s,) the sampled tokens, sorted; all others are at 0.
        counts: (s,) times each was sampled.
    """

    token_ids: Ids
    counts: Vector

    def __init__(self, statistics: Statistics) -> None:
        """Raise InputError if there is no completion with a token."""
        statistics.require("ratio")
        self.token_ids = statistics.token_ids
        self.counts = statistics.counts[self.token_ids].astype(np.float64)
        self._sums = statistics.sums["counted"][self.token_ids]
        self._statistics = statistics

    def relative(self, tau: float) -> Vector:
        """(s,) each token's mean weight over ``zbar``, without shrinkage.

        Raises InputError: the statistics lack this tau, or no completion earned a reward (all are
        -inf).
        """
        sums: Vector = self._sums[:, self._statistics.column(tau)]
        zbar = self._statistics.total_weights(tau)[1] / self._statistics.tokens
        return sums / (self.counts * zbar)

    def delta(self, tau: float, kappa: float) -> Vector:
        """(s,) the bias in nats. ``kappa``: above 0, in samples of a token: a token sampled kappa
        times counts half.
        """
        prior = positive("kappa", kappa)
        return np.log(prior + self.counts * self.relative(tau)) - np.log(prior + self.counts)
