"""Estimator: the facts and the method of each one, so that no other part asks for its name.

A new one is a module with an ``Estimator`` in it, and a row of ``table.ROWS``.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol, TypeAlias

import numpy as np

from blackbox_lb.estimate.choice.table import ROWS
from blackbox_lb.estimate.counting.statistics import Recipe, Statistics, TokenIPS
from blackbox_lb.estimate.inputs.checks import Ids, Vector
from blackbox_lb.estimate.inputs.rollouts import PositionWeights, Rollouts, Weighting, weighting
from blackbox_lb.estimate.inputs.sweep import CREDIT_L2, TERMINAL_L2, Sweep
from blackbox_lb.estimate.next_token.next_token import LoggedPositions, NextToken
from blackbox_lb.estimate.projection.projection import (
    Fit,
    Prior,
    fit_sets,
    posterior_shares,
    projection,
)

EstimatorSettings: TypeAlias = dict[str, float | int | str | None]


@dataclass(frozen=True, slots=True)
class EstimatorFacts:
    """Facts on an estimator for other parts.

    swept: fields of ``Sweep`` beside tau; each of their values makes a candidate.
    reads_propensities: it divides by the probability of each sampled token.
    reads_lists: it reads the listed alternatives.
    learns_answers: it learns from answers that nobody drew.
    """

    swept: tuple[str, ...] = ()
    reads_propensities: bool = False
    reads_lists: bool = False
    learns_answers: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Projected:
    """The projection behind learned values: it can be maximised again on fewer tokens, and has
    standard errors.

    fit: on ``support`` (ids), on all tokens where that is None.
    rule, l2, prior: its settings.
    again: the fit with these ids alone.
    shares: (n,) as in ``Rollouts``, under the fit; None where nothing was learned from answers.
    """

    fit: Fit
    rule: Weighting
    l2: float
    again: Callable[[Ids], Fit]
    shares: Vector | None = None
    support: Ids | None = None
    prior: Prior | None = None

    def weights(self, rollouts: Rollouts) -> PositionWeights:
        """The weights of ``rollouts``, those of the fit or some of them, as it was learned."""
        if self.shares is not None:
            rollouts = replace(rollouts, shares=self.shares)
        return self.rule.weights(rollouts)


@dataclass(frozen=True, slots=True, eq=False)
class Proposal:
    """A vector that may become the bias, not yet within a provider's limits.

    Attributes:
        settings: what made it, for the bias file.
        token_ids: (k,) the tokens with a value; all others are at 0.
        values: (k,) nats.
        projected: of a projection; None where nothing can be fitted again.
        estimator: its name, or what made it in its place: rule, boost, calibration, opening, sum.
        origin: where it comes from, in words for a reader.
    """

    settings: EstimatorSettings
    token_ids: Ids
    values: Vector
    projected: Projected | None = None
    estimator: str = "projection"
    origin: str = "learned"

    @property
    def is_learned(self) -> bool:
        """Whether an estimator made it."""
        return self.estimator in ROWS

    @property
    def label(self) -> str:
        """What it is, in words: its estimator and settings, or its origin where none made it."""
        if not self.is_learned:
            return self.origin
        pairs = ((name, value) for name, value in self.settings.items() if value is not None)
        settings = (
            f"{name} {value}" if isinstance(value, str) else f"{name} {value:g}"
            for name, value in pairs
        )
        return f"{self.estimator} ({', '.join(settings)})"


class Logged(Protocol):
    """Logged rollouts to learn from: ``Positions`` in this process, or ``Shards`` in others."""

    @property
    def rollouts(self) -> Rollouts:
        """The completions; those of shards without their lists."""

    @property
    def next_token(self) -> LoggedPositions:
        """The next-token distributions at their positions."""

    def statistics(self, recipe: Recipe) -> Statistics:
        """The sums of the counting estimator over the completions."""


class LoggedHere(Logged, Protocol):
    """Those in this process, with all that a table of next tokens can do."""

    @property
    def next_token(self) -> NextToken:
        """The next-token distributions at the positions of ``rollouts``."""


class Estimator(Protocol):
    """One way to learn a vector from logged rollouts."""

    @property
    def facts(self) -> EstimatorFacts:
        """Facts on it for other parts."""

    def learn(self, data: Logged, sweep: Sweep, priors: Sequence[Prior] = ()) -> Iterator[Proposal]:
        """Return a vector for each tau and each value of the swept fields.

        priors: what is known of tokens beside the rollouts. Raises InputError: ``data`` teaches
        nothing.
        """


class _IPS:
    """Inverse propensities smoothed by each alpha."""

    facts = EstimatorFacts(("alpha",), reads_propensities=True)

    def learn(self, data: Logged, sweep: Sweep, priors: Sequence[Prior] = ()) -> Iterator[Proposal]:
        """At each tau and alpha; priors are not read."""
        del priors
        rewards = data.rollouts.rewards[data.rollouts.lengths > 0]
        highest = float(rewards.max(initial=-np.inf))
        recipe = Recipe(
            sweep.tau, highest, sweep.positions, sweep.seed, sweep.unobserved, sweep.clip
        )
        ips = TokenIPS(data.statistics(recipe))
        shared: EstimatorSettings = {"positions": sweep.positions, "clip": sweep.clip}
        if sweep.alpha_scale != "relative":
            shared["alpha_scale"] = sweep.alpha_scale
        for tau, alpha in itertools.product(sweep.tau, sweep.alpha):
            values = ips.delta(tau, alpha, relative=sweep.alpha_scale == "relative")
            yield Proposal({"tau": tau, "alpha": alpha, **shared}, ips.token_ids, values)


IPS_OF_TOKENS = _IPS()


@dataclass(frozen=True, slots=True)
class _Variant:
    """One way to weigh and to penalise.

    gamma: of rewards to go, None for the reward of the whole completion. prior: what the penalty
    pulls to, None for 0. l2: its strengths.
    """

    gamma: float | None
    prior: Prior | None
    l2: tuple[float, ...]


class _Projection:
    """Reward-weighted maximum likelihood; each fit starts from the one before."""

    facts = EstimatorFacts(swept=("l2",), reads_lists=True, learns_answers=True)

    def learn(self, data: Logged, sweep: Sweep, priors: Sequence[Prior] = ()) -> Iterator[Proposal]:
        """At each tau and variant, the largest l2 first."""
        table = data.next_token
        # Spellings have their base-model weights until a fit renews them.
        sampled = replace(data.rollouts, shares=posterior_shares(data.rollouts, table)[0])
        start = None
        variants = list(_variants(sweep, priors, has_costs=sampled.costs is not None))
        for tau, variant in itertools.product(sweep.tau, variants):
            rule = weighting(tau, sweep.weights, variant.gamma)
            prior = None
            if variant.prior is not None:
                prior = variant.prior.at(tau)
            for l2 in sorted(set(variant.l2), reverse=True):
                make = partial(weighed_projection, rule=rule, l2=l2, next_token=table, prior=prior)
                fit, rollouts = fit_sets(sampled, table, make, start)
                start = fit
                projected = Projected(
                    fit,
                    rule,
                    l2,
                    partial(_again, make, rollouts, fit),
                    rollouts.shares if rollouts.given.any() else None,
                    prior=prior,
                )
                settings = _settings(tau, variant, l2, sweep)
                yield Proposal(settings, fit.token_ids, fit.delta, projected)


PROJECTION = _Projection()


def _variants(sweep: Sweep, priors: Sequence[Prior], *, has_costs: bool) -> Iterator[_Variant]:
    """The variants that are tried at each tau. Strengths that the user names go with every
    weighting; the default strengths differ by weighting.
    """
    is_default = sweep.l2_is_default
    gammas = sweep.gamma if has_costs else ()
    yield _Variant(None, None, TERMINAL_L2 if gammas and is_default else sweep.l2)
    for gamma in gammas:
        yield _Variant(gamma, None, CREDIT_L2 if is_default else sweep.l2)
    nearest = min(gammas, default=None)
    for prior in priors:
        strengths = prior.strengths if is_default else sweep.l2
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


def weighed_projection(rollouts: Rollouts, *, rule: Weighting, **options: Any) -> Fit:
    """The projection with the weights that ``rollouts`` have now."""
    return projection(rollouts, rule.weights(rollouts), **options)


def _again(make: Callable[..., Fit], rollouts: Rollouts, fit: Fit, support: Ids) -> Fit:
    """The fit to the tokens of ``support`` alone, from the one to all."""
    return make(rollouts, start=fit, support=support)
