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
from blackbox_lb.estimate.counting.ips import TokenIPS
from blackbox_lb.estimate.counting.ratio import TokenRatio
from blackbox_lb.estimate.counting.statistics import Statistics
from blackbox_lb.estimate.inputs.sweep import Sweep


@dataclass(frozen=True, slots=True)
class Smoothed:
    """Inverse propensities smoothed by each alpha."""

    facts: EstimatorFacts
    of: Callable[[Statistics], TokenIPS]

    def learn(self, data: EstimatorInput, sweep: Sweep) -> Iterator[LearnedVector]:
        """At each tau and alpha."""
        ips = self.of(data.statistics(sweep))
        shared: EstimatorSettings = {"positions": sweep.positions, "clip": sweep.clip}
        if sweep.alpha_scale != "relative":
            shared["alpha_scale"] = sweep.alpha_scale
        for tau, alpha in itertools.product(sweep.tau, sweep.alpha):
            values = ips.delta(tau, alpha, relative=sweep.alpha_scale == "relative")
            yield LearnedVector({"tau": tau, "alpha": alpha, **shared}, ips.token_ids, values)


@dataclass(frozen=True, slots=True)
class Shrunk:
    """A mean for each token, shrunk to the mean of all by each kappa."""

    facts: EstimatorFacts

    def learn(self, data: EstimatorInput, sweep: Sweep) -> Iterator[LearnedVector]:
        """At each tau and kappa."""
        ratio = TokenRatio(data.statistics(sweep))
        for tau, kappa in itertools.product(sweep.tau, sweep.kappa):
            yield LearnedVector(
                {"tau": tau, "kappa": kappa}, ratio.token_ids, ratio.delta(tau, kappa)
            )


IPS_OF_TOKENS = Smoothed(EstimatorFacts(("alpha",), "ips", reads_propensities=True), TokenIPS)
RATIO_OF_TOKENS = Shrunk(EstimatorFacts(("kappa",), "ratio"))
