"""The sweep: the estimators to try and their settings. It needs no numpy, so that the help of a
command may read its values.
"""

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from blackbox_lb.errors import InputError


def positive(name: str, value: float) -> float:
    """Return ``value`` if it is finite and above 0. Raises InputError otherwise."""
    if not 0 < value < math.inf:
        raise InputError(f"{name} is {value}; it must be a finite number above 0")
    return float(value)


Scale: TypeAlias = Literal["global", "prompt"]
Unobserved: TypeAlias = Literal["bound", "drop"]
AlphaScale: TypeAlias = Literal["relative", "absolute"]

DEFAULT_L2 = (20.0, 5.0, 1.25)
"""Strengths that the goal chooses among. Held-out likelihood would ask for far too strong a penalty
where rewards hardly differ, because of their noise: on stock words in stories for 160, where 5
earned four times as much. On 24 sets of 100 to 1,000 completions of exact models one of these was
the best of all, and a race with the proposals of cross-validation beside them kept .925 of its gain
where these alone kept .950."""

ANSWERS_L2 = (30.0, 10.0, 3.0, 1.0, 0.3)
"""The same for given answers, which have no noise of rewards: a wider grid."""

PROMISE_L2 = (1.0,)
"""For given answers and a promise, where the validation answers choose the point and nothing else:
about what the likelihood of left-out answers asks for."""

TERMINAL_L2 = (5.0, 1.25)
CREDIT_L2 = (1.0,)
"""Default strengths where the rewards are sums over positions, for weights by the reward of the
whole completion and for rewards to go. Credit where it falls has so little noise that strengths
from .3 to 4 were not told apart on stock words in stories; the winner is tried at half and at twice
its strength anyway, and each candidate less leaves more completions for the others."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """Every combination of these is one candidate.

    tau: a completion weighs exp(r / tau). l2, weights: of ``projection``. alpha: of ``ips``, a
    multiple of the mean weight, or absolute as in the paper. gamma: of ``projection``, where the
    rollouts have costs: rewards to go with each of these (see ``RewardToGo``), beside the weights
    by the reward of the whole completion, which are always tried. positions: drawn of each
    completion, None for all; seed: of this draw. clip: the largest inverse propensity that counts,
    None for any. unobserved: of ``ips``, the rule where the provider gave only a bound for the
    sampled token's logprob (see ``Statistics``).
    """

    estimators: tuple[str, ...] = ("projection",)
    tau: tuple[float, ...] = (0.5,)
    l2: tuple[float, ...] = DEFAULT_L2
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
        """Raise InputError: a setting out of range, or no value of one."""
        for name in ("tau", "l2", "alpha"):
            values = getattr(self, name)
            if not values:
                raise InputError(f"the sweep has no {name}; give at least one")
            for value in values:
                positive(name, value)
        for value in self.gamma:
            if not 0 <= value <= 1:
                raise InputError(f"gamma is {value}; it must be from 0 to 1")
        if self.positions is not None and self.positions < 1:
            raise InputError(
                f"positions is {self.positions}; draw at least 1 of each completion, or None"
                " for all"
            )
        if self.unobserved not in get_args(Unobserved):
            raise InputError(f"unobserved {self.unobserved!r} is unknown; choose 'bound' or 'drop'")
        if self.clip is not None and not 1 <= self.clip < math.inf:
            raise InputError(
                f"clip is {self.clip}; the largest inverse propensity must be a number from 1, or"
                " None for any"
            )
