"""Estimators of the table that are running sums: each reads a token's value off the completions it was sampled in."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from blackbox_lb.errors import InputError
from blackbox_lb.estimate.choice.estimator import EstimatorFacts, EstimatorInput, EstimatorSettings, LearnedVector
from blackbox_lb.estimate.counting.clusters import TiedIPS
from blackbox_lb.estimate.counting.ips import IPS
from blackbox_lb.estimate.counting.ratio import Ratio, Shrunk
from blackbox_lb.estimate.counting.snips import SNIPS
from blackbox_lb.estimate.counting.statistics import Statistics
from blackbox_lb.estimate.inputs.checks import Vector
from blackbox_lb.estimate.inputs.sweep import Sweep

SNIPS_CLIP = 100.0
"""One larger inverse propensity leaves a token that was sampled fifty times an effective sample of about one."""


@dataclass(frozen=True, slots=True)
class _Smoothed:
    """Inverse propensities smoothed by each alpha, of tokens or of clusters of tokens."""

    facts: EstimatorFacts

    def learn(self, data: EstimatorInput, sweep: Sweep) -> Iterator[LearnedVector]:
        """At each tau and alpha."""
        clip = self.facts.clip_in(sweep)
        statistics = data.statistics(sweep, clip)
        ips = self._of(statistics, data)
        shared: EstimatorSettings = {"positions": sweep.positions, "clip": clip}
        if sweep.alpha_scale != "relative":
            shared["alpha_scale"] = sweep.alpha_scale
        for tau, alpha in itertools.product(sweep.tau, sweep.alpha):
            values = ips.delta(tau, alpha, relative=sweep.alpha_scale == "relative")
            if self.facts.clustered:
                values = _fewest(values)
            clipping = None if sweep.clip is None else ips.clipping(tau)
            yield LearnedVector({"tau": tau, "alpha": alpha, **shared}, ips.token_ids, values, clipping=clipping)

    def _of(self, statistics: Statistics, data: EstimatorInput) -> IPS:
        if not self.facts.clustered:
            return IPS(statistics)
        if data.clusters is None:
            raise InputError("clusters need the cluster of every token; give them, or use another estimator")
        return TiedIPS(statistics, data.clusters)


@dataclass(frozen=True, slots=True)
class _Shrunk:
    """A mean for each token, shrunk to that of all by each kappa."""

    facts: EstimatorFacts
    of: Callable[[Statistics], Shrunk]

    def learn(self, data: EstimatorInput, sweep: Sweep) -> Iterator[LearnedVector]:
        """At each tau and kappa."""
        clip = self.facts.clip_in(sweep)
        found = self.of(data.statistics(sweep, clip))
        shared: EstimatorSettings = {}
        if self.facts.reads_propensities:
            shared = {"positions": sweep.positions, "clip": clip}
        for tau, kappa in itertools.product(sweep.tau, sweep.kappa):
            yield LearnedVector({"tau": tau, "kappa": kappa, **shared}, found.token_ids, found.delta(tau, kappa))


def _fewest(values: Vector) -> Vector:
    """The same policy with the largest cluster at 0, which has the fewest entries."""
    levels, counts = np.unique(values, return_counts=True)
    moved: Vector = values - levels[counts.argmax()]
    return moved


IPS_OF_TOKENS = _Smoothed(EstimatorFacts(("alpha",), "ips", reads_propensities=True))
IPS_OF_CLUSTERS = _Smoothed(EstimatorFacts(("alpha",), "ips", reads_propensities=True, clustered=True))
SNIPS_OF_TOKENS = _Shrunk(EstimatorFacts(("kappa",), "snips", SNIPS_CLIP, reads_propensities=True), SNIPS)
RATIO_OF_TOKENS = _Shrunk(EstimatorFacts(("kappa",), "ratio"), Ratio)
