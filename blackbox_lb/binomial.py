"""Exact bounds of shares from counts. Only the standard library is needed."""

from __future__ import annotations

import math

RISK = 0.05
"""Chance that a one-sided bound misses the share."""
MOST_STEPS = 10_000
EXACT = 1e-15
"""Relative change of a continued fraction that ends it."""
TINY = 1e-300
BISECTIONS = 50
"""Halvings of [0, 1] for a bound: to the last digits of a double."""


def binomial_tail(least: int, trials: int, share: float) -> float:
    """Chance of at least ``least`` of ``trials`` successes, each with probability ``share``: the
    regularised incomplete beta function I_share(least, trials - least + 1).
    """
    if least <= 0 or share >= 1:
        return 1.0
    if share <= 0 or least > trials:
        return 0.0
    failures = trials - least + 1
    if share > (least + 1) / (trials + 3):  # there the fraction of the other end converges faster
        return 1.0 - _beta_share(failures, least, 1.0 - share)
    return _beta_share(least, failures, share)


def _beta_share(first: int, second: int, share: float) -> float:
    """I_share(first, second) by its continued fraction (Abramowitz and Stegun 26.5.8), evaluated
    by Lentz's method.
    """
    log_factor = (
        math.lgamma(first + second)
        - math.lgamma(first)
        - math.lgamma(second)
        + first * math.log(share)
        + second * math.log1p(-share)
    )
    below = 1.0 / _not_zero(1.0 - (first + second) * share / (first + 1))
    above = 1.0
    fraction = below
    for step in range(1, MOST_STEPS):
        place = first + 2 * step
        even = step * (second - step) * share / ((place - 1) * place)
        odd = -(first + step) * (first + second + step) * share / (place * (place + 1))
        for term in (even, odd):
            below = 1.0 / _not_zero(1.0 + term * below)
            above = _not_zero(1.0 + term / above)
            fraction *= below * above
        if abs(below * above - 1.0) < EXACT:
            break
    return math.exp(log_factor) * fraction / first


def _not_zero(value: float) -> float:
    if abs(value) > TINY:
        return value
    return TINY


def lower_bound(successes: int, trials: int, risk: float = RISK) -> float:
    """The one-sided lower bound of a share (Clopper and Pearson 1934); 0 without a trial."""
    if successes == 0:
        return 0.0
    low = 0.0
    high = 1.0
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        if binomial_tail(successes, trials, middle) > risk:
            high = middle
        else:
            low = middle
    return low


def upper_bound(successes: int, trials: int, risk: float = RISK) -> float:
    """The one-sided upper bound of a share (Clopper and Pearson 1934); 1 without a trial."""
    return 1.0 - lower_bound(trials - successes, trials, risk)
