"""The projection as an estimator of the table: each credit, prior and l2, and its refit."""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
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
from blackbox_lb.estimate.inputs.prior import Prior, TokenCosts
from blackbox_lb.estimate.inputs.rollouts import Rollouts
from blackbox_lb.estimate.inputs.sweep import L2, Sweep
from blackbox_lb.estimate.inputs.weightings import Weighting, weighting
from blackbox_lb.estimate.next_token.potential import LoggedPositions
from blackbox_lb.estimate.projection.answer_sets import fit_sets, posterior_shares
from blackbox_lb.estimate.projection.cross_validation import L2Choice, choose_l2
from blackbox_lb.estimate.projection.projection import Fit, projection

TERMINAL_L2: tuple[L2, ...] = (5.0, 1.25)
CREDIT_L2: tuple[L2, ...] = (1.0,)
"""Default strengths where the rewards are sums over positions, for weights by the reward of the
whole completion and for rewards to go. Credit where it falls has so little noise that strengths
from .3 to 4 were not told apart on stock words in stories; the winner is tried at half and at twice
its strength anyway, and each candidate less leaves more completions for the others."""


@dataclass(frozen=True, slots=True)
class _Variant:
    """One way to weigh and to penalise.

    gamma: of rewards to go, None for the reward of the whole completion. prior: what the penalty
    pulls to, None for 0. l2: its strengths.
    """

    gamma: float | None
    prior: Prior | TokenCosts | None
    l2: tuple[L2, ...]


class _Projection:
    """Reward-weighted maximum likelihood; each fit starts from the one before."""

    facts = EstimatorFacts(swept=("l2",), reads_lists=True, learns_answers=True)

    def learn(self, data: EstimatorInput, sweep: Sweep) -> Iterator[LearnedVector]:
        """At each tau and variant, the l2 of the largest held-out likelihood first, where
        cross-validation was asked; else the largest.
        """
        drawn = data.drawn
        table = data.positions
        if drawn.given.any():  # spellings have their base-model weights until a fit renews them
            nothing = np.zeros(len(table.token_ids))
            drawn = replace(drawn, shares=posterior_shares(drawn, table, nothing)[0])
        start = None
        for tau, variant in itertools.product(sweep.tau, _variants(data, sweep)):
            rule = weighting(tau, sweep.weights, variant.gamma)
            prior = None if variant.prior is None else variant.prior.at(tau)
            strengths, choice = _strengths(drawn, table, variant.l2, rule)
            learned = dict[float, LearnedVector]()
            for l2 in strengths:
                make = partial(projection, rule=rule, l2=l2, next_token=table, prior=prior)
                if drawn.given.any():
                    fit, rollouts = fit_sets(drawn, table, make)
                else:
                    fit = make(drawn, start=start)
                    rollouts = drawn
                start = fit
                is_proposed = choice is not None and l2 in (choice.best, choice.l2)
                projected = Projected(
                    fit,
                    rule,
                    l2,
                    choice if is_proposed else None,
                    partial(_again, make, rollouts, fit),
                    rollouts.shares,
                    prior=prior,
                )
                settings = _settings(tau, variant, l2, sweep)
                learned[l2] = LearnedVector(settings, fit.token_ids, fit.delta, projected)
            yield from (learned[l2] for l2 in _likeliest_first(strengths, choice))


PROJECTION = _Projection()


def _variants(data: EstimatorInput, sweep: Sweep) -> Iterator[_Variant]:
    """What is tried at each tau. Strengths that the user names are tried with everything; the
    default ones differ by what is weighed.
    """
    is_default = sweep.l2_is_default
    gammas = sweep.gamma if data.drawn.costs is not None else ()
    yield _Variant(None, None, TERMINAL_L2 if gammas and is_default else sweep.l2)
    for gamma in gammas:
        yield _Variant(gamma, None, CREDIT_L2 if is_default else sweep.l2)
    nearest = min(gammas, default=None)
    numbers = tuple(value for value in sweep.l2 if value != "cv")
    for prior in data.priors:
        strengths = numbers if numbers and not is_default else prior.at(1.0).strengths
        yield _Variant(nearest, prior, strengths)


def _settings(tau: float, variant: _Variant, l2: float, sweep: Sweep) -> EstimatorSettings:
    """The settings of one fit for the bias file."""
    settings: EstimatorSettings = {"tau": tau}
    if variant.gamma is not None:
        settings["gamma"] = variant.gamma
    settings["l2"] = l2
    if variant.prior is not None:
        settings["prior"] = variant.prior.name
    if sweep.weights != "global":
        settings["weights"] = sweep.weights
    return settings


def _again(make: Callable[..., Fit], rollouts: Rollouts, fit: Fit, support: Ids) -> Fit:
    """The fit to the tokens of ``support`` alone, from the one to all."""
    return make(rollouts, start=fit, support=support)


def _strengths(
    rollouts: Rollouts, table: LoggedPositions, wanted: Sequence[L2], rule: Weighting
) -> tuple[list[float], L2Choice | None]:
    """Each ``wanted`` l2, the largest first, and the cross-validation of l2 where it is asked."""
    strengths = {value for value in wanted if not isinstance(value, str)}
    choice = None
    if "cv" in wanted:
        choice = choose_l2(rollouts, table, rule)
        strengths |= {choice.best, choice.l2}
    return sorted(strengths, reverse=True), choice


def _likeliest_first(strengths: Sequence[float], choice: L2Choice | None) -> list[float]:
    """``strengths`` by their held-out likelihood; those that were not held out come last."""
    if choice is None:
        return list(strengths)
    behind = {row.value: row.behind for row in choice.table}
    return sorted(strengths, key=lambda l2: behind.get(l2, math.inf))
