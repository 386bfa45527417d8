"""Statistics of one set of rollouts, the paper's Zhat from them, and whether counts fit a
distribution.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import fields
from typing import TypeVar

import numpy as np
from scipy import stats

from blackbox_lb.estimate.counting.statistics import BLOCK_POSITIONS, Recipe, Statistics, TokenIPS
from blackbox_lb.estimate.inputs.checks import Vector
from blackbox_lb.estimate.inputs.rollouts import Rollouts
from blackbox_lb.estimate.inputs.sweep import Unobserved


def statistics_of(
    rollouts: Rollouts,
    tau: float | Sequence[float],
    *,
    highest: float | None = None,
    positions: int | None = None,
    seed: int = 0,
    unobserved: Unobserved = "bound",
    clip: float | None = None,
) -> Statistics:
    """Statistics of these rollouts for one or several tau; ``highest`` None: the highest reward of
    these rollouts.
    """
    if highest is None:
        highest = float(rollouts.rewards[rollouts.lengths > 0].max(initial=-np.inf))
    taus = (tau,) if isinstance(tau, int | float) else tuple(tau)
    recipe = Recipe(taus, highest, positions, seed, unobserved, clip)
    return (
        Statistics.gather(rollouts.blocks(BLOCK_POSITIONS), recipe)
        if rollouts.keys
        else Statistics.zero()
    )


def close(one: Statistics, other: Statistics) -> bool:
    """Whether all sums are the same to 1e-12 of their value, and all counts, keys and settings the
    same.
    """
    for each in fields(Statistics):
        mine, theirs = getattr(one, each.name), getattr(other, each.name)
        if isinstance(mine, np.ndarray):
            if mine.shape != theirs.shape or not np.allclose(mine, theirs, rtol=1e-12, atol=0):
                return False
        elif mine != theirs:
            return False
    return True


def zhat_of(ips: TokenIPS, tau: float) -> Vector:
    """(s,) ``Zhat(y)`` of ``TokenIPS.scaled`` with its scale."""
    values, log_scale = ips.scaled(tau)
    return values * math.exp(log_scale)


Kind = TypeVar("Kind", bound=Hashable)


def fits(found: Counter[Kind], exact: Mapping[Kind, float]) -> float:
    """The p value of counts under their exact distribution, by chi-square over those that are
    expected five times.
    """
    draws = found.total()
    assert set(found) <= set(exact)
    common = [row for row in exact if exact[row] * draws >= 5]
    observed = [found[row] for row in common]
    expected = [exact[row] * draws for row in common]
    rest = (draws - sum(observed), draws - sum(expected))
    return float(stats.chisquare([*observed, rest[0]], [*expected, rest[1]]).pvalue)
