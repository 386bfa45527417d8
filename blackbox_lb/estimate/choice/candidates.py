"""Candidate biases: one for each estimator setting of a sweep, already within the provider's
limits.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from blackbox_lb.estimate.choice.estimator import EstimatorInput, LearnedVector, Refit
from blackbox_lb.estimate.choice.table import estimators
from blackbox_lb.estimate.counting.distributed import ShardedDataset
from blackbox_lb.estimate.inputs.checks import Ids, Vector
from blackbox_lb.estimate.inputs.recipe import Scale
from blackbox_lb.estimate.inputs.rollouts import Rollouts
from blackbox_lb.estimate.inputs.sweep import Sweep
from blackbox_lb.estimate.next_token.next_token import NextToken
from blackbox_lb.estimate.projection.cross_validation import L2Choice
from blackbox_lb.estimate.projection.projection import Fit, reward_weights
from blackbox_lb.estimate.sparse.sparsify import Sparse, above, against, sparsify
from blackbox_lb.estimate.sparse.support_search import PATIENCE, Problem, best_support


@dataclass(frozen=True, slots=True)
class CompileLimits:
    """The provider's limits: at most ``entries`` tokens (None: no limit), nats in [low, high],
    whole numbers if ``integers``, no token id above ``highest_id`` (None: any).
    """

    entries: int | None
    low: float
    high: float
    integers: bool
    highest_id: int | None = None

    def forbidden(self, next_token: NextToken) -> Ids:
        """The ids on the support of ``next_token`` that may have no bias."""
        return above(next_token, self.highest_id)

    def compiled(self, next_token: NextToken, delta: Vector, *, patience: int = PATIENCE) -> Sparse:
        """``delta`` (s,) nats, compiled to the provider's limits; see ``sparsify``."""
        return sparsify(
            next_token,
            delta,
            entries=self.entries,
            low=self.low,
            high=self.high,
            integers=self.integers,
            forbidden=self.forbidden(next_token),
            patience=patience,
        )


@dataclass(frozen=True, slots=True, eq=False)
class Projected:
    """The projection behind a candidate, for its standard errors: ``fit`` on ``support`` (ids, None
    for all) with ``weights``.

    cross_validation: the choice of ``l2``, None where it was given. shares: (n,) as in
    ``Rollouts``.
    """

    fit: Fit
    support: Ids | None
    weights: Scale
    cross_validation: L2Choice | None
    shares: Vector | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """One setting's bias. ``settings``: of the estimator. ``learned``: (s,) nats on ``token_ids``,
    the support of the rollouts and further tokens of the estimator. ``sparse``: the bias sent.

    projected: of a projection, else None.
    """

    settings: dict[str, float | int | str | None]
    token_ids: Ids
    learned: Vector
    sparse: Sparse
    estimator: str = "projection"
    projected: Projected | None = None

    @property
    def label(self) -> str:
        pairs = ((name, value) for name, value in self.settings.items() if value is not None)
        told = (
            f"{name} {value}" if isinstance(value, str) else f"{name} {value:g}"
            for name, value in pairs
        )
        return f"{self.estimator} ({', '.join(told)})"

    @property
    def logit_bias(self) -> dict[int, float]:
        """Token id -> nats, as sent to the provider."""
        return dict(zip(self.sparse.token_ids.tolist(), self.sparse.values.tolist(), strict=True))


def candidates(
    rollouts: Rollouts,
    next_token: NextToken,
    sweep: Sweep,
    limits: CompileLimits,
    *,
    whole: ShardedDataset | None = None,
) -> Iterator[Candidate]:
    """Return the candidates of ``sweep``. ``next_token`` is of ``rollouts``. whole: the data to
    learn from, where it is more than ``rollouts``, which then serve the compile alone; on its
    support.

    Raises InputError: no completion earned a reward, or a setting is out of range.
    """
    if _tau_is_inert(rollouts, sweep):
        sweep = replace(sweep, tau=sweep.tau[:1])
    data = EstimatorInput(rollouts, next_token, whole)
    for name, each in estimators(sweep).items():
        for learned in each.learn(data, sweep):
            yield _candidate(name, learned, data, limits)


def _tau_is_inert(rollouts: Rollouts, sweep: Sweep) -> bool:
    """Whether every tau gives the same biases, as for log-accuracy: exp(r / tau) is 0 or one
    number, which cancels.
    """
    rewards = np.unique(rollouts.rewards[np.isfinite(rollouts.rewards)])
    return len(rewards) == 1 and (rewards[0] == 0 or sweep.alpha_scale == "relative")


def _candidate(
    name: str, learned: LearnedVector, data: EstimatorInput, limits: CompileLimits
) -> Candidate:
    """The learned bias within the provider's limits: refitted to the tokens that may be sent, where
    the estimator allows it.
    """
    refit = learned.refit
    if refit is None:
        wide = data.next_token.with_tokens(learned.token_ids)
        values = wide.align(learned.token_ids, learned.values)
        sparse = limits.compiled(wide, values)
        return Candidate(learned.settings, wide.token_ids, values, sparse, name)
    table, fit = data.next_token, refit.fit
    support = _support(data, refit, limits)
    if support is not None:
        fit = refit.again(support)
    sparse = against(table, learned.values, limits.compiled(table, fit.delta))
    projected = Projected(fit, support, refit.weights, refit.chosen, refit.shares)
    return Candidate(learned.settings, table.token_ids, learned.values, sparse, name, projected)


def _support(data: EstimatorInput, refit: Refit, limits: CompileLimits) -> Ids | None:
    """The ids that a refit may bias, for the largest penalised likelihood; None where the whole
    learned bias fits.
    """
    rollouts, next_token, learned = data.rollouts, data.next_token, refit.fit.delta
    allowed = ~np.isin(next_token.token_ids, limits.forbidden(next_token))
    used = allowed & (learned != 0)
    if limits.entries is None or used.sum() <= limits.entries:
        return next_token.token_ids[used] if used.sum() < np.count_nonzero(learned) else None
    table = next_token.named()
    weighed = reward_weights(replace(rollouts, shares=refit.shares), refit.tau, refit.weights)
    weights = (weighed * (rollouts.lengths > 0))[rollouts.rollout_of]
    problem = Problem(table, table.sampled_counts(weights), weights, allowed, refit.l2)
    found = best_support(problem, limits.entries, np.zeros(len(learned)))
    return next_token.token_ids[found.support]
