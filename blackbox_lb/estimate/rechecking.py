"""Whether what was learned of probabilities still holds: drift without answers, errors with some.

Drift: the energy distance of two samples of vectors (Szekely and Rizzo 2004), with its chance from
permutations of the rows, which is exact where nothing has changed.

Errors: the mixture of likelihood ratios of Robbins (1970). With k of n decisions wrong and a limit
e, the evidence that more than e are wrong is the mean of p^k (1 - p)^(n - k) over p in (e, 1), over
e^k (1 - e)^(n - k); the evidence that fewer are, that over p in (0, e). Where the limit is kept (or
is not), the one (the other) is a supermartingale with mean at most 1, so that it passes 1 / risk at
any time with at most that risk (Ville 1939): one may look after every row, and as often as one
likes.

Index letters: ``n`` and ``m`` rows, ``c`` options.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from blackbox_lb.binomial import RISK
from blackbox_lb.errors import InputError
from blackbox_lb.estimate.inputs.checks import Bools, Vector

DECIMALS = 4
"""Of the nats that are compared. A kept sample has no more, and rounded otherwise it would differ
from itself where an option hardly varies.
"""
MOST_COMPARED = 5_000
"""Rows of a sample that are compared: all pairs of them take 200 MB."""
PERMUTATIONS = 999
"""The smallest chance that they show is .001."""
SAME = 1e-12
"""Relative difference of two distances that is rounding."""
MOST_LOG = 700.0
"""Logarithm of the largest evidence that is told."""
MOST_ROWS = 1_000_000
"""Rows above which no number is named that would show something."""
GRID = 2_000
"""Numbers of rows that are tried for it."""


class EnergyDistance(NamedTuple):
    """distance: from 0, in standard deviations of an option. p: the chance of one as large where
    both samples come from one distribution.
    """

    distance: float
    p: float


def energy_test(then: Vector, now: Vector) -> EnergyDistance:
    """Compare two samples of vectors, each option in its standard deviation over both.

    Args:
        then: (n, c) nats.
        now: (m, c) nats. Of more than ``MOST_COMPARED`` rows so many are drawn.

    Raises:
        InputError: an empty sample, or other options.
    """
    if then.ndim != 2 or now.ndim != 2 or then.shape[1:] != now.shape[1:]:
        raise InputError(
            f"``then`` of shape {then.shape} and ``now`` of shape {now.shape} differ in their"
            " options; give rows of the same ones"
        )
    if not len(then) or not len(now):
        raise InputError(
            f"``then`` has {len(then)} rows and ``now`` {len(now)}; give at least one of each"
        )
    from scipy.spatial.distance import cdist  # a quarter of a second, where a command starts

    generator = np.random.default_rng(0)
    if len(now) > MOST_COMPARED:
        now = now[generator.choice(len(now), MOST_COMPARED, replace=False)]
    both = np.concatenate([then, now]).round(DECIMALS)
    deviations = both.std(axis=0)
    scaled = both / np.where(deviations > 0, deviations, 1.0)
    distances = cdist(scaled, scaled)
    contrast = np.concatenate([np.full(len(then), 1 / len(then)), np.full(len(now), -1 / len(now))])
    permuted = [generator.permutation(contrast) for _ in range(PERMUTATIONS)]
    contrasts = np.column_stack([contrast, *permuted])
    energies = -np.einsum("np,np->p", contrasts, distances @ contrasts)
    observed = energies[0]
    larger = int((energies[1:] >= observed * (1 - SAME)).sum())
    distance = float(np.sqrt(abs(observed)))
    return EnergyDistance(distance, (1 + larger) / (1 + PERMUTATIONS))


class ErrorEvidence(NamedTuple):
    """above: the largest evidence so far, over all rows from the first, that more than the limit is
    wrong; below: that less is. 20 is 95 % confidence.
    """

    above: float
    below: float

    def is_broken(self) -> bool:
        """Whether more errors than the limit are shown."""
        return self.above >= 1 / RISK

    def is_kept(self) -> bool:
        """Whether fewer errors than the limit are shown."""
        return self.below >= 1 / RISK


def error_evidence(is_wrong: Bools, limit: float) -> ErrorEvidence:
    """Evidence on the share of wrong decisions, from rows in the order in which they came.

    Args:
        is_wrong: (n,) of the decisions that were made.
        limit: the largest share that is promised, between 0 and 1.

    Raises:
        InputError: a limit outside (0, 1).
    """
    if not 0 < limit < 1:
        raise InputError(f"``limit={limit:g}`` is no share between 0 and 1; give one as .05")
    if not len(is_wrong):
        return ErrorEvidence(1.0, 1.0)
    wrong = np.cumsum(is_wrong, dtype=np.float64)
    rows = np.arange(1.0, len(is_wrong) + 1)
    above, below = _log_evidence(wrong, rows, limit)
    largest = np.exp(np.minimum([above.max(), below.max()], MOST_LOG))
    return ErrorEvidence(float(largest[0]), float(largest[1]))


def _log_evidence(wrong: Vector, rows: Vector, limit: float) -> tuple[Vector, Vector]:
    """Logarithms of the evidence that more, and that less, than ``limit`` is wrong, for ``wrong``
    of ``rows``.
    """
    from scipy.special import betainc, betaln  # a quarter of a second, where a command starts

    right = rows - wrong
    mixture = betaln(wrong + 1, right + 1) - wrong * np.log(limit) - right * np.log1p(-limit)
    with np.errstate(divide="ignore"):  # no evidence at all
        over = np.log(betainc(right + 1, wrong + 1, 1 - limit)) - np.log1p(-limit)
        under = np.log(betainc(wrong + 1, right + 1, limit)) - np.log(limit)
    return np.asarray(mixture + over), np.asarray(mixture + under)


def rows_to_show(share: float, limit: float) -> int | None:
    """About how many rows would show that less than ``limit`` is wrong, if ``share`` of them were;
    None where it is not less, or beyond a million.
    """
    if share >= limit:
        return None
    rows = np.unique(np.geomspace(1, MOST_ROWS, GRID).astype(np.int64)).astype(np.float64)
    _, below = _log_evidence(np.round(share * rows), rows, limit)
    shown = np.flatnonzero(below >= -np.log(RISK))
    if not len(shown):
        return None
    return int(rows[shown[0]])
