"""Statistics of one set of rollouts, and the paper's Zhat from them, as the tests and benchmarks want them."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import get_args

import numpy as np

from blackbox_lb.estimate.counting.ips import IPS
from blackbox_lb.estimate.counting.statistics import BLOCK_POSITIONS, Statistics
from blackbox_lb.estimate.inputs.checks import Vector
from blackbox_lb.estimate.inputs.recipe import Counted, Recipe, Unobserved
from blackbox_lb.estimate.inputs.rollouts import Rollouts


def statistics_of(
    rollouts: Rollouts,
    tau: float | Sequence[float],
    *,
    highest: float | None = None,
    positions: int | None = None,
    seed: int = 0,
    unobserved: Unobserved = "bound",
    clip: float | None = None,
    estimators: Collection[Counted] = get_args(Counted),
) -> Statistics:
    """Statistics of these rollouts for one or several tau; ``highest`` None: the highest reward of these rollouts."""
    if highest is None:
        highest = float(rollouts.rewards[rollouts.lengths > 0].max(initial=-np.inf))
    taus = (tau,) if isinstance(tau, int | float) else tuple(tau)
    recipe = Recipe(taus, highest, positions, seed, unobserved, clip, tuple(estimators))
    return Statistics.gather(rollouts.blocks(BLOCK_POSITIONS), recipe) if rollouts.keys else Statistics.zero()


def zhat_of(ips: IPS, tau: float) -> Vector:
    """(s,) ``Zhat(y)`` of ``IPS.scaled`` with its scale."""
    values, log_scale = ips.scaled(tau)
    return values * math.exp(log_scale)
