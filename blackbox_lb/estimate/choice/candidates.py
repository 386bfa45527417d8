"""Candidate biases: one for each estimator setting of a sweep, already in the form that the provider takes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from blackbox_lb.errors import InputError
from blackbox_lb.estimate.counting.clusters import TiedIPS
from blackbox_lb.estimate.counting.distributed import Whole
from blackbox_lb.estimate.counting.ips import IPS, Clipping
from blackbox_lb.estimate.counting.ratio import Ratio
from blackbox_lb.estimate.counting.snips import SNIPS
from blackbox_lb.estimate.counting.statistics import BLOCK_POSITIONS, Statistics
from blackbox_lb.estimate.inputs.checks import Ids, Vector
from blackbox_lb.estimate.inputs.recipe import Recipe, Scale
from blackbox_lb.estimate.inputs.rollouts import Rollouts
from blackbox_lb.estimate.inputs.sweep import EstimatorName, Sweep
from blackbox_lb.estimate.next_token.next_token import NextToken
from blackbox_lb.estimate.next_token.potential import LoggedPositions
from blackbox_lb.estimate.projection.cross_validation import L2Choice, choose_l2
from blackbox_lb.estimate.projection.projection import Fit, projection, reward_weights
from blackbox_lb.estimate.sparse.sparsify import Sparse, above, against, sparsify
from blackbox_lb.estimate.sparse.support_search import PATIENCE, Problem, best_support

__all__ = ["Candidate", "CompileLimits", "Projected", "candidates"]


@dataclass(frozen=True, slots=True)
class CompileLimits:
    """What the provider takes: at most ``entries`` tokens (None: no limit), nats in [low, high], whole numbers if ``integers``,
    no token id above ``highest_id`` (None: any).
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
        """``delta`` (s,) nats as the provider takes it; see ``sparsify``."""
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
    """The projection behind a candidate, for its standard errors: ``fit`` on ``support`` (ids, None for all) with ``weights``.

    cross_validation: how ``l2`` was chosen, None where it was given.
    """

    fit: Fit
    support: Ids | None
    weights: Scale
    cross_validation: L2Choice | None


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """``settings`` of the estimator; ``learned`` (s,) nats on the support of the rollouts; ``sparse``: what is sent.

    projected: behind a projection; clipping: behind an inverse-propensity estimate whose propensities were clipped.
    """

    settings: dict[str, float | int | str | None]
    learned: Vector
    sparse: Sparse
    estimator: EstimatorName = "projection"
    projected: Projected | None = None
    clipping: Clipping | None = None

    @property
    def label(self) -> str:
        """The estimator and its settings, for a person to read."""
        pairs = ((name, value) for name, value in self.settings.items() if value is not None)
        told = (f"{name} {value}" if isinstance(value, str) else f"{name} {value:g}" for name, value in pairs)
        return f"{self.estimator} ({', '.join(told)})"

    @property
    def logit_bias(self) -> dict[int, float]:
        """Token id -> nats, what the provider is sent."""
        return dict(zip(self.sparse.token_ids.tolist(), self.sparse.values.tolist(), strict=True))


def candidates(
    rollouts: Rollouts,
    next_token: NextToken,
    sweep: Sweep,
    limits: CompileLimits,
    *,
    clusters: Ids | None = None,
    whole: Whole | None = None,
) -> Iterator[Candidate]:
    """The candidates of ``sweep``. ``next_token`` is of ``rollouts``. clusters: (v,) the cluster of each token id, where asked for.
    whole: what is learned from, where that is more than ``rollouts``, which then serve the compile alone; on its support.

    Raises:
        InputError: no completion earned a reward, or a setting is out of range.
    """
    if _tau_is_inert(rollouts, sweep):
        sweep = replace(sweep, tau=sweep.tau[:1])
    made: dict[float | None, Statistics] = {}
    for name in sweep.estimators:
        if name == "projection":
            yield from _projected(rollouts, next_token, sweep, limits, whole)
            continue
        clip = sweep.clip_of(name)
        if clip not in made:
            made[clip] = _statistics(rollouts, sweep, clip, whole)
        yield from _counted(name, made[clip], rollouts, next_token, sweep, limits, clusters)


def _tau_is_inert(rollouts: Rollouts, sweep: Sweep) -> bool:
    """Whether every tau gives the same biases, as for log-accuracy: exp(r / tau) is 0 or one number, which divides out."""
    rewards = np.unique(rollouts.rewards[np.isfinite(rollouts.rewards)])
    return len(rewards) == 1 and (rewards[0] == 0 or sweep.alpha_scale == "relative")


def _projected(
    rollouts: Rollouts, next_token: NextToken, sweep: Sweep, limits: CompileLimits, whole: Whole | None
) -> Iterator[Candidate]:
    start = None
    drawn: Rollouts = rollouts if whole is None else whole.rollouts
    logged: LoggedPositions = next_token if whole is None else whole.positions
    for tau in sweep.tau:
        for l2, chosen in _strengths(drawn, logged, sweep, tau):
            make = partial(projection, drawn, tau=tau, l2=l2, weights=sweep.weights, next_token=logged)
            fit = start = make(start=start)
            settings: dict[str, float | int | str | None] = {"tau": tau, "l2": l2}
            if sweep.weights != "global":
                settings["weights"] = sweep.weights
            learned, support = fit.delta, _support(rollouts, next_token, fit.delta, limits, (tau, l2, sweep.weights))
            if support is not None:
                fit = make(start=fit, support=support)
            sparse = against(next_token, learned, limits.compiled(next_token, fit.delta))
            yield Candidate(settings, learned, sparse, projected=Projected(fit, support, sweep.weights, chosen))


