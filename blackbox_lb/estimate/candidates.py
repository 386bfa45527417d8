"""Candidate biases: one for each estimator setting of a sweep, already in the form that the provider takes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import numpy as np

from blackbox_lb.estimate.checks import Vector
from blackbox_lb.estimate.ips import IPS
from blackbox_lb.estimate.normaliser import NextToken
from blackbox_lb.estimate.projection import projection
from blackbox_lb.estimate.rollouts import Rollouts
from blackbox_lb.estimate.sparse import Sparse, against, sparsify, support_by_usage
from blackbox_lb.estimate.statistics import Statistics

__all__ = ["Candidate", "EstimatorName", "Limits", "Sweep", "candidates"]

EstimatorName: TypeAlias = Literal["projection", "ips"]


@dataclass(frozen=True, slots=True)
class Sweep:
    """Every combination of these is one candidate. ``l2`` belongs to ``projection``; ``alpha`` and ``positions`` to ``ips``.

    ``alpha`` is relative to the mean weight. ``positions``: how many of each completion are drawn, None for all.
    """

    estimator: EstimatorName = "projection"
    tau: tuple[float, ...] = (0.5,)
    l2: tuple[float, ...] = (5.0, 10.0)
    alpha: tuple[float, ...] = (0.05, 0.3)
    positions: int | None = None
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Limits:
    """What the provider takes: at most ``entries`` tokens (None: no limit), nats in [low, high], whole numbers if ``integers``."""

    entries: int | None
    low: float
    high: float
    integers: bool


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
        if limits.entries is not None and int((learned != 0).sum()) > limits.entries:
            support = support_by_usage(next_token, learned, limits.entries)
            fit = projection(rollouts, tau=tau, l2=l2, next_token=next_token, start=fit, support=support)
        sparse = against(next_token, learned, _compiled(next_token, fit.delta, limits))
        yield Candidate({"tau": tau, "l2": l2}, learned, sparse)


def _inverse_propensity(rollouts: Rollouts, next_token: NextToken, sweep: Sweep, limits: Limits) -> Iterator[Candidate]:
    ips = IPS(Statistics.of(rollouts, positions=sweep.positions, seed=sweep.seed))
    for tau, alpha in itertools.product(sweep.tau, sweep.alpha):
        learned = next_token.align(ips.token_ids, ips.delta(tau, alpha, relative=True))
        settings = {"tau": tau, "alpha": alpha, "positions": sweep.positions}
        yield Candidate(settings, learned, _compiled(next_token, learned, limits))


def _compiled(next_token: NextToken, delta: Vector, limits: Limits) -> Sparse:
    return sparsify(
        next_token, delta, entries=limits.entries, low=limits.low, high=limits.high, integers=limits.integers
    )
