"""The frontier on exact models: both estimators at equal rollouts, its settings swept, rewards and
KL from the known model.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context

import numpy as np

from tests.support.frontier.curves import Curve, Point, average
from tests.support.frontier.estimators import ESTIMATORS
from tests.support.frontier.problems import PROBLEMS, Problem
from tests.support.policy import estimate_policy

__all__ = [
    "PEER",
    "SUBJECT",
    "Comparison",
    "Plan",
    "compare",
    "curve",
    "measure",
]

SUBJECT, PEER = "projection, top-5", "ips"
LEVELS = (0.25, 0.5, 0.75, 0.9)
"""Shares of the largest gain of ips at which KLs are compared."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured: numbers of rollouts, means over ``draws`` of them, ``completions`` to
    evaluate each bias.
    """

    rollouts: tuple[int, ...] = (200, 400, 1000, 2000)
    draws: int = 4
    completions: int = 1000


@dataclass(frozen=True, slots=True)
class Comparison:
    """``SUBJECT`` against ``PEER`` on one problem.

    rollouts: (tau, n, the subject's best ``E[r] - tau KL`` on n rollouts, the peer's on 5 n). kl:
    (rollouts of both, share of the peer's largest gain, KL of the subject over that of the peer at
    the reward with that share); inf where it is never reached.
    """

    rollouts: tuple[tuple[float, int, float, float], ...]
    kl: tuple[tuple[int, float, float], ...]

    @property
    def fifth_suffices(self) -> float:
        """The share of comparisons in which a fifth of the rollouts gave at least as much."""
        return float(np.mean([ours >= theirs for _, _, ours, theirs in self.rollouts]))

    @property
    def kl_ratio(self) -> float:
        """The geometric mean of the KL ratios."""
        return float(np.exp(np.mean([math.log(ratio) for _, _, ratio in self.kl])))


def measure(problem: Problem, plan: Plan, processes: int = 1) -> tuple[float, list[Point]]:
    """The base model's reward, and the mean point of every setting."""
    work = partial(_draw, problem.name, plan=plan)
    if processes > 1:
        with get_context("spawn").Pool(processes) as pool:
            draws = pool.map(work, range(plan.draws), chunksize=1)
    else:
        draws = [work(draw) for draw in range(plan.draws)]
    model = problem.model()
    base = estimate_policy(model, np.zeros(model.vocab_size), problem.reward, 20_000, 0).reward
    return base, average(itertools.chain(*draws))


def compare(problem: Problem, base: float, points: Sequence[Point]) -> Comparison:
    """The two criteria on the points of one problem."""
    numbers = sorted({point.rollouts for point in points})
    curves = {(name, n): curve(points, base, name, n) for name in (SUBJECT, PEER) for n in numbers}
    fifths = [
        (tau, n, curves[SUBJECT, n].objective(tau), curves[PEER, 5 * n].objective(tau))
        for tau in problem.tau
        for n in numbers
        if 5 * n in numbers
    ]
    ratios = [
        (n, level, _ratio(curves[SUBJECT, n], curves[PEER, n], level))
        for n in numbers
        for level in LEVELS
    ]
    return Comparison(tuple(fifths), tuple(ratios))


def curve(points: Sequence[Point], base: float, name: str, n: int) -> Curve:
    """The frontier of one estimator on ``n`` rollouts."""
    return Curve(
        (point for point in points if (point.estimator, point.rollouts) == (name, n)), base
    )


def _ratio(ours: Curve, theirs: Curve, level: float) -> float:
    reward = theirs.level(level)
    spent = theirs.kl_at(reward)
    return ours.kl_at(reward) / spent if spent > 0 else math.inf


def _draw(name: str, draw: int, plan: Plan) -> list[Point]:
    """All points of one draw; smaller sets of rollouts are the first of the larger ones."""
    problem = PROBLEMS[name]
    model = problem.model()
    rollouts = model.rollouts(max(plan.rollouts), problem.reward, 100 + draw, top=20)
    points = []
    for n, name in itertools.product(plan.rollouts, ESTIMATORS):
        for fitted in ESTIMATORS[name](rollouts.take(np.arange(n)), problem.fit_tau):
            found = estimate_policy(
                model, fitted.dense(model.vocab_size), problem.reward, plan.completions, 1000 + draw
            )
            points.append(
                Point(name, n, fitted.tau, fitted.setting, found.reward, found.kl, found.length)
            )
    return points