def _strengths(
    rollouts: Rollouts, next_token: LoggedPositions, sweep: Sweep, tau: float
) -> list[tuple[float, L2Choice | None]]:
    """Each l2 of the sweep, the largest first, with how it was chosen where it was not given."""
    found: dict[float, L2Choice | None] = {value: None for value in sweep.l2 if not isinstance(value, str)}
    if "cv" in sweep.l2:
        choice = choose_l2(rollouts, next_token, tau=tau, weights=sweep.weights)
        found |= {choice.best: choice, choice.l2: choice}
    return sorted(found.items(), key=lambda pair: -pair[0])


def _support(
    rollouts: Rollouts,
    next_token: NextToken,
    learned: Vector,
    limits: CompileLimits,
    settings: tuple[float, float, Scale],
) -> Ids | None:
    """The ids that a refit may bias, for the largest penalised likelihood; None where the provider takes everything learned."""
    tau, l2, scale = settings
    allowed = ~np.isin(next_token.token_ids, limits.forbidden(next_token))
    used = allowed & (learned != 0)
    if limits.entries is None or used.sum() <= limits.entries:
        return next_token.token_ids[used] if used.sum() < np.count_nonzero(learned) else None
    table = next_token.named()
    weights = (reward_weights(rollouts, tau, scale) * (rollouts.lengths > 0))[rollouts.rollout_of]
    problem = Problem(table, table.sampled_counts(weights), weights, allowed, l2)
    found = best_support(problem, limits.entries, np.zeros(len(learned)))
    return next_token.token_ids[found.support]


def _statistics(rollouts: Rollouts, sweep: Sweep, clip: float | None, whole: Whole | None) -> Statistics:
    """The sums for all estimators of the sweep that share this clip, at all its taus in one pass."""
    drawn = rollouts if whole is None else whole.rollouts
    recipe = Recipe(
        sweep.tau,
        float(drawn.rewards[drawn.lengths > 0].max(initial=-np.inf)),
        sweep.positions,
        sweep.seed,
        sweep.unobserved,
        clip,
        tuple(sweep.counted(clip)),
    )
    if whole is not None:
        return whole.statistics(recipe)
    return Statistics.gather(drawn.blocks(BLOCK_POSITIONS), recipe) if drawn.keys else Statistics.zero()


def _counted(
    name: EstimatorName,
    statistics: Statistics,
    rollouts: Rollouts,
    next_token: NextToken,
    sweep: Sweep,
    limits: CompileLimits,
    clusters: Ids | None,
) -> Iterator[Candidate]:
    """The estimators that read a token's value off the completions it was sampled in."""
    estimate, ids, grid = _estimator(name, statistics, sweep, clusters)
    shared: dict[str, float | int | str | None] = {}
    if name != "ratio":
        shared = {"positions": sweep.positions, "clip": sweep.clip_of(name)}
    if name in ("ips", "clusters") and sweep.alpha_scale != "relative":
        shared["alpha_scale"] = sweep.alpha_scale
    wide = next_token.with_tokens(ids)
    for tau, (setting, value) in itertools.product(sweep.tau, grid):
        learned = _learned(name, estimate, wide, ids, tau, value)
        sparse = limits.compiled(wide, learned)
        clipping = estimate.clipping(tau) if sweep.clip is not None and estimate.clipping is not None else None
        settings = {"tau": tau, setting: value, **shared}
        yield Candidate(settings, learned, sparse, name, clipping=clipping)


def _learned(name: EstimatorName, estimate: _Estimate, wide: NextToken, ids: Ids, tau: float, value: float) -> Vector:
    values = estimate.of(tau, value)
    if name == "clusters":  # the same policy with the largest cluster at 0 has the fewest entries
        levels, counts = np.unique(values, return_counts=True)
        values = values - levels[counts.argmax()]
    return wide.align(ids, values)


@dataclass(frozen=True, slots=True)
class _Estimate:
    """``of(tau, alpha or kappa)`` -> nats; ``clipping(tau)`` where propensities enter without being normalised away."""

    of: Callable[[float, float], Vector]
    clipping: Callable[[float], Clipping] | None = None


def _estimator(
    name: EstimatorName, statistics: Statistics, sweep: Sweep, clusters: Ids | None
) -> tuple[_Estimate, Ids, list[tuple[str, float]]]:
    """The estimate, the token ids of its values, and the settings of the sweep that are its own."""
    if name in ("snips", "ratio"):
        shrunk = SNIPS(statistics) if name == "snips" else Ratio(statistics)
        return _Estimate(shrunk.delta), shrunk.token_ids, [("kappa", value) for value in sweep.kappa]
    if name == "clusters" and clusters is None:
        raise InputError("clusters need the cluster of every token; give them, or use another estimator")
    ips = IPS(statistics) if clusters is None or name == "ips" else TiedIPS(statistics, clusters)
    estimate = _Estimate(partial(ips.delta, relative=sweep.alpha_scale == "relative"), ips.clipping)
    return estimate, ips.token_ids, [("alpha", value) for value in sweep.alpha]
