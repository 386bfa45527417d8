"""Candidate biases within the provider's limits: one for each estimator setting of a sweep, and
those that need no learning.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from blackbox_lb.estimate.choice.estimator import (
    EstimatorSettings,
    Logged,
    LoggedHere,
    Projected,
    Proposal,
)
from blackbox_lb.estimate.choice.table import estimators
from blackbox_lb.estimate.inputs.checks import Ids, Vector
from blackbox_lb.estimate.inputs.rollouts import Rollouts
from blackbox_lb.estimate.inputs.sweep import Sweep
from blackbox_lb.estimate.next_token.next_token import NextToken
from blackbox_lb.estimate.projection.projection import Prior, linear_term
from blackbox_lb.estimate.sparse.sparsify import Sparse, against, kept_share, sparsify
from blackbox_lb.estimate.sparse.support_search import SubsetProblem, best_support


@dataclass(frozen=True, slots=True)
class CompileLimits:
    """The provider's limits on a bias.

    entries: most tokens, None for any number.
    low, high: the range of a value in nats.
    integers: whether values are whole numbers.
    highest_id: the highest token id, None for any.
    """

    entries: int | None
    low: float
    high: float
    integers: bool
    highest_id: int | None = None

    def forbidden(self, next_token: NextToken) -> Ids:
        """The ids on the support of ``next_token`` that may have no bias."""
        if self.highest_id is None:
            return np.zeros(0, np.int64)
        return next_token.token_ids[next_token.token_ids > self.highest_id]

    def compiled(self, next_token: NextToken, delta: Vector) -> Sparse:
        """``delta`` (s,) nats, compiled to the provider's limits; see ``sparsify``."""
        return sparsify(
            next_token,
            delta,
            entries=self.entries,
            low=self.low,
            high=self.high,
            integers=self.integers,
            forbidden=self.forbidden(next_token),
        )


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Candidate(Proposal):
    """A proposal within the provider's limits: one bias that may be chosen.

    Attributes:
        token_ids: (s,) the support of the rollouts and further tokens of the proposal.
        values: (s,) nats, before the compile.
        sparse: the bias sent.
        stands: whether it is kept unless another candidate is shown to be better.
        learned_from: the learned candidate that it has most of its values from, None where that is
            itself.
        left_out: what it would be without each fold of the rows, in the order of the folds; none
            where other rows choose.
    """

    sparse: Sparse
    stands: bool = False
    learned_from: Candidate | None = None
    left_out: tuple[Candidate, ...] = ()

    @property
    def logit_bias(self) -> dict[int, float]:
        """Token id -> nats of the entries."""
        return dict(zip(self.sparse.token_ids.tolist(), self.sparse.values.tolist(), strict=True))


def candidates(
    here: LoggedHere,
    sweep: Sweep,
    limits: CompileLimits,
    *,
    everywhere: Logged | None = None,
    priors: Sequence[Prior] = (),
) -> Iterator[Candidate]:
    """Yield the candidates of ``sweep``.

    here: the positions to learn from, on the support of ``everywhere`` where that is given.
    everywhere: the positions to learn from, where they are more than ``here``, which then serves
        the compile alone.
    priors: what is known of tokens beside the rollouts.

    Raises InputError: no completion earned a reward, or a setting is out of range.
    """
    if _tau_is_inert(here.rollouts, sweep):
        sweep = replace(sweep, tau=sweep.tau[:1])
    data = everywhere or here
    for name, estimator in estimators(sweep).items():
        for learned in estimator.learn(data, sweep, priors):
            proposal = replace(learned, estimator=name)
            if proposal.projected is None:
                yield compiled(proposal, here.next_token, limits)
            else:
                yield _refitted(proposal, proposal.projected, here, limits)


def crossed(
    field: Iterable[Candidate], left_out: Sequence[Sequence[Candidate]]
) -> Iterator[Candidate]:
    """Each candidate of ``field``, learned from all rows, with what it is without each fold; one
    that a fold has nothing like is dropped.

    left_out: the candidates of each fold.
    """
    for candidate in field:
        parts = [_counterpart(candidate, part) for part in left_out]
        alike = [part for part in parts if part is not None]
        if len(alike) == len(parts):
            yield replace(candidate, left_out=tuple(alike))


