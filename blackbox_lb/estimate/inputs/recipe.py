"""The settings of an estimate: the recipe of a set of statistics, and the sweep of estimators to
try.
"""

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import numpy as np

from blackbox_lb.errors import InputError
from blackbox_lb.estimate.inputs.checks import Vector, positive
from blackbox_lb.estimate.inputs.rollouts import Rollouts, Scale

Unobserved: TypeAlias = Literal["bound", "drop"]


@dataclass(frozen=True, slots=True)
class Recipe:
    """The settings of a sum; only statistics of one recipe can be added.

    tau: a completion weighs exp(r / tau), one column of sums for each. highest: the reward that
    weighs 1, in nats: at least the highest of all completions with a token (-inf where none earned
    one). positions: number drawn of each completion, None for all; the draw is seeded by (seed,
    rollout key). unobserved: the rule for bounded positions. clip: the largest 1 / pi_0 that
    counts, None for any.
    """

    tau: tuple[float, ...]
    highest: float
    positions: int | None = None
    seed: int = 0
    unobserved: Unobserved = "bound"
    clip: float | None = None

    def __post_init__(self) -> None:
        """Raise InputError: a setting out of range."""
        for tau in self.tau:
            positive("tau", tau)
        if self.positions is not None and self.positions < 1:
            raise InputError(
                f"positions is {self.positions}; draw at least 1 of each completion, or None"
                " for all"
            )
        if self.unobserved not in get_args(Unobserved):
            raise InputError(f"unobserved {self.unobserved!r} is unknown; choose 'bound' or 'drop'")
        if self.clip is not None and not 1 <= self.clip < np.inf:
            raise InputError(
                f"clip is {self.clip}; the largest inverse propensity must be a number from 1, or"
                " None for no limit"
            )
        if np.isnan(self.highest) or self.highest == np.inf:
            raise InputError(
                f"highest is {self.highest}; give the largest reward of all rollouts, or -inf where"
                " none is"
            )

    def weights(self, rollouts: Rollouts) -> Vector:
        """(n, j) ``exp((r - highest) / tau)``, 0 for completions without a position. InputError: a
        reward above ``highest``.
        """
        rewards = np.where(rollouts.lengths > 0, rollouts.rewards, -np.inf)
        above = np.flatnonzero(rewards > self.highest)
        if above.size:
            raise InputError(
                f"reward {rewards[above[0]]:g} of rollout {rollouts.keys[int(above[0])]} is above"
                f" the highest, {self.highest:g}: give the largest reward of all rollouts to every"
                " part of the statistics"
            )
        if self.highest == -np.inf:
            return np.zeros((len(rewards), len(self.tau)))
        weights: Vector = np.exp((rewards - self.highest)[:, None] / np.array(self.tau))
        return weights


L2: TypeAlias = float | Literal["cv"]
AlphaScale: TypeAlias = Literal["relative", "absolute"]

DEFAULT_L2: tuple[L2, ...] = ("cv", 20.0, 5.0, 1.25)
"""Strengths that the goal chooses among. Where rewards hardly differ, their noise makes the
held-out likelihood ask for far too strong a penalty: on stock words in stories for 160, where 5
earned four times as much. So fixed ones, spread from the middle to the weak end of
cross-validation's grid, take part beside its own."""

ANSWERS_L2: tuple[L2, ...] = ("cv", 30.0, 10.0, 3.0, 1.0, 0.3)
"""The same for given answers, which have no noise of rewards: a wider grid."""

TERMINAL_L2: tuple[L2, ...] = (5.0, 1.25)
CREDIT_L2: tuple[L2, ...] = (1.0,)
"""Default strengths where the rewards are sums over positions, for weights by the reward of the
whole completion and for rewards to go. Credit where it falls has so little noise that strengths
from .3 to 4 were not told apart on stock words in stories; the winner is tried at half and at twice
its strength anyway, and each candidate less leaves more completions for the others."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """Every combination of these is one candidate.

    tau: a completion weighs exp(r / tau). l2, weights: of ``projection``; "cv" stands for the l2
    with the largest held-out likelihood and for the smallest that keeps most of it, and puts those
    with the larger held-out likelihood first. alpha: of ``ips``, a multiple of the mean weight, or
    absolute as in the paper. gamma: of ``projection``, where the rollouts have costs: rewards to go
    with each of these (see ``RewardToGo``), beside the weights by the reward of the whole
    completion, which are always tried. positions: drawn of each completion, None for all; seed: of
    this draw. clip: the largest inverse propensity that counts, None for any.
    unobserved: of ``ips``, the rule where the provider gave only a bound for the sampled token's
    logprob (see ``Statistics``).
    """

    estimators: tuple[str, ...] = ("projection",)
    tau: tuple[float, ...] = (0.5,)
    l2: tuple[L2, ...] = DEFAULT_L2
    weights: Scale = "global"
    gamma: tuple[float, ...] = (1.0, 0.5)
    alpha: tuple[float, ...] = (0.05, 0.3)
    alpha_scale: AlphaScale = "relative"
    positions: int | None = None
    clip: float | None = None
    seed: int = 0
    unobserved: Unobserved = "bound"

    @property
    def l2_is_default(self) -> bool:
        """Whether the strengths are those of a fit that names none."""
        return self.l2 in (DEFAULT_L2, ANSWERS_L2)

    def __post_init__(self) -> None:
        """Raise InputError: a setting that is not a finite number above 0, or no value of one."""
        for name in ("tau", "l2", "alpha"):
            values = getattr(self, name)
            if not values:
                raise InputError(f"the sweep has no {name}; give at least one")
            for value in values:
                if value != "cv":
                    positive(name, value)
        for value in self.gamma:
            if not 0 <= value <= 1:
                raise InputError(f"gamma is {value}; it must be from 0 to 1")
        if self.clip is not None and not 1 <= self.clip < math.inf:
            raise InputError(
                f"clip is {self.clip}; the largest inverse propensity must be a number from 1, or"
                " None for any"
            )
