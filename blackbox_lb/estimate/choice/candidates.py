"""Candidate biases within the provider's limits: one for each estimator setting of a sweep, and
those that need no learning.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from blackbox_lb.estimate.choice.estimator import (
    EstimatorInput,
    EstimatorSettings,
    LearnedVector,
    Projected,
)
from blackbox_lb.estimate.choice.table import ROWS, estimators
from blackbox_lb.estimate.counting.distributed import ShardedDataset
from blackbox_lb.estimate.inputs.checks import Ids, Vector
from blackbox_lb.estimate.inputs.recipe import Sweep
from blackbox_lb.estimate.inputs.rollouts import Rollouts
from blackbox_lb.estimate.next_token.next_token import NextToken
from blackbox_lb.estimate.projection.projection import Prior, TokenCosts, linear_term
from blackbox_lb.estimate.sparse.sparsify import Sparse, above, against, sparsify
from blackbox_lb.estimate.sparse.support_search import PATIENCE, Problem, best_support
from blackbox_lb.types import AnyBias, VaryingBias


@dataclass(frozen=True, slots=True)
class CompileLimits:
    """The provider's limits on a bias, and how thoroughly to search within them.

    entries: most tokens, None for any number.
    low, high: the range of a value in nats.
    integers: whether values are whole numbers.
    highest_id: the highest token id, None for any.
    quick: leave out the exchanges of single tokens with which a thorough compile ends.
    """

    entries: int | None
    low: float
    high: float
    integers: bool
    highest_id: int | None = None
    quick: bool = False

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
            patience=0 if self.quick else patience,
            exchanges=not self.quick,
        )


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """One bias that may be chosen.

    Attributes:
        settings: what made it, for the bias file.
        token_ids: (s,) the support of the rollouts and further tokens of the estimator.
        learned: (s,) nats, before the compile.
        sparse: the bias sent.
        estimator: its name, or what made it in its place: rule, boost, sum.
        projected: of a projection, else None.
        origin: where it comes from, in words for a reader.
        stands: whether it is kept unless another candidate is shown to be better.
        learned_from: the learned candidate that it has most of its values from, None where that is
            itself.
        varying: the bias with features that is sent, whose entries are ``sparse``; None where that
            is sent alone.
    """

    settings: dict[str, float | int | str | None]
    token_ids: Ids
    learned: Vector
    sparse: Sparse
    estimator: str = "projection"
    projected: Projected | None = None
    origin: str = "learned"
    stands: bool = False
    learned_from: Candidate | None = None
    varying: VaryingBias | None = None

    @classmethod
    def of_vector(
        cls,
        values: Vector,
        next_token: NextToken,
        limits: CompileLimits,
        *,
        estimator: str,
        settings: EstimatorSettings,
        origin: str,
    ) -> Self:
        """``values`` (s,) nats on the support of ``next_token``, within ``limits``."""
        sparse = limits.compiled(next_token, values)
        return cls(settings, next_token.token_ids, values, sparse, estimator, origin=origin)

    @property
    def label(self) -> str:
        """What it is, in words: its estimator and settings, or its origin where none made it."""
        if self.estimator not in ROWS:
            return self.origin
        pairs = ((name, value) for name, value in self.settings.items() if value is not None)
        settings = (
            f"{name} {value}" if isinstance(value, str) else f"{name} {value:g}"
            for name, value in pairs
        )
        return f"{self.estimator} ({', '.join(settings)})"

    @property
    def sent(self) -> AnyBias:
        """The bias as requests get it."""
        if self.varying is None:
            return self.logit_bias
        return self.varying

    @property
    def logit_bias(self) -> dict[int, float]:
        """Token id -> nats of the entries."""
        return dict(zip(self.sparse.token_ids.tolist(), self.sparse.values.tolist(), strict=True))


def candidates(
    rollouts: Rollouts,
    next_token: NextToken,
    sweep: Sweep,
    limits: CompileLimits,
    *,
    dataset: ShardedDataset | None = None,
    priors: tuple[Prior | TokenCosts, ...] = (),
) -> Iterator[Candidate]:
    """Yield the candidates of ``sweep``.

    next_token: of ``rollouts``, on the support of ``dataset`` where there is one.
    dataset: the data to learn from, where it is more than ``rollouts``; these then serve the
        compile alone.
    priors: what is known of tokens beside the rollouts.

    Raises InputError: no completion earned a reward, or a setting is out of range.
    """
    if _tau_is_inert(rollouts, sweep):
        sweep = replace(sweep, tau=sweep.tau[:1])
    data = EstimatorInput(rollouts, next_token, dataset, priors)
    for name, estimator in estimators(sweep).items():
        for learned in estimator.learn(data, sweep):
            yield _candidate(name, learned, data, limits)


def _tau_is_inert(rollouts: Rollouts, sweep: Sweep) -> bool:
    """Whether every tau gives the same biases, as for log-accuracy: exp(r / tau) is 0 or one
    number, which cancels. Rewards to go may still differ.
    """
    if rollouts.costs is not None:
        return False
    rewards = np.unique(rollouts.rewards[np.isfinite(rollouts.rewards)])
    return len(rewards) == 1 and (rewards[0] == 0 or sweep.alpha_scale == "relative")


def _candidate(
    name: str, learned: LearnedVector, data: EstimatorInput, limits: CompileLimits
) -> Candidate:
    """The learned bias within the provider's limits: refitted to the tokens that may be sent, where
    the estimator allows it.
    """
    projected = learned.projected
    if projected is None:
        wide = data.next_token.with_tokens(learned.token_ids)
        values = wide.align(learned.token_ids, learned.values)
        sparse = limits.compiled(wide, values)
        return Candidate(learned.settings, wide.token_ids, values, sparse, name)
    table = data.next_token
    support = None
    if projected.prior is None:  # with a prior, tokens that no list shows count too
        support = _support(data, projected, limits)
    if support is not None:
        projected = replace(projected, fit=projected.again(support), support=support)
    sparse = against(table, learned.values, limits.compiled(table, projected.fit.delta))
    prior = projected.prior
    return Candidate(
        learned.settings,
        table.token_ids,
        learned.values,
        sparse,
        name,
        projected,
        _origin(projected, learned.settings),
        stands=prior is not None and prior.standing == projected.l2,
    )


def _origin(projected: Projected, settings: EstimatorSettings) -> str:
    """Where a learned bias comes from, in words."""
    parts = ["learned"]
    if "gamma" in settings:
        parts.append("credit by span")
    if projected.prior is not None:
        parts.append(f"from {projected.prior.name}")
    return ", ".join(parts)


def _support(data: EstimatorInput, projected: Projected, limits: CompileLimits) -> Ids | None:
    """The ids that a refit may bias, for the largest penalised likelihood; None where the whole
    learned bias fits.
    """
    next_token = data.next_token
    learned = projected.fit.delta
    allowed = ~np.isin(next_token.token_ids, limits.forbidden(next_token))
    used = allowed & (learned != 0)
    if limits.entries is None or used.sum() <= limits.entries:
        return next_token.token_ids[used] if used.sum() < np.count_nonzero(learned) else None
    table = next_token.named()
    rollouts = replace(data.rollouts, shares=projected.shares)
    weights = projected.rule.weights(rollouts)
    linear = linear_term(rollouts, table, weights)
    problem = Problem(table, linear, weights.values, allowed, projected.l2)
    solution = best_support(
        problem, limits.entries, np.zeros(len(learned)), patience=0 if limits.quick else PATIENCE
    )
    return next_token.token_ids[solution.support]


RULE_NATS = 2.0
"""Nats by which a rule moves its tokens; half and twice of it are tried where it wins."""
BOOSTS = (2.0, 5.0)
"""Nats of a boost; half and twice of the better one are tried where it wins."""
FACTORS = (0.5, 2.0)
"""Strengths of the winner that are tried beside it."""
SIZES = (300, 100, 30, 10, 5)
"""Numbers of entries that a winner is cut to, the most first."""
LEAST_KEPT = 0.6
"""Share of the estimated gain that a cut must keep to be worth a completion."""


def rules(next_token: NextToken, costs: TokenCosts, limits: CompileLimits) -> Iterator[Candidate]:
    """The tokens that a rule names, all moved by ``RULE_NATS``, and the unwanted ones banned."""
    values = next_token.align(costs.token_ids, np.sign(costs.costs) * RULE_NATS)
    count = int(np.count_nonzero(values))
    if not count:
        return
    yield Candidate.of_vector(
        values,
        next_token,
        limits,
        estimator="rule",
        settings={"rule": costs.name, "nats": RULE_NATS},
        origin=f"the {count:,} tokens of {costs.name} by {RULE_NATS:g} nats",
    )
    banned = np.where(values < 0, limits.low, 0.0)
    if banned.any():
        yield Candidate.of_vector(
            banned,
            next_token,
            limits,
            estimator="rule",
            settings={"rule": costs.name, "nats": limits.low},
            origin=f"a ban of the {int(np.count_nonzero(banned)):,} tokens of {costs.name}",
        )


def boosts(
    next_token: NextToken, boosted: Mapping[str, Ids], limits: CompileLimits
) -> Iterator[Candidate]:
    """Each token of ``boosted`` (what it ends -> its ids) by each of ``BOOSTS`` nats."""
    for name, token_ids in boosted.items():
        for nats in BOOSTS:
            values = next_token.align(token_ids, np.full(len(token_ids), nats))
            if values.any():
                yield Candidate.of_vector(
                    values,
                    next_token,
                    limits,
                    estimator="boost",
                    settings={"boost": name, "nats": nats},
                    origin=f"a boost of what ends {name} by {nats:g} nats",
                )


def rescaled(
    winner: Candidate, next_token: NextToken, limits: CompileLimits
) -> Iterator[Candidate]:
    """The winner at half and at twice its strength."""
    sent = next_token.align(winner.sparse.token_ids, winner.sparse.values)
    for factor in FACTORS:
        yield Candidate.of_vector(
            np.clip(sent * factor, limits.low, limits.high),
            next_token,
            limits,
            estimator=winner.estimator,
            settings={**winner.settings, "times": factor},
            origin=f"{winner.origin}, times {factor:g}",
        )


def added(
    first: Candidate, second: Candidate, next_token: NextToken, limits: CompileLimits
) -> Candidate:
    """The sum of two candidates."""
    total = sum(
        next_token.align(part.sparse.token_ids, part.sparse.values) for part in (first, second)
    )
    return Candidate.of_vector(
        np.clip(np.asarray(total), limits.low, limits.high),
        next_token,
        limits,
        estimator="sum",
        settings={"first": first.label, "second": second.label},
        origin=f"{first.label} + {second.label}",
    )


def smaller(
    winner: Candidate, next_token: NextToken, limits: CompileLimits, sizes: Sequence[int] = SIZES
) -> Iterator[Candidate]:
    """The winner cut to each of ``sizes`` entries, the most first, as long as the cut keeps
    ``LEAST_KEPT`` of its estimated gain.

    Entries stay by the probability that they move: the mean of a token's use with and without the
    bias, times its nats. A projection is fitted again to those that stay.
    """
    sent = next_token.align(winner.sparse.token_ids, winner.sparse.values)
    before = next_token.expected(np.zeros(len(sent)))
    moved = (before + next_token.expected(sent)) / 2 * np.abs(sent)
    order = np.lexsort((-np.abs(sent), -moved))
    for size in sizes:
        if size >= winner.sparse.entries:
            continue
        positions = order[:size]
        smaller_one = _cut(winner, sent, positions, next_token, limits)
        if against(next_token, sent, smaller_one.sparse).kept < LEAST_KEPT:
            return
        yield smaller_one


def _cut(
    winner: Candidate, sent: Vector, support: Ids, next_token: NextToken, limits: CompileLimits
) -> Candidate:
    """``winner`` with the entries of ``support``, indices into the support."""
    values = np.zeros(len(sent))
    values[support] = sent[support]
    projected = winner.projected
    if projected is not None:
        token_ids = next_token.token_ids[support]
        projected = replace(projected, fit=projected.again(token_ids), support=token_ids)
        values = next_token.align(projected.fit.token_ids, projected.fit.delta)
    learned = next_token.align(winner.token_ids, winner.learned)
    sparse = against(next_token, learned, limits.compiled(next_token, values))
    settings = {**winner.settings, "entries": len(support)}
    origin = winner.origin
    if winner.estimator not in ROWS:  # no settings tell it from the whole one
        origin = f"{winner.origin}, cut to {len(support)} entries"
    return replace(winner, sparse=sparse, projected=projected, settings=settings, origin=origin)


def distinct(candidates: Iterable[Candidate]) -> tuple[list[Candidate], dict[int, int]]:
    """``candidates``, and for each that sends the same bias as an earlier one its number -> the
    number of that one.
    """
    distinct_candidates = list(candidates)
    first_of: dict[tuple[tuple[int, float], ...], int] = {}
    repeated: dict[int, int] = {}
    for number, candidate in enumerate(distinct_candidates):
        first = first_of.setdefault(tuple(candidate.logit_bias.items()), number)
        if first != number:
            repeated[number] = first
    return distinct_candidates, repeated
