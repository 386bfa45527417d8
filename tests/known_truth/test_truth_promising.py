"""Promises over many draws of labels whose chances are known."""

from __future__ import annotations

import numpy as np
import pytest

from blackbox_lb.errors import InputError
from blackbox_lb.estimate.inputs.checks import Bools, Vector
from blackbox_lb.estimate.promising import Certified, NotCertifiable, certified, preset_cuts

ERROR = 0.1
DRAWS = 150
MOST_BROKEN = 14
"""Draws of 150 in which a promise at its risk of .05 is broken, at most: more come by chance in one
of a hundred runs.
"""
SLOPE = 0.3
"""A row of confidence x is wrong with the chance ``SLOPE * (1 - x)``, if confidence tells
anything."""


def draw(error: float | None, count: int, rng: np.random.Generator) -> tuple[Vector, Bools]:
    """Confidences, and whether each decision is right; ``error``: everywhere, None for less of it
    where confidence is larger.
    """
    confidences = rng.random(count)
    chances = SLOPE * (1 - confidences)
    if error is not None:
        chances = np.full(count, error)
    return confidences, rng.random(count) >= chances


def true_error(error: float | None, cut: float) -> float:
    """The share of wrong decisions above a cut."""
    if error is None:
        return SLOPE * (1 - cut) / 2
    return error


@pytest.mark.parametrize("own_rows", [False, True])
@pytest.mark.parametrize("count", [100, 300, 1000])
@pytest.mark.parametrize("error", [None, 0.101, 0.12])
def test_promises_hold(error: float | None, count: int, own_rows: bool) -> None:
    """In at most 14 of 150 draws a cut is certified above which more are wrong, with informative
    confidence and where errors are just above the promise everywhere; cuts from other rows or from
    the same.
    """
    rng = np.random.default_rng(count)
    broken = 0
    for _ in range(DRAWS):
        confidences, is_right = draw(error, count, rng)
        cuts = preset_cuts(confidences if own_rows else rng.random(200))
        promise = certified(confidences, is_right, cuts, ERROR)
        if isinstance(promise, Certified):
            broken += true_error(error, promise.cut) > ERROR
    assert broken <= MOST_BROKEN


def test_enough_rows_are_certified() -> None:
    """Of 1,000 rows with informative confidence nearly every draw certifies a cut, and on average
    more than two fifths of the rows; the bound keeps the promise.
    """
    rng = np.random.default_rng(0)
    promises = []
    for _ in range(50):
        confidences, is_right = draw(None, 1000, rng)
        promises.append(certified(confidences, is_right, preset_cuts(confidences), ERROR))
    kept = [promise for promise in promises if isinstance(promise, Certified)]
    assert len(kept) >= 47
    assert np.mean([promise.coverage for promise in kept]) > 0.4
    for promise in kept:
        assert promise.error_bound <= ERROR
        assert promise.wrong < promise.answered <= 1000


def test_all_rows_can_be_promised() -> None:
    """Where nothing is wrong, every row is answered."""
    confidences = np.linspace(0.2, 1.0, 100)
    promise = certified(confidences, np.ones(100, np.bool_), preset_cuts(confidences), ERROR)
    assert isinstance(promise, Certified)
    assert (promise.cut, promise.coverage, promise.answered, promise.wrong) == (0.0, 1.0, 100, 0)
    assert promise.error_bound == pytest.approx(1 - 0.05 ** (1 / 100))


def test_a_failure_ends_the_sequence() -> None:
    """A cut behind one that fails is not looked at, however well it does."""
    confidences = np.linspace(1.0, 0.01, 300)
    is_right = np.arange(300) >= 20
    promise = certified(confidences, is_right, preset_cuts(confidences), ERROR)
    assert isinstance(promise, NotCertifiable)
    assert promise.rows == 300


def test_ninety_per_cent_take_29_rows() -> None:
    """Twenty-nine answered rows without an error show nine in ten, twenty-eight do not."""
    cuts = np.array([0.5])
    enough = certified(np.ones(29), np.ones(29, np.bool_), cuts, ERROR)
    assert isinstance(enough, Certified)
    short = certified(np.ones(28), np.ones(28, np.bool_), cuts, ERROR)
    assert isinstance(short, NotCertifiable)
    assert short.needed is not None
    assert short.needed > 28


def test_needed_rows_would_do() -> None:
    """So many rows certify a cut in about half of the draws; where errors are too frequent, no
    number does.
    """
    rng = np.random.default_rng(0)
    needed = []
    for _ in range(100):
        confidences, is_right = draw(None, 100, rng)
        promise = certified(confidences, is_right, preset_cuts(confidences), ERROR)
        if isinstance(promise, NotCertifiable) and promise.needed is not None:
            needed.append(promise.needed)
    rows = int(np.median(needed))
    hits = 0
    for _ in range(60):
        confidences, is_right = draw(None, rows, rng)
        promise = certified(confidences, is_right, preset_cuts(confidences), ERROR)
        hits += isinstance(promise, Certified)
    assert 25 <= hits <= 55
    confidences, is_right = draw(0.4, 100, rng)
    promise = certified(confidences, is_right, preset_cuts(confidences), ERROR)
    assert promise == NotCertifiable(100, None)


def test_arguments_are_checked() -> None:
    """Shares, lengths, and rows to set cuts from."""
    cuts = np.array([0.5])
    right = np.ones(3, np.bool_)
    for error in (0.0, 1.0):
        with pytest.raises(InputError):
            certified(np.ones(3), right, cuts, error)
    with pytest.raises(InputError):
        certified(np.ones(2), right, cuts, 0.1)
    with pytest.raises(InputError):
        preset_cuts(np.zeros(0))
