"""Estimator: the facts and the method of each one, so that no other part asks for its name.

A new one is a module with an ``Estimator`` in it, and a row of ``table.ROWS``.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias, get_args

import numpy as np

from blackbox_lb.estimate.choice.table import estimators
from blackbox_lb.estimate.counting.distributed import ShardedDataset
from blackbox_lb.estimate.counting.statistics import BLOCK_POSITIONS, Statistics
from blackbox_lb.estimate.inputs.checks import Ids, Vector
from blackbox_lb.estimate.inputs.prior import Prior, TokenCosts
from blackbox_lb.estimate.inputs.recipe import Counted, Recipe
from blackbox_lb.estimate.inputs.rollouts import Rollouts
from blackbox_lb.estimate.inputs.sweep import Sweep
from blackbox_lb.estimate.inputs.weightings import Weighting
from blackbox_lb.estimate.next_token.next_token import NextToken
from blackbox_lb.estimate.next_token.potential import LoggedPositions
from blackbox_lb.estimate.projection.cross_validation import L2Choice
from blackbox_lb.estimate.projection.projection import Fit

EstimatorSettings: TypeAlias = dict[str, float | int | str | None]


@dataclass(frozen=True, slots=True)
class EstimatorFacts:
    """Facts on an estimator for other parts.

    swept: fields of ``Sweep`` beside tau; each of their values makes a candidate.
    sums: its running sums, None for others.
    reads_propensities: it divides by the probability of each sampled token.
    reads_lists: it reads the listed alternatives.
    learns_answers: it learns from answers that nobody drew.
    spreads: it learns from rollouts that are spread over processes.
    """

    swept: tuple[str, ...] = ()
    sums: Counted | None = None
    reads_propensities: bool = False
    reads_lists: bool = False
    learns_answers: bool = False
    spreads: bool = True

    @property
    def needs_logprobs(self) -> bool:
        """Whether it learns nothing from completions without logprobs."""
        return self.reads_propensities or self.reads_lists


@dataclass(frozen=True, slots=True, eq=False)
class Projected:
    """The projection behind learned values: it can be maximised again on fewer tokens, and has
    standard errors.

    fit: on ``support`` (ids), on all tokens where that is None.
    rule, l2, prior: its settings.
    cross_validation: the choice of ``l2``, None where it was given.
    again: the fit with these ids alone.
    shares: (n,) as in ``Rollouts``, under the fit.
    """

    fit: Fit
    rule: Weighting
    l2: float
    cross_validation: L2Choice | None
    again: Callable[[Ids], Fit]
    shares: Vector | None = None
    support: Ids | None = None
    prior: Prior | None = None


@dataclass(frozen=True, slots=True, eq=False)
class LearnedVector:
    """One vector.

    settings: of its fit, for the bias file.
    token_ids: (k,) the tokens with a value; all others are at 0.
    values: (k,) nats.
    projected: None for an estimator without refit and standard errors.
    """

    settings: EstimatorSettings
    token_ids: Ids
    values: Vector
    projected: Projected | None = None


@dataclass(frozen=True, slots=True, eq=False)
class EstimatorInput:
    """The data of an estimator.

    rollouts, next_token: those in this process, and their positions.
    whole: all rollouts where they are spread over processes, None where they are here.
    priors: what is known of tokens beside the rollouts.
    """

    rollouts: Rollouts
    next_token: NextToken
    whole: ShardedDataset | None = None
    priors: tuple[Prior | TokenCosts, ...] = ()
    _made: dict[Recipe, Statistics] = field(default_factory=dict)

    @property
    def drawn(self) -> Rollouts:
        """All rollouts, without their lists where they are spread."""
        return self.rollouts if self.whole is None else self.whole.rollouts

    @property
    def positions(self) -> LoggedPositions:
        """All positions of ``drawn``."""
        return self.next_token if self.whole is None else self.whole.positions

    def statistics(self, sweep: Sweep) -> Statistics:
        """The sums for all estimators of ``sweep``, gathered in one pass and kept."""
        wanted = {estimator.facts.sums for estimator in estimators(sweep).values()}
        drawn = self.drawn
        recipe = Recipe(
            sweep.tau,
            float(drawn.rewards[drawn.lengths > 0].max(initial=-np.inf)),
            sweep.positions,
            sweep.seed,
            sweep.unobserved,
            sweep.clip,
            tuple(name for name in get_args(Counted) if name in wanted),
        )
        if recipe not in self._made:
            self._made[recipe] = self._gathered(recipe)
        return self._made[recipe]

    def _gathered(self, recipe: Recipe) -> Statistics:
        if self.whole is not None:
            return self.whole.statistics(recipe)
        if not self.drawn.keys:
            return Statistics.zero()
        return Statistics.gather(self.drawn.blocks(BLOCK_POSITIONS), recipe)


class Estimator(Protocol):
    """One way to learn a vector from logged rollouts."""

    @property
    def facts(self) -> EstimatorFacts:
        """Facts on it for other parts."""

    def learn(self, data: EstimatorInput, sweep: Sweep) -> Iterator[LearnedVector]:
        """Return a vector for each tau and each value of the swept fields. Raises InputError:
        ``data`` teaches nothing.
        """
