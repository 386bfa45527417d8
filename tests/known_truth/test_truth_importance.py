"""Importance weights and trust regions, against probabilities of whole sequences that are known."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from blackbox_lb.errors import InputError
from blackbox_lb.estimate.inputs.rollouts import Rollouts
from blackbox_lb.estimate.next_token.next_token import NextToken
from blackbox_lb.estimate.reweighting.importance import log_mixture_ratios, log_policy_ratios
from blackbox_lb.estimate.reweighting.trust_region import policy_kl, step_within
from blackbox_lb.testing import ExactModel
from blackbox_lb.types import UNNAMED
from tests.support.truth import Exact

VOCAB = 10
MODEL = ExactModel(VOCAB, 4, seed=5, end=True, sharpness=0.8, prompts=2)


def reward(tokens: tuple[int, ...], prompt: int) -> float:
    """Short completions and token 1."""
    return 0.8 * (1 in tokens) - 0.4 * len(tokens)


EXACT = Exact(MODEL, reward)


def bias(seed: int, size: float = 1.0) -> np.ndarray:
    """(VOCAB,) nats; 0 for the end token."""
    delta = size * np.random.default_rng(seed).normal(size=VOCAB)
    delta[MODEL.end] = 0.0
    return delta


def without_end(data: Rollouts, end: int) -> Rollouts:
    """The same from a provider that does not list the end token when it is drawn and keeps its identity back otherwise."""
    kept = data.token_ids != end
    ended = np.bincount(data.rollout_of[~kept], minlength=len(data.keys))
    return Rollouts(
        keys=data.keys,
        prompts=data.prompts,
        rewards=data.rewards,
        lengths=data.lengths - ended,
        token_ids=data.token_ids[kept],
        logprobs=data.logprobs[kept],
        top_ids=np.where(data.top_ids[kept] == end, UNNAMED, data.top_ids[kept]).astype(np.int32),
        top_logprobs=data.top_logprobs[kept],
    )


def test_the_ratio_of_a_completion_is_that_of_its_probabilities() -> None:
    """With complete lists log p_delta / p_0 of each completion is the difference of the enumerated log probabilities."""
    data, delta = MODEL.rollouts(300, reward, 1), bias(1)
    truth = np.log(EXACT.probabilities(delta)) - EXACT.base
    of = {(int(p), *row[row >= 0].tolist()): n for n, (row, p) in enumerate(zip(EXACT.sequences, EXACT.prompts, strict=True))}
    parts = np.split(data.token_ids, np.cumsum(data.lengths)[:-1])
    rows = [of[int(p), *part.tolist()] for p, part in zip(data.prompts, parts, strict=True)]
    table = NextToken.of(data)
    found = log_policy_ratios(data, table, table.align(np.arange(VOCAB), delta))
    np.testing.assert_allclose(found, truth[rows], atol=1e-5)


def test_hidden_end_tokens_cost_less_where_their_mass_is_counted() -> None:
    """Reweighted lengths come out nearer to the truth than when tokens without an id are conditioned out of both policies."""
    delta, model = bias(1), ExactModel(VOCAB, 5, seed=5, end=True, sharpness=0.8)
    assert model.end is not None
    full = model.rollouts(20_000, reward, 3)
    data = without_end(full, model.end)
    table, exact = NextToken.of(data), Exact(model, reward)
    truth = exact.expectation(exact.lengths.astype(np.float64), delta)
    errors = []
    for each in (table, table.named()):
        weights = np.exp(log_policy_ratios(data, each, table.align(np.arange(VOCAB), delta)))
        errors.append(abs(weights @ full.lengths / weights.sum() - truth))
    assert errors[0] < 0.6 * errors[1]
    assert errors[0] < 0.5 * abs(full.lengths.mean() - truth)


def mixture() -> tuple[Rollouts, NextToken, list[np.ndarray], list[int]]:
    """A base and two biased policies that drew 4,000, 2,000 and 1,000 completions."""
    deltas, counts = [np.zeros(VOCAB), bias(1), bias(2, 1.5)], [4000, 2000, 1000]
    parts = [MODEL.rollouts(n, reward, k, delta=delta) for k, (n, delta) in enumerate(zip(counts, deltas, strict=True))]
    data = Rollouts.join(parts)
    table = NextToken.of(data)
    return data, table, [table.align(np.arange(VOCAB), delta) for delta in deltas], counts


def test_a_mixture_reweighted_is_the_base() -> None:
    """The weights average 1, recover mean and spread of the base's rewards, and are at most N / N_0 for every completion."""
    data, table, deltas, counts = mixture()
    weights = np.exp(log_mixture_ratios(data, table, deltas, counts))
    assert weights.max() <= sum(counts) / counts[0] * (1 + 1e-9)
    error = 3 / np.sqrt(len(weights))
    assert weights.mean() == pytest.approx(1, abs=error)
    first, second = (float(weights @ data.rewards**power / len(weights)) for power in (1, 2))
    assert first == pytest.approx(EXACT.expected_reward(), abs=error * 1.5)
    assert second == pytest.approx(EXACT.expectation(EXACT.rewards**2), abs=error * 3)
    assert abs(data.rewards.mean() - EXACT.expected_reward()) > 2 * abs(first - EXACT.expected_reward())


