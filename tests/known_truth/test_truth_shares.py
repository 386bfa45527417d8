"""Shares: rollouts that are spread over workers give the fit, the strength and the statistics of one place."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from blackbox_lb.estimate import normaliser
from blackbox_lb.estimate.cross_validation import choose_l2
from blackbox_lb.estimate.normaliser import NextToken
from blackbox_lb.estimate.projection import projection
from blackbox_lb.estimate.rollouts import Rollouts
from blackbox_lb.estimate.shares import Share, Whole
from blackbox_lb.estimate.statistics import Statistics
from blackbox_lb.testing import ExactModel


def liked(tokens: tuple[int, ...], prompt: int) -> float:
    """1 nat for a token that depends on the prompt or token 7."""
    return 1.0 * (prompt % 4 in tokens or 7 in tokens)


class Here:
    """Shares in this process; everything travels as bytes, and one of them is lost and made again now and then."""

    def __init__(self, parts: Sequence[Rollouts], lose: int | None = None) -> None:
        self.parts, self.lose, self.calls = parts, lose, 0
        self.shares = [Share([part], None) for part in parts]

    def call(self, method: str, common: Sequence[Any], own: Sequence[Sequence[Any]]) -> list[Any]:
        """Each share's answer; at the call of that number the first share is made anew."""
        self.calls += 1
        if self.calls == self.lose:
            self.shares[0] = Share([self.parts[0]], None)
        found = [
            getattr(share, method)(*pickle.loads(pickle.dumps((*common, *row))))
            for share, row in zip(self.shares, own, strict=True)
        ]
        return [pickle.loads(pickle.dumps(each)) for each in found]


def whole(workers: Here) -> Whole:
    """What the shares tell of themselves, put together."""
    return Whole.of(workers, [each.rollouts for each in workers.shares], [each.unlisted for each in workers.shares])


@pytest.fixture
def rollouts() -> Rollouts:
    """Completions with short lists, so that there are tails, and tokens that only some shares saw."""
    return ExactModel(40, 6, seed=2, prompts=6, sharpness=0.7).rollouts(240, liked, 5, top=3)


def cut(rollouts: Rollouts, shares: int) -> list[Rollouts]:
    """Consecutive parts of unequal size."""
    n = len(rollouts.keys)
    borders = [0, *(n * (k + 1) ** 2 // (shares + 1) ** 2 for k in range(1, shares)), n]
    return [rollouts.take(np.arange(low, high)) for low, high in pairwise(borders)]


@pytest.mark.parametrize("shares", [1, 2, 3, 7])
@pytest.mark.parametrize("precise", [True, False])
def test_shares_learn_what_one_place_learns(
    rollouts: Rollouts, shares: int, precise: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bias is the same to 1e-9 nats, with lists in float64 and in float32, whatever a share alone would have chosen."""
    if not precise:
        monkeypatch.setattr(normaliser, "EXACT", 1000)
    table = NextToken.of(rollouts)
    assert (table.lists.parts[0].table.dtype == np.float64) == precise
    workers = Here(cut(rollouts, shares))
    spread = whole(workers)
    one = projection(rollouts, tau=0.5, l2=1.0, next_token=table)
    many = projection(spread.rollouts, tau=0.5, l2=1.0, next_token=spread.positions)
    np.testing.assert_array_equal(many.token_ids, one.token_ids)
    np.testing.assert_allclose(many.delta, one.delta, atol=1e-9)
    assert np.abs(one.delta).max() > 0.5
    assert many.gain == pytest.approx(one.gain, abs=1e-12)
    chosen = [choose_l2(each, at, tau=0.5) for each, at in ((rollouts, table), (spread.rollouts, spread.positions))]
    assert chosen[0].l2 == chosen[1].l2
    np.testing.assert_allclose([row.gain for row in chosen[1].table], [row.gain for row in chosen[0].table], atol=1e-9)


def test_a_lost_share_changes_nothing(rollouts: Rollouts) -> None:
    """A share that is made again in mid-fit answers as the lost one would have: the same bits."""
    parts = cut(rollouts, 3)
    found = []
    for lose in (None, 4):
        workers = Here(parts, lose)
        spread = whole(workers)
        found.append(projection(spread.rollouts, tau=0.5, l2=1.0, next_token=spread.positions).delta)
        assert workers.calls > 5
    np.testing.assert_array_equal(found[0], found[1])


def test_statistics_are_the_same_bits(rollouts: Rollouts) -> None:
    """Those of the shares, added up, are those of all rollouts."""
    one = Statistics.of(rollouts, (0.5, 1.0))
    assert one.recipe is not None
    assert whole(Here(cut(rollouts, 4))).statistics(one.recipe) == one


def test_a_bias_travels_with_its_weights(rollouts: Rollouts) -> None:
    """Every method of the spread positions gives what the table gives, position by position, in the order of the shares."""
    table, spread = NextToken.of(rollouts).named(), whole(Here(cut(rollouts, 3))).positions
    rng = np.random.default_rng(3)
    delta, weights = rng.normal(size=len(table.token_ids)), rng.random(table.n_positions)
    np.testing.assert_allclose(spread.log_normaliser(delta), table.log_normaliser(delta), atol=1e-12)
    (value, gradient), (value_here, gradient_here) = spread.potential(delta, weights), table.potential(delta, weights)
    assert value == pytest.approx(value_here, abs=1e-10)
    np.testing.assert_allclose(gradient, gradient_here, atol=1e-10)
    np.testing.assert_allclose(spread.expected(delta), table.expected(delta), atol=1e-10)
    np.testing.assert_array_equal(spread.sampled_counts(weights), table.sampled_counts(weights))
    ids = [int(table.token_ids[3]), 10_000]
    np.testing.assert_array_equal(spread.align(ids, [2.0, 1.0]), table.align(ids, [2.0, 1.0]))
