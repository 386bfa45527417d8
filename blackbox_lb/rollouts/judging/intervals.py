"""The certainty of a mean: bootstrap intervals, p-values of a difference, and the number of prompts
that would show one.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from blackbox_lb.errors import InputError

Array = npt.NDArray[np.float64]
REPLICATES = 10_000
"""Bootstrap replicates: the paper's B (appendix on bootstrap confidence intervals)."""
LEVEL = 0.05
"""The chance, over all rows of one verdict together, that a bias without effect gets the verdict
HELPS or HURTS.
"""
POWER = 0.8
"""The chance to show a true difference for which a sample size is given: the convention of Cohen
1988.
"""
BLOCK = 2_000_000
"""Resampled values held at once, to bound memory at 16 MB."""


@dataclass(frozen=True, slots=True)
class Interval:
    """The 95 % interval of a mean, and the two-sided p-value of its being 0.

    ``percentile_low``, ``percentile_high``: the paper's interval; ``low`` and ``high`` are an
    expansion of it.
    """

    low: float
    high: float
    p: float
    percentile_low: float
    percentile_high: float


def bootstrap(values: Array, *, replicates: int = REPLICATES, seed: int = 0) -> Interval:
    """The percentile bootstrap of the mean (the paper, appendix on bootstrap confidence intervals),
    as it is and expanded.

    ``values``: shape (n,), one number a prompt: the mean of its completions, or their paired
    difference. Prompts are resampled, because completions of one prompt are not independent. The
    plain percentile interval is too narrow for few prompts: its spread misses the factor n/(n-1)
    and Student's t. The percentiles are moved outwards by both (Hesterberg 2015, "What Teachers
    Should Know About the Bootstrap", section 5.2); from a few hundred prompts on it is the paper's.
    The p-value is the level of the expanded interval that just reaches 0, and never below 2^(1-n),
    the p-value of n differences of one sign in a sign test: a handful of prompts proves nothing.

    Raises InputError: no values.
    """
    n = len(values)
    if n == 0:
        raise InputError("nothing to compare: no prompts were evaluated")
    means = _resampled_means(values, replicates, seed)
    plain_low, plain_high = np.quantile(means, [0.025, 0.975]).tolist()
    if n == 1:
        return Interval(plain_low, plain_high, 1.0, plain_low, plain_high)
    from scipy import special

    wider = np.sqrt(n / (n - 1))
    tail = float(special.ndtr(special.stdtrit(n - 1, 0.025) * wider))
    low, high = np.quantile(means, [tail, 1 - tail])
    beyond = max(
        min(float((means <= 0).mean()), float((means >= 0).mean())), 0.5 / (replicates + 1)
    )
    p = min(2 * float(special.stdtr(n - 1, special.ndtri(beyond) / wider)), 1.0)
    return Interval(float(low), float(high), max(p, 2.0 ** (1 - n)), plain_low, plain_high)


def _resampled_means(values: Array, replicates: int, seed: int) -> Array:
    generator = np.random.default_rng(seed)
    n = len(values)
    means = np.empty(replicates)
    step = max(1, BLOCK // n)
    for start in range(0, replicates, step):
        count = min(step, replicates - start)
        means[start : start + count] = values[generator.integers(0, n, size=(count, n))].mean(
            axis=1
        )
    return means


def sign_test(differences: Array) -> float:
    """The p-value of an exact two-sided sign test over the (n,) differences that are not 0; 1 where
    all are.

    It only counts the prompts that got better, so no single prompt can decide (Conover 1999,
    "Practical Nonparametric Statistics", section 3.4).
    """
    from scipy import special

    above = int((differences > 0).sum())
    below = int((differences < 0).sum())
    return min(2 * float(special.bdtr(min(above, below), above + below, 0.5)), 1.0)


def holm(p: Sequence[float]) -> list[float]:
    """p-values adjusted step by step for their number (Holm 1979, "A simple sequentially rejective
    multiple test procedure").

    One of six rows of a bias that does nothing is beyond its own 95 % interval in up to a quarter
    of all cases. Of the adjusted ones, any is below .05 in at most 5 %, however they depend on each
    other.
    """
    adjusted = dict.fromkeys(range(len(p)), 1.0)
    highest = 0.0
    for rank, number in enumerate(sorted(adjusted, key=lambda number: p[number])):
        highest = min(max(highest, (len(p) - rank) * p[number]), 1.0)
        adjusted[number] = highest
    return list(adjusted.values())


def sample_size(
    effect: float, sd: float, *, level: float = LEVEL, power: float = POWER
) -> int | None:
    """The fewest prompts at which a paired two-sided test at ``level`` shows a mean difference
    ``effect`` with this ``power``.

    ``sd``: standard deviation of the differences between prompts, in the unit of ``effect``. The
    power is that of the t-test with noncentrality ``effect sqrt(n) / sd`` (Cohen 1988, "Statistical
    Power Analysis for the Behavioral Sciences", section 2.5). The search for n goes upwards from
    the normal approximation ``((z(1 - level/2) + z(power)) sd / effect)^2``, and from the least n
    that can reach ``level`` in a sign test. None where the effect is 0, or too small for any
    existing number of prompts.
    """
    if effect == 0:
        return None
    from scipy import special

    fewest = max(2, math.ceil(1 - math.log2(level)))
    z = -float(special.ndtri(level / 2))
    ratio = (z + float(special.ndtri(power))) * sd / abs(effect)
    if ratio > 1e8:  # the square has no meaning to the last prompt
        return None
    n = max(fewest, math.ceil(ratio**2))
    while n < 10_000 and _power(abs(effect) / sd if sd else math.inf, n, level) < power:
        n += 1
    return n


def _power(standardised: float, n: int, level: float) -> float:
    """The power of the two-sided one-sample t-test with ``n`` values; the share on the wrong side
    is negligible at this power.
    """
    if math.isinf(standardised):
        return 1.0
    from scipy import special

    return 1.0 - float(
        special.nctdtr(n - 1, standardised * math.sqrt(n), -special.stdtrit(n - 1, level / 2))
    )
