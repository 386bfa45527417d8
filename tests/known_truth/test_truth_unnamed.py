"""A listed token without an id: its mass is listed, no bias moves it, and everything else is as
exact as with its id.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from blackbox_lb.errors import InputError
from blackbox_lb.estimate.inputs.rollouts import Rollouts
from blackbox_lb.estimate.next_token.next_token import NextToken
from blackbox_lb.estimate.projection.projection import Fit
from blackbox_lb.estimate.reweighting import censoring_of, divergence, tail_coverage
from blackbox_lb.estimate.sparse.sparsify import sparsify
from blackbox_lb.types import UNNAMED
from tests.support.errors import raises_naming
from tests.support.exact import ExactModel
from tests.support.fits import projection
from tests.support.masses import kl
from tests.support.truth import Exact

VOCAB, HIDDEN, ALSO_HIDDEN = 10, 2, 5
MODEL = ExactModel(VOCAB, 3, seed=4, end=True, sharpness=0.8)
RARELY = ExactModel(
    VOCAB,
    3,
    seed=4,
    end=True,
    sharpness=0.8,
    unigram=np.where(np.isin(np.arange(VOCAB), [2, 5]), -6, 0),
)
"""The same model, in which the two tokens are as rare as special tokens are."""


def reward(tokens: tuple[int, ...], prompt: int) -> float:
    """Short completions and token 1."""
    return 0.8 * (1 in tokens) - 0.4 * len(tokens)


def without(data: Rollouts, tokens: tuple[int, ...]) -> Rollouts:
    """The rollouts that never sampled one of ``tokens``, as a provider's special tokens hardly ever
    are.
    """
    bad = np.isin(data.token_ids, tokens)
    kept = np.bincount(data.rollout_of[bad], minlength=len(data.keys)) == 0
    return data.take(kept)


def hidden(data: Rollouts, tokens: tuple[int, ...] = (HIDDEN, ALSO_HIDDEN)) -> Rollouts:
    """The same rollouts from a provider that keeps the identity of ``tokens`` back."""
    ids = np.where(np.isin(data.top_ids, tokens), UNNAMED, data.top_ids).astype(np.int32)
    return dataclasses.replace(data, top_ids=ids)


def pair(top: int | None, n: int = 600) -> tuple[Rollouts, Rollouts]:
    """The same rollouts with and without the identities."""
    data = without(MODEL.rollouts(n, reward, 3, top=top), (HIDDEN, ALSO_HIDDEN))
    return data, hidden(data)


def random_bias(seed: int) -> np.ndarray:
    """(VOCAB,) nats, none on the hidden tokens."""
    delta = np.random.default_rng(seed).normal(size=VOCAB)
    delta[[HIDDEN, ALSO_HIDDEN]] = 0.0
    return delta


@pytest.mark.parametrize("top", [None, 6, 3])
def test_normaliser_policy_and_kl_are_those_with_ids(top: int | None) -> None:
    """For any bias on the other tokens all three are what they are when the ids are known, lists
    complete or not.
    """
    known, kept_back = pair(top)
    one, other = NextToken.of(known), NextToken.of(kept_back)
    assert not np.isin([HIDDEN, ALSO_HIDDEN], other.token_ids).any()
    assert other.unnamed.max() > 0.1
    for seed in range(5):
        delta = random_bias(seed)
        first, second = delta[one.token_ids], delta[other.token_ids]
        np.testing.assert_allclose(
            other.log_normaliser(second), one.log_normaliser(first), atol=1e-12
        )
        np.testing.assert_allclose(kl(other, second), kl(one, first), atol=1e-12)
        shared = np.isin(one.token_ids, other.token_ids)
        np.testing.assert_allclose(other.expected(second), one.expected(first)[shared], atol=1e-9)


def test_complete_lists_are_exact() -> None:
    """Against the model itself: the normaliser is the log of the sum over the whole vocabulary,
    hidden tokens at bias 0.
    """
    data = hidden(MODEL.rollouts(300, reward, 3))
    table, delta = NextToken.of(data), random_bias(1)
    truth = np.zeros(len(data.token_ids))
    ends = np.cumsum(data.lengths)
    for start, end in zip(ends - data.lengths, ends, strict=True):
        for m in range(start, end):
            base = MODEL.logprobs(data.token_ids[start:m].tolist())
            truth[m] = np.logaddexp.reduce(base + delta)
    np.testing.assert_allclose(table.log_normaliser(delta[table.token_ids]), truth, atol=1e-6)


def without_them() -> Rollouts:
    """The same rollouts of the model that cannot draw the two tokens: complete lists of all
    others.
    """
    known, _ = pair(None)
    named = np.isin(known.top_ids, [HIDDEN, ALSO_HIDDEN], invert=True)
    mass = np.log((np.exp(known.top_logprobs) * named).sum(axis=1, keepdims=True))
    width = VOCAB - 2
    return dataclasses.replace(
        known,
        top_ids=known.top_ids[named].reshape(-1, width),
        top_logprobs=(known.top_logprobs - mass)[named].reshape(-1, width).astype(np.float32),
    )


def test_the_projection_is_that_of_the_tokens_with_an_id() -> None:
    """Hiding two tokens that were never drawn is fitting to the distribution over all the others,
    their lists scaled to 1.
    """
    scaled, kept_back = without_them(), pair(None)[1]
    one, other = projection(scaled), projection(kept_back)
    np.testing.assert_array_equal(one.token_ids, other.token_ids)
    np.testing.assert_allclose(other.delta, one.delta, atol=1e-4)
    assert other.gain == pytest.approx(one.gain, abs=1e-6)


@pytest.mark.parametrize("top", [None, 5])
def test_a_provider_that_does_not_list_the_end_token_teaches_no_length(top: int | None) -> None:
    """With nothing to learn (a constant reward), the length stays. Without a baseline, which makes
    that exact, it would grow if the end token were taken for one never drawn.
    """
    model = ExactModel(VOCAB, 6, seed=7, end=True, sharpness=0.5)
    data = model.rollouts(4000, lambda tokens, prompt: 0.0, 3, top=top)
    drawn = data.token_ids != VOCAB - 1
    lengths = np.bincount(data.rollout_of[drawn], minlength=len(data.keys))
    unlisted = dataclasses.replace(
        data,
        lengths=lengths,
        **{
            name: getattr(data, name)[drawn]
            for name in ("token_ids", "logprobs", "top_ids", "top_logprobs", "bounded")
        },
    )
    exact = Exact(model, lambda tokens, prompt: float(len(tokens)))

    def length(fitted: Fit) -> float:
        return exact.expected_reward(np.bincount(fitted.token_ids, fitted.delta, minlength=VOCAB))

    base = exact.expected_reward()
    for rollouts in (unlisted, hidden(unlisted, (VOCAB - 1,))):
        assert not projection(rollouts).delta.any()
    unlisted = dataclasses.replace(unlisted, drawn_by_base=np.zeros(len(unlisted.keys), np.bool_))
    assert length(projection(hidden(unlisted, (VOCAB - 1,)))) == pytest.approx(base, rel=0.02)
    assert length(projection(unlisted)) > 1.2 * base


def test_sparse_compilation_counts_their_mass() -> None:
    """The loss of a compiled bias is the same whether the ids are known or not."""
    known, kept_back = pair(4)
    delta = random_bias(2)
    one, other = (
        sparsify(table, delta[table.token_ids], entries=3)
        for table in (NextToken.of(known), NextToken.of(kept_back))
    )
    assert other.token_ids.tolist() == one.token_ids.tolist()
    assert other.kl_lost == pytest.approx(one.kl_lost, abs=1e-6)
    assert other.kl_learned == pytest.approx(one.kl_learned)


@pytest.mark.parametrize("top", [None, 6])
def test_the_divergence_is_the_exact_one(top: int | None) -> None:
    """KL of a biased policy estimated with hidden tokens is the one with ids, and the exact one
    within Monte Carlo error.
    """
    delta, n = random_bias(3), 20_000
    drawn = RARELY.rollouts(n, reward, 0, top=top, delta=delta)
    biased = without(drawn, (HIDDEN, ALSO_HIDDEN))
    assert len(biased.keys) > 0.98 * n
    tail = NextToken.of(RARELY.rollouts(4_000, reward, 1, top=top))
    found = divergence(hidden(biased), np.arange(VOCAB), delta, tail)
    assert found.kl == pytest.approx(Exact(RARELY, reward).kl(delta), rel=0.03)


def test_the_divergence_is_that_of_the_tokens_with_an_id() -> None:
    """With a third of the mass hidden the estimate is that of the model without those tokens; no
    bias is no distance.
    """
    scaled, kept_back = without_them(), pair(None)[1]
    delta = 2 * random_bias(3)
    one, other = (
        divergence(data, np.arange(VOCAB), delta, NextToken.of(data))
        for data in (scaled, kept_back)
    )
    np.testing.assert_allclose(other.per_completion, one.per_completion, atol=1e-5)
    assert divergence(kept_back, [], [], NextToken.of(kept_back)).kl == pytest.approx(0, abs=1e-6)
    assert NextToken.of(kept_back).unnamed.mean() > 0.05


def test_it_is_no_tail() -> None:
    """Their mass is reported as unnamed, not as unlisted, and a complete list stays complete."""
    _, kept_back = pair(None)
    table = NextToken.of(kept_back, vocab_size=VOCAB)
    coverage = tail_coverage(table)
    assert (coverage.tail_mass, coverage.unattributed, censoring_of(kept_back, table).mass) == (
        0,
        0,
        0,
    )
    probabilities = np.exp(kept_back.top_logprobs.astype(np.float64))
    expected = np.where(kept_back.top_ids == UNNAMED, probabilities, 0).sum(axis=1).mean()
    assert table.unnamed.mean() == pytest.approx(expected, abs=1e-6)
    named, shorter = pair(3)
    assert tail_coverage(NextToken.of(shorter)).tail_mass == pytest.approx(
        NextToken.of(named).tail_mass.mean()
    )


@pytest.mark.parametrize("value", [np.nan, 0.5])
def test_a_corrupt_logprob_without_an_id_is_refused(value: float) -> None:
    """NaN and positive numbers are refused, id or not."""
    _, kept_back = pair(4)
    spoilt = kept_back.top_logprobs.copy()
    spoilt[kept_back.top_ids == UNNAMED] = value
    with raises_naming(InputError, value, "3/0000000"):
        NextToken.of(dataclasses.replace(kept_back, top_logprobs=spoilt))


def test_a_sampled_token_needs_an_id() -> None:
    """What was sampled must be known: a rollout with a sampled token without an id is named."""
    data = MODEL.rollouts(5, reward, 3)
    ids = data.token_ids.copy()
    ids[0] = UNNAMED
    with raises_naming(InputError, "-2", "3/0000000"):
        NextToken.of(dataclasses.replace(data, token_ids=ids))
