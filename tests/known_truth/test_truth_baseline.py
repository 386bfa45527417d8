"""The baseline and rewards to go on exact models: the expectation of the gradient, and its
noise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from blackbox_lb import GivenAnswers, RewardTilt, RewardToGo
from blackbox_lb.errors import InputError
from blackbox_lb.estimate.choice.candidates import CompileLimits, candidates
from blackbox_lb.estimate.inputs.checks import Vector
from blackbox_lb.estimate.inputs.rollouts import (
    PositionWeights,
    Rollouts,
    Weighting,
    rewards_to_go,
)
from blackbox_lb.estimate.inputs.sweep import Scale, Sweep
from blackbox_lb.estimate.next_token.next_token import NextToken
from blackbox_lb.estimate.projection import projection as projections
from blackbox_lb.estimate.projection.projection import linear_term
from blackbox_lb.estimate.projection.with_features import FeaturePositions
from blackbox_lb.rollouts.positions import Positions
from tests.support.errors import raises_naming
from tests.support.exact import ExactModel
from tests.support.exact.model import RewardOf, log_softmax
from tests.support.fits import projection
from tests.support.truth import Exact

VOCAB, PROMPTS, N, DRAWS, TAU = 12, 5, 300, 120, 0.7
BAD = (2, 5, 9)
MODEL = ExactModel(VOCAB, 4, seed=6, end=True, prompts=PROMPTS, sharpness=0.8)
DELTA = np.random.default_rng(1).normal(0, 0.5, VOCAB)
COST = np.where(np.isin(np.arange(VOCAB), BAD), -0.6, 0.0)


def contains(tokens: tuple[int, ...], _: int) -> float:
    """A reward that is no sum over positions."""
    return 1.0 * (3 in tokens)


def count(tokens: tuple[int, ...], _: int) -> float:
    """A price for every bad token."""
    return float(COST[list(tokens)].sum())


def length(tokens: tuple[int, ...], _: int) -> float:
    """A price for every token."""
    return -0.4 * len(tokens)


REWARDS = {"contains": contains, "count": count, "length": length}
COSTS = {"count": COST, "length": np.full(VOCAB, -0.4)}
"""(v,) of each token, where the reward is a sum over positions."""


@cache
def drawn(name: str, seed: int) -> Rollouts:
    """N completions, with what each position costs where the reward is a sum over positions."""
    rollouts = MODEL.rollouts(N, REWARDS[name], 500 + seed)
    costs = COSTS[name][rollouts.token_ids] if name in COSTS else None
    return replace(rollouts, costs=costs)


def without_baseline(rule: Weighting) -> Callable[[Rollouts], PositionWeights]:
    """The weights of ``rule`` with every sample counted."""

    def weights(rollouts: Rollouts) -> PositionWeights:
        given = rule.weights(rollouts)
        return replace(given, baseline=np.zeros_like(given.baseline))

    return weights


@cache
def table_of(name: str, seed: int) -> NextToken:
    """Their whole lists."""
    return NextToken.of(drawn(name, seed)).with_tokens(np.arange(VOCAB))


def gradients(name: str, of: Callable[[Rollouts], PositionWeights]) -> Iterator[Vector]:
    """(v,) the gradient of the objective at ``DELTA``, for one completion, in each draw."""
    for seed in range(DRAWS):
        table, weights = table_of(name, seed), of(drawn(name, seed))
        yield (linear_term(table, weights) - table.expected(DELTA, weights.values)) / N


@cache
def exact_of(reward: RewardOf) -> Exact:
    """Every completion and its reward."""
    return Exact(MODEL, reward)


def unit(rollouts: Rollouts, rule: Weighting) -> float:
    """The mean of the weights before they were scaled to mean 1."""
    if isinstance(rule, RewardToGo):
        assert rollouts.costs is not None
        to_go = rewards_to_go(rollouts.costs, rollouts.lengths, rule.gamma)
        return float(np.exp(to_go / TAU).mean())
    return float(np.exp(rollouts.rewards / TAU).mean())


def exact_gradient(reward: RewardOf, cost: Vector | None, gamma: float | None) -> Vector:
    """(v,) the expectation of the gradient at ``DELTA`` with weights that are not scaled: by
    enumeration of every completion. cost: (v,) of each token, for rewards to go.
    """
    exact = exact_of(reward)
    mass, total = np.exp(exact.base), np.zeros(VOCAB)
    weights = np.repeat(np.exp(exact.rewards / TAU)[:, None], MODEL.horizon, axis=1)
    if cost is not None and gamma is not None:
        to_go = np.where(exact.sequences < 0, 0.0, cost[exact.sequences])
        for t in range(MODEL.horizon - 2, -1, -1):
            to_go[:, t] += gamma * to_go[:, t + 1]
        weights = np.exp(to_go / TAU)
    for t in range(MODEL.horizon):
        alive = np.flatnonzero(exact.sequences[:, t] >= 0)
        rows = exact.sequences[alive]
        biased = np.exp(log_softmax(MODEL.next_logprobs(rows[:, :t], exact.prompts[alive]) + DELTA))
        own = mass[alive] * weights[alive, t]
        total += np.bincount(rows[:, t], own, VOCAB) - own @ biased
    return total


def assert_zero(z: Vector) -> None:
    """All but one of (v,) means are within three of their standard errors of 0, and all in four:
    one in 400 is beyond three by chance.
    """
    assert (np.abs(z) < 3).sum() >= VOCAB - 1
    assert np.abs(z).max() < 4


def noise(gradients: Vector) -> float:
    """The summed variance of (draws, v) gradients."""
    return float(gradients.var(axis=0, ddof=1).sum())


def test_the_enumerated_gradient_is_that_of_the_objective() -> None:
    """With terminal weights, by differences of the exact objective."""
    exact, step = exact_of(count), 1e-5
    rows = step * np.eye(VOCAB)
    rise = [exact.objective(DELTA + row, TAU) - exact.objective(DELTA - row, TAU) for row in rows]
    scale = np.exp(exact.base) @ np.exp(exact.rewards / TAU)
    found = exact_gradient(count, None, None) / scale
    np.testing.assert_allclose(found, np.array(rise) / (2 * step), atol=1e-7)


@pytest.mark.parametrize(
    ("name", "gamma"),
    [("contains", None), ("count", None), ("length", None), ("count", 1.0), ("length", 0.5)],
)
def test_gradients_are_unbiased_and_the_baseline_takes_noise_away(
    name: str, gamma: float | None
) -> None:
    """Over many draws the mean gradient is the exact one within three standard errors, with the
    baseline and without it, and the baseline's varies less.
    """
    rule: Weighting = RewardTilt(TAU) if gamma is None else RewardToGo(TAU, gamma)
    truth = exact_gradient(REWARDS[name], COSTS.get(name), gamma)
    units = np.array([unit(drawn(name, seed), rule) for seed in range(DRAWS)])
    varied = []
    for of in (without_baseline(rule), rule.weights):
        found = np.array([*gradients(name, of)]) * units[:, None]
        errors = found.std(axis=0, ddof=1) / np.sqrt(DRAWS)
        assert_zero((found.mean(axis=0) - truth) / errors)
        varied.append(noise(found))
    assert varied[1] < 0.9 * varied[0]


def test_every_step_has_less_noise() -> None:
    """A price of single tokens: terminal, with the baseline, and to go with the baseline, each in
    the unit of its mean weight.
    """
    rules = without_baseline(RewardTilt(TAU)), RewardTilt(TAU).weights, RewardToGo(TAU).weights
    terminal, baseline, both = (noise(np.array([*gradients("count", of)])) for of in rules)
    assert both < baseline < terminal


def test_terminal_and_to_go_have_one_optimum_where_prefixes_do_not_matter() -> None:
    """In a model without memory and without an end both rewards have the planted optimum."""

    class Memoryless(ExactModel):
        def next_logprobs(self, prefixes: np.ndarray, prompts: np.ndarray) -> np.ndarray:
            return super().next_logprobs(np.zeros_like(prefixes), prompts)

    model = Memoryless(VOCAB, 6, seed=2, prompts=PROMPTS, sharpness=0.5)
    planted = np.random.default_rng(0).normal(size=VOCAB) * 0.3
    rollouts = model.rollouts(4_000, lambda tokens, _: float(planted[list(tokens)].sum()), 1)
    rollouts = replace(rollouts, costs=planted[rollouts.token_ids])
    wanted = (planted - planted.mean()) / TAU
    for gamma in (None, 1.0, 0.5, 0.0):
        fit = projection(rollouts, tau=TAU, l2=0.1, gamma=gamma)
        np.testing.assert_allclose(fit.delta - fit.delta.mean(), wanted, atol=0.15)


@pytest.mark.parametrize("top", [None, 5, 0])
@pytest.mark.parametrize("scale", ["global", "prompt"])
def test_equal_weights_give_exactly_nothing(top: int | None, scale: Scale) -> None:
    """A constant reward, a constant cost of nothing, and rewards that differ by prompt alone where
    weights are scaled by prompt: every bias is 0, not nearly 0.
    """
    rollouts = MODEL.rollouts(N, lambda tokens, p: 0.3 * p * (scale == "prompt"), 4, top=top)
    rollouts = replace(rollouts, costs=np.zeros(len(rollouts.token_ids)))
    tilt = RewardTilt(TAU, scale)
    rules: list[Weighting] = [tilt, tilt + GivenAnswers()]
    for rule in [*rules, RewardToGo(TAU, 1.0, scale), RewardToGo(TAU, 0.5, scale)]:
        assert not projections.projection(rollouts, rule.weights(rollouts), l2=0.01).delta.any()


def test_a_reward_that_is_no_sum_keeps_terminal_weights() -> None:
    """Rewards to go need costs, and say so; a sweep tries them where there are costs, and only
    there.
    """
    with raises_naming(InputError, "costs", "RewardTilt"):
        RewardToGo(TAU).weights(drawn("contains", 1))
    with raises_naming(InputError, "gamma", "2"):
        RewardToGo(TAU, 2.0).weights(drawn("count", 1))
    limits = CompileLimits(entries=5, low=-100, high=100, integers=False)
    settings = {}
    for name in ("contains", "count"):
        rollouts = drawn(name, 1)
        field = candidates(Positions.of(rollouts), Sweep(tau=(TAU,), l2=(1.0,)), limits)
        settings[name] = [candidate.settings.get("gamma") for candidate in field]
    assert settings == {"contains": [None], "count": [None, 1.0, 0.5]}


def test_rewards_to_go_are_the_sums_that_they_say() -> None:
    """Weights against sums written out, -inf apart, in log space and with mean 1 over positions."""
    rollouts = drawn("count", 3)
    costs = np.random.default_rng(0).normal(0, 400, len(rollouts.token_ids))
    weights = RewardToGo(TAU, 0.5).weights(replace(rollouts, costs=costs)).values
    assert np.isfinite(weights).all()
    assert weights.mean() == pytest.approx(1.0)
    start, exponents = 0, []
    for size in rollouts.lengths.tolist():
        own = costs[start : start + size]
        exponents += [
            sum(0.5 ** (s - t) * own[s] for s in range(t, size)) / TAU for t in range(size)
        ]
        start += size
    told = np.exp(np.array(exponents) - max(exponents))
    np.testing.assert_allclose(weights, told / told.mean(), rtol=1e-9)


def test_the_expectation_of_the_base_is_not_that_of_another_policy() -> None:
    """Completions drawn with a bias have no baseline where that is known; the base model's in its
    place would be wrong.
    """
    plain: list[Vector] = []
    wrong: list[Vector] = []
    for seed in range(DRAWS):
        own = MODEL.rollouts(N, contains, seed, delta=DELTA)
        unknown = replace(own, drawn_by_base=np.zeros(N, np.bool_))
        table, rule = NextToken.of(own).with_tokens(np.arange(VOCAB)), RewardTilt(TAU)
        for kind, rollouts in ((plain, unknown), (wrong, own)):
            weights = rule.weights(rollouts)
            kind.append(linear_term(table, weights) / N)
    off = np.array(wrong) - np.array(plain)
    assert np.abs(off.mean(axis=0) / (off.std(axis=0, ddof=1) / np.sqrt(DRAWS))).max() > 5


def mixed() -> Rollouts:
    """Completions of the base and of nobody knows whom, and answers."""
    own = replace(
        MODEL.rollouts(80, count, 8, delta=DELTA, top=6), drawn_by_base=np.zeros(80, np.bool_)
    )
    answers = replace(MODEL.rollouts(10, count, 9, top=6), shares=np.ones(10))
    return Rollouts.join([MODEL.rollouts(90, count, 7, top=6), own, answers])


def test_parts_of_the_linear_term_add_up() -> None:
    """Prompt by prompt, for joined rollouts of several policies."""
    rollouts = mixed()
    assert set(rollouts.is_of_base.tolist()) == {True, False}
    of_base = rollouts.is_of_base[rollouts.rollout_of]
    assert not RewardTilt(TAU).weights(rollouts).baseline[~of_base].any()
    weights = (RewardTilt(TAU) + GivenAnswers()).weights(rollouts)
    table = NextToken.of(rollouts).with_tokens(np.arange(VOCAB))
    whole = linear_term(table, weights)
    contexts = rollouts.prompts[rollouts.rollout_of]
    positions = FeaturePositions.of(table, weights, np.arange(VOCAB), contexts, PROMPTS)
    by_prompt = positions._linear(slice(0, PROMPTS))
    np.testing.assert_allclose(by_prompt.sum(axis=0), whole, atol=1e-8)
    assert positions.times(np.full(PROMPTS, 2.0))._linear(slice(0, PROMPTS)) == pytest.approx(
        2 * by_prompt
    )


def test_columns_that_make_no_sense_are_refused() -> None:
    """Costs that are not finite, and origins that are no booleans."""
    rollouts = drawn("count", 1)
    assert rollouts.costs is not None
    with raises_naming(InputError, "costs"):
        replace(rollouts, costs=rollouts.costs - np.inf)
    with raises_naming(InputError, "drawn_by_base"):
        replace(rollouts, drawn_by_base=np.ones(N, np.int64))
    assert rollouts.at(np.ones(len(rollouts.token_ids), np.bool_)).costs is None
    np.testing.assert_array_equal(
        rollouts.take([1]).costs, rollouts.costs[rollouts.rollout_of == 1]
    )
