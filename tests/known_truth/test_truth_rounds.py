"""Rounds pooled against known truth: the same optimum as from the base alone, more reward where it is rare."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from scipy.special import log_softmax

from blackbox_lb.errors import InputError
from blackbox_lb.estimate.inputs.rollouts import Rollouts
from blackbox_lb.estimate.next_token.next_token import NextToken
from blackbox_lb.estimate.projection.projection import Fit, projection
from blackbox_lb.estimate.reweighting.pooling import Pool, Round, pool
from blackbox_lb.estimate.reweighting.trust_region import step_within
from blackbox_lb.testing import ExactModel
from blackbox_lb.types import UNNAMED
from tests.support.policy import estimate_policy
from tests.support.truth import Exact

VOCAB, RARE, TAU, N, L2 = 40, 37, 0.5, 20_000, 5.0
UNIGRAM = -0.7 * np.log1p(np.arange(VOCAB)) - 0.5 * (np.arange(VOCAB) == RARE)
MODEL = ExactModel(VOCAB, 3, seed=3, sharpness=0.7, unigram=UNIGRAM)


def contains_rare(tokens: tuple[int, ...], prompt: int) -> float:
    """2 nats for a token that only 2.8 % of completions contain and that a top-5 list hardly ever shows."""
    return 2.0 if RARE in tokens else 0.0


@pytest.fixture(scope="module")
def truth() -> tuple[Exact, np.ndarray]:
    """Exact quantities and the exact optimum at the estimator's l2."""
    exact = Exact(MODEL, contains_rare)
    return exact, exact.optimum(TAU, l2=L2 / N)


def drawn(delta: np.ndarray, n: int, seed: int, top: int, *, after: bool, model: ExactModel = MODEL) -> Round:
    """A round of ``n`` rollouts; with ``after`` its lists are the likeliest tokens of the biased policy with its logprobs."""
    bias = {token: float(value) for token, value in enumerate(delta) if value}
    if not after:
        return Round(model.rollouts(n, contains_rare, seed, delta=delta, top=top), bias)
    full = model.rollouts(n, contains_rare, seed, delta=delta)
    biased = log_softmax(full.top_logprobs + delta[full.top_ids], axis=1)
    order = np.argsort(-biased, axis=1, kind="stable")[:, :top]
    return Round(
        dataclasses.replace(
            full,
            top_ids=np.take_along_axis(full.top_ids, order, axis=1),
            top_logprobs=np.take_along_axis(biased, order, axis=1).astype(np.float32),
        ),
        bias,
        after=True,
    )


def dense(fit: Fit, size: int = VOCAB) -> np.ndarray:
    """(size,) with 0 for tokens that were never seen."""
    out = np.zeros(size)
    out[fit.token_ids] = fit.delta
    return out


def fitted(pooled: Pool) -> np.ndarray:
    """The projection of a pool."""
    return dense(projection(pooled.rollouts, tau=TAU, l2=L2, next_token=pooled.next_token))


def excess(truth: tuple[Exact, np.ndarray], delta: np.ndarray) -> float:
    """KL(p* || p_delta) beyond the best fixed bias's, as a share of what that one gains over no bias."""
    exact, best = truth
    reached, least, none = (exact.kl_to_target(d, TAU) for d in (delta, best, np.zeros(VOCAB)))
    return (reached - least) / (none - least)


def suppressing() -> np.ndarray:
    """2 nats off the three commonest tokens: some fall out of the lists after the bias."""
    return np.where(np.arange(VOCAB) < 3, -2.0, 0.0)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(("top", "tolerance"), [(20, 0.015), (5, 0.02)])
