"""Estimators of the table that are running sums: a token's value comes from the completions that
sampled it.
"""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from blackbox_lb.estimate.choice.estimator import (
    EstimatorFacts,
    EstimatorInput,
    EstimatorSettings,
    LearnedVector,
)
from blackbox_lb.estimate.counting.ips import IPS
from blackbox_lb.estimate.counting.ratio import SNIPS, Ratio, Shrunk
from blackbox_lb.estimate.counting.statistics import Statistics
from blackbox_lb.estimate.inputs.sweep import Sweep

SNIPS_CLIP = 100.0
"""Largest inverse propensity: a larger one leaves a token with fifty samples an effective sample of
about one.
"""


@dataclass(frozen=True, slots=True)
class Smoothed:
    """Inverse propensities smoothed by each alpha."""

    facts: EstimatorFacts
    of: Callable[[Statistics], IPS]

    def learn(self, data: EstimatorInput, sweep: Sweep) -> Iterator[LearnedVector]:
        """At each tau and alpha."""
        clip = self.facts.clip_in(sweep)
        ips = self.of(data.statistics(sweep, clip))
        shared: EstimatorSettings = {"positions": sweep.positions, "clip": clip}
        if sweep.alpha_scale != "relative":
            shared["alpha_scale"] = sweep.alpha_scale
        for tau, alpha in itertools.product(sweep.tau, sweep.alpha):
            values = ips.delta(tau, alpha, relative=sweep.alpha_scale == "relative")
            yield LearnedVector({"tau": tau, "alpha": alpha, **shared}, ips.token_ids, values)


@dataclass(frozen=True, slots=True)
class _Shrunk:
    """A mean for each token, shrunk to the mean of all by each kappa."""

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
            yield LearnedVector(
                {"tau": tau, "kappa": kappa, **shared}, found.token_ids, found.delta(tau, kappa)
            )


IPS_OF_TOKENS = Smoothed(EstimatorFacts(("alpha",), "ips", reads_propensities=True), IPS)
SNIPS_OF_TOKENS = _Shrunk(
    EstimatorFacts(("kappa",), "snips", SNIPS_CLIP, reads_propensities=True), SNIPS
)
RATIO_OF_TOKENS = _Shrunk(EstimatorFacts(("kappa",), "ratio"), Ratio)
