"""The projection as an estimator of the table: each l2 that is given or cross-validated, and how it is refitted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from blackbox_lb.estimate.choice.estimator import (
    EstimatorFacts,
    EstimatorInput,
    EstimatorSettings,
    LearnedVector,
    Refit,
)
from blackbox_lb.estimate.inputs.checks import Ids
from blackbox_lb.estimate.inputs.sweep import Sweep
from blackbox_lb.estimate.projection.cross_validation import L2Choice, choose_l2
from blackbox_lb.estimate.projection.projection import Fit, projection


class _Projection:
    """Reward-weighted maximum likelihood; each fit begins at the one before."""

    facts = EstimatorFacts(swept=("l2",), reads_lists=True, any_policy=True)

    def learn(self, data: EstimatorInput, sweep: Sweep) -> Iterator[LearnedVector]:
        """At each tau, the largest l2 first."""
        start = None
        for tau in sweep.tau:
            for l2, chosen in _strengths(data, sweep, tau):
                make = partial(projection, data.drawn, tau=tau, l2=l2, weights=sweep.weights, next_token=data.positions)
                fit = start = make(start=start)
                settings: EstimatorSettings = {"tau": tau, "l2": l2}
                if sweep.weights != "global":
                    settings["weights"] = sweep.weights
                refit = Refit(fit, tau, l2, sweep.weights, chosen, partial(_again, make, fit))
                yield LearnedVector(settings, fit.token_ids, fit.delta, refit)


PROJECTION = _Projection()


def _again(make: Callable[..., Fit], fit: Fit, support: Ids) -> Fit:
    """The fit to the tokens of ``support`` alone, from the one to all."""
    return make(start=fit, support=support)


def _strengths(data: EstimatorInput, sweep: Sweep, tau: float) -> list[tuple[float, L2Choice | None]]:
    """Each l2 of the sweep, the largest first, with how it was chosen where it was not given."""
    found: dict[float, L2Choice | None] = {value: None for value in sweep.l2 if not isinstance(value, str)}
    if "cv" in sweep.l2:
        choice = choose_l2(data.drawn, data.positions, tau=tau, weights=sweep.weights)
        found |= {choice.best: choice, choice.l2: choice}
    return sorted(found.items(), key=lambda pair: -pair[0])
