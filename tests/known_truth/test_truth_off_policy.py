"""Off-policy estimates against enumeration: right where they are trusted, and not trusted where they are wrong."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from blackbox_lb.errors import InputError
from blackbox_lb.estimate.inputs.rollouts import Rollouts
from blackbox_lb.estimate.next_token.next_token import NextToken
from blackbox_lb.estimate.reweighting.importance import log_policy_ratios
from blackbox_lb.estimate.reweighting.off_policy import ByPrompt, OffPolicy, off_policy
from tests.support.exact import ExactModel
from tests.support.truth import Exact

VOCABULARY, PROMPTS, SAMPLES = 5, 40, 5
DIRECTION = np.random.default_rng(7).standard_normal(VOCABULARY)
EASE = np.random.default_rng(0).random(PROMPTS)


def reward(tokens: tuple[int, ...], prompt: int) -> float:
    """1 for a good token, and more on easy prompts, whatever the completion."""
    return float(2 in tokens) + 3 * float(EASE[prompt])


@pytest.fixture(scope="module")
def exact() -> Exact:
    """A model small enough to enumerate, with an end token."""
    return Exact(ExactModel(VOCABULARY, 5, seed=3, end=True, prompts=PROMPTS, sharpness=0.7), reward)


@pytest.fixture(scope="module")
def tails(exact: Exact) -> dict[int | None, NextToken]:
    """What the training rollouts lend, by how many alternatives are listed."""
    return {top: NextToken.of(exact.model.rollouts(2_000, reward, 99, top=top)) for top in (None, 3)}


def estimate(rollouts: Rollouts, delta: np.ndarray, tail: NextToken | None = None) -> OffPolicy:
    """The estimate from these completions; ``delta`` over the whole vocabulary."""
    table = NextToken.of(rollouts, tail=tail)
    bias = table.align(np.arange(len(delta)), delta)
    right = (rollouts.rewards - 3 * EASE[rollouts.prompts] > 0.5).astype(float)
    return off_policy(rollouts, table, bias, reward=rollouts.rewards, tokens=rollouts.lengths, correct=right)


def replications(
    exact: Exact, scale: float, count: int, top: int | None = None, tail: NextToken | None = None
) -> Iterator[tuple[OffPolicy, OffPolicy]]:
    """Estimates of one bias, and of the base, from independent draws of the same prompts."""
    for seed in range(count):
        rollouts = exact.model.rollouts(PROMPTS * SAMPLES, reward, 1_000 + seed, top=top)
        yield estimate(rollouts, scale * DIRECTION, tail), estimate(rollouts, np.zeros(VOCABULARY), tail)


@pytest.mark.parametrize(("top", "scale"), [(None, 0.5), (None, 1.0), (3, 0.8)])
def test_value_and_kl_are_exact_on_average_and_their_intervals_cover(
    exact: Exact, tails: dict[int | None, NextToken], top: int | None, scale: float
) -> None:
    """Over 150 draws gain, length, accuracy and KL are off by less than a third of their spread (or 5 %, which a tail costs the
    KL), standard errors match the spread of what varies only between completions, and 95 % intervals cover at least 90 %.
    """
    delta = scale * DIRECTION
    right = np.array([2.0 in row for row in exact.sequences]).astype(float)
    lengths = exact.lengths.astype(float)
    truth = {
        "reward": exact.expected_reward(delta) - exact.expected_reward(),
        "tokens": exact.expectation(lengths, delta) - exact.expectation(lengths),
        "accuracy": exact.expectation(right, delta) - exact.expectation(right),
        "kl": exact.kl(delta),
    }
    errors: dict[str, list[tuple[float, float]]] = {name: [] for name in truth}
    trusted = 0
    for found, base in replications(exact, scale, 150, top, tails[top]):
        trusted += found.trusted
        for name, value in truth.items():
            difference = getattr(found.outcome, name).minus(getattr(base.outcome, name))
            errors[name].append((difference.value - value, difference.standard_error))
    assert trusted >= 140
    for name, pairs in errors.items():
        off, error = np.array(pairs).T
        assert abs(off.mean()) < max(off.std() / 3, 0.05 * abs(truth[name])), name
        assert (np.abs(off) <= 1.96 * error).mean() >= 0.9, name
        if name != "kl":  # the prompts are the same in every draw, and the KL's error holds how they differ
            assert off.std() / np.sqrt((error**2).mean()) == pytest.approx(1, abs=0.15), name


def test_a_bias_too_far_from_the_base_is_not_trusted(exact: Exact) -> None:
    """At four times the size intervals of the length cover less than 90 %, and hardly a draw is trusted."""
    delta = 4 * DIRECTION
    lengths = exact.lengths.astype(float)
    truth = exact.expectation(lengths, delta)
    covered, trusted = [], []
    for found, _ in replications(exact, 4.0, 60):
        tokens = found.outcome.tokens
        covered.append(abs(tokens.value - truth) <= 1.96 * tokens.standard_error)
        trusted.append(found.trusted)
        assert found.trusted == (found.doubts == ())
    assert np.mean(covered) < 0.9
    assert sum(trusted) <= 1


def test_the_prompt_baseline_and_the_analytic_kl_cut_the_error(exact: Exact) -> None:
    """Against plain self-normalised weights the gain's error is below .7 of theirs, and the KL's below .4 of that of log w."""
    delta = DIRECTION
    gain, kl = exact.expected_reward(delta) - exact.expected_reward(), exact.kl(delta)
    squares = []
    for seed in range(60):
        rollouts = exact.model.rollouts(PROMPTS * SAMPLES, reward, seed)
        table = NextToken.of(rollouts)
        ratios = log_policy_ratios(rollouts, table, table.align(np.arange(VOCABULARY), delta))
        plain = np.exp(ratios) / np.exp(ratios).mean()
        found, base = estimate(rollouts, delta), rollouts.rewards.mean()
        assert found.outcome.kl is not None
        ours = found.outcome.reward.value - base - gain, found.outcome.kl.value - kl
        theirs = (plain * rollouts.rewards).mean() - base - gain, (plain * ratios).mean() - kl
        squares.append(np.square([*ours, *theirs]))
    ours_gain, ours_kl, theirs_gain, theirs_kl = np.sqrt(np.mean(squares, axis=0))
    assert ours_gain < 0.7 * theirs_gain
    assert ours_kl < 0.4 * theirs_kl


def test_no_bias_is_the_base(exact: Exact) -> None:
    """A bias of 0, or one number for every token, gives the means of the prompts and KL 0, with every completion effective."""
    rollouts = exact.model.rollouts(PROMPTS * SAMPLES, reward, 5)
    means = np.bincount(rollouts.prompts, weights=rollouts.rewards) / SAMPLES
    for delta in (np.zeros(VOCABULARY), np.full(VOCABULARY, 2.5)):
        found = estimate(rollouts, delta)
        np.testing.assert_allclose(found.outcome.reward.parts, means, atol=1e-6)
        assert found.outcome.kl is not None
        assert found.outcome.kl.value == pytest.approx(0, abs=1e-9)
        assert found.effective_sample_size == pytest.approx(PROMPTS * SAMPLES)
        assert found.mean_weight == pytest.approx(1)
        assert found.trusted


def test_a_wrong_tail_is_noticed_by_the_mean_weight(exact: Exact) -> None:
    """Where the lists show one token and nobody lends a tail, raising the tail gives weights whose mean is not 1: not trusted."""
    rollouts = exact.model.rollouts(PROMPTS * SAMPLES, reward, 5, top=1)
    counts = np.bincount(rollouts.token_ids, minlength=VOCABULARY)
    tail = NextToken.of(rollouts)
    wrong = replace(tail, unigram=np.where(np.arange(VOCABULARY) == counts.argmin(), 1.0, 0.0))
    delta = np.where(np.arange(VOCABULARY) == counts.argmin(), -1.5, 0.0)
    assert not estimate(rollouts, delta, wrong).trusted


def test_tokens_without_an_id_are_a_doubt(exact: Exact) -> None:
    """An end token that is listed without an id leaves the weights ignorant of stopping, so nothing is trusted."""
    rollouts = exact.model.rollouts(PROMPTS * SAMPLES, reward, 5)
    hidden = replace(rollouts, top_ids=np.where(rollouts.top_ids == VOCABULARY - 1, -2, rollouts.top_ids))
    ended = hidden.take([bool(VOCABULARY - 1 not in rollouts.take([n]).token_ids) for n in range(len(rollouts.keys))])
    found = estimate(ended, 0.01 * DIRECTION)
    assert any("without an id" in doubt for doubt in found.doubts)


def test_little_data_is_an_answer_that_is_not_trusted(exact: Exact) -> None:
    """One completion, one prompt, equal rewards or a huge bias: finite numbers, no warning, and not trusted where too few."""
    one = exact.model.rollouts(1, reward, 5)
    single = exact.model.rollouts(40, reward, 5, prompts=[3])
    same = exact.model.rollouts(PROMPTS * SAMPLES, lambda *_: 1.0, 5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for rollouts in (one, single):
            found = estimate(rollouts, DIRECTION)
            assert not found.trusted
            assert np.isfinite(found.outcome.reward.value)
            assert found.outcome.reward.standard_error == np.inf
        assert estimate(same, DIRECTION).outcome.reward.standard_error == pytest.approx(0)
        extreme = estimate(same, 80 * DIRECTION)
    assert not extreme.trusted
    assert extreme.outcome.reward.value == pytest.approx(1)


def test_bad_input_is_named(exact: Exact) -> None:
    """No completion, a reward of -inf, a wrong length and completions of another policy are refused."""
    rollouts = exact.model.rollouts(4, reward, 5)
    table = NextToken.of(rollouts)
    bias = np.zeros(len(table.token_ids))
    with pytest.raises(InputError, match="no base completions"):
        off_policy(rollouts.take(np.zeros(4, np.bool_)), table, bias, reward=[], tokens=[])
    with pytest.raises(InputError, match="reward holds -inf"):
        off_policy(rollouts, table, bias, reward=[0, 0, 0, -np.inf], tokens=np.ones(4))
    with pytest.raises(InputError, match=r"tokens has shape \(3,\)"):
        off_policy(rollouts, table, bias, reward=np.ones(4), tokens=np.ones(3))


def test_differences_are_over_common_prompts() -> None:
    """By eye: a prompt without a completion on either side counts for neither, and the error is that of the differences."""
    one, other = ByPrompt(np.array([1.0, 2.0, np.nan, 4.0])), ByPrompt(np.array([0.0, 2.0, 3.0, np.nan]))
    difference = one.minus(other)
    assert difference.value == pytest.approx(0.5)
    assert difference.standard_error == pytest.approx(0.5)
    assert one.minus(other, 2.0).value == pytest.approx((1 - 2) / 2)
    assert np.isnan(ByPrompt(np.array([np.nan])).value)