def _counterpart(candidate: Candidate, field: Sequence[Candidate]) -> Candidate | None:
    """The candidate of ``field`` that was made in the same way."""
    for entrant in field:
        if (entrant.estimator, entrant.settings) == (candidate.estimator, candidate.settings):
            return entrant
    return None


def _tau_is_inert(rollouts: Rollouts, sweep: Sweep) -> bool:
    """Whether every tau gives the same biases, as for log-accuracy: exp(r / tau) is 0 or one
    number, which cancels. Rewards to go may still differ.
    """
    if rollouts.costs is not None:
        return False
    rewards = np.unique(rollouts.rewards[np.isfinite(rollouts.rewards)])
    return len(rewards) == 1 and (rewards[0] == 0 or sweep.alpha_scale == "relative")


def compiled(proposal: Proposal, next_token: NextToken, limits: CompileLimits) -> Candidate:
    """``proposal`` within ``limits``; what no estimator made is cut to their range first."""
    wide = next_token.with_tokens(proposal.token_ids)
    values = wide.align(proposal.token_ids, proposal.values)
    if not proposal.is_learned:
        values = np.clip(values, limits.low, limits.high)
    return Candidate(
        proposal.settings,
        wide.token_ids,
        values,
        None,
        proposal.estimator,
        proposal.origin,
        sparse=limits.compiled(wide, values),
    )


