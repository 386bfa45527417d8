"""Cross-validation: the L2 strength, by the likelihood of held-out completions under the tilted
target.

``l2`` acts as the precision of a prior on the bias, in weighted tokens, and its objective is a sum
over tokens. The best precision depends on the size of true biases and on the noise of one weighted
token, not on the number of tokens: twice the data outweighs the same prior twice. So the best value
for four fifths of the rollouts is the best for all of them.

Too strong a penalty always costs reward, too weak a one costs KL first: so the choice is the
weakest strength that keeps most of the best held-out gain.

Held-out likelihood is not the goal of a fit. Its strengths are candidates beside others, and the
goal on the validation prompts decides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from blackbox_lb.errors import InputError
from blackbox_lb.estimate.inputs.checks import Bools, Ids, Vector
from blackbox_lb.estimate.inputs.rollouts import PositionWeights, Rollouts
from blackbox_lb.estimate.inputs.sweep import positive
from blackbox_lb.estimate.next_token.next_token import LoggedPositions
from blackbox_lb.estimate.problem import Pair, Problem
from blackbox_lb.estimate.projection.projection import linear_term, linear_terms

L2_GRID = (160.0, 80.0, 40.0, 20.0, 10.0, 5.0, 2.5, 1.25)
"""Below 1.25 weighted tokens a token seen once is fitted almost fully; above 160 a bias of 1 nat
needs hundreds of them.
"""

KEEP = 0.9
"""Of the best held-out gain. On real rollouts the weakest strength that keeps this much earns more
reward for a twentieth of the likelihood; a rule of standard errors would choose a weak penalty
where rewards are noise, because no difference is significant."""


SETTLED = 1e-9
"""Shortfall, in nats per weighted token, of a fit to some of the folds: a hundredth of that of
other fits, and a millionth of the differences that are compared."""


Weigh: TypeAlias = Callable[[Bools | None], PositionWeights]
"""The weights of the positions where only some of the rollouts (n,) count, all if None: they have
mean 1 over what counts."""


@dataclass(frozen=True, slots=True)
class HeldOut:
    """The result of one ``value`` of l2 on completions outside the fit, in nats per weighted token.

    gain: reward-weighted log-likelihood over the base model's, with the baseline of the fit in its
    linear term, and its standard ``error`` across prompts. behind: the difference to the best of
    the grid.
    """

    value: float
    gain: float
    error: float
    behind: float


@dataclass(frozen=True, slots=True)
class L2Choice:
    """l2: the chosen strength. best: the one with the largest held-out gain. table: a row for each
    ``l2``, largest first.

    units: prompts or rollouts, dealt into ``folds``; ``rewarded`` of them have any weight.
    unfitted: folds without a reward in the other folds, so that the base model predicted their
    completions.
    """

    l2: float
    best: float
    table: tuple[HeldOut, ...]
    units: str
    rewarded: int
    folds: int
    unfitted: int


def choose_l2(
    rollouts: Rollouts,
    next_token: LoggedPositions,
    weigh: Weigh,
    *,
    grid: Sequence[float] = L2_GRID,
    folds: int = 5,
    seed: int = 0,
    keep: float = KEEP,
) -> L2Choice:
    """Choose ``l2`` for ``projection`` by cross-validation on the logged rollouts.

    next_token: of these rollouts. weigh: gives their weights where only some count. grid: strengths
    to compare. keep: share of the best held-out gain that the chosen, smallest l2 keeps, 1 for the
    best itself; without a gain above 0 the best wins, a strong one. Folds are made of whole
    prompts, and of rollouts where only one prompt earned a reward; there are no more folds than
    rewarded units. InputError: fewer than two completions with a token whose weight is above 0.
    """
    if next_token.n_positions != len(rollouts.token_ids):
        raise InputError(
            f"next_token has {next_token.n_positions} positions, the rollouts"
            f" {len(rollouts.token_ids)}"
        )
    if not 0 < keep <= 1:
        raise InputError(
            f"keep is {keep}; it must be above 0 and at most 1, a share of the best held-out gain"
        )
    strengths = sorted({positive("l2", value) for value in grid}, reverse=True)
    if not strengths or folds < 2:
        raise InputError(
            f"{len(strengths)} values of l2 and {folds} folds; cross-validation needs at least 1"
            " value and 2 folds"
        )
    table = next_token.named()
    dealt = _Folds.of(rollouts, weigh(None), folds, seed)
    gains, unfitted = dealt.held_out(
        len(strengths),
        lambda train: _path(rollouts, table, train, weigh(train), dealt.target, strengths),
    )
    rows = _compare(strengths, gains, dealt.tokens, dealt.unit_of)
    best = min(rows, key=lambda row: row.behind)
    if best.gain > 0:
        good = [row.value for row in rows if row.gain >= keep * best.gain]
    else:
        good = [best.value]
    return L2Choice(min(good), best.value, rows, dealt.units, dealt.rewarded, dealt.count, unfitted)


@dataclass(frozen=True, slots=True, eq=False)
class _Folds:
    """target: the weights of all rollouts. tokens: (n,) the weighted number of each one's
    positions. unit_of, fold_of: (n,). The rest as in ``L2Choice``.
    """

    target: PositionWeights
    tokens: Vector
    unit_of: Ids
    fold_of: Ids
    units: str
    rewarded: int
    count: int

    @classmethod
    def of(cls, rollouts: Rollouts, target: PositionWeights, folds: int, seed: int) -> _Folds:
        mean = target.of_rollouts(rollouts)
        unit_of, units = _units(rollouts, mean)
        fold_of, count, rewarded = _deal(unit_of, mean, folds, seed)
        return cls(target, mean * rollouts.lengths, unit_of, fold_of, units, rewarded, count)

    def held_out(self, size: int, score: Callable[[Bools], Vector]) -> tuple[Vector, int]:
        """(size, n) ``score`` of each completion by a fit to the other folds, and the number of
        folds without a fit.
        """
        gains = np.zeros((size, len(self.tokens)))
        unfitted = 0
        for fold in range(self.count):
            is_held_out = self.fold_of == fold
            if not self.tokens[~is_held_out].any():
                unfitted += 1
                continue
            gains[:, is_held_out] = score(~is_held_out)[:, is_held_out]
        return gains, unfitted


def _units(rollouts: Rollouts, target: Vector) -> tuple[Ids, str]:
    """(n,) the number of each rollout's unit, and the name of the units."""
    if not np.count_nonzero(target) >= 2:
        raise InputError(
            f"{np.count_nonzero(target)} of {len(target)} completions hold a token and earned a"
            " reward that counts at this tau; cross-validation needs at least 2: collect more"
            " rollouts, or give ``l2`` as numbers only, without cv"
        )
    if len(np.unique(rollouts.prompts[target > 0])) < 2:
        return np.arange(len(target)), "rollouts"
    return np.unique(rollouts.prompts, return_inverse=True)[1].astype(np.int64), "prompts"


