"""Drift and errors on other rows: how often both are shown where nothing is."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import integrate

from blackbox_lb.errors import InputError
from blackbox_lb.estimate import rechecking
from blackbox_lb.estimate.rechecking import energy_test, error_evidence, rows_to_show
from tests.support.errors import raises_naming


def vectors(generator: np.random.Generator, rows: int, shift: float = 0.0) -> np.ndarray:
    """(rows, 3) log-probabilities of two decimals, the last one shifted."""
    logits = generator.normal(size=(rows, 3)) * [2.0, 1.0, 0.3] + [0.0, 0.0, shift]
    shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    return np.asarray(np.log(np.maximum(shares.round(2), 0.005)))


def test_drift_is_shown_no_oftener_than_its_chance_where_there_is_none() -> None:
    generator = np.random.default_rng(1)
    chances = [energy_test(vectors(generator, 40), vectors(generator, 25)).p for _ in range(200)]
    assert np.mean(np.array(chances) <= 0.05) <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 200)
    assert 0.4 < np.mean(chances) < 0.6


def test_of_very_many_rows_some_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """All pairs of 100,000 rows would take 80 GB. Drift of one option is seen."""
    monkeypatch.setattr(rechecking, "MOST_COMPARED", 200)
    generator = np.random.default_rng(5)
    then = vectors(generator, 150)
    assert energy_test(then, vectors(generator, 100_000)).p > 0.05
    drift = energy_test(then, vectors(generator, 100_000, shift=1.0))
    assert drift.p <= 0.002
    assert drift.distance > 0.2


def test_samples_that_are_alike_have_no_distance() -> None:
    rows = vectors(np.random.default_rng(3), 30)
    drift = energy_test(rows, rows.copy())
    assert drift.distance == pytest.approx(0.0, abs=1e-6)
    assert drift.p == 1.0
    constant = np.full((30, 3), np.log(1 / 3))
    assert energy_test(constant.round(4), constant).p == 1.0
    with raises_naming(InputError, "now"):
        energy_test(rows, rows[:0])


@pytest.mark.parametrize(("wrong", "rows", "limit"), [(0, 8, 0.1), (3, 10, 0.2), (9, 9, 0.4)])
def test_evidence_is_the_mean_of_likelihood_ratios(wrong: int, rows: int, limit: float) -> None:
    """As numerical integration has it, at the last row."""
    is_wrong = np.arange(rows) >= rows - wrong

    def ratio(share: float) -> float:
        right = rows - wrong
        return float((share / limit) ** wrong * ((1 - share) / (1 - limit)) ** right)

    above = integrate.quad(ratio, limit, 1)[0] / (1 - limit)
    below = integrate.quad(ratio, 0, limit)[0] / limit
    evidence = error_evidence(is_wrong, limit)
    assert evidence.above >= above * (1 - 1e-9)
    assert evidence.below >= below * (1 - 1e-9)
    if wrong == rows:
        assert evidence.above == pytest.approx(above)
    if wrong == 0:
        assert evidence.below == pytest.approx(below)


def test_a_look_after_every_row_breaks_no_promise_that_is_kept() -> None:
    """At the edge, where the errors are as many as promised, at most one in twenty samples ever
    shows more, or fewer.
    """
    generator = np.random.default_rng(4)
    for limit in (0.05, 0.2):
        evidence = [error_evidence(generator.random(400) < limit, limit) for _ in range(400)]
        most = 0.05 + 3 * np.sqrt(0.05 * 0.95 / 400)
        assert np.mean([row.is_broken() for row in evidence]) <= most
        assert np.mean([row.is_kept() for row in evidence]) <= most


def test_what_is_clearly_kept_or_broken_is_shown() -> None:
    generator = np.random.default_rng(5)
    kept = [error_evidence(generator.random(400) < 0.02, 0.1).is_kept() for _ in range(50)]
    broken = [error_evidence(generator.random(400) < 0.25, 0.1).is_broken() for _ in range(50)]
    assert np.mean(kept) > 0.9
    assert np.mean(broken) > 0.9


def test_the_number_of_rows_that_would_show_it() -> None:
    needed = rows_to_show(0.0, 0.05)
    assert needed is not None
    none_wrong = np.zeros(needed, np.bool_)
    assert error_evidence(none_wrong, 0.05).is_kept()
    assert not error_evidence(none_wrong[: int(0.9 * needed)], 0.05).is_kept()
    assert rows_to_show(0.05, 0.05) is None
    assert rows_to_show(0.04, 0.05) is not None
    with raises_naming(InputError, "limit"):
        error_evidence(none_wrong, 1.0)