@pytest.mark.parametrize("towards", ["optimum", "away"])
def test_a_pool_reaches_the_optimum_that_the_base_alone_reaches(
    truth: tuple[Exact, np.ndarray], top: int, tolerance: float, towards: str, after: bool
) -> None:
    """Half the rollouts from a biased policy, whether it helps or not, lists before or after the bias: 98 % of the exact gain."""
    delta = np.round(truth[1] - 0.3, 3) if towards == "optimum" else suppressing()
    base = drawn(np.zeros(VOCAB), N // 2, 11, top, after=after)
    pooled = pool([base, drawn(delta, N // 2, 12, top, after=after)])
    assert 0 <= excess(truth, fitted(pooled)) < tolerance
    assert pooled.mean_weight == pytest.approx(1, abs=0.05)
    weights = np.exp(pooled.rollouts.tilt)
    assert weights.max() <= 2 * (1 + 1e-9)
    assert pooled.effective_sample_size >= N // 2
    mean = float(weights @ pooled.rollouts.rewards / weights.sum())
    assert mean == pytest.approx(truth[0].expected_reward(), abs=0.006)


def test_without_reweighting_the_pool_is_led_astray(truth: tuple[Exact, np.ndarray]) -> None:
    """The same rollouts taken as the base's own land an order of magnitude further from the optimum."""
    delta = np.round(truth[1] - 0.3, 3)
    pooled = pool([drawn(np.zeros(VOCAB), N // 2, 11, 20, after=False), drawn(delta, N // 2, 12, 20, after=False)])
    raw = dataclasses.replace(pooled, rollouts=dataclasses.replace(pooled.rollouts, log_ratios=None))
    assert excess(truth, fitted(raw)) > 10 * excess(truth, fitted(pooled))


def test_complete_lists_after_the_bias_are_those_before() -> None:
    """Lists, normalisers and weights are the same to float32, sorted from most likely."""
    delta = np.random.default_rng(1).normal(size=VOCAB)
    base = drawn(np.zeros(VOCAB), 200, 1, VOCAB, after=False)
    one, other = (pool([base, drawn(delta, 200, 2, VOCAB, after=after)]) for after in (False, True))
    np.testing.assert_allclose(one.rollouts.top_logprobs, other.rollouts.top_logprobs, atol=2e-6)
    np.testing.assert_allclose(one.rollouts.tilt, other.rollouts.tilt, atol=2e-6)
    for delta in (np.random.default_rng(2).normal(size=VOCAB), np.zeros(VOCAB)):
        np.testing.assert_allclose(one.next_token.log_normaliser(delta), other.next_token.log_normaliser(delta), atol=2e-6)


def test_tokens_without_an_id_keep_their_bias_of_nothing() -> None:
    """In lists after the bias a hidden token's logprob moves with the normaliser alone."""
    delta = np.where(np.arange(VOCAB) == 2, 0.0, np.random.default_rng(1).normal(size=VOCAB))
    rounds = [drawn(np.zeros(VOCAB), 200, 1, VOCAB, after=True), drawn(delta, 200, 2, VOCAB, after=True)]
    hidden = []
    for each in rounds:
        data = each.rollouts
        kept = data.take(np.bincount(data.rollout_of, weights=data.token_ids == 2) == 0)
        ids = np.where(kept.top_ids == 2, UNNAMED, kept.top_ids).astype(np.int32)
        hidden.append(dataclasses.replace(each, rollouts=dataclasses.replace(kept, top_ids=ids)))
    known = pool(rounds).rollouts.take(np.isin(pool(rounds).rollouts.keys, pool(hidden).rollouts.keys))
    np.testing.assert_allclose(pool(hidden).rollouts.top_logprobs, known.top_logprobs, atol=2e-6)


def test_a_token_first_drawn_under_a_bias_has_its_mass() -> None:
    """With the unigram of the base alone it has none, and the fit raises it by 50 nats; with the pool's, to its exact optimum."""
    token, n, l2 = 38, 2000, 0.5
    model = ExactModel(VOCAB, 3, seed=3, sharpness=0.7, unigram=UNIGRAM - 4.0 * (np.arange(VOCAB) == token))

    def contains_it(tokens: tuple[int, ...], prompt: int) -> float:
        return 2.0 * (token in tokens)

    delta = np.where(np.arange(VOCAB) == token, 5.0, 0.0)
    seed = next(s for s in range(60) if token not in model.rollouts(n, contains_it, s, top=5).token_ids)
    base = Round(model.rollouts(n, contains_it, seed, top=5))
    pooled = pool([base, Round(model.rollouts(n, contains_it, 99, top=5, delta=delta), {token: 5.0})])
    lent = NextToken.of(pooled.rollouts, tail=NextToken.of(base.rollouts))
    fits = [projection(pooled.rollouts, tau=TAU, l2=l2, next_token=table) for table in (lent, pooled.next_token)]
    naive, right = (dense(fit)[token] for fit in fits)
    best = Exact(model, contains_it).optimum(TAU, l2=l2 / (2 * n))
    assert naive > 20
    assert right == pytest.approx(best[token] - np.median(best), abs=0.4)


def test_the_base_alone_is_what_it_was() -> None:
    """One round, or two without a bias, have weights 1 and the table that their rollouts have."""
    first, second = (drawn(np.zeros(VOCAB), 100, seed, 5, after=True) for seed in (1, 2))
    pooled = pool([first, second])
    np.testing.assert_allclose(pooled.rollouts.tilt, 0, atol=1e-12)
    plain = NextToken.of(Rollouts.join([first.rollouts, second.rollouts]))
    np.testing.assert_array_equal(pooled.next_token.unigram, plain.unigram)
    assert pooled.counts == (100, 100)
    assert pooled.effective_sample_size == pytest.approx(200)


def test_what_cannot_be_pooled_is_refused() -> None:
    """No round, a first round with a bias or without rollouts, and rollouts in two rounds."""
    base = drawn(np.zeros(VOCAB), 10, 1, 5, after=False)
    for rounds in ([], [dataclasses.replace(base, bias={1: 1.0})], [Round(base.rollouts.take([]))]):
        with pytest.raises(InputError, match="must be drawn without a bias"):
            pool(rounds)
    with pytest.raises(InputError, match="keys repeat"):
        pool([base, base])


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("top", [0, 1, 3])
def test_small_and_odd_pools_stay_finite(top: int, after: bool) -> None:
    """One rollout a round, lists of one token or none, and biases of 50 nats give finite weights and tables."""
    model = ExactModel(3, 2, seed=1)
    base = model.rollouts(1, contains_rare, 1, top=top)
    for size in (1.0, 50.0):
        delta = np.array([size, -size, 0.0])
        biased = model.rollouts(2, contains_rare, 2, top=top, delta=delta)
        pooled = pool([Round(base), Round(biased, {0: size, 1: -size}, after)])
        assert np.isfinite(pooled.rollouts.tilt).all()
        assert np.isfinite(pooled.next_token.log_normaliser(np.full(len(pooled.next_token.token_ids), 1.0))).all()


HARD = 60
HARD_UNIGRAM = -0.7 * np.log1p(np.arange(HARD)) - 1.2 * (np.arange(HARD) == RARE)


def contains_rare_once(tokens: tuple[int, ...], prompt: int) -> float:
    """1 nat for the rare token, which 2 % of the base's completions contain."""
    return 1.0 if RARE in tokens else 0.0


def learned_in(rounds: int, model: ExactModel, n: int, tau: float, seed: int) -> tuple[np.ndarray, list[float]]:
    """What ``n`` rollouts teach when they are drawn in so many rounds, and the divergence of each step."""
    delta = np.zeros(HARD)
    parts: list[Round] = []
    steps: list[float] = []
    for k in range(rounds):
        bias = {token: float(value) for token, value in enumerate(delta) if value}
        parts.append(Round(model.rollouts(n // rounds, contains_rare_once, 100 * seed + k, top=5, delta=delta), bias))
        pooled = pool(parts)
        table = pooled.next_token
        if not pooled.rollouts.rewards.any():
            continue
        fit = projection(pooled.rollouts, tau=tau, l2=20.0 if k + 1 < rounds else L2, next_token=table)
        if k + 1 == rounds:
            return dense(fit, HARD), steps
        there = pooled.positions_of(k)
        step = step_within(table, delta[table.token_ids], fit.delta, trust=0.3, completions=n // rounds, position_weights=there)
        steps.append(step.kl)
        delta = np.zeros(HARD)
        delta[table.token_ids] = np.round(step.delta, 3)
    return np.zeros(HARD), steps


@pytest.mark.parametrize(("tau", "least"), [(0.3, 0.03), (0.15, 0.1)])
def test_a_rare_reward_is_learned_better_in_rounds(tau: float, least: float) -> None:
    """Where 2 % of completions earn the reward, three rounds beat one at equal rollouts on E[r] - tau KL, and trust is kept."""
    gains, base = [], []
    for seed in range(6):
        model = ExactModel(HARD, 6, seed=seed, sharpness=0.7, unigram=HARD_UNIGRAM, end=True, prompts=4)
        reached = []
        for rounds in (1, 3):
            delta, steps = learned_in(rounds, model, 240, tau, seed + 1)
            assert all(kl <= 0.3 for kl in steps)
            found = estimate_policy(model, delta, contains_rare_once, 2000, 7)
            reached.append(found.reward - tau * found.kl)
        base.append(estimate_policy(model, np.zeros(HARD), contains_rare_once, 2000, 7).reward)
        gains.append(reached[1] - reached[0])
    assert np.mean(base) < 0.05
    assert np.mean(gains) > least
    assert np.mean(gains) > 2 * np.std(gains, ddof=1) / np.sqrt(len(gains))
