"""The projection as an estimator of the table: each given or cross-validated l2, and its refit."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from blackbox_lb.estimate.choice.estimator import (
    EstimatorFacts,
    EstimatorInput,
    EstimatorSettings,
    LearnedVector,
    Refit,
)
from blackbox_lb.estimate.inputs.checks import Ids
from blackbox_lb.estimate.inputs.rollouts import Rollouts
from blackbox_lb.estimate.inputs.sweep import Sweep
from blackbox_lb.estimate.next_token.potential import LoggedPositions
from blackbox_lb.estimate.projection.answer_sets import fit_sets, posterior_shares
from blackbox_lb.estimate.projection.cross_validation import L2Choice, choose_l2
from blackbox_lb.estimate.projection.projection import Fit, projection


class _Projection:
    """Reward-weighted maximum likelihood; each fit starts from the one before."""

    facts = EstimatorFacts(swept=("l2",), reads_lists=True, learns_answers=True)

    def learn(self, data: EstimatorInput, sweep: Sweep) -> Iterator[LearnedVector]:
        """At each tau, the l2 of the largest held-out likelihood first, where cross-validation was
        asked; else the largest.
        """
        start, drawn, table = None, data.drawn, data.positions
        if drawn.given.any():  # spellings have their base-model weights until a fit renews them
            drawn = replace(
                drawn, shares=posterior_shares(drawn, table, np.zeros(len(table.token_ids)))[0]
            )
        for tau in sweep.tau:
            strengths, choice = _strengths(drawn, table, sweep, tau)
            learned = dict[float, LearnedVector]()
            for l2 in strengths:
                make = partial(projection, tau=tau, l2=l2, weights=sweep.weights, next_token=table)
                if drawn.given.any():
                    fit, rollouts = fit_sets(drawn, table, make)
                else:
                    fit, rollouts = make(drawn, start=start), drawn
                start = fit
                settings: EstimatorSettings = {"tau": tau, "l2": l2}
                if sweep.weights != "global":
                    settings["weights"] = sweep.weights
                refit = Refit(
                    fit,
                    tau,
                    l2,
                    sweep.weights,
                    choice if choice is not None and l2 in (choice.best, choice.l2) else None,
                    partial(_again, make, rollouts, fit),
                    rollouts.shares,
                )
                learned[l2] = LearnedVector(settings, fit.token_ids, fit.delta, refit)
            yield from (learned[l2] for l2 in _likeliest_first(strengths, choice))


PROJECTION = _Projection()


def _again(make: Callable[..., Fit], rollouts: Rollouts, fit: Fit, support: Ids) -> Fit:
    """The fit to the tokens of ``support`` alone, from the one to all."""
    return make(rollouts, start=fit, support=support)


def _strengths(
    rollouts: Rollouts, table: LoggedPositions, sweep: Sweep, tau: float
) -> tuple[list[float], L2Choice | None]:
    """Each l2 of the sweep, the largest first, and the cross-validation of l2 where it is asked."""
    strengths = {value for value in sweep.l2 if not isinstance(value, str)}
    choice = None
    if "cv" in sweep.l2:
        choice = choose_l2(rollouts, table, tau=tau, weights=sweep.weights)
        strengths |= {choice.best, choice.l2}
    return sorted(strengths, reverse=True), choice


def _likeliest_first(strengths: Sequence[float], choice: L2Choice | None) -> list[float]:
    """``strengths`` by their held-out likelihood; those that were not held out come last."""
    if choice is None:
        return list(strengths)
    behind = {row.value: row.behind for row in choice.table}
    return sorted(strengths, key=lambda l2: behind.get(l2, math.inf))
