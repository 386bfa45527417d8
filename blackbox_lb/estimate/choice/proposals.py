"""Candidates that no completion is needed for, and those made from candidates.

Everything that is a vector may be chosen, wherever it comes from: a rule about the text, a boost of
the token that ends something, the sum of two candidates, one of them at half or twice its strength,
and one cut to few entries. The goal on validation prompts decides among all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from blackbox_lb.estimate.choice.candidates import Candidate, CompileLimits
from blackbox_lb.estimate.choice.table import ROWS
from blackbox_lb.estimate.inputs.checks import Ids, Vector
from blackbox_lb.estimate.inputs.prior import TokenCosts
from blackbox_lb.estimate.next_token.next_token import NextToken
from blackbox_lb.estimate.sparse.sparsify import against

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
        kept = order[:size]
        smaller_one = _cut(winner, sent, kept, next_token, limits)
        if against(next_token, sent, smaller_one.sparse).kept < LEAST_KEPT:
            return
        yield smaller_one


def _cut(
    winner: Candidate, sent: Vector, kept: Ids, next_token: NextToken, limits: CompileLimits
) -> Candidate:
    """``winner`` with the entries of ``kept``, indices into the support."""
    values = np.zeros(len(sent))
    values[kept] = sent[kept]
    projected = winner.projected
    if projected is not None:
        token_ids = next_token.token_ids[kept]
        projected = replace(projected, fit=projected.again(token_ids), support=token_ids)
        values = next_token.align(projected.fit.token_ids, projected.fit.delta)
    learned = next_token.align(winner.token_ids, winner.learned)
    sparse = against(next_token, learned, limits.compiled(next_token, values))
    settings = {**winner.settings, "entries": len(kept)}
    origin = winner.origin
    if winner.estimator not in ROWS:  # no settings tell it from the whole one
        origin = f"{winner.origin}, cut to {len(kept)} entries"
    return replace(winner, sparse=sparse, projected=projected, settings=settings, origin=origin)


def distinct(candidates: Iterable[Candidate]) -> tuple[list[Candidate], dict[int, int]]:
    """``candidates``, and for each that sends the same bias as an earlier one its number -> the
    number of that one.
    """
    kept = list(candidates)
    first_of: dict[tuple[tuple[int, float], ...], int] = {}
    repeated: dict[int, int] = {}
    for number, candidate in enumerate(kept):
        first = first_of.setdefault(tuple(candidate.logit_bias.items()), number)
        if first != number:
            repeated[number] = first
    return kept, repeated
