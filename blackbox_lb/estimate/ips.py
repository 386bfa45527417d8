"""The paper's estimator: inverse-propensity scores of each token, smoothed into a bias by one logarithm."""

from __future__ import annotations

import math

import numpy as np

from blackbox_lb.errors import InputError
from blackbox_lb.estimate.checks import Ids, Vector, positive
from blackbox_lb.estimate.statistics import Statistics

__all__ = ["IPS"]

LARGEST_EXPONENT = 700.0


class IPS:
    """Zhat for any tau from one matrix that is built once (the paper, sections "Method" and "Matrix form").

    ``token_ids``: (s,) the sampled tokens, sorted. Every other token has Zhat = 0. ``counts``: (s,) times sampled.
    """

    def __init__(self, statistics: Statistics) -> None:
        """InputError if there is no completion with a token, or none with a token that was drawn."""
        if statistics.n_used == 0:
            raise InputError(f"{len(statistics)} rollouts hold no token position; collect completions first")
        if not statistics.drawn.any():
            raise InputError(
                f"none of the {statistics.lengths.sum()} sampled tokens has a logprob, and those without are dropped; take the "
                f"bound for it (unobserved 'bound'), or use the projection, which needs neither"
            )
        used = statistics.lengths > 0
        self.n_used = statistics.n_used
        self._rewards = statistics.rewards[used]
        rows = statistics.matrix(1 + int(statistics.token_ids.max()))[used]
        self.token_ids: Ids = np.unique(rows.indices).astype(np.int64)
        # Support by rollouts, so that each estimate is one product with contiguous rows.
        self._matrix = rows.T.tocsr()[self.token_ids]
        ids, counts = statistics.token_counts()
        self.counts: Ids = counts[np.searchsorted(ids, self.token_ids)]

    def scaled(self, tau: float) -> tuple[Vector, float]:
        """(s,) ``Zhat / exp(log_scale)`` and log_scale = max r / tau in nats: never overflows, hides nothing.

        InputError if tau is not above 0 or no completion earned a reward (all are -inf).
        """
        weights, log_scale = self._weights(tau)
        return np.asarray(self._matrix @ weights, dtype=np.float64), log_scale

    def zhat(self, tau: float) -> Vector:
        """(s,) the unbiased ``Zhat(y) = 1/N sum_n exp(r_n / tau) 1/P_n sum_p 1{y_t = y} / pi_0(y | x, y_<t)``.

        A reward of -inf weighs 0 at every tau. No constant is subtracted from the rewards, so values beyond float64
        are refused with InputError: take ``scaled``, or subtract a constant from all rewards (it is the same policy).
        """
        values, log_scale = self.scaled(tau)
        highest = log_scale + math.log(values.max())
        if highest > LARGEST_EXPONENT:
            raise InputError(
                f"Zhat reaches exp({highest:.0f}) at tau {tau:g}, above the limit exp({LARGEST_EXPONENT:.0f}); raise "
                f"tau or subtract a constant from every reward, which leaves the policy as it is"
            )
        return values * math.exp(log_scale)

    def delta(self, tau: float, alpha: float, *, relative: bool = False) -> Vector:
        """(s,) ``log(alpha + Zhat(y)) - log(alpha)`` in nats: the paper's bias shifted so that unsampled tokens are at 0.

        ``alpha`` is the paper's absolute pseudocount, or, if ``relative``, a multiple of the mean weight
        ``1/N sum_n exp(r_n / tau)``, which keeps its meaning when rewards or tau change scale.
        """
        values, log_scale = self.scaled(tau)
        with np.errstate(divide="ignore"):  # a token seen only in completions of weight 0 has Zhat = 0 and delta = 0
            ratio = np.log(values) + log_scale - self._log_alpha(tau, alpha, relative)
        return np.logaddexp(0.0, ratio)

    def center(self, tau: float, alpha: float, vocab_size: int, *, relative: bool = False) -> float:
        """The paper's c: the mean of ``log(alpha + Zhat(y))`` over the whole vocabulary, unsampled tokens included.

        The paper's bias is ``delta + log(alpha) - c`` on sampled tokens and ``log(alpha) - c`` on all others.
        """
        self._fits(vocab_size)
        total = float(self.delta(tau, alpha, relative=relative).sum())
        return self._log_alpha(tau, alpha, relative) + total / vocab_size

    def centered(self, tau: float, alpha: float, vocab_size: int, *, relative: bool = False) -> Vector:
        """(vocab_size,) the paper's bias ``log(alpha + Zhat(y)) - c`` in nats; its mean is 0."""
        self._fits(vocab_size)
        full: Vector = np.zeros(vocab_size)
        full[self.token_ids] = self.delta(tau, alpha, relative=relative)
        return full - float(full.mean())

    def _weights(self, tau: float) -> tuple[Vector, float]:
        exponents = self._rewards / positive("tau", tau)
        log_scale = float(exponents.max())
        if log_scale == -math.inf:
            raise InputError(
                f"no completion earned a reward: all {self.n_used} are -inf; collect more rollouts, or use a reward "
                f"that the model sometimes earns"
            )
        return np.exp(exponents - log_scale), log_scale

    def _log_alpha(self, tau: float, alpha: float, relative: bool) -> float:
        log_alpha = math.log(positive("alpha", alpha))
        if not relative:
            return log_alpha
        weights, log_scale = self._weights(tau)
        return log_alpha + log_scale + math.log(weights.mean())

    def _fits(self, vocab_size: int) -> None:
        if int(self.token_ids[-1]) >= vocab_size:
            raise InputError(
                f"token id {int(self.token_ids[-1])} was sampled, but the vocabulary has {vocab_size} entries; "
                f"give the size of the model's output layer"
            )
