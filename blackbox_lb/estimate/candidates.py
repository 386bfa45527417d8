"""Candidate biases: one for each estimator setting of a sweep, already in the form that the provider takes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import numpy as np

from blackbox_lb.estimate.checks import Ids, Vector
from blackbox_lb.estimate.ips import IPS
from blackbox_lb.estimate.normaliser import NextToken
from blackbox_lb.estimate.projection import projection
from blackbox_lb.estimate.rollouts import Rollouts
from blackbox_lb.estimate.sparse import Sparse, above, against, sparsify, support_by_usage
from blackbox_lb.estimate.statistics import Statistics, Unobserved

__all__ = ["Candidate", "EstimatorName", "Limits", "Sweep", "candidates"]

EstimatorName: TypeAlias = Literal["projection", "ips"]


@dataclass(frozen=True, slots=True)
class Sweep:
    """Every combination of these is one candidate. ``l2`` belongs to ``projection``; ``alpha``, ``positions`` and ``unobserved``
    to ``ips``.

    ``alpha`` is relative to the mean weight. ``positions``: how many of each completion are drawn, None for all. ``unobserved``:
    what is done where the provider gave only a bound for the sampled token's logprob (see ``Statistics``).
    """

    estimator: EstimatorName = "projection"
    tau: tuple[float, ...] = (0.5,)
    l2: tuple[float, ...] = (5.0, 10.0)
    alpha: tuple[float, ...] = (0.05, 0.3)
    positions: int | None = None
    seed: int = 0
    unobserved: Unobserved = "bound"

    @property
    def rule(self) -> Unobserved | None:
        """``unobserved`` where the estimator reads the probabilities of sampled tokens at all."""
        return self.unobserved if self.estimator == "ips" else None


@dataclass(frozen=True, slots=True)
class Limits:
    """What the provider takes: at most ``entries`` tokens (None: no limit), nats in [low, high], whole numbers if ``integers``,
    no token id above ``highest_id`` (None: any).
    """

    entries: int | None
    low: float
    high: float
    integers: bool
    highest_id: int | None = None

    def forbidden(self, next_token: NextToken) -> Ids:
        """The ids on the support of ``next_token`` that may have no bias."""
        return above(next_token, self.highest_id)


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """``settings`` of the estimator; ``learned`` (s,) nats on the support of the rollouts; ``sparse``: what is sent."""

    settings: dict[str, float | int | None]
    learned: Vector
    sparse: Sparse

    @property
    def logit_bias(self) -> dict[int, float]:
        """Token id -> nats, what the provider is sent."""
        return dict(zip(self.sparse.token_ids.tolist(), self.sparse.values.tolist(), strict=True))


def candidates(rollouts: Rollouts, next_token: NextToken, sweep: Sweep, limits: Limits) -> Iterator[Candidate]:
    """The candidates of ``sweep``. ``next_token`` is ``NextToken.of(rollouts)``.

    Raises:
        InputError: no completion earned a reward, or a setting is out of range.
    """
    finite = rollouts.rewards[np.isfinite(rollouts.rewards)]
    if finite.size and np.ptp(finite) == 0:  # exp(r / tau) is one number or 0: tau is inert, as for log-accuracy
        sweep = replace(sweep, tau=sweep.tau[:1])
    make = _projected if sweep.estimator == "projection" else _inverse_propensity
    yield from make(rollouts, next_token, sweep, limits)


def _projected(rollouts: Rollouts, next_token: NextToken, sweep: Sweep, limits: Limits) -> Iterator[Candidate]:
    start = None
    for tau, l2 in itertools.product(sweep.tau, sorted(sweep.l2, reverse=True)):
        fit = start = projection(rollouts, tau=tau, l2=l2, next_token=next_token, start=start)
        learned = fit.delta
        support = _support(next_token, learned, limits)
        if support is not None:
            fit = projection(rollouts, tau=tau, l2=l2, next_token=next_token, start=fit, support=support)
        sparse = against(next_token, learned, _compiled(next_token, fit.delta, limits))
        yield Candidate({"tau": tau, "l2": l2}, learned, sparse)


def _support(next_token: NextToken, learned: Vector, limits: Limits) -> Ids | None:
    """The ids that a refit may bias; None where the provider takes everything that was learned."""
    forbidden = limits.forbidden(next_token)
    nonzero = next_token.token_ids[learned != 0]
    allowed = np.setdiff1d(nonzero, forbidden)
    if limits.entries is not None and len(allowed) > limits.entries:
        return support_by_usage(next_token, learned, limits.entries, forbidden=forbidden)
    return allowed if len(allowed) < len(nonzero) else None


def _inverse_propensity(rollouts: Rollouts, next_token: NextToken, sweep: Sweep, limits: Limits) -> Iterator[Candidate]:
    statistics = Statistics.of(rollouts, positions=sweep.positions, seed=sweep.seed, unobserved=sweep.unobserved)
    ips = IPS(statistics)
    for tau, alpha in itertools.product(sweep.tau, sweep.alpha):
        learned = next_token.align(ips.token_ids, ips.delta(tau, alpha, relative=True))
        settings = {"tau": tau, "alpha": alpha, "positions": sweep.positions}
        yield Candidate(settings, learned, _compiled(next_token, learned, limits))


def _compiled(next_token: NextToken, delta: Vector, limits: Limits) -> Sparse:
    return sparsify(
        next_token,
        delta,
        entries=limits.entries,
        low=limits.low,
        high=limits.high,
        integers=limits.integers,
        forbidden=limits.forbidden(next_token),
    )
