"""The conditional ratio against exact conditional expectations, and on completions that come
without logprobs.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from blackbox_lb.errors import InputError
from blackbox_lb.estimate.counting.statistics import TokenRatio
from blackbox_lb.estimate.inputs.rollouts import Rollouts
from tests.support.errors import raises_naming
from tests.support.exact import ExactModel
from tests.support.statistics import statistics_of
from tests.support.truth import Exact

TAU = 0.8
TAUS = (0.3, TAU, 1.0)
MODEL = ExactModel(8, 3, seed=7, end=True, prompts=2, sharpness=0.5)


def reward(tokens: tuple[int, ...], prompt: int) -> float:
    """Depends on content, length and prompt, and is -inf now and then."""
    return -np.inf if tokens[0] == 4 else 0.6 * tokens.count(2) - 0.3 * len(tokens) + 0.2 * prompt


def exact_relative(exact: Exact) -> np.ndarray:
    """(v,) ``E[v c(y)] / E[c(y)]`` over ``E[v T] / E[T]``, by enumeration."""
    probability = np.exp(exact.base)
    counts = np.stack(
        [(exact.sequences == y).sum(axis=1) for y in range(exact.model.vocab_size)], axis=1
    )
    v = np.exp(exact.rewards / TAU)
    means = (probability * v) @ counts / (probability @ counts)
    relative: np.ndarray = means / (
        (probability * v) @ exact.lengths / (probability @ exact.lengths)
    )
    return relative


def test_the_ratio_converges_to_the_conditional_mean() -> None:
    """At 20,000 rollouts Z / zbar is the exact conditional mean within 5 linearised standard
    errors, for every token.
    """
    data = MODEL.rollouts(20_000, reward, 1, top=0)
    ratio, truth = TokenRatio(statistics_of(data, TAUS)), exact_relative(Exact(MODEL, reward))
    v = np.exp(data.rewards / TAU)
    zbar = data.lengths @ v / data.lengths.sum()
    counts = np.zeros((len(v), MODEL.vocab_size))
    np.add.at(counts, (data.rollout_of, data.token_ids), 1.0)
    spread = np.sqrt((((v / zbar)[:, None] - truth) ** 2 * counts**2).sum(axis=0)) / counts.sum(
        axis=0
    )
    assert ratio.token_ids.tolist() == list(range(MODEL.vocab_size))
    assert np.abs((ratio.relative(TAU) - truth) / spread).max() < 5
    assert np.ptp(truth) > 40 * spread.max(), "a wrong truth would be noticed"


def test_delta_is_the_formula() -> None:
    """``log[(kappa zbar + sum v c) / (kappa + sum c)] - log zbar``, written out as a loop."""
    data, kappa = MODEL.rollouts(60, reward, 3), 2.5
    v = np.exp(data.rewards / TAU)
    zbar = (
        sum(length * weight for length, weight in zip(data.lengths, v, strict=True))
        / data.lengths.sum()
    )
    sums, counts = np.zeros(8), np.zeros(8)
    for row, token in zip(data.rollout_of, data.token_ids, strict=True):
        sums[token] += v[row]
        counts[token] += 1
    expected = np.log((kappa * zbar + sums) / (kappa + counts)) - np.log(zbar)
    ratio = TokenRatio(statistics_of(data, TAUS))
    np.testing.assert_allclose(
        ratio.delta(TAU, kappa), expected[ratio.token_ids], rtol=1e-10, atol=1e-12
    )
    np.testing.assert_array_equal(ratio.counts, counts[ratio.token_ids])


def test_logprobs_do_not_matter() -> None:
    """Completions without any logprob (bounded by 0 everywhere, no lists) give the same bias bit
    for bit.
    """
    data = MODEL.rollouts(200, reward, 4)
    np.testing.assert_array_equal(
        TokenRatio(statistics_of(text_only(data), TAUS)).delta(TAU, 2.0),
        TokenRatio(statistics_of(data, TAUS)).delta(TAU, 2.0),
    )


@pytest.mark.parametrize("level", [0.0, -7.3, 1e4])
def test_a_constant_reward_gives_exactly_no_bias(level: float) -> None:
    """Whatever the constant, and however long the completions are: 0, not about 0."""
    ratio = TokenRatio(statistics_of(MODEL.rollouts(100, lambda *_: level, 5), TAUS))
    assert not ratio.delta(0.3, 2.0).any()


def test_a_planted_token_stands_out_and_shrinkage_pulls_it_back() -> None:
    """A token that is worth 2 nats wherever it occurs has the largest bias; kappa moves every value
    toward 0, none across it.
    """
    ratio = TokenRatio(
        statistics_of(MODEL.rollouts(3_000, lambda tokens, _: 2.0 * (5 in tokens), 6), TAUS)
    )
    weak, strong = ratio.delta(1.0, 1.0), ratio.delta(1.0, 1_000.0)
    assert ratio.token_ids[weak.argmax()] == ratio.token_ids[strong.argmax()] == 5
    assert (np.abs(strong) < np.abs(weak)).all()
    np.testing.assert_array_equal(np.sign(strong), np.sign(weak))
    assert np.abs(ratio.delta(1.0, 1e12)).max() < 1e-6


def test_rewards_beyond_float64_are_no_trouble() -> None:
    """A constant added to all rewards, even 10,000 nats, changes nothing; a completion of weight 0
    pulls its tokens down.
    """
    data = MODEL.rollouts(100, reward, 7)
    far = TokenRatio(statistics_of(replace(data, rewards=data.rewards + 1e4), TAUS))
    np.testing.assert_allclose(
        far.delta(TAU, 2.0),
        TokenRatio(statistics_of(data, TAUS)).delta(TAU, 2.0),
        rtol=1e-8,
        atol=1e-10,
    )
    worthless = TokenRatio(
        statistics_of(
            MODEL.rollouts(300, lambda tokens, _: -np.inf if 3 in tokens else 0.0, 8), TAUS
        )
    )
    where = worthless.token_ids.tolist().index(3)
    assert worthless.relative(1.0)[where] == 0
    zero = np.log(2.0) - np.log(2.0 + worthless.counts[where])
    assert worthless.delta(1.0, 2.0)[where] == pytest.approx(zero)


def test_one_rollout_says_nothing() -> None:
    """Every token is as good as all of them."""
    ratio = TokenRatio(statistics_of(MODEL.rollouts(1, lambda *_: -3.0, 9), TAUS))
    assert len(ratio.token_ids) > 0
    assert not ratio.delta(1.0, 2.0).any()


@pytest.mark.parametrize(
    "bad", [{"tau": 0.0}, {"tau": np.nan}, {"kappa": 0.0}, {"kappa": -1.0}, {"kappa": np.inf}]
)
def test_bad_settings_are_named(bad: dict[str, float]) -> None:
    """tau and kappa outside (0, inf) are refused by name."""
    with raises_naming(InputError, *bad, *bad.values()):
        TokenRatio(statistics_of(MODEL.rollouts(20, reward, 1), TAUS)).delta(
            bad.get("tau", 1.0), bad.get("kappa", 2.0)
        )


def test_no_reward_at_all_is_an_error() -> None:
    """All rewards -inf: the message says that no completion earned a reward."""
    with raises_naming(InputError, "reward", "20", "-inf"):
        TokenRatio(statistics_of(MODEL.rollouts(20, lambda *_: -np.inf, 1), TAUS)).delta(1.0, 2.0)


def text_only(data: Rollouts) -> Rollouts:
    """The same completions as a provider without logprobs gives them, once their texts are
    encoded.
    """
    nothing = np.zeros((len(data.token_ids), 0))
    return replace(
        data,
        logprobs=np.zeros_like(data.logprobs),
        bounded=np.ones(len(data.token_ids), dtype=np.bool_),
        top_ids=nothing.astype(np.int32),
        top_logprobs=nothing.astype(np.float32),
    )
