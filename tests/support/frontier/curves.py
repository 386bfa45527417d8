"""Reward against KL: what an estimator reaches over all of its settings, and how two estimators
compare at equal reward.

Between two biases lies the policy that picks one of them for each completion: its reward is between
theirs and its KL, which is convex, at most between theirs. So an estimator's frontier is the
concave hull of its points, and reading it between them is safe.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

__all__ = ["Curve", "Point", "average"]


@dataclass(frozen=True, slots=True)
class Point:
    """One estimator at one setting, fitted on ``rollouts`` completions. ``reward`` as a user reads
    it, ``kl`` nats a completion.
    """

    estimator: str
    rollouts: int
    tau: float
    setting: str
    reward: float
    kl: float
    length: float

    @property
    def settings(self) -> tuple[str, int, float, str]:
        """All but what was measured."""
        return self.estimator, self.rollouts, self.tau, self.setting


def average(points: Iterable[Point]) -> list[Point]:
    """One point for each setting: the mean over draws."""
    ordered = sorted(points, key=lambda point: point.settings)
    return [
        _mean(list(same))
        for _, same in itertools.groupby(ordered, key=lambda point: point.settings)
    ]


def _mean(same: Sequence[Point]) -> Point:
    reward, kl, length = (
        sum(getattr(p, name) for p in same) / len(same) for name in ("reward", "kl", "length")
    )
    return Point(*same[0].settings, reward, kl, length)


class Curve:
    """The frontier of some points above the base model at (0, ``base``).

    An estimated KL below 0 is read as 0; points whose KL is not known are left out of ``hull``.
    """

    def __init__(self, points: Iterable[Point], base: float) -> None:
        self.base = base
        self.points = list(points)
        known = [point for point in self.points if math.isfinite(point.kl)]
        self.hull = _hull([(0.0, base), *((max(point.kl, 0.0), point.reward) for point in known)])

    @property
    def highest(self) -> float:
        """The largest reward."""
        return self.hull[-1][1]

    def level(self, share: float) -> float:
        """The reward with this share of the largest gain."""
        return min(self.base + share * (self.highest - self.base), self.highest)

    def kl_at(self, reward: float) -> float:
        """The least KL in nats that reaches ``reward``; inf if none does."""
        if reward <= self.base:
            return 0.0
        for (kl, low), (next_kl, high) in itertools.pairwise(self.hull):
            if low < reward <= high:
                return kl + (next_kl - kl) * (reward - low) / (high - low)
        return math.inf

    def objective(self, tau: float) -> float:
        """The largest ``E[r] - tau KL``, that of the base model among them."""
        return max(reward - tau * kl for kl, reward in self.hull)


def _hull(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The upper hull from the first point to the one with the highest reward, by increasing KL."""
    start, top = points[0], max(points, key=lambda point: (point[1], -point[0]))
    hull = [start]
    for point in sorted(points[1:], key=lambda point: (point[0], -point[1])):
        if point[0] > top[0] or point[1] <= start[1]:
            continue
        while len(hull) > 1 and _slope(hull[-2], hull[-1]) <= _slope(hull[-2], point):
            hull.pop()
        if point[1] > hull[-1][1]:
            hull.append(point)
    return hull


def _slope(one: tuple[float, float], other: tuple[float, float]) -> float:
    run = other[0] - one[0]
    return (other[1] - one[1]) / run if run > 0 else math.inf
