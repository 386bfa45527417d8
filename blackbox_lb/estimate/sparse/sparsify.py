"""Sparse compilation: the few listed values with the policy closest to the learned one on logged
positions, by coordinate search over integers.

A provider takes a limited number of entries in a range, perhaps integers; any other token is at 0.
Cutting a bias to its largest entries moves every other token. So the shift and the support are
chosen together, and the listed values are refitted with the rest held at 0, which is a projection
again.

Rounding leaves many small values at 0. The provider's limit counts listed entries, so others may be
listed in their place.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from blackbox_lb.errors import InputError
from blackbox_lb.estimate.inputs.checks import Bools, Ids, Vector, vector, weight_vector
from blackbox_lb.estimate.next_token.next_token import NextToken
from blackbox_lb.estimate.next_token.sparse_table import dot
from blackbox_lb.estimate.sparse.support_search import (
    PATIENCE,
    Local,
    SubsetProblem,
    best_support,
    curvature,
)

MOST_SWEEPS = 100
NEAR = 0.5
"""Share of the predicted bend that the slope must outweigh for a step to be tried. The prediction
is good to a few per cent.
"""
MOVES = 512
"""Most promising single moves that are combined to pairs."""
TRIED = 64
"""Moves of one or two tokens with a computed loss at each step, the most promising first."""
STEPS_WITHOUT_BEST = 30
"""Steps without a new best before the end: on 600 tiny problems 8 missed the best of all
whole biases in 2 and 30 in 1, rounding alone in 146."""
EVALUATIONS = 500
"""Evaluations of the loss, for moves of one or two tokens: with the choice of moves about a second
on 25,000 positions.
"""


@dataclass(frozen=True, slots=True, eq=False)
class _Search:
    """W KL(target || v) is a constant ``- usage . v + sum_m w_m log_normaliser_m(v)``; at most
    ``entries`` are not 0.
    """

    next_token: NextToken
    weights: Vector
    usage: Vector
    allowed: Ids
    entries: int
    low: float
    high: float

    def loss(self, values: Vector) -> float:
        return float(
            dot(self.weights, self.next_token.log_normaliser(values)) - self.usage @ values
        )


def integer_search(
    next_token: NextToken,
    weights: Vector,
    usage: Vector,
    start: Vector,
    chosen: Ids,
    low: float,
    high: float,
    *,
    entries: int | None = None,
    allowed: Bools | None = None,
    exchanges: bool = True,
) -> Vector:
    """(s,) integers in [low, high], at most as far from the target as ``start`` rounded on
    ``chosen``, and as all 0.

    low, high: whole or infinite. usage: (s,) the target policy's expected counts ``sum_m w_m
    pi_target(y | m)``; weights: (m,) the w_m. allowed: (s,) whether a token may be listed, at most
    ``entries`` of them; ``chosen`` only, all of them, where None. exchanges: whether moves of two
    tokens at a time, and some that lead uphill, are tried, too. No single unit on a listed token,
    nor on another where there is room, lowers the loss of the result.
    """
    may = chosen if allowed is None else np.flatnonzero(allowed)
    search = _Search(
        next_token, weights, usage, may, len(may) if entries is None else entries, low, high
    )
    rounded = np.zeros_like(start)
    rounded[chosen] = np.clip(np.rint(start[chosen]), low, high)
    optima = [_descend(search, values) for values in (rounded, np.zeros_like(start))]
    best = min(optima, key=search.loss)
    if exchanges:
        return _exchange(search, best)
    return best


def _descend(search: _Search, values: Vector) -> Vector:
    """Move by single units from ``values``, in place. Along one coordinate the loss is convex, so
    this finds its best integer.
    """
    for _ in range(MOST_SWEEPS):
        if not _sweep(search, values, _promising(search, values)):
            break
    return values


def _promising(search: _Search, values: Vector) -> Ids:
    """The tokens where a unit may lower the loss, the best first."""
    tokens = search.allowed
    local = Local.at(search.next_token, search.weights, values)
    slope = search.usage[tokens] - local.usage[tokens]
    change = local.change(tokens, np.sign(slope), search.usage, values)
    worth = (1 - NEAR) * (change + np.abs(slope)) - np.abs(slope)
    order = np.argsort(change, kind="stable")
    return np.asarray(tokens[order[worth[order] < 0]])


def _sweep(search: _Search, values: Vector, order: Ids) -> bool:
    """Move by one unit each token of ``order`` that gains; return whether any did."""
    log_normaliser = search.next_token.log_normaliser(values)
    masses = search.next_token.by_token(order)
    room = search.entries - np.count_nonzero(values)
    moved = False
    for index, token in enumerate(order):
        if values[token] == 0 and room <= 0:
            continue
        rows, mass = masses.mass(index)
        probability = mass * np.exp(values[token] - log_normaliser[rows])
        step, change = _best_step(probability, search.weights[rows], float(search.usage[token]))
        if step and search.low <= values[token] + step <= search.high:
            room += int(values[token] + step == 0) - int(values[token] == 0)
            values[token] += step
            log_normaliser[rows] += change
            moved = True
    return moved


def _best_step(probability: Vector, weights: Vector, usage: float) -> tuple[int, Vector]:
    """-1, 0 or +1, and its effect on the log normalisers: the direction is downhill, the size a
    whole unit.
    """
    step = 1 if usage > dot(weights, probability) else -1
    change = np.log1p(np.minimum(probability, 1.0) * math.expm1(step))
    if dot(weights, change) - usage * step < 0:
        return (step, change)
    return (0, change)


def _exchange(search: _Search, values: Vector) -> Vector:
    """Move one or two tokens from ``values``; a few moves may lead uphill, none to a point already
    visited.
    """
    best = values
    lowest = search.loss(values)
    visited = {values.tobytes()}
    stuck = 0
    remaining = EVALUATIONS
    least = 1e-9 * float(search.weights.sum())
    while stuck < STEPS_WITHOUT_BEST and remaining > 0:
        following = None
        loss = math.inf
        for trial in _moves(search, values, visited):
            visited.add(trial.tobytes())
            remaining -= 1
            if (trial_loss := search.loss(trial)) < loss:
                following = trial
                loss = trial_loss
            if loss < lowest - least:
                break
        if following is None:
            break
        values = following
        stuck = stuck + 1
        if loss < lowest - least:
            best = values
            lowest = loss
            stuck = 0
    return best


def _moves(search: _Search, values: Vector, visited: set[bytes]) -> list[Vector]:
    """The most promising ``TRIED`` new moves: a pair's change is that of both alone and their part
    of the curvature.
    """
    tokens, steps, change = _singles(search, values)
    unique, place = np.unique(tokens, return_inverse=True)
    bend = curvature(search.next_token, search.weights, values, unique)[np.ix_(place, place)]
    pairs = change[:, None] + change[None, :] + np.outer(steps, steps) * bend
    pairs[tokens[:, None] == tokens[None, :]] = np.inf
    np.fill_diagonal(pairs, change)  # a move alone
    listed = ((values[tokens] + steps != 0) * 1 - (values[tokens] != 0)).astype(np.int64)
    more = np.where(np.eye(len(tokens), dtype=bool), listed, listed[:, None] + listed[None, :])
    pairs[more > search.entries - np.count_nonzero(values)] = np.inf
    first, second = np.triu_indices(len(tokens))
    worth = pairs[first, second]
    trials: list[Vector] = []
    for at in _lowest(worth, TRIED + len(visited)):
        if not math.isfinite(worth[at]) or len(trials) == TRIED:
            break
        trial = values.copy()
        for move in {int(first[at]), int(second[at])}:
            trial[tokens[move]] += steps[move]
        if trial.tobytes() not in visited:
            trials.append(trial)
    return trials


def _lowest(values: Vector, count: int) -> Ids:
    """The indices of the ``count`` lowest values, from the lowest; of equal ones the first is
    first.

    Sorting all 131,328 pairs of 512 moves would take six times as long.
    """
    indices = np.arange(len(values))
    if count < len(values):
        indices = np.flatnonzero(values <= np.partition(values, count)[count])
    return np.asarray(indices[np.argsort(values[indices], kind="stable")][:count])


def _singles(search: _Search, values: Vector) -> tuple[Ids, Vector, Vector]:
    """Tokens, whole steps (one unit either way, to 0, to the best alone) and predicted changes, the
    best ``MOVES``.
    """
    local = Local.at(search.next_token, search.weights, values)
    tokens = search.allowed
    best, _ = local.best_steps(tokens, search.usage, values, 0.0, search.low, search.high)
    rows = [
        np.full(len(tokens), 1.0),
        np.full(len(tokens), -1.0),
        -values[tokens],
        np.floor(best),
        np.ceil(best),
    ]
    sizes = np.sort(np.stack(rows, axis=1).astype(np.int64), axis=1)
    moved = values[tokens, None] + sizes
    is_move = (sizes != 0) & (moved >= search.low) & (moved <= search.high)
    is_move[:, 1:] &= sizes[:, 1:] != sizes[:, :-1]
    where = np.broadcast_to(tokens[:, None], sizes.shape)[is_move]
    steps = sizes[is_move].astype(np.float64)
    change = local.change(where, steps, search.usage, values)
    top = np.argsort(change, kind="stable")[:MOVES]
    return where[top], steps[top], change[top]


@dataclass(frozen=True, slots=True, eq=False)
class Sparse:
    """The compiled bias, and its loss.

    token_ids: (k,) sorted. values: (k,) nats, none 0. entries_dropped: learned entries (not 0) that
    are not listed. kl_lost: mean ``KL(pi_learned || pi_compiled)`` over logged positions, nats per
    token. kl_learned: mean ``KL(pi_learned || pi_0)``, the loss of sending nothing. kept: ``1 -
    kl_lost / kl_learned`` (1 if nothing was learned). clipped: listed values at a limit of the
    range. rounded_to_zero: tokens of the support of real values that are 0 as whole numbers; others
    may be listed in their place.
    """

    token_ids: Ids
    values: Vector
    entries_dropped: int
    kl_lost: float
    kl_learned: float
    clipped: int
    rounded_to_zero: int

    @property
    def entries(self) -> int:
        """k."""
        return len(self.token_ids)

    @property
    def kept(self) -> float:
        """The share of the estimated gain that remains; negative if the compiled bias is worse than
        none.

        The learned policy without a penalty is the m-projection of the target p* onto all biases,
        so that on the logged prefixes ``KL(p* || pi_v) = KL(p* || pi_learned) + KL(pi_learned ||
        pi_v)`` for every bias v (the Pythagorean theorem of information geometry; Csiszar 1975):
        with v = 0 and v = compiled, this is the kept share of ``KL(p* || pi_0) - KL(p* ||
        pi_learned)``, if positions count as they do in the fit. With a penalty the learned policy
        stands in for the target.
        """
        if self.kl_learned > 0:
            return 1.0 - self.kl_lost / self.kl_learned
        return 1.0


@dataclass(frozen=True, slots=True, eq=False)
class _Target:
    """The learned policy on the logged positions: ``KL(pi_learned || pi_v)`` is a concave solver's
    objective in v.
    """

    next_token: NextToken
    learned: Vector
    weights: Vector
    usage: Vector
    log_normaliser: float

    @classmethod
    def of(
        cls, next_token: NextToken, delta: npt.ArrayLike, position_weights: npt.ArrayLike | None
    ) -> _Target:
        learned = vector("delta", delta, len(next_token.token_ids))
        weights = weight_vector("position_weights", position_weights, next_token.n_positions)
        log_normaliser, usage = next_token.potential(learned, weights)
        return cls(next_token, learned, weights, usage, log_normaliser)

    def kl(self, values: Vector) -> float:
        """Mean KL(pi_learned || pi_values) in nats per position."""
        potential, _ = self.next_token.potential(values, self.weights)
        total = self.usage @ (self.learned - values) - self.log_normaliser + potential
        return max(float(total / self.weights.sum()), 0.0)


def sparsify(
    next_token: NextToken,
    delta: npt.ArrayLike,
    *,
    entries: int | None = None,
    low: float = -100.0,
    high: float = 100.0,
    integers: bool = False,
    position_weights: npt.ArrayLike | None = None,
    forbidden: Iterable[int] = (),
    patience: int = PATIENCE,
    exchanges: bool = True,
) -> Sparse:
    """Compile ``delta`` (s,) nats for a provider that takes ``entries`` values in [low, high] and
    refuses ``forbidden`` ids.

    entries None is no limit. position_weights: (m,), each position once if None. Support and values
    minimise the mean ``KL(pi_learned || pi_compiled)`` together (see ``best_support``); whole
    numbers come from a search on the same objective that begins at the rounded ones. If everything
    fits (and is whole, where it must be), the learned values are returned as they are.
    patience: of ``best_support``; 0 is quick. exchanges: of ``integer_search``. InputError: a
    range without 0, entries below 0.
    """
    _check(entries, low, high)
    if integers:
        low = float(np.ceil(low))
        high = float(np.floor(high))
    target = _Target.of(next_token, delta, position_weights)
    allowed = ~np.isin(next_token.token_ids, np.fromiter(forbidden, np.int64))
    learned = target.learned
    most = int(allowed.sum()) if entries is None else min(entries, int(allowed.sum()))
    problem = SubsetProblem(next_token, target.usage, target.weights, allowed, low=low, high=high)
    if (
        np.count_nonzero(learned) <= most
        and allowed[learned != 0].all()
        and learned.min() >= low
        and learned.max() <= high
    ):
        values = learned
    elif most == allowed.sum():
        values = problem.fitted(np.flatnonzero(allowed), np.clip(learned, low, high)).values
    else:
        values = best_support(problem, most, np.zeros_like(learned), patience=patience).values
    zeros = 0
    if integers and not (values is learned and np.array_equal(values, np.rint(values))):
        chosen = np.flatnonzero(values)
        values = integer_search(
            next_token,
            target.weights,
            target.usage,
            values,
            chosen,
            low,
            high,
            entries=most,
            allowed=allowed,
            exchanges=exchanges,
        )
        zeros = int((values[chosen] == 0).sum())
    return _report(target, values, zeros, low, high)


def against(next_token: NextToken, learned: npt.ArrayLike, sparse: Sparse) -> Sparse:
    """The same entries, with dropped and kl_lost counted against another ``learned`` bias (s,) than
    that of their fit.
    """
    target = _Target.of(
        next_token,
        vector("learned", learned, len(next_token.token_ids)),
        np.ones(next_token.n_positions),
    )
    values = next_token.align(sparse.token_ids, sparse.values)
    return replace(
        sparse,
        entries_dropped=int(((target.learned != 0) & (values == 0)).sum()),
        kl_lost=target.kl(values),
        kl_learned=target.kl(np.zeros_like(values)),
    )


def kept_share(next_token: NextToken, learned: Vector, values: Vector) -> float:
    """The share of the estimated gain of ``learned`` (s,) that ``values`` (s,) keep, as in
    ``Sparse.kept``.
    """
    return _report(_Target.of(next_token, learned, None), values, 0, -np.inf, np.inf).kept


def above(next_token: NextToken, highest_id: int | None) -> Ids:
    """The ids of the support above ``highest_id``, which a provider with such a limit refuses; none
    where it is None.
    """
    if highest_id is not None:
        return next_token.token_ids[next_token.token_ids > highest_id]
    return np.zeros(0, np.int64)


def _check(entries: int | None, low: float, high: float) -> None:
    if entries is not None and entries < 0:
        raise InputError(f"entries is {entries}; a provider takes 0 or more")
    if not low <= 0 <= high:
        raise InputError(
            f"the range [{low}, {high}] does not hold 0, the bias of a token that is not listed"
        )


def _report(target: _Target, values: Vector, zeros: int, low: float, high: float) -> Sparse:
    listed = np.flatnonzero(values)
    return Sparse(
        token_ids=target.next_token.token_ids[listed],
        values=values[listed],
        entries_dropped=int(((target.learned != 0) & (values == 0)).sum()),
        kl_lost=target.kl(values),
        kl_learned=target.kl(np.zeros_like(values)),
        clipped=int(((values[listed] <= low) | (values[listed] >= high)).sum()),
        rounded_to_zero=zeros,
    )
