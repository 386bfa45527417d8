"""The paper's estimator: inverse-propensity scores of each token, smoothed into a bias by one
logarithm.
"""

import math

import numpy as np

from blackbox_lb.estimate.counting.statistics import Statistics
from blackbox_lb.estimate.inputs.checks import Ids, Vector, positive


class TokenIPS:
    """Zhat for each tau of the statistics (the paper, sections "Method" and "Matrix form").

    ``token_ids``: (s,) the sampled tokens, sorted. Every other token has Zhat = 0. ``counts``: (s,)
    times sampled.
    """

    def __init__(self, statistics: Statistics) -> None:
        """Raise InputError if there is no completion with a token, or no token with a logprob."""
        statistics.require("ips")
        self._statistics = statistics
        self.n_used = statistics.n_used
        self.token_ids: Ids = np.flatnonzero(statistics.drawn_tokens)
        self.counts: Ids = statistics.counts[self.token_ids]
        self._inverse = statistics.sums["inverse"][self.token_ids]

    def scaled(self, tau: float) -> tuple[Vector, float]:
        """(s,) ``Zhat / exp(log_scale)`` and log_scale = max r / tau in nats, without overflow or
        loss, with ``Zhat(y) = 1/N sum_n exp(r_n / tau) 1/P_n sum_p 1{y_t = y} / pi_0(y | x,
        y_<t)``, unbiased unless clipped.

        A reward of -inf weighs 0 at every tau. Raises InputError: the statistics lack this tau, or
        no completion earned a reward (all are -inf).
        """
        values: Vector = self._inverse[:, self._statistics.column(tau)] / self.n_used
        return values, self._statistics.log_scale(tau)

    def delta(self, tau: float, alpha: float, *, relative: bool = False) -> Vector:
        """(s,) ``log(alpha + Zhat(y)) - log(alpha)`` in nats: the paper's bias shifted so that
        unsampled tokens are at 0.

        ``alpha`` is the paper's absolute pseudocount, or, if ``relative``, a multiple of the mean
        weight ``1/N sum_n exp(r_n / tau)``, which keeps its meaning when rewards or tau change
        scale.
        """
        values, log_scale = self.scaled(tau)
        with np.errstate(
            divide="ignore"
        ):  # a token seen only in completions of weight 0 has Zhat = 0 and delta = 0
            ratio = np.log(values) + log_scale - self._log_alpha(tau, alpha, relative)
        return np.logaddexp(0.0, ratio)

    def _log_alpha(self, tau: float, alpha: float, relative: bool) -> float:
        log_alpha = math.log(positive("alpha", alpha))
        if not relative:
            return log_alpha
        total, _ = self._statistics.total_weights(tau)
        return log_alpha + self._statistics.log_scale(tau) + math.log(total / self.n_used)
