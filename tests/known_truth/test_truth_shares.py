"""Shares: rollouts that are spread over workers give the fit, the strength and the statistics of
one place.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from blackbox_lb.errors import InputError
from blackbox_lb.estimate.counting.distributed import Shards, Share
from blackbox_lb.estimate.inputs.rollouts import Rollouts
from blackbox_lb.estimate.next_token import next_token as normaliser
from blackbox_lb.estimate.next_token.next_token import NextToken
from tests.support.errors import raises_naming
from tests.support.exact import ExactModel
from tests.support.fits import projection
from tests.support.statistics import close, statistics_of


def liked(tokens: tuple[int, ...], prompt: int) -> float:
    """1 nat for a token that depends on the prompt or token 7."""
    return 1.0 * (prompt % 4 in tokens or 7 in tokens)


class Here:
    """Shares in this process; everything travels as bytes, and one of them is lost and made again
    now and then.
    """

    def __init__(self, parts: Sequence[Rollouts], lose: int | None = None) -> None:
        self.parts, self.lose, self.calls = parts, lose, 0
        self.shares = [Share([part] if part.keys else [], None) for part in parts]

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


def whole(workers: Here) -> Shards:
    """What the shares tell of themselves, put together."""
    return Shards(
        workers,
        [each.rollouts for each in workers.shares],
        [each.unlisted for each in workers.shares],
    )


@pytest.fixture
def rollouts() -> Rollouts:
    """Completions with short lists, so that there are tails, and tokens that only some shares
    saw; a third of them were not drawn by the base, and have no baseline.
    """
    model = ExactModel(40, 6, seed=2, prompts=6, sharpness=0.7)
    drawn = model.rollouts(240, liked, 5, top=3)
    return replace(drawn, drawn_by_base=np.arange(240) % 3 > 0)


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
    """The bias is the same to 1e-9 nats, with lists in float64 and in float32, whatever a share
    alone would have chosen.
    """
    if not precise:
        monkeypatch.setattr(normaliser, "EXACT", 1000)
    table = NextToken.of(rollouts)
    assert (table.lists.parts[0].table.dtype == np.float64) == precise
    workers = Here(cut(rollouts, shares))
    spread = whole(workers)
    one = projection(rollouts, tau=0.5, l2=1.0, next_token=table)
    many = projection(spread.rollouts, tau=0.5, l2=1.0, next_token=spread)
    np.testing.assert_array_equal(many.token_ids, one.token_ids)
    np.testing.assert_allclose(many.delta, one.delta, atol=1e-9)
    assert np.abs(one.delta).max() > 0.5
    assert many.gain == pytest.approx(one.gain, abs=1e-12)


def test_a_share_without_positions_adds_nothing(rollouts: Rollouts) -> None:
    """Whether it has no rollout at all, or only some without a token: the bias, and the bits of the
    statistics, of one place.
    """
    one, none = cut(rollouts, 2), rollouts.take(np.zeros(0, np.int64))
    blank = Rollouts(
        keys=("a", "b"),
        prompts=np.arange(2),
        rewards=np.ones(2),
        lengths=np.zeros(2, np.int64),
        token_ids=none.token_ids,
        logprobs=none.logprobs,
        top_ids=none.top_ids,
        top_logprobs=none.top_logprobs,
    )
    together = Rollouts.join([one[0], blank, one[1]])
    spread = whole(Here([none, one[0], blank, one[1], none]))
    assert spread.rollouts.keys == together.keys
    table = NextToken.of(together)
    here = projection(together, tau=0.5, l2=1.0, next_token=table)
    there = projection(spread.rollouts, tau=0.5, l2=1.0, next_token=spread)
    np.testing.assert_allclose(there.delta, here.delta, atol=1e-9)
    few = projection(
        spread.rollouts, tau=0.5, l2=1.0, next_token=whole(Here([one[0], blank, one[1]]))
    )
    np.testing.assert_array_equal(there.delta, few.delta)
    bias = here.delta[::-1].copy()
    np.testing.assert_allclose(
        spread.log_normaliser(bias),
        table.named().log_normaliser(bias),
        rtol=0,
        atol=1e-12,
    )
    found = statistics_of(together, (0.5, 1.0))
    assert found.recipe is not None
    assert found.n_empty == 2
    assert close(spread.statistics(found.recipe), found)


def test_a_share_of_bare_positions_learns_with_the_others(rollouts: Rollouts) -> None:
    """Sampled tokens without any alternative are given the shares of all sampled tokens, as in one
    place.
    """
    first, second = cut(rollouts, 2)
    parts = [first, second.without_lists()]
    table, spread = NextToken.gather(parts), whole(Here(parts))
    together = Rollouts.join(parts)
    here = projection(together, tau=0.5, l2=1.0, next_token=table)
    there = projection(together, tau=0.5, l2=1.0, next_token=spread)
    np.testing.assert_allclose(there.delta, here.delta, atol=1e-9)


def test_shares_without_any_position_are_refused(rollouts: Rollouts) -> None:
    """Nothing can be learned where no share has a token."""
    none = rollouts.take(np.zeros(0, np.int64))
    with raises_naming(InputError, "no rollouts"):
        whole(Here([none, none]))


def test_a_lost_share_changes_nothing(rollouts: Rollouts) -> None:
    """A share that is made again in mid-fit answers as the lost one would have: the same bits."""
    parts = cut(rollouts, 3)
    found = []
    for lose in (None, 4):
        workers = Here(parts, lose)
        spread = whole(workers)
        found.append(projection(spread.rollouts, tau=0.5, l2=1.0, next_token=spread).delta)
        assert workers.calls > 5
    np.testing.assert_array_equal(found[0], found[1])


def test_statistics_are_the_same(rollouts: Rollouts) -> None:
    """Those of the shares, added up, are those of all rollouts."""
    one = statistics_of(rollouts, (0.5, 1.0))
    assert one.recipe is not None
    assert close(whole(Here(cut(rollouts, 4))).statistics(one.recipe), one)


def test_a_bias_travels_with_its_weights(rollouts: Rollouts) -> None:
    """Every method of the spread positions gives what the table gives, position by position, in the
    order of the shares.
    """
    table, spread = NextToken.of(rollouts).named(), whole(Here(cut(rollouts, 3)))
    rng = np.random.default_rng(3)
    delta, weights = rng.normal(size=len(table.token_ids)), rng.random(table.n_positions)
    np.testing.assert_allclose(
        spread.log_normaliser(delta), table.log_normaliser(delta), atol=1e-12
    )
    (value, gradient), (value_here, gradient_here) = (
        spread.potential(delta, weights),
        table.potential(delta, weights),
    )
    assert value == pytest.approx(value_here, abs=1e-10)
    np.testing.assert_allclose(gradient, gradient_here, atol=1e-10)
    np.testing.assert_allclose(spread.expected(delta), table.expected(delta), atol=1e-10)
    np.testing.assert_array_equal(spread.sampled_counts(weights), table.sampled_counts(weights))
    ids = [int(table.token_ids[3]), 10_000]
    np.testing.assert_array_equal(spread.align(ids, [2.0, 1.0]), table.align(ids, [2.0, 1.0]))
