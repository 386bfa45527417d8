"""Promises: decisions above a cut of confidence are wrong in at most a share of rows.

Few cuts are set beforehand, by no answer, and tested from the smallest
coverage on by an exact binomial test, until one fails ("fixed sequence testing", Angelopoulos et
al. 2021, "Learn then Test"): all tests together have the risk of one. A cut that is picked because
the sample meets the error there breaks its promise in every second sample.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from blackbox_lb.binomial import RISK, binomial_tail, upper_bound
from blackbox_lb.errors import InputError
from blackbox_lb.estimate.inputs.checks import Bools, Vector

COVERAGES = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
"""Shares of rows that the preset cuts answer. At a smaller one too few rows are left to show
anything; with more cuts none would be found earlier.
"""
MOST_ROWS = 10_000_000


@dataclass(frozen=True, slots=True)
class Certified:
    """The lowest cut that is shown to keep the promise.

    Attributes:
        cut: confidence from which on a row is answered.
        coverage: share of the rows that are answered.
        error_bound: of the share of wrong ones among the answered, by the rows at this cut alone.
        answered, wrong: rows.
    """

    cut: float
    coverage: float
    error_bound: float
    answered: int
    wrong: int


@dataclass(frozen=True, slots=True)
class NotCertifiable:
    """No cut is shown to keep the promise.

    Attributes:
        rows: that were there.
        needed: about so many would show it at one cut, if errors were as frequent as here; None
            where they are too frequent at every cut.
    """

    rows: int
    needed: int | None


def preset_cuts(confidences: Vector) -> Vector:
    """(k,) cuts, the highest first, that answer .3, .4 ... of the rows, and all of them.

    confidences: (n,) mended probabilities of the likeliest options, of rows without answers, or of
    those that ``certified`` gets: rows above an order statistic are independent draws from above
    it, so that the test stays exact. Raises InputError: there are none.
    """
    if not len(confidences):
        raise InputError("``confidences`` is empty; cuts are set from at least one row")
    quantiles = [1 - coverage for coverage in COVERAGES[:-1]]
    cuts = np.quantile(confidences, quantiles, method="lower")
    return np.unique(np.append(cuts, 0.0))[::-1]


def certified(
    confidences: Vector, is_right: Bools, cuts: Vector, error: float
) -> Certified | NotCertifiable:
    """The lowest of the preset cuts with at most ``error`` wrong among the answered rows; a promise
    that does not hold has a chance of at most ``RISK``.

    Args:
        confidences: (n,) mended probabilities of the likeliest options, by what was learned
            without these rows.
        is_right: (n,) whether those options are right.
        cuts: (k,) the highest first; see ``preset_cuts``.
        error: largest share of wrong ones, between 0 and 1.

    Raises:
        InputError: a share outside (0, 1), or lengths that differ.
    """
    if not 0 < error < 1:
        raise InputError(f"``error={error:g}`` is no share between 0 and 1; give one as .05")
    if confidences.shape != is_right.shape:
        raise InputError(
            f"``confidences`` of shape {confidences.shape} and ``is_right`` of shape"
            f" {is_right.shape} differ; give one of each a row"
        )
    result = None
    for cut in cuts.tolist():
        is_answered = confidences >= cut
        answered = int(is_answered.sum())
        right = int(is_right[is_answered].sum())
        if binomial_tail(right, answered, 1 - error) > RISK:
            break
        result = Certified(
            cut=cut,
            coverage=answered / len(confidences),
            error_bound=upper_bound(answered - right, answered),
            answered=answered,
            wrong=answered - right,
        )
    if result is not None:
        return result
    return NotCertifiable(len(confidences), _needed(confidences, is_right, cuts, error))


def _needed(confidences: Vector, is_right: Bools, cuts: Vector, error: float) -> int | None:
    """The fewest rows that would show the promise at the first cut. Its share of errors is the
    smallest of all cuts, each with half an error and one row more: rows of more confidence are
    wrong no more often.
    """
    shares = []
    for cut in cuts.tolist():
        is_answered = confidences >= cut
        wrong = int((~is_right[is_answered]).sum())
        shares.append((wrong + 0.5) / (int(is_answered.sum()) + 1))
    coverage = float((confidences >= cuts[0]).mean())
    expected = min(shares)
    if not coverage or expected >= error:
        return None

    def is_shown(answered: int) -> bool:
        wrong = round(expected * answered)
        return binomial_tail(answered - wrong, answered, 1 - error) <= RISK

    answered = _least(is_shown, round(MOST_ROWS * coverage))
    if answered is None:
        return None
    return max(round(answered / coverage), len(confidences) + 1)


def _least(holds: Callable[[int], bool], most: int) -> int | None:
    """A number at which a condition that larger numbers keep begins to hold; None beyond
    ``most``.
    """
    high = 1
    while not holds(high):
        high *= 2
        if high > most:
            return None
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle
    return high
