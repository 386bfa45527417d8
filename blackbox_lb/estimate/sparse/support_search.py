"""Support search: the best set of tokens with a bias, of limited size, by exchange on the true
loss.

Best-subset selection by splicing (Zhu, Wen, Zhu, Zhang and Wang, "A polynomial algorithm for
best-subset selection problem", PNAS 2020): members with the least predicted loss are exchanged for
non-members with the most predicted gain, many at once at first, and an exchange counts only where
the refitted loss falls. Single exchanges follow, which may climb for a few steps and never return
to a support already seen (tabu search; Glover 1989): a local optimum is seldom the best there is.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import sparse

from blackbox_lb.estimate.inputs.checks import Bools, Ids, Vector
from blackbox_lb.estimate.next_token.derivatives import squares
from blackbox_lb.estimate.next_token.next_token import NextToken
from blackbox_lb.estimate.next_token.sparse_table import dot
from blackbox_lb.estimate.problem import Problem

NEWTON_STEPS = 30


@dataclass(frozen=True, slots=True, eq=False)
class Local:
    """The policy at one bias. usage: (s,) ``sum_m w_m pi(y | m)``. share: (s,) the probability p of
    the module docstring.
    """

    usage: Vector
    share: Vector

    @classmethod
    def at(cls, next_token: NextToken, weights: Vector, values: Vector) -> Local:
        """The policy at ``values`` (s,) nats; weights: (m,)."""
        _, usage = next_token.potential(values, weights)
        squares = _squares(next_token, weights, values)
        share = np.divide(squares, usage, out=np.zeros_like(usage), where=usage > 0)
        return cls(usage, np.clip(share, 1e-12, 1 - 1e-9))

    def change(
        self, tokens: Ids, steps: Vector, linear: Vector, values: Vector, l2: float = 0.0
    ) -> Vector:
        """The effect of adding ``steps`` to the biases of ``tokens``, each alone, on ``W KL`` or
        the loss of a fit with ``l2``.
        """
        n = self.usage[tokens] / self.share[tokens]
        p = self.share[tokens]
        old = values[tokens]
        return (
            n * np.log1p(p * np.expm1(steps))
            - linear[tokens] * steps
            + l2 / 2 * steps * (steps + 2 * old)
        )

    def best_steps(
        self, tokens: Ids, linear: Vector, values: Vector, l2: float, low: float, high: float
    ) -> tuple[Vector, Vector]:
        """The step that lowers the loss most at each of ``tokens`` alone, and its effect, by
        Newton's method.
        """
        n = self.usage[tokens] / self.share[tokens]
        p = self.share[tokens]
        old = values[tokens]
        x = np.zeros(len(tokens))
        for _ in range(NEWTON_STEPS):
            q = p * np.exp(x) / (1 + p * np.expm1(x))
            slope = n * q - linear[tokens] + l2 * (old + x)
            bend = n * q * (1 - q) + l2
            x = np.clip(x - np.clip(slope / np.maximum(bend, 1e-12), -1, 1), low - old, high - old)
        return x, np.maximum(-self.change(tokens, x, linear, values, l2), 0.0)


def curvature(next_token: NextToken, weights: Vector, values: Vector, tokens: Ids) -> Vector:
    """(c, c) second derivatives of ``sum_m w_m log_normaliser_m`` in the biases of ``tokens``
    (c,).
    """
    inverse = np.exp(-next_token.log_normaliser(values))
    masses = next_token.by_token(tokens)
    tilt = np.exp(values[tokens])
    listed = masses.listed
    unigram = masses.unigram
    spread = masses.spread
    entries = listed.values if masses.scale is None else listed.values * masses.scale[listed.rows]
    table = sparse.csc_array(
        (entries, listed.rows, listed.starts), shape=(next_token.n_positions, len(tokens))
    )
    once = weights * inverse
    twice = weights * inverse**2
    cross = np.outer(table.T @ (twice * spread), unigram)
    both = (
        table.T
        @ sparse.csc_array((entries * twice[listed.rows], listed.rows, listed.starts), table.shape)
    ).toarray()
    products = both + cross + cross.T + float(twice @ spread**2) * np.outer(unigram, unigram)
    usage = tilt * (table.T @ once + unigram * float(once @ spread))
    return np.asarray(np.diag(usage) - products * np.outer(tilt, tilt))


def _squares(next_token: NextToken, weights: Vector, values: Vector) -> Vector:
    """(s,) ``sum_m w_m pi(y | m)^2``, part by part."""
    q = weights * np.exp(-2 * next_token.log_normaliser(values))
    listed, cross = squares(next_token, q)
    unigram = next_token.unigram
    total = listed + 2 * unigram * cross + unigram**2 * float(q @ next_token.spread**2)
    return np.exp(2 * values) * np.maximum(total, 0.0)


SPLICES = 20
"""Most exchanges of many at once; on real rollouts two to seven are made."""
PATIENCE = 8
"""Single exchanges without a new best before the end. On problems of 5 to 12 tokens and 1 to 3
entries, each compared with all supports, none missed the best in 8 of 300, 4 in 3 of 2,000, and 8
in none of 1,000."""
TRIED = 24
"""Exchanges that are refitted at each step, the most promising first."""
REFITS = 400
"""Of single exchanges, divided by the entries: a refit costs about in proportion. At least
``TRIED``.
"""
COUPLED = 3000
"""Tokens with jointly computed curvature, a matrix of 72 MB; of more, each is judged as if the
others stood still.
"""
LEAST = 1e-9
"""Nats per weighted position: less is no progress."""


@dataclass(frozen=True, slots=True, eq=False)
class SubsetProblem:
    """The values v that minimise ``sum_m w_m log_normaliser_m(v) - linear . v + l2/2 |v|^2``,
    with low <= v <= high and 0 where not allowed.

    linear: (s,) the target policy's usage, ``sum_m w_m pi_target(y | m)``: then the loss is ``W
    KL(target || v)`` and a constant. Or the weighted counts of sampled tokens: then it is that of
    the projection. weights: (m,). allowed: (s,).
    """

    next_token: NextToken
    linear: Vector
    weights: Vector
    allowed: Bools
    l2: float = 0.0
    low: float = -np.inf
    high: float = np.inf

    def on(self, support: Ids) -> Problem:
        """The same with values on ``support`` only."""
        return Problem(
            lambda values: self.next_token.potential(values, self.weights),
            self.linear,
            float(self.weights.sum()),
            l2=self.l2,
            free=support,
            low=self.low,
            high=self.high,
        )

    def fitted(self, support: Ids, start: Vector) -> Supported:
        """Minimise the loss with values on ``support`` only, starting at those of ``start``
        (s,).
        """
        solution = self.on(support).solve(start, max_iterations=300)
        values = solution.x
        return Supported(support, values, self.l2 / 2 * dot(values, values) - solution.value)


@dataclass(frozen=True, slots=True, eq=False)
class Supported:
    """support: sorted indices into the s tokens. values: (s,) nats, the best on it. loss:
    theirs.
    """

    support: Ids
    values: Vector
    loss: float


@dataclass(frozen=True, slots=True, eq=False)
class _Scores:
    """Predicted effects of one exchange, with the rest refitted.

    loss: (k,) of each member that leaves.
    gain: (c,) of each of ``others`` that joins.

    steps: (c,) the value of each that joins. inverse, response: (k, k) inverse curvature of the
    members, and (k, c) the fall of each for one nat of an other; None where there are too many for
    that.
    """

    others: Ids
    gain: Vector
    steps: Vector
    loss: Vector
    coupling: tuple[Vector, Vector, Vector] | None


def best_support(
    problem: SubsetProblem, entries: int, start: Vector, *, patience: int = PATIENCE
) -> Supported:
    """Choose at most ``entries`` tokens and their best values, from the support of ``start`` (s,),
    which has no more of them.

    patience: single exchanges without a new best, 0 for none at all: then it is quick.
    """
    if entries == 0:
        return problem.fitted(np.zeros(0, np.int64), start)
    solution = problem.fitted(np.flatnonzero(start), start)
    for _ in range(SPLICES):
        better = _splice(problem, entries, solution)
        if better is None:
            break
        solution = better
    return _exchange(problem, entries, solution, patience)


def _score(problem: SubsetProblem, entries: int, incumbent: Supported) -> _Scores:
    members = incumbent.support
    values = incumbent.values
    local = Local.at(problem.next_token, problem.weights, values)
    free = problem.allowed.copy()
    free[members] = False
    nonmembers = np.flatnonzero(free & (local.usage > LEAST * problem.weights.sum()))
    steps, gain = local.best_steps(
        nonmembers, problem.linear, values, problem.l2, problem.low, problem.high
    )
    top = np.argsort(-gain, kind="stable")[: max(entries, 2 * TRIED)]
    nonmembers = nonmembers[top]
    steps = steps[top]
    gain = gain[top]
    loss = local.change(members, -values[members], problem.linear, values, problem.l2)
    if len(members) + len(nonmembers) > COUPLED or not len(nonmembers) or not len(members):
        return _Scores(nonmembers, gain, steps, loss, None)
    matrix = curvature(
        problem.next_token, problem.weights, values, np.concatenate((members, nonmembers))
    )
    bend = np.diag(matrix) + problem.l2 + LEAST * problem.weights.sum()
    np.fill_diagonal(matrix, bend)
    k = len(members)
    inverse = np.linalg.inv(matrix[:k, :k])
    response = inverse @ matrix[:k, k:]
    schur = np.maximum(bend[k:] - np.einsum("ij,ij->j", matrix[:k, k:], response), 1e-3 * bend[k:])
    looser = bend[k:] / schur
    return _Scores(
        nonmembers,
        gain * looser,
        steps * looser,
        loss / (np.diag(inverse) * bend[:k]),
        (np.diag(inverse), response, schur),
    )


def _splice(problem: SubsetProblem, entries: int, incumbent: Supported) -> Supported | None:
    """Exchange as many as the prediction favours, then half of them, until the loss falls; None
    where it does not.
    """
    scores = _score(problem, entries, incumbent)
    room = entries - len(incumbent.support)
    leave = np.concatenate((np.full(room, -1), np.argsort(scores.loss, kind="stable")))
    join = np.argsort(-scores.gain, kind="stable")
    pairs = min(len(leave), len(join))
    lost = np.concatenate((np.zeros(room), np.sort(scores.loss)))[:pairs]
    count = int((scores.gain[join[:pairs]] > np.maximum(lost, 0)).sum())
    while count >= 1:
        out = leave[:count]
        members = np.delete(incumbent.support, out[out >= 0])
        trial = problem.fitted(np.union1d(members, scores.others[join[:count]]), incumbent.values)
        if trial.loss < incumbent.loss - LEAST * problem.weights.sum():
            return trial
        count //= 2
    return None


def _exchange(
    problem: SubsetProblem, entries: int, incumbent: Supported, patience: int
) -> Supported:
    best = incumbent
    visited = {incumbent.support.tobytes()}
    stuck = 0
    remaining = max(REFITS // entries, TRIED)
    while remaining > 0 and stuck < patience:
        following = None
        for support in _singles(incumbent, _score(problem, entries, incumbent), visited):
            trial = problem.fitted(support, incumbent.values)
            visited.add(support.tobytes())
            remaining -= 1
            if following is None or trial.loss < following.loss:
                following = trial
            if trial.loss < best.loss - LEAST * problem.weights.sum():
                break
        if following is None:
            break
        incumbent = following
        stuck = stuck + 1
        if incumbent.loss < best.loss - LEAST * problem.weights.sum():
            best = incumbent
            stuck = 0
    return best


def _singles(incumbent: Supported, scores: _Scores, visited: set[bytes]) -> list[Ids]:
    """The most promising supports that differ in one token and are new."""
    worth = np.asarray(scores.gain[None, :] - _lost_with(incumbent, scores))
    chosen: list[Ids] = []
    for flat in np.argsort(-worth, axis=None, kind="stable")[: TRIED + len(visited)]:
        out, into = np.unravel_index(flat, worth.shape)
        support = np.sort(np.append(np.delete(incumbent.support, out), scores.others[into]))
        if support.tobytes() not in visited:
            chosen.append(support)
        if len(chosen) == TRIED:
            break
    return chosen


def _lost_with(incumbent: Supported, scores: _Scores) -> Vector:
    """(k, c) the loss of each member that leaves after each of the others has joined and all were
    refitted.
    """
    if scores.coupling is None:
        return scores.loss[:, None]
    inverse, response, schur = scores.coupling
    values = incumbent.values[incumbent.support]
    moved = values[:, None] - response * scores.steps[None, :]
    alone = np.maximum(values**2 / inverse, 1e-300)
    together = moved**2 / (inverse[:, None] + response**2 / schur[None, :])
    return np.asarray(scores.loss[:, None] * together / alone[:, None])
