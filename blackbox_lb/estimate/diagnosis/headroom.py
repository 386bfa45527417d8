"""Headroom: the reward that any policy near the base could gain, from a few completions of each
prompt alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy import special

from blackbox_lb.errors import InputError
from blackbox_lb.estimate.inputs.checks import Vector
from blackbox_lb.estimate.inputs.sweep import positive
from blackbox_lb.estimate.inputs.thresholds import (
    CONFIDENCE,
    LEAST_PROMPTS,
    MOST_EXCEPTIONS,
    NEGLIGIBLE_GAIN,
    RARE,
    SMALL_GAIN,
)
from blackbox_lb.estimate.reweighting import reward_variance

Decision: TypeAlias = Literal["nothing", "little", "enough", "unknown"]


@dataclass(frozen=True, slots=True)
class Headroom:
    """The room to learn, on the scale of the user's own values.

    v0, v0_error: ``E_x Var(v | x)`` (the paper, theorem "Reward gap") and its standard error. gain:
    mean over prompts of ``E_p*[v] - E_0[v]`` with ``p* ~ p_0 exp(r / tau)``, the gain of the
    unconstrained optimum at this tau; a fixed bias reaches a part of it. low, high: its 95 %
    interval over prompts. ceiling: the best completion seen of each prompt minus the mean, an upper
    limit for every tau on these completions. mean, spread: mean and standard deviation of all
    values. prompts: those with two completions or more, which count; varying: those of them with
    two different values.
    """

    v0: float
    v0_error: float
    gain: float
    low: float
    high: float
    ceiling: float
    mean: float
    spread: float
    tau: float
    prompts: int
    varying: int

    @property
    def decision(self) -> Decision:
        """ "nothing": with 95 % confidence no more than NEGLIGIBLE_GAIN; "little": no more than
        SMALL_GAIN, or about that.

        "enough": the gain is above SMALL_GAIN and surely not negligible; "unknown": too few
        prompts, or too wide an interval.
        """
        negligible = NEGLIGIBLE_GAIN * self.spread
        small = SMALL_GAIN * self.spread
        surely_some = self.varying > 0 and self.low > negligible
        if self.prompts >= LEAST_PROMPTS and (self.varying == 0 or self.high <= negligible):
            return "nothing"
        if surely_some and self.gain > small:
            return "enough"
        if self.prompts >= LEAST_PROMPTS and self.varying and (self.high <= small or surely_some):
            return "little"
        return "unknown"

    @property
    def gain_sentence(self) -> str:
        """The optimum's gain in words, with its interval where there is one."""
        interval = ""
        if math.isfinite(self.low):
            interval = f" ({self.low:.3g} to {self.high:.3g})"
        return f"at tau {self.tau:g} the best policy there is would gain {self.gain:.3g}{interval}"

    @property
    def plain(self) -> str:
        """What there is to learn, without the terms of the paper."""
        seen = f"all completions of a prompt earn the same on each of {self.prompts} prompts"
        if self.varying:
            seen = (
                f"completions of a prompt differ in reward on {self.varying} of {self.prompts}"
                f" prompts; the best ones earn {self.ceiling:.3g} more than the mean"
            )
        return f"{seen}: {_MEANING[self.decision]}"

    @property
    def sentence(self) -> str:
        if not self.varying:
            most = -math.expm1(math.log1p(-CONFIDENCE) / self.prompts)
            text = (
                f"the completions of each of {self.prompts} prompts all have one reward, so V_0 is"
                f" 0 (at {CONFIDENCE:.0%} confidence at most {most:.0%} of prompts differ)"
            )
        else:
            error = ""
            if math.isfinite(self.v0_error):
                error = f" (standard error {self.v0_error:.2g})"
            text = (
                f"V_0 is {self.v0:.3g}{error}, the variance of the reward within a prompt;"
                f" completions differ in {self.varying} of {self.prompts} prompts;"
                f" {self.gain_sentence} over the mean {self.mean:.3g}, and a fixed bias a part of"
                " that"
            )
        return f"{text}: {_MEANING[self.decision]}"


_MEANING: dict[Decision, str] = {
    "nothing": "there is nothing to learn here",
    "little": "there is little to learn here",
    "enough": "there is enough to learn from",
    "unknown": "too few prompts to decide whether there is anything to learn",
}


