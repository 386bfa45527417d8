"""The projection as an estimator of the table: each given or cross-validated l2, and its refit."""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from blackbox_lb.estimate.choice.estimator import (
    EstimatorFacts,
    EstimatorInput,
    EstimatorSettings,
    LearnedVector,
    Projected,
)
from blackbox_lb.estimate.inputs.checks import Ids
from blackbox_lb.estimate.inputs.rollouts import Rollouts
from blackbox_lb.estimate.inputs.sweep import Sweep
from blackbox_lb.estimate.inputs.weightings import Weighting, weighting
from blackbox_lb.estimate.next_token.potential import LoggedPositions
from blackbox_lb.estimate.projection.answer_sets import fit_sets, posterior_shares
from blackbox_lb.estimate.projection.cross_validation import L2Choice, choose_weighted_l2
from blackbox_lb.estimate.projection.projection import Fit, weighted_projection


class _Projection:
    """Reward-weighted maximum likelihood; each fit starts from the one before."""

    facts = EstimatorFacts(swept=("l2",), reads_lists=True, learns_answers=True)

    def learn(self, data: EstimatorInput, sweep: Sweep) -> Iterator[LearnedVector]:
        """At each tau and gamma, the largest l2 first."""
        start, drawn, table = None, data.drawn, data.positions
        if drawn.given.any():  # spellings have their base-model weights until a fit renews them
            drawn = replace(
                drawn, shares=posterior_shares(drawn, table, np.zeros(len(table.token_ids)))[0]
            )
        gammas = (None, *sweep.gamma) if drawn.costs is not None else (None,)
        for tau, gamma in itertools.product(sweep.tau, gammas):
            rule = weighting(tau, sweep.weights, gamma)
            settings: EstimatorSettings = {"tau": tau}
            if gamma is not None:
                settings["gamma"] = gamma
            for l2, chosen in _strengths(drawn, table, sweep, rule):
                make = partial(weighted_projection, rule=rule, l2=l2, next_token=table)
                if drawn.given.any():
                    fit, rollouts = fit_sets(drawn, table, make)
                else:
                    fit, rollouts = make(drawn, start=start), drawn
                start = fit
                own: EstimatorSettings = {**settings, "l2": l2}
                if sweep.weights != "global":
                    own["weights"] = sweep.weights
                again = partial(_again, make, rollouts, fit)
                projected = Projected(fit, rule, l2, chosen, again, rollouts.shares)
                yield LearnedVector(own, fit.token_ids, fit.delta, projected)


PROJECTION = _Projection()


def _again(make: Callable[..., Fit], rollouts: Rollouts, fit: Fit, support: Ids) -> Fit:
    """The fit to the tokens of ``support`` alone, from the one to all."""
    return make(rollouts, start=fit, support=support)


def _strengths(
    rollouts: Rollouts, table: LoggedPositions, sweep: Sweep, rule: Weighting
) -> list[tuple[float, L2Choice | None]]:
    """Each l2 of the sweep, the largest first, with its choice where it was not given."""
    found: dict[float, L2Choice | None] = {
        value: None for value in sweep.l2 if not isinstance(value, str)
    }
    if "cv" in sweep.l2:
        choice = choose_weighted_l2(rollouts, table, rule)
        found |= {choice.best: choice, choice.l2: choice}
    return sorted(found.items(), key=lambda pair: -pair[0])
