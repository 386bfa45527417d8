"""The known truth itself: Exact against loops and samples."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy import optimize, stats

from blackbox_lb.errors import InputError
from tests.support.errors import raises_naming
from tests.support.exact import ExactModel
from tests.support.policy import estimate_policy
from tests.support.truth import Exact


def reward(tokens: tuple[int, ...], prompt: int) -> float:
    """Anything that depends on all of its arguments."""
    return 0.5 * tokens.count(1) - 0.2 * len(tokens) + 0.3 * prompt * (tokens[0] == 2)


def test_enumeration_is_the_product_of_conditionals() -> None:
    """Without an end token every sequence occurs once, with the product of its next-token
    probabilities.
    """
    model = ExactModel(3, 3, seed=1, prompts=2)
    exact = Exact(model, reward)
    seen = {
        (int(p), *map(int, row)): lp
        for p, row, lp in zip(exact.prompts, exact.sequences, exact.base, strict=True)
    }
    for prompt, *tokens in itertools.product(range(2), range(3), range(3), range(3)):
        steps = [model.logprobs(tokens[:t], prompt)[tokens[t]] for t in range(3)]
        assert seen[(prompt, *tokens)] == pytest.approx(sum(steps) - np.log(2), abs=1e-12)
    assert len(seen) == 2 * 27


def test_probabilities_sum_to_one_with_an_end_token() -> None:
    """Completions of all lengths together are a distribution, with and without a bias; none goes on
    after its end.
    """
    exact = Exact(ExactModel(4, 4, seed=2, end=True, prompts=2), reward)
    assert exact.probabilities().sum() == pytest.approx(1)
    assert exact.probabilities([1.0, -2.0, 0.0, 0.5]).sum() == pytest.approx(1)
    assert sorted(set(exact.lengths)) == [1, 2, 3, 4]
    ended = (exact.sequences == 3).argmax(axis=1)[(exact.sequences == 3).any(axis=1)]
    assert (ended + 1 == exact.lengths[(exact.sequences == 3).any(axis=1)]).all()


def test_z_avg_is_the_average_over_interventions() -> None:
    """Z_avg from the enumeration equals the paper's definition, summed by hand over t, prefix,
    inserted token, suffix.
    """
    model, tau = ExactModel(3, 2, seed=3), 0.7
    expected = np.zeros(3)
    for y in range(3):
        after = np.exp(model.logprobs([y]))
        expected[y] += sum(after[b] * np.exp(reward((y, b), 0) / tau) for b in range(3)) / 2
        before = np.exp(model.logprobs())
        expected[y] += sum(before[a] * np.exp(reward((a, y), 0) / tau) for a in range(3)) / 2
    np.testing.assert_allclose(Exact(model, reward).z_avg(tau), expected, rtol=1e-12)


def test_stopping_z_avg_of_two_tokens() -> None:
    """One token and an end, at most two positions: Z is what the definition in Statistics gives on
    paper.
    """
    model = ExactModel(2, 2, seed=4, end=True)
    stop, go = np.exp(model.logprobs())[[1, 0]]
    last = np.exp(model.logprobs([0]))
    weight = {row: np.exp(reward(row, 0)) for row in [(1,), (0, 0), (0, 1)]}
    end = weight[(1,)] + go * weight[(0, 1)] / 2
    token = (last[0] * weight[(0, 0)] + last[1] * weight[(0, 1)]) / 2 + go * weight[(0, 0)] / 2
    np.testing.assert_allclose(Exact(model, reward).z_avg(1.0), [token, end], rtol=1e-12)
    assert stop + go == pytest.approx(1)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_samples_follow_the_enumeration(temperature: float) -> None:
    """20,000 completions under a bias pass a chi-square test against exact probabilities, a
    temperature being delta / T.
    """
    model, delta = ExactModel(3, 3, seed=5, end=True, sharpness=0.6), np.array([0.8, -0.5, 0.2])
    tokens = model.sample(20_000, np.random.default_rng(0), delta, temperature)
    exact = Exact(_sharper(model, temperature), reward)
    codes = {tuple(row): i for i, row in enumerate(exact.sequences.tolist())}
    seen = np.bincount([codes[tuple(row)] for row in tokens.tolist()], minlength=len(codes))
    assert stats.chisquare(seen, 20_000 * exact.probabilities(delta / temperature)).pvalue > 1e-3


def test_greedy_takes_the_most_likely_token() -> None:
    """Temperature 0 follows the argmax of logits plus bias."""
    model, delta = ExactModel(5, 3, seed=6), np.array([0.0, 3.0, 0.0, 0.0, 0.0])
    (row,) = model.sample(1, np.random.default_rng(0), delta, 0.0).tolist()
    assert all(token == (model.logprobs(row[:t]) + delta).argmax() for t, token in enumerate(row))


def test_kl_and_reward_of_a_bias() -> None:
    """KL per sequence is the expected sum over positions of the next-token KL, and E[r] is the
    probability-weighted mean.
    """
    model, delta = ExactModel(3, 2, seed=7), np.array([1.0, 0.0, -1.0])
    exact = Exact(model, reward)

    def tilted(prefix: list[int]) -> tuple[np.ndarray, float]:
        base = np.exp(model.logprobs(prefix))
        policy = base * np.exp(delta) / (base * np.exp(delta)).sum()
        return policy, float(policy @ np.log(policy / base))

    first, kl = tilted([])
    assert exact.kl(delta) == pytest.approx(kl + sum(first[y] * tilted([y])[1] for y in range(3)))
    mean = sum(first[a] * tilted([a])[0][b] * reward((a, b), 0) for a in range(3) for b in range(3))
    assert exact.expected_reward(delta) == pytest.approx(mean)


@pytest.mark.parametrize("per_prompt", [False, True])
def test_objective_is_kl_to_the_target_and_its_gradient_is_right(per_prompt: bool) -> None:
    """objective = entropy term - KL(p* || p_delta) with KL from its definition; finite differences
    agree at the optimum.
    """
    exact, tau = Exact(ExactModel(4, 3, seed=8, end=True, prompts=2, sharpness=0.7), reward), 0.6
    delta = np.array([0.3, -0.8, 0.1, 0.9])
    target = exact.probabilities() * np.exp(exact.rewards / tau)
    groups = exact.prompts if per_prompt else np.zeros_like(exact.prompts)
    target /= (np.bincount(groups, weights=target) * (groups.max() + 1))[groups]
    kl = target @ np.log(target / exact.probabilities(delta))
    assert exact.kl_to_target(delta, tau, per_prompt=per_prompt) == pytest.approx(kl, abs=1e-12)
    best = exact.optimum(tau, per_prompt=per_prompt, l2=1e-3)

    def objective(d: np.ndarray) -> float:
        return exact.objective(d, tau, per_prompt=per_prompt, l2=1e-3)

    slope = optimize.approx_fprime(best, objective, 1e-6)
    assert np.abs(slope).max() < 1e-6


def test_rollouts_list_what_the_model_says() -> None:
    """Full lists hold every logprob, sorted; top-k lists hold the k most likely; lengths count the
    end token.
    """
    model = ExactModel(6, 3, seed=9, end=True, prompts=2)
    full, short = model.rollouts(30, reward, 4), model.rollouts(30, reward, 4, top=2)
    np.testing.assert_array_equal(full.token_ids, short.token_ids)
    np.testing.assert_array_equal(full.top_ids[:, :2], short.top_ids)
    np.testing.assert_allclose(np.exp(full.top_logprobs.astype(float)).sum(1), 1, atol=1e-6)
    assert (np.diff(full.top_logprobs, axis=1) <= 0).all()
    starts = np.cumsum(full.lengths) - full.lengths
    for start, prompt in zip(starts, full.prompts, strict=True):
        expected = model.logprobs([], int(prompt))
        np.testing.assert_allclose(
            full.top_logprobs[start], expected[full.top_ids[start]], rtol=1e-5
        )


def test_short_lists_are_the_head_of_full_lists() -> None:
    """The likeliest k of a large vocabulary, whichever way they are found, are the first k of
    all.
    """
    model = ExactModel(60, 4, seed=3, end=True, prompts=2)
    full = model.rollouts(50, reward, 4)
    for top in (0, 1, 5, 14, 15, 30, 60, 100):
        short = model.rollouts(50, reward, 4, top=top)
        np.testing.assert_array_equal(short.top_ids, full.top_ids[:, :top])
        np.testing.assert_array_equal(short.top_logprobs, full.top_logprobs[:, :top])
        np.testing.assert_array_equal(short.logprobs, full.logprobs)


@pytest.mark.parametrize("end_sharpness", [None, 0.2])
def test_evaluation_is_the_enumeration(end_sharpness: float | None) -> None:
    """Mean reward and KL of 20,000 sampled completions are within 4 of their standard errors of the
    exact ones.
    """
    model = ExactModel(5, 4, seed=5, end=True, prompts=2, end_sharpness=end_sharpness)
    exact, delta = Exact(model, reward), np.array([0.8, -1.5, 0.2, 9.0, 8.0])
    found = estimate_policy(model, delta, reward, 20_000, 1)
    assert abs(found.reward - exact.expected_reward(delta)) < 4 * found.reward_error
    assert abs(found.kl - exact.kl(delta)) < 4 * found.kl_error
    assert found.length == pytest.approx(
        exact.expectation(exact.lengths.astype(np.float64), delta), abs=0.05
    )
    assert 0 < found.kl_error < 0.05 * exact.kl(delta)
    assert found == estimate_policy(model, delta + 50.0, reward, 20_000, 1)


def test_standard_errors_of_an_evaluation_are_those_of_its_repetitions() -> None:
    """Over 150 evaluations the spread of the means is what each of them states, within sampling
    error.
    """
    model, delta = ExactModel(5, 4, seed=5, end=True), np.array([0.8, -1.5, 0.2, 0.0, 1.0])
    found = [estimate_policy(model, delta, reward, 200, seed) for seed in range(150)]
    for value, error in (("reward", "reward_error"), ("kl", "kl_error")):
        spread = np.std([getattr(each, value) for each in found], ddof=1)
        assert spread == pytest.approx(np.mean([getattr(each, error) for each in found]), rel=0.2)


def test_an_evaluation_without_a_bias_is_at_no_distance() -> None:
    """KL 0 for a constant bias; a reward of -inf makes the mean -inf; fewer than two completions
    are refused.
    """
    model = ExactModel(5, 3, seed=5)
    assert estimate_policy(model, np.full(5, 3.0), reward, 500, 1).kl == pytest.approx(0, abs=1e-12)
    worthless = estimate_policy(
        model, np.zeros(5), lambda tokens, _: -np.inf if 2 in tokens else 0.0, 500, 1
    )
    assert worthless.reward == -np.inf
    assert np.isnan(worthless.reward_error)
    with raises_naming(InputError, "2"):
        estimate_policy(model, np.zeros(5), reward, 1, 1)


def test_rollouts_under_a_bias_list_the_base_model() -> None:
    """The bias moves what is drawn, and no logprob: the chi-square test knows the biased
    probabilities from the base's.
    """
    model, delta = ExactModel(4, 1, seed=6), np.array([1.0, -1.0, 0.0, 0.5])
    found = model.rollouts(4_000, reward, 3, delta=delta)
    np.testing.assert_allclose(found.logprobs, model.logprobs()[found.token_ids], rtol=1e-6)
    seen, exact = np.bincount(found.token_ids, minlength=4), Exact(model, reward)
    order = exact.sequences[:, 0].argsort()
    assert stats.chisquare(seen, 4_000 * exact.probabilities(delta)[order]).pvalue > 1e-3
    assert stats.chisquare(seen, 4_000 * exact.probabilities()[order]).pvalue < 1e-9


def test_an_end_that_context_hardly_moves() -> None:
    """With end_sharpness 0 the end token's logit is the same after every prefix: its odds vary by
    the other tokens alone.
    """
    steady, moved = (
        ExactModel(6, 3, seed=2, end=True, prompts=4, end_sharpness=sharp) for sharp in (0.0, None)
    )
    contexts = np.array([[a, b] for a in range(5) for b in range(5)])
    for model, same in ((steady, True), (moved, False)):
        logits = model._logits(contexts, np.zeros(len(contexts), np.int64))
        assert (np.ptp(logits[:, 5]) < 1e-12) == same
    with raises_naming(InputError, "end=True"):
        ExactModel(6, 3, end_sharpness=0.2)


def test_too_large_a_model_is_refused() -> None:
    """Enumeration says how many sequences there would be instead of filling the memory."""
    with raises_naming(InputError, "2560000"):
        Exact(ExactModel(40, 4), reward)


def _sharper(model: ExactModel, temperature: float) -> ExactModel:
    """A model whose softmax at temperature 1 is this one's at ``temperature``."""
    other = ExactModel(model.vocab_size, model.horizon, end=model.end is not None)
    other.__dict__.update(
        {k: v / temperature for k, v in vars(model).items() if isinstance(v, np.ndarray)}
    )
    return other
