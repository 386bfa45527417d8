"""Laws of mending: what holds for any vectors and answers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import softmax

from blackbox_lb.estimate.inputs.checks import Vector
from blackbox_lb.estimate.mending import (
    CandidateMending,
    Mending,
    MendingRows,
    batch_prior,
    mending_candidates,
)

EXAMPLES = settings(max_examples=8)
seeds = st.integers(0, 2**32 - 1)
options = st.integers(2, 6)
counts = st.integers(8, 40)
spreads = st.floats(0.1, 6)


def rows_of(seed: int, count: int, size: int, spread: float) -> MendingRows:
    """Random vectors; the first two answers are of two options."""
    rng = np.random.default_rng(seed)
    logprobs = np.log(softmax(rng.normal(0, spread, (count, size)), axis=1) + 1e-9)
    answers = rng.integers(0, size, count)
    answers[:2] = [0, 1]
    return MendingRows(logprobs, answers, np.zeros((count, size), np.bool_))


def by_name(rows: MendingRows) -> dict[str, CandidateMending]:
    """The candidates."""
    return {candidate.name: candidate for candidate in mending_candidates(rows)}


@given(seeds, counts, options, spreads)
@EXAMPLES
def test_probabilities_sum_to_one(seed: int, count: int, size: int, spread: float) -> None:
    """Of every candidate, for rows and for those that were left out."""
    rows = rows_of(seed, count, size, spread)
    for candidate in mending_candidates(rows):
        mended = candidate.mending.probabilities(rows.logprobs)
        assert mended.sum(axis=1) == pytest.approx(np.ones(count))
        assert candidate.left_out.sum(axis=1) == pytest.approx(np.ones(count))
        assert (mended >= 0).all()


@given(seeds, counts, options, spreads)
@EXAMPLES
def test_a_constant_changes_nothing(seed: int, count: int, size: int, spread: float) -> None:
    """Nats that all options of a row share say nothing."""
    rows = rows_of(seed, count, size, spread)
    shifts = np.random.default_rng(seed).normal(0, 3, (count, 1))
    shifted = MendingRows(rows.logprobs + shifts, rows.answers, rows.floored)
    lifted = by_name(shifted)
    for name, candidate in by_name(rows).items():
        mended = candidate.mending.probabilities(rows.logprobs)
        assert lifted[name].mending.probabilities(shifted.logprobs) == pytest.approx(
            mended, abs=1e-4
        )


@given(seeds, counts, options, spreads)
@EXAMPLES
def test_the_order_of_options_changes_nothing(
    seed: int, count: int, size: int, spread: float
) -> None:
    """Permuted options are mended to the permuted probabilities."""
    rows = rows_of(seed, count, size, spread)
    order = np.random.default_rng(seed).permutation(size)
    place = np.argsort(order)
    permuted = MendingRows(rows.logprobs[:, order], place[rows.answers], rows.floored)
    others = by_name(permuted)
    for name, candidate in by_name(rows).items():
        if name == "offsets by right decisions":  # equal gains of two options go to the first
            continue
        mended = candidate.mending.probabilities(rows.logprobs)
        permuted_mended = others[name].mending.probabilities(permuted.logprobs)
        assert permuted_mended == pytest.approx(mended[:, order], abs=1e-4)


@given(seeds, counts, options, spreads)
@EXAMPLES
def test_a_slope_keeps_the_largest_option(seed: int, count: int, size: int, spread: float) -> None:
    """A temperature is about probabilities alone; so is the slope around the batch prior."""
    rows = rows_of(seed, count, size, spread)
    candidates = by_name(rows)
    temperature = candidates["temperature"].mending.probabilities(rows.logprobs)
    assert (temperature.argmax(axis=1) == rows.logprobs.argmax(axis=1)).all()
    centered = rows.logprobs + batch_prior(rows.logprobs)
    prior = candidates["batch prior"].mending.probabilities(rows.logprobs)
    largest = centered[np.arange(count), prior.argmax(axis=1)]
    assert largest == pytest.approx(centered.max(axis=1), abs=1e-9)


@given(seeds, counts, options, spreads)
@EXAMPLES
def test_as_it_is_normalises_alone(seed: int, count: int, size: int, spread: float) -> None:
    """It is the identity of what sums to 1."""
    rows = rows_of(seed, count, size, spread)
    raw: Vector = softmax(rows.logprobs, axis=1)
    candidate = by_name(rows)["as it is"]
    assert candidate.mending.probabilities(rows.logprobs) == pytest.approx(raw)
    assert candidate.left_out == pytest.approx(raw)
    identity = Mending(1.0, np.zeros(size), np.zeros(size))
    assert identity.probabilities(np.log(raw)) == pytest.approx(raw)
