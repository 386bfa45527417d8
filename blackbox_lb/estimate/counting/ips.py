"""The paper's estimator: inverse-propensity scores of each token, smoothed into a bias by one logarithm."""

import math
from dataclasses import dataclass

import numpy as np

from blackbox_lb.errors import InputError
from blackbox_lb.estimate.counting.statistics import Statistics
from blackbox_lb.estimate.inputs.checks import Ids, Vector, positive

LARGEST_EXPONENT = 700.0


@dataclass(frozen=True, slots=True, eq=False)
class Clipping:
    """The part of Zhat that clipping inverse propensities removed, at one tau.

    drawn: positions in the estimate. positions: those with a clipped inverse propensity. completions: those with such a position.
    kept, removed: (s,) on ``IPS.token_ids``, ``Zhat / exp(log_scale)`` with clipping and the part it lacks.

    ``removed`` is the clipped minus the unclipped estimate on the same rollouts, sign reversed, so its expectation is exactly the
    downward bias by clipping, if the logprobs are the sampled tokens' own; bounds in their place add a downward bias of their
    own. It has the variance that clipping avoids, and shows nothing on a token that was never sampled.
    """

    drawn: int
    positions: int
    completions: int
    kept: Vector
    removed: Vector
    log_scale: float

    @property
    def removed_share(self) -> float:
        """The share of Zhat, summed over all tokens, that clipping removes, between 0 and 1; 0 where Zhat is 0 everywhere."""
        removed, whole = float(self.removed.sum()), float(self.kept.sum() + self.removed.sum())
        return removed / whole if whole > 0 else 0.0

    @property
    def bias(self) -> Vector:
        """(s,) the estimated ``E[Zhat] - Z``, at most 0, in the units of ``IPS.zhat``. InputError beyond float64, as there."""
        return -_unscaled(self.removed, self.log_scale)


class IPS:
    """Zhat for each tau of the statistics (the paper, sections "Method" and "Matrix form").

    ``token_ids``: (s,) the sampled tokens, sorted. Every other token has Zhat = 0. ``counts``: (s,) times sampled.
    """

    def __init__(self, statistics: Statistics) -> None:
        """Raise InputError if there is no completion with a token, or no token with a logprob."""
        statistics.require("ips")
        self._statistics = statistics
        self.n_used = statistics.n_used
        self.token_ids: Ids = np.flatnonzero(statistics.drawn_tokens)
        self.counts: Ids = statistics.counts[self.token_ids]
        names = statistics.sums.keys() & {"inverse", "removed"}
        self._sums = {name: statistics.sums[name].values[self.token_ids] for name in names}

    def scaled(self, tau: float) -> tuple[Vector, float]:
        """(s,) ``Zhat / exp(log_scale)`` and log_scale = max r / tau in nats, without overflow or loss.

        Raises InputError: the statistics lack this tau, or no completion earned a reward (all are -inf).
        """
        return self._mean("inverse", tau), self._statistics.log_scale(tau)

    def zhat(self, tau: float) -> Vector:
        """(s,) ``Zhat(y) = 1/N sum_n exp(r_n / tau) 1/P_n sum_p 1{y_t = y} / pi_0(y | x, y_<t)``, unbiased unless clipped.

        A reward of -inf weighs 0 at every tau. No constant is subtracted from the rewards, so values beyond float64
        raise InputError: use ``scaled``, or subtract a constant from all rewards (the policy stays the same).
        """
        return _unscaled(*self.scaled(tau))

    def clipping(self, tau: float) -> Clipping:
        """The loss by the ``clip`` of ``Statistics.of`` at this tau, and so its bias."""
        kept, log_scale = self.scaled(tau)
        return Clipping(
            drawn=self._statistics.drawn,
            positions=self._statistics.clipped,
            completions=self._statistics.clipped_rollouts,
            kept=kept,
            removed=self._mean("removed", tau) if "removed" in self._sums else np.zeros_like(kept),
            log_scale=log_scale,
        )

    def delta(self, tau: float, alpha: float, *, relative: bool = False) -> Vector:
        """(s,) ``log(alpha + Zhat(y)) - log(alpha)`` in nats: the paper's bias shifted so that unsampled tokens are at 0.

        ``alpha`` is the paper's absolute pseudocount, or, if ``relative``, a multiple of the mean weight
        ``1/N sum_n exp(r_n / tau)``, which keeps its meaning when rewards or tau change scale.
        """
        values, log_scale = self.scaled(tau)
        with np.errstate(divide="ignore"):  # a token seen only in completions of weight 0 has Zhat = 0 and delta = 0
            ratio = np.log(values) + log_scale - self._log_alpha(tau, alpha, relative)
        return np.logaddexp(0.0, ratio)

    def _log_alpha(self, tau: float, alpha: float, relative: bool) -> float:
        log_alpha = math.log(positive("alpha", alpha))
        if not relative:
            return log_alpha
        total, _ = self._statistics.total_weights(tau)
        return log_alpha + self._statistics.log_scale(tau) + math.log(total / self.n_used)

    def _mean(self, name: str, tau: float) -> Vector:
        """(s,) one of the sums at ``tau`` over N."""
        values: Vector = self._sums[name][:, self._statistics.column(tau)] / self.n_used
        return values


def _unscaled(values: Vector, log_scale: float) -> Vector:
    """``values * exp(log_scale)``; InputError where float64 cannot hold the largest."""
    largest = float(values.max(initial=0.0))
    highest = log_scale + math.log(largest) if largest > 0 else -math.inf
    if highest > LARGEST_EXPONENT:
        raise InputError(
            f"Zhat reaches exp({highest:.0f}), above the limit exp({LARGEST_EXPONENT:.0f}); raise tau or subtract a constant "
            f"from every reward, which leaves the policy as it is"
        )
    return values * math.exp(log_scale) if largest > 0 else values