def _deal(unit_of: Ids, target: Vector, folds: int, seed: int) -> tuple[Ids, int, int]:
    """(n,) the fold of each rollout: rewarded units are dealt first, so that every fold has its
    share of them.
    """
    size = int(unit_of.max()) + 1
    alive = np.bincount(unit_of, weights=target, minlength=size) > 0
    rewarded = int(alive.sum())
    count = min(folds, rewarded)
    order = np.lexsort((np.random.default_rng(seed).random(size), ~alive))
    fold_of_unit = np.empty(size, dtype=np.int64)
    fold_of_unit[order] = np.arange(size) % count
    return fold_of_unit[unit_of], count, rewarded


def _path(
    rollouts: Rollouts,
    table: LoggedPositions,
    train: Bools,
    weights: PositionWeights,
    target: PositionWeights,
    strengths: Sequence[float],
) -> Vector:
    """(grid, n) each completion's part of the objective without a penalty, with the weights
    ``target``, for the fits to ``train``, whose ``weights`` these are.

    Each fit starts from the next stronger one, and reuses its curvature.
    """
    delta = np.zeros(len(table.token_ids))
    linear = linear_term(table, weights)
    curvature = (table.expected(delta, weights.values) + np.abs(linear)) / 2
    out = np.zeros((len(strengths), len(train)))
    pairs: Sequence[Pair] = ()
    for row, l2 in enumerate(strengths):
        problem = Problem(
            lambda delta: table.potential(delta, weights.values),
            linear,
            float(weights.values.sum()),
            l2=l2,
            curvature=curvature,
        )
        solution = problem.solve(delta, shortfall=SETTLED, pairs=pairs)
        delta = solution.x
        pairs = solution.pairs
        out[row] = linear_terms(rollouts, table, target, delta)
        out[row] -= rollouts.summed(target.values * table.log_normaliser(delta))
    return out


def _compare(
    values: Sequence[float], held_out: Vector, tokens: Vector, unit_of: Ids
) -> tuple[HeldOut, ...]:
    gains = held_out.sum(axis=1) / tokens.sum()
    behind = gains.max() - gains
    return tuple(
        HeldOut(
            value=value,
            gain=float(gains[row]),
            error=_error(held_out[row] - gains[row] * tokens, tokens, unit_of),
            behind=float(behind[row]),
        )
        for row, value in enumerate(values)
    )


def _error(residuals: Vector, tokens: Vector, unit_of: Ids) -> float:
    """Standard error of a ratio of sums over units, by linearisation."""
    totals = np.bincount(unit_of, weights=residuals)
    return float(np.sqrt(len(totals) / (len(totals) - 1) * (totals @ totals)) / tokens.sum())