def _refitted(
    proposal: Proposal, projected: Projected, here: LoggedHere, limits: CompileLimits
) -> Candidate:
    """A projection within ``limits``, fitted again to the tokens that may be sent."""
    table = here.next_token
    support = None
    if projected.prior is None:  # with a prior, tokens that no list shows count too
        support = _support(here, projected, limits)
    if support is not None:
        projected = replace(projected, fit=projected.again(support), support=support)
    prior = projected.prior
    return Candidate(
        proposal.settings,
        table.token_ids,
        proposal.values,
        projected,
        proposal.estimator,
        _origin(projected, proposal.settings),
        sparse=against(table, proposal.values, limits.compiled(table, projected.fit.delta)),
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


def _support(here: LoggedHere, projected: Projected, limits: CompileLimits) -> Ids | None:
    """The ids that a refit may bias, for the largest penalised likelihood; None where the whole
    learned bias fits.
    """
    next_token = here.next_token
    learned = projected.fit.delta
    allowed = ~np.isin(next_token.token_ids, limits.forbidden(next_token))
    used = allowed & (learned != 0)
    if limits.entries is None or used.sum() <= limits.entries:
        return next_token.token_ids[used] if used.sum() < np.count_nonzero(learned) else None
    table = next_token.named()
    weights = projected.weights(here.rollouts)
    linear = linear_term(table, weights)
    problem = SubsetProblem(table, linear, weights.values, allowed, limits.entries, l2=projected.l2)
    return next_token.token_ids[best_support(problem).support]


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


def rules(costs: Prior, low: float, banned: Prior | None = None) -> Iterator[Proposal]:
    """The tokens that a rule names, all moved by ``RULE_NATS``, and the unwanted ones at ``low``
    nats, which bans them; ``banned``: more tokens of the same rule for the ban alone.
    """
    values = np.sign(costs.means) * RULE_NATS
    yield Proposal(
        {"rule": costs.name, "nats": RULE_NATS},
        costs.token_ids,
        values,
        estimator="rule",
        origin=f"the {len(values):,} tokens of {costs.name} by {RULE_NATS:g} nats",
    )
    wider = costs if banned is None else banned
    unwanted = wider.token_ids[wider.means < 0]
    if unwanted.size:
        yield Proposal(
            {"rule": costs.name, "nats": low},
            unwanted,
            np.full(len(unwanted), low),
            estimator="rule",
            origin=f"a ban of the {len(unwanted):,} tokens of {costs.name}",
        )


def boosts(boosted: Mapping[str, Ids]) -> Iterator[Proposal]:
    """Each token of ``boosted`` (what it ends -> its ids) by each of ``BOOSTS`` nats."""
    for name, token_ids in boosted.items():
        for nats in BOOSTS:
            yield Proposal(
                {"boost": name, "nats": nats},
                token_ids,
                np.full(len(token_ids), nats),
                estimator="boost",
                origin=f"a boost of what ends {name} by {nats:g} nats",
            )


def rescaled(
    winner: Candidate, next_token: NextToken, limits: CompileLimits
) -> Iterator[Candidate]:
    """The winner at half and at twice its strength."""
    for factor in FACTORS:
        yield _times(factor, winner, next_token, limits)


def _times(
    factor: float, candidate: Candidate, next_token: NextToken, limits: CompileLimits
) -> Candidate:
    sent = next_token.align(candidate.sparse.token_ids, candidate.sparse.values)
    proposal = Proposal(
        {**candidate.settings, "times": factor},
        next_token.token_ids,
        np.clip(sent * factor, limits.low, limits.high),
        estimator=candidate.estimator,
        origin=f"{candidate.origin}, times {factor:g}",
    )
    left_out = [_times(factor, part, next_token, limits) for part in candidate.left_out]
    return replace(compiled(proposal, next_token, limits), left_out=tuple(left_out))


def added(
    first: Candidate, second: Candidate, next_token: NextToken, limits: CompileLimits
) -> Candidate:
    """The sum of two candidates."""
    parts = [
        next_token.align(part.sparse.token_ids, part.sparse.values) for part in (first, second)
    ]
    proposal = Proposal(
        {"first": first.label, "second": second.label},
        next_token.token_ids,
        parts[0] + parts[1],
        estimator="sum",
        origin=f"{first.label} + {second.label}",
    )
    left_out = [
        added(*pair, next_token, limits)
        for pair in zip(first.left_out, second.left_out, strict=True)
    ]
    return replace(compiled(proposal, next_token, limits), left_out=tuple(left_out))


def smaller(
    winner: Candidate, next_token: NextToken, limits: CompileLimits, sizes: Sequence[int] = SIZES
) -> Iterator[Candidate]:
    """The winner cut to each of ``sizes`` entries, the most first, as long as the cut keeps
    ``LEAST_KEPT`` of its estimated gain.

    Entries stay by the probability that they move: the mean of a token's use with and without the
    bias, times its nats. A projection is fitted again to those that stay. What is kept counts
    before the compile, which takes most of the time.
    """
    for size in sizes:
        if size >= winner.sparse.entries:
            continue
        cut = _cut(winner, size, next_token, limits)
        if cut is None:
            return
        left_out = [_cut(part, size, next_token, limits) or part for part in winner.left_out]
        yield replace(cut, left_out=tuple(left_out))


def _cut(
    winner: Candidate, size: int, next_token: NextToken, limits: CompileLimits
) -> Candidate | None:
    """The winner with its ``size`` most used entries; None where these keep too little."""
    sent = next_token.align(winner.sparse.token_ids, winner.sparse.values)
    learned = next_token.align(winner.token_ids, winner.values)
    before = next_token.expected(np.zeros(len(sent)))
    moved = (before + next_token.expected(sent)) / 2 * np.abs(sent)
    support = np.lexsort((-np.abs(sent), -moved))[:size]
    values = np.zeros(len(sent))
    values[support] = sent[support]
    projected = winner.projected
    if projected is not None:
        token_ids = next_token.token_ids[support]
        projected = replace(projected, fit=projected.again(token_ids), support=token_ids)
        values = next_token.align(projected.fit.token_ids, projected.fit.delta)
    if kept_share(next_token, sent, values) < LEAST_KEPT:
        return None
    sparse = against(next_token, learned, limits.compiled(next_token, values))
    settings = {**winner.settings, "entries": size}
    origin = winner.origin
    if not winner.is_learned:  # no settings tell it from the whole one
        origin = f"{winner.origin}, cut to {size} entries"
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
