"""Whole distributions at reference positions: what they say of a bias is the model's own, and what lists say is judged by it."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import log_softmax

from blackbox_lb.errors import InputError
from blackbox_lb.estimate.inputs.rollouts import Rollouts
from blackbox_lb.estimate.next_token.full_vocabulary import ListModel, compare, moments, probabilities, rows_of
from blackbox_lb.estimate.next_token.next_token import NextToken
from blackbox_lb.estimate.projection.projection import projection
from blackbox_lb.estimate.sparse.sparsify import sparsify
from blackbox_lb.rollouts.reference import sample_positions
from tests.support.exact import ExactModel

VOCAB = 300
MODEL = ExactModel(VOCAB, 6, prompts=8, unigram=np.random.default_rng(1).standard_normal(VOCAB))


def exact_at(model: ExactModel, rollouts: Rollouts, positions: np.ndarray) -> np.ndarray:
    """(r, v) log pi_0 after the prefix of each position."""
    owner, starts = rollouts.rollout_of, np.cumsum(rollouts.lengths) - rollouts.lengths
    rows = [
        model.logprobs(rollouts.token_ids[starts[owner[m]] : m].tolist(), int(rollouts.prompts[owner[m]]))
        for m in positions.tolist()
    ]
    return np.stack(rows)


def rewarded(tokens: tuple[int, ...], prompt: int) -> float:
    """Half a nat for every seventh token."""
    return 0.5 * sum(token % 7 == 0 for token in tokens)


def logged(n: int, seed: int, top: int) -> tuple[Rollouts, NextToken, np.ndarray, np.ndarray]:
    """Rollouts with top-k lists, their table, 60 reference positions and the distributions there."""
    rollouts = MODEL.rollouts(n, rewarded, seed, top=top)
    table = NextToken.of(rollouts, vocab_size=VOCAB)
    positions = sample_positions(rollouts, 60, seed, np.ones(len(rollouts.token_ids), dtype=np.bool_))
    return rollouts, table, positions, exact_at(MODEL, rollouts, positions)


@pytest.mark.parametrize("size", [0.1, 1.0, 5.0])
def test_moments_are_the_models_own(size: float) -> None:
    """Log normaliser and both divergences equal their definitions on the model's distributions to 1e-9, whole blocks or not."""
    _, _, _, exact = logged(40, 0, 5)
    biases = size * np.random.default_rng(3).standard_normal((4, VOCAB))
    biases[3] = 0
    found = moments(probabilities(exact), biases)
    tilted = [log_softmax(exact + bias, axis=1) for bias in biases]
    for b, bias in enumerate(biases):
        np.testing.assert_allclose(found.log_z[:, b], np.log((np.exp(exact) * np.exp(bias)).sum(axis=1)), atol=1e-9)
        np.testing.assert_allclose(found.kl[:, b], (np.exp(tilted[b]) * (tilted[b] - exact)).sum(axis=1), atol=1e-9)
        lost = (np.exp(tilted[0]) * (tilted[0] - tilted[b])).sum(axis=1)
        np.testing.assert_allclose(found.lost[:, b], lost, atol=1e-9)


@pytest.mark.parametrize("top", [1, 5, 20, VOCAB])
@pytest.mark.parametrize("whole", [False, True])
def test_the_list_model_is_the_next_token(top: int, whole: bool) -> None:
    """Position by position, what the fit's own table says: its log normaliser, its KL, and the loss that a compile reports."""
    rollouts, table, positions, _ = logged(60, 1, top)
    if whole:
        table = table.with_tokens(np.arange(VOCAB))
    learned = projection(rollouts, tau=0.5, l2=5.0, next_token=table).delta
    sparse = sparsify(table.take(positions), learned, entries=20)
    biases = np.zeros((2, VOCAB))
    biases[0, table.token_ids], biases[1, sparse.token_ids] = learned, sparse.values
    unigram = np.zeros(VOCAB)
    unigram[table.token_ids] = table.unigram
    found = moments(rows_of(ListModel.of(table, positions), unigram), biases)
    np.testing.assert_allclose(found.log_z[:, 0], table.log_normaliser(learned)[positions], atol=1e-9)
    np.testing.assert_allclose(found.kl[:, 0], table.kl(learned)[positions], atol=1e-9)
    assert found.lost[:, 1].mean() == pytest.approx(sparse.kl_lost, abs=1e-9)


def test_with_the_whole_vocabulary_listed_everything_agrees() -> None:
    """Lists of all tokens leave nothing to model: every number by lists is the exact one, to the float32 of the lists."""
    _, table, positions, exact = logged(60, 2, VOCAB)
    biases = np.random.default_rng(0).standard_normal((3, VOCAB))
    unigram = np.random.default_rng(1).random(VOCAB)  # nobody's share: there is no tail
    model = ListModel.of(table, positions)
    assert model.distance(exact).max() < 1e-6
    for row in compare(exact, model, unigram, biases, ["a", "b", "c"]):
        assert row.kl.exact == pytest.approx(row.kl.listed, abs=1e-6)
        assert row.lost.exact == pytest.approx(row.lost.listed, abs=1e-6)
        assert row.kept.exact == pytest.approx(row.kept.listed, abs=1e-5)
        assert row.log_z == pytest.approx((0, 0, 0), abs=1e-6)


def test_a_wrong_list_model_is_told_apart() -> None:
    """Where no token takes the tail, the error of the log normaliser is what the bias does there, to the last digit."""
    _, table, positions, exact = logged(60, 3, 5)
    bias = np.ones((1, VOCAB))  # every token alike: the log normaliser is 1 exactly
    model = ListModel.of(table, positions)
    (row,) = compare(exact, model, np.zeros(VOCAB), bias, ["none"])
    listed = 1 - table.tail_mass[positions]
    error = np.log1p(listed * (np.e - 1)) - 1
    assert row.log_z == pytest.approx((error.mean(), error.std(), np.abs(error).max()), abs=1e-6)


def test_what_cannot_be_compared_is_refused() -> None:
    """Positions without a list are counted in the message."""
    rollouts = MODEL.rollouts(5, rewarded, 0, top=0)
    bare = NextToken.of(rollouts)
    with pytest.raises(InputError, match="2 have no list"):
        ListModel.of(bare, np.arange(2))


def test_drawn_positions_stay_when_rollouts_are_added() -> None:
    """The draw is repeatable, within what may be drawn, and what more rollouts push out is all that changes."""
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
    base = np.arange(30) < 10
    assert (first.rollout_of[sample_positions(first, 1000, 7, some, base)] < 10).all()
    assert len(sample_positions(first, 1000, 7, some, base)) == 40
