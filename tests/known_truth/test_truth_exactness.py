"""Whole distributions at reference positions: how far logged lists are from them, and where they
are asked for.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.special import log_softmax

from blackbox_lb.estimate.inputs.rollouts import Rollouts
from blackbox_lb.rollouts.reference import sample_positions, total_variation
from tests.support.exact import ExactModel

VOCAB = 300
MODEL = ExactModel(VOCAB, 6, prompts=8, unigram=np.random.default_rng(1).standard_normal(VOCAB))


def exact_at(model: ExactModel, rollouts: Rollouts, positions: np.ndarray) -> np.ndarray:
    """(r, v) log pi_0 after the prefix of each position."""
    owner, starts = rollouts.rollout_of, np.cumsum(rollouts.lengths) - rollouts.lengths
    rows = [
        model.logprobs(
            rollouts.token_ids[starts[owner[m]] : m].tolist(), int(rollouts.prompts[owner[m]])
        )
        for m in positions.tolist()
    ]
    return np.stack(rows)


def rewarded(tokens: tuple[int, ...], prompt: int) -> float:
    """Half a nat for every seventh token."""
    return 0.5 * sum(token % 7 == 0 for token in tokens)


def logged(n: int, seed: int, top: int) -> tuple[Rollouts, np.ndarray, np.ndarray]:
    """Rollouts with top-k lists, 60 reference positions and the distributions there."""
    rollouts = MODEL.rollouts(n, rewarded, seed, top=top)
    positions = sample_positions(
        rollouts, 60, seed, np.ones(len(rollouts.token_ids), dtype=np.bool_)
    )
    return rollouts, positions, exact_at(MODEL, rollouts, positions)


@pytest.mark.parametrize("top", [1, 5, 20, VOCAB])
def test_lists_are_no_way_from_the_models_own_distributions(top: int) -> None:
    """Whatever is listed, the total variation is 0 to the float32 of the lists; from another
    model's distributions it is not.
    """
    rollouts, positions, exact = logged(60, 1, top)
    assert total_variation(rollouts, positions, exact).max() < 1e-6
    others = ExactModel(
        VOCAB, 6, prompts=8, seed=7, unigram=np.random.default_rng(2).standard_normal(VOCAB)
    )
    assert (
        total_variation(rollouts, positions, exact_at(others, rollouts, positions)).mean()
        > 0.1 * min(top, 3) / 3
    )


def test_the_total_variation_is_its_definition() -> None:
    """With all tokens listed it is half the sum of all absolute differences; what is not listed
    adds nothing.
    """
    rollouts, positions, exact = logged(60, 2, VOCAB)
    other = np.asarray(log_softmax(exact + np.random.default_rng(3).standard_normal(VOCAB), axis=1))
    whole = np.abs(np.exp(other) - np.exp(exact)).sum(axis=1) / 2
    np.testing.assert_allclose(total_variation(rollouts, positions, other), whole, atol=1e-6)
    some = replace(
        rollouts, top_ids=np.where(np.arange(VOCAB) < 9, rollouts.top_ids, -1).astype(np.int32)
    )
    first = (
        np.take_along_axis(
            np.abs(np.exp(other) - np.exp(exact)), rollouts.top_ids[positions][:, :9], axis=1
        ).sum(axis=1)
        / 2
    )
    np.testing.assert_allclose(total_variation(some, positions, other), first, atol=1e-6)


def test_drawn_positions_stay_when_rollouts_are_added() -> None:
    """The draw is repeatable, within what may be drawn, and what more rollouts push out is all that
    changes.
    """
    first, second = MODEL.rollouts(30, rewarded, 0, top=3), MODEL.rollouts(30, rewarded, 1, top=3)
    both, some = Rollouts.join([first, second]), np.arange(180) % 3 != 0
    alone = sample_positions(first, 40, 7, some)
    assert len(alone) == len(set(alone.tolist())) == 40
    assert some[alone].all()
    np.testing.assert_array_equal(alone, sample_positions(first, 40, 7, some))
    assert not np.array_equal(alone, sample_positions(first, 40, 8, some))
    together = sample_positions(both, 40, 7, np.concatenate([some, some]))
    of_first = together[together < 180]
    assert 0 < len(of_first) < 40
    assert np.isin(of_first, alone).all()
    assert len(sample_positions(first, 1000, 7, some)) == some.sum()
