"""Importance weights and trust regions, against probabilities of whole sequences that are known."""

from __future__ import annotations

import dataclasses

import numpy as np

from blackbox_lb.errors import InputError
from blackbox_lb.estimate.inputs.rollouts import Rollouts
from blackbox_lb.estimate.next_token.next_token import NextToken
from blackbox_lb.estimate.reweighting import log_policy_ratios
from blackbox_lb.types import UNNAMED
from tests.support.errors import raises_naming
from tests.support.exact import ExactModel
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
    """The same from a provider that does not list the end token when it is drawn and keeps its
    identity back otherwise.
    """
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
    """With complete lists log p_delta / p_0 of each completion is the difference of the enumerated
    log probabilities.
    """
    data, delta = MODEL.rollouts(300, reward, 1), bias(1)
    truth = np.log(EXACT.probabilities(delta)) - EXACT.base
    of = {
        (int(p), *row[row >= 0].tolist()): n
        for n, (row, p) in enumerate(zip(EXACT.sequences, EXACT.prompts, strict=True))
    }
    parts = np.split(data.token_ids, np.cumsum(data.lengths)[:-1])
    rows = [of[int(p), *part.tolist()] for p, part in zip(data.prompts, parts, strict=True)]
    table = NextToken.of(data)
    found = log_policy_ratios(data, table, table.align(np.arange(VOCAB), delta))
    np.testing.assert_allclose(found, truth[rows], atol=1e-5)


def test_hidden_end_tokens_cost_less_where_their_mass_is_counted() -> None:
    """Reweighted lengths come out nearer to the truth than when tokens without an id are
    conditioned out of both policies.
    """
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


def test_bad_input_is_named() -> None:
    """Another table is refused."""
    data = MODEL.rollouts(20, reward, 1)
    table = NextToken.of(data)
    with raises_naming(InputError, "next_token", "55", "29"):
        log_policy_ratios(data.take(np.arange(10)), table, np.zeros(len(table.token_ids)))


def test_a_completion_without_tokens_is_as_likely_under_any_policy() -> None:
    """Its ratio is 0, beside others that have tokens."""
    data = MODEL.rollouts(3, reward, 1)
    empty = dataclasses.replace(
        data,
        keys=(*data.keys, "empty"),
        prompts=np.append(data.prompts, 0),
        rewards=np.append(data.rewards, 0.0),
        lengths=np.append(data.lengths, 0),
        shares=np.append(data.shares, np.nan),
        drawn_by_base=np.append(data.drawn_by_base, True),
        answer_sets=np.append(data.answer_sets, 0),
    )
    table = NextToken.of(empty)
    assert log_policy_ratios(empty, table, table.align(np.arange(VOCAB), bias(1)))[-1] == 0
