"""Sums over parts: the same to the last bit however rollouts come and however many cores there are,
in memory or in files.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blackbox_lb.estimate.inputs.checks import Vector
from blackbox_lb.estimate.inputs.rollouts import Rollouts
from blackbox_lb.estimate.next_token import sparse_table as passes
from blackbox_lb.estimate.next_token import tails
from blackbox_lb.estimate.next_token.derivatives import expected_by, hessian
from blackbox_lb.estimate.next_token.next_token import NextToken
from blackbox_lb.estimate.problem import Problem
from blackbox_lb.estimate.projection.projection import Fit
from tests.support.exact import ExactModel
from tests.support.fits import projection

VOCAB = 40
MODEL = ExactModel(VOCAB, 12, seed=5, end=True, unigram=-0.1 * np.arange(VOCAB))
DATA = MODEL.rollouts(120, lambda tokens, _: 1.0 * (2 in tokens), 0, top=6)


@pytest.fixture(params=[tails.EXACT, 0], ids=["float64", "float32"])
def small(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of 256 entries, in both precisions."""
    monkeypatch.setattr(tails, "PART", 256)
    monkeypatch.setattr("blackbox_lb.estimate.next_token.next_token.EXACT", request.param)


def pieces(data: Rollouts, size: int) -> Iterator[Rollouts]:
    """The rollouts, ``size`` at a time."""
    for start in range(0, len(data.keys), size):
        yield data.take(np.arange(start, min(start + size, len(data.keys))))


def bits(fit: Fit) -> bytes:
    """All digits of a fit."""
    return fit.delta.tobytes() + np.float64(fit.gain).tobytes()


@pytest.mark.usefixtures("small")
def test_a_fit_is_the_same_to_the_last_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    """For blocks of any size and any number of cores."""
    fits = set()
    for cores, size in ((1, 120), (2, 120), (3, 7), (8, 1)):
        monkeypatch.setattr(passes, "cores", lambda cores=cores: cores)
        table = NextToken.gather(pieces(DATA, size))
        assert len(table.lists.parts) > 4
        fits.add(bits(projection(DATA, next_token=table)))
    assert len(fits) == 1


@pytest.mark.parametrize(("listed", "precision"), [(1.0, np.float32), (1e6, np.float64)])
def test_large_tables_are_kept_in_float32(
    listed: float, precision: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As exact as logprobs in float32, with every distribution still summing to 1. Where nearly all
    of the tail unigram is listed, float32 would lose what is left of a list.
    """
    unigram = NextToken.of(DATA).unigram.copy()
    unigram[:6] *= listed
    exact, delta = NextToken.of(DATA).with_unigram(unigram), np.linspace(-2, 2, len(unigram))
    monkeypatch.setattr("blackbox_lb.estimate.next_token.next_token.EXACT", 0)
    table = NextToken.of(DATA).with_unigram(unigram)
    assert {part.table.dtype for part in table.lists.parts} == {np.dtype(precision)}
    np.testing.assert_allclose(table.log_normaliser(np.zeros_like(delta)), 0, atol=1e-11)
    np.testing.assert_allclose(table.log_normaliser(delta), exact.log_normaliser(delta), atol=1e-6)


@pytest.mark.usefixtures("small")
def test_squares_of_groups_are_what_the_hessian_lacks() -> None:
    """On its diagonal; and the expectations of groups are those of their positions."""
    rng, table = np.random.default_rng(0), NextToken.of(DATA)
    delta = rng.normal(size=len(table.token_ids))
    weights, group = rng.random(table.n_positions), rng.integers(0, 4, table.n_positions)
    usage, along = hessian(table, delta, weights)
    each, squares = expected_by(table, delta, weights, group, 4)
    for token, one in enumerate(np.eye(len(delta))):
        assert along(one)[token] == pytest.approx(usage[token] - squares[:, token].sum(), abs=1e-9)
    np.testing.assert_allclose(each[2], table.expected(delta, weights * (group == 2)), atol=1e-12)


def test_threads_are_kept_and_a_part_of_work_may_ask_for_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two threads serve a hundred passes, with passes inside their work; what a caller does not
    take is not done.
    """
    monkeypatch.setattr(passes, "cores", lambda: 2)
    workers: set[threading.Thread] = set()
    begun = []

    def work(item: int) -> int:
        workers.add(threading.current_thread())
        begun.append(item)
        return sum(passes.in_order(lambda inner: inner * item, range(3)))

    for _ in range(100):
        assert list(passes.in_order(work, range(5))) == [0, 3, 6, 9, 12]
    assert len(workers) <= 2
    begun.clear()
    results = passes.in_order(work, range(1000))
    assert next(results) == 0
    results.close()  # type: ignore[attr-defined]
    assert len(begun) < 20


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on Windows")
def test_a_forked_process_starts_threads_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has none of its parent's, and would wait for them for ever."""
    monkeypatch.setattr(passes, "cores", lambda: 2)
    assert sum(passes.in_order(abs, range(9))) == 36
    child = multiprocessing.get_context("fork").Process(target=_nine)
    child.start()
    child.join(60)
    assert child.exitcode == 0


def _nine() -> None:
    assert sum(passes.in_order(abs, range(9))) == 36


@settings(max_examples=25)
@given(st.integers(0, 100), st.integers(1, 30))
def test_within_bounds_no_slope_presses_but_against_them(seed: int, size: int) -> None:
    """Log-sum-exp with a little curvature everywhere, from a far start."""
    rng = np.random.default_rng(seed)
    linear = rng.normal(size=size)
    linear /= 1 + np.abs(linear).sum()

    def potential(x: Vector) -> tuple[float, Vector]:
        e = np.exp(x - x.max())
        return float(x.max() + np.log(e.sum())), e / e.sum()

    problem = Problem(potential, linear, 1.0, l2=0.1, low=-0.1, high=0.2)
    x = problem.solve(10 * rng.normal(size=size)).x
    _, slope = problem.loss(x)
    assert x.min() >= -0.1
    assert x.max() <= 0.2
    assert np.abs(np.clip(x - slope, -0.1, 0.2) - x).max(initial=0.0) < 1e-5
