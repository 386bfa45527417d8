"""The recipe of a set of statistics."""

from dataclasses import dataclass

import numpy as np

from blackbox_lb.errors import InputError
from blackbox_lb.estimate.inputs.checks import Vector
from blackbox_lb.estimate.inputs.rollouts import Rollouts
from blackbox_lb.estimate.inputs.sweep import Unobserved


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
        """Raise InputError: a highest reward that is none; ``Sweep`` checks the other settings."""
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