@dataclass(frozen=True, slots=True)
class Rarity:
    """How few completions have another reward than nearly all.

    completions: their number. exceptions: those with another value than the commonest. are_worse:
    whether all exceptions have less.
    """

    completions: int
    exceptions: int
    are_worse: bool

    @classmethod
    def of(cls, values: npt.ArrayLike) -> Rarity | None:
        """That of the (n,) ``values`` of completions; None where none or many differ from the
        commonest value, and where some are above and some below it.
        """
        kinds, counts = np.unique(np.asarray(values, dtype=np.float64), return_counts=True)
        completions = int(counts.sum())
        exceptions = completions - int(counts.max(initial=0))
        if not 0 < exceptions <= min(MOST_EXCEPTIONS, RARE * completions):
            return None
        place = int(counts.argmax())
        if 0 < place < len(kinds) - 1:
            return None
        return cls(completions, exceptions, place > 0)

    @property
    def sentence(self) -> str:
        """What the counts say of the model."""
        count = f"{self.exceptions} of {self.completions:,} completions"
        if self.are_worse:
            return (
                f"the model hardly does what the reward is against: {count} earn less than all"
                " others; there is next to nothing to remove"
            )
        return (
            f"the model hardly ever earns the reward: {count} earn more than all others; that is"
            " too few to learn from"
        )

    @property
    def remedy(self) -> str:
        """Where more would differ."""
        if self.are_worse:
            return "give prompts on which the model does it more often"
        return "give prompts on which the model earns it more often, or another reward"


def headroom(
    rewards: npt.ArrayLike, prompts: npt.ArrayLike, values: npt.ArrayLike, *, tau: float
) -> Headroom:
    """Headroom from completions that the base model drew at temperature 1.

    rewards: (n,) nats, -inf allowed, of the tilt ``exp(r / tau)``. prompts: (n,) the prompt of
    each. values: (n,) the user's own value of each reward: itself on the linear scale, ``exp(r)``
    on the log scale.

    The ratio ``sum w v / sum w`` of n completions is biased by 1/n, so each prompt's gain is
    jackknifed: ``n G - (n - 1) mean of G without each`` (Quenouille, Biometrika 43, 1956; its bias
    is 1/n^2). It may exceed the possible gain of one prompt and is meant for the mean over prompts.
    A prompt whose rewards are all -inf gains 0. The interval treats prompts as independent.
    InputError: a NaN or +inf reward, a value that is not finite, no prompt with two completions.
    """
    r = np.asarray(rewards, dtype=np.float64)
    v = np.asarray(values, dtype=np.float64)
    positive("tau", tau)
    v0, v0_error = reward_variance(v, prompts)  # refuses unusable shapes, values and prompts
    if r.shape != v.shape or np.isnan(r).any() or (r == np.inf).any():
        raise InputError(
            f"rewards must have shape {v.shape} and be finite or -inf; check the reward function"
        )
    _, where, sizes = np.unique(np.asarray(prompts), return_inverse=True, return_counts=True)
    order = np.argsort(where, kind="stable")
    parts = [rows for rows in np.split(order, np.cumsum(sizes)[:-1]) if len(rows) > 1]
    gains = np.array([_jackknifed(r[rows] / tau, v[rows]) for rows in parts])
    used = np.concatenate(parts)
    gain = float(gains.mean())
    half = _half_width(gains)
    return Headroom(
        v0=v0,
        v0_error=v0_error,
        gain=gain,
        low=gain - half,
        high=gain + half,
        ceiling=float(np.mean([v[rows].max() - v[rows].mean() for rows in parts])),
        mean=float(v[used].mean()),
        spread=float(v[used].std()),
        tau=tau,
        prompts=len(parts),
        varying=sum(bool(np.ptp(v[rows]) > 0) for rows in parts),
    )


def _half_width(values: Vector) -> float:
    """Half of the t interval of a mean; infinite for a single value."""
    if len(values) < 2:
        return math.inf
    quantile = float(special.stdtrit(len(values) - 1, (1 + CONFIDENCE) / 2))
    return quantile * float(values.std(ddof=1)) / math.sqrt(len(values))


def _gain(exponents: Vector, values: Vector) -> float:
    """``sum w v / sum w - mean v`` with ``w = exp(exponents)``; 0 where all w are."""
    highest = float(exponents.max())
    if highest == -math.inf:
        return 0.0
    w = np.exp(exponents - highest)
    return float(w @ values / w.sum() - values.mean())


def _jackknifed(exponents: Vector, values: Vector) -> float:
    n = len(values)
    above = values - values.min()
    with np.errstate(divide="ignore"):  # log 0 is -inf, the term that adds nothing
        tilted = _without_each(exponents + np.log(above))
    weight = _without_each(exponents)
    alive = weight > -np.inf
    ratios = np.exp(np.where(alive, tilted, -np.inf) - np.where(alive, weight, 0.0))
    without = np.where(alive, ratios - (above.sum() - above) / (n - 1), 0.0)
    return float(n * _gain(exponents, values) - (n - 1) * without.mean())


def _without_each(terms: Vector) -> Vector:
    """(n,) log of the sum of ``exp(terms)`` without each; from both ends, because subtracting would
    cancel.
    """
    ahead = np.concatenate(([-np.inf], np.logaddexp.accumulate(terms)[:-1]))
    behind = np.concatenate((np.logaddexp.accumulate(terms[::-1])[:-1][::-1], [-np.inf]))
    return np.asarray(np.logaddexp(ahead, behind), dtype=np.float64)