def test_more_policies_than_one_lower_the_variance_of_each_alone() -> None:
    """Completions of a biased policy alone give weights without a bound; beside the base's they have one."""
    data, table, deltas, counts = mixture()
    alone = data.take(np.arange(6000, 7000))
    single = np.exp(log_mixture_ratios(alone, NextToken.of(alone), [bias(2, 1.5)], [1000]))
    assert single.max() > 7 > np.exp(log_mixture_ratios(data, table, deltas, counts)).max()


def test_the_divergence_of_two_policies_is_the_exact_one() -> None:
    """KL(p_old || p_new) a completion from what the old policy drew, against enumeration, and 0 for the same policy."""
    old, new = bias(1), bias(2)
    data = MODEL.rollouts(8000, reward, 4, delta=old)
    table = NextToken.of(data)
    here, there = (np.log(EXACT.probabilities(delta)) for delta in (old, new))
    truth = float(np.exp(here) @ (here - there))
    one, other = (table.align(np.arange(VOCAB), delta) for delta in (old, new))
    assert policy_kl(table, one, other, completions=8000) == pytest.approx(truth, rel=0.03)
    assert policy_kl(table, one, one, completions=8000) == 0
    assert policy_kl(table, one, one + 3.0, completions=8000) == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("trust", [0.02, 0.3, 1.0])
def test_a_step_goes_as_far_as_it_may(trust: float) -> None:
    """The step reaches the trust region's edge exactly, its true divergence is the one stated, and a near goal is reached whole."""
    old, new = bias(1), bias(2, 2.0)
    data = MODEL.rollouts(8000, reward, 4, delta=old)
    table = NextToken.of(data)
    step = step_within(table, old[table.token_ids], new[table.token_ids], trust=trust, completions=8000)
    assert 0 < step.share < 1
    assert step.kl == pytest.approx(trust, rel=1e-5)
    assert step.kl <= trust
    here, there = (np.log(EXACT.probabilities(delta)) for delta in (old, step.delta))
    assert float(np.exp(here) @ (here - there)) == pytest.approx(trust, rel=0.05)
    near = step_within(table, old[table.token_ids], step.delta, trust=trust * 1.01, completions=8000)
    assert near.share == 1
    np.testing.assert_allclose(near.delta, step.delta)


def test_bad_input_is_named() -> None:
    """Another table, biases that drew nothing, a trust of 0 and no completions are refused."""
    data = MODEL.rollouts(20, reward, 1)
    table, none = NextToken.of(data), np.zeros(VOCAB)
    shorter = data.take(np.arange(10))
    none = np.zeros(len(table.token_ids))
    with pytest.raises(InputError, match="positions, the rollouts"):
        log_policy_ratios(shorter, table, none)
    for deltas, counts in (([none], [19]), ([none, none], [20]), ([none, none], [20, 0]), ([], [])):
        with pytest.raises(InputError, match="drew"):
            log_mixture_ratios(data, table, deltas, counts)
    with pytest.raises(InputError, match="trust is 0"):
        step_within(table, none, none, trust=0.0, completions=20)
    with pytest.raises(InputError, match="0 completions"):
        policy_kl(table, none, none, completions=0)


def test_a_completion_without_tokens_is_as_likely_under_any_policy() -> None:
    """Its ratio is 0, beside others that have tokens."""
    data = MODEL.rollouts(3, reward, 1)
    empty = dataclasses.replace(
        data,
        keys=(*data.keys, "empty"),
        prompts=np.append(data.prompts, 0),
        rewards=np.append(data.rewards, 0.0),
        lengths=np.append(data.lengths, 0),
    )
    table = NextToken.of(empty)
    assert log_policy_ratios(empty, table, table.align(np.arange(VOCAB), bias(1)))[-1] == 0
