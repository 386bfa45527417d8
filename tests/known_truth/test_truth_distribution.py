"""Wanted distributions on exact models: moments, distances and the interval of their difference."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import numpy.typing as npt
import pytest
from scipy.spatial.distance import jensenshannon
from scipy.special import logsumexp

from blackbox_lb.bias.records import Verdict
from blackbox_lb.bias.request_bias import RequestBias
from blackbox_lb.estimate.decisions.first_lists import FirstLists
from blackbox_lb.estimate.inputs.rollouts import Rollouts
from blackbox_lb.estimate.next_token.next_token import NextToken
from blackbox_lb.estimate.projection.projection import fit_sets, posterior_shares
from blackbox_lb.jobs.fitting.choosing.from_lists import SharesFromLists
from blackbox_lb.rollouts.answers.given_answers import AnswerStarts, WantedTokens
from blackbox_lb.rollouts.judging.decisions import DrawnShares, WantedByPrompt
from blackbox_lb.rollouts.judging.verdict import SAMPLED, PolicyScores, compare
from blackbox_lb.tasks import parse_reward
from blackbox_lb.types import Example, Prompt
from tests.support.fits import projection

Array = npt.NDArray[np.float64]
VOCAB = 24
PROMPTS = 40
LABELS = 3
SPELLINGS = 2
NAMES = ("agree", "neither", "oppose")


def first_lists(seed: int) -> Array:
    """(p, v) logprobs at the first positions; token ``label + LABELS * spelling`` spells a label."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, 1, (PROMPTS, VOCAB)) + rng.normal(0, 1.5, VOCAB)
    normalised: Array = logits - logsumexp(logits, axis=1, keepdims=True)
    return normalised


def weighted_answers(logprobs: Array, wanted: Array) -> Rollouts:
    """The spellings of all labels as given answers, each label with its share of ``wanted``."""
    size = LABELS * SPELLINGS
    tokens = np.tile(np.arange(size), PROMPTS)
    prompts = np.repeat(np.arange(PROMPTS), size)
    order = np.argsort(-logprobs, axis=1)
    listed = np.take_along_axis(logprobs, order, axis=1)
    return Rollouts(
        keys=tuple(f"{p}.{t}" for p, t in zip(prompts, tokens, strict=True)),
        prompts=prompts,
        rewards=np.zeros(len(tokens)),
        lengths=np.ones(len(tokens), np.int64),
        token_ids=tokens.astype(np.int32),
        logprobs=logprobs[prompts, tokens].astype(np.float32),
        top_ids=order[prompts].astype(np.int32),
        top_logprobs=listed[prompts].astype(np.float32),
        shares=(wanted[:, np.arange(size) % LABELS] / SPELLINGS).ravel(),
        answer_sets=tokens % LABELS,
    )


def learned(rollouts: Rollouts, l2: float) -> Array:
    """(v,) what the estimator learns."""
    table = NextToken.of(rollouts, vocab_size=VOCAB)
    shares, _ = posterior_shares(rollouts, table, np.zeros(len(table.token_ids)))
    fit, _ = fit_sets(
        replace(rollouts, shares=shares),
        table,
        partial(projection, tau=1.0, l2=l2, next_token=table),
    )
    delta = np.zeros(VOCAB)
    delta[fit.token_ids] = fit.delta
    return delta


def label_shares(logprobs: Array, delta: Array) -> Array:
    """(p, labels) the probability of each label, among the labels, under a bias."""
    tilted = np.exp(logprobs + delta)
    by_token = tilted[:, : LABELS * SPELLINGS].reshape(PROMPTS, SPELLINGS, LABELS)
    by_label = by_token.sum(axis=1)
    shares: Array = by_label / tilted.sum(axis=1, keepdims=True)
    return shares


@pytest.mark.parametrize("seed", range(4))
def test_the_fit_reaches_the_wanted_moments(seed: int) -> None:
    """Nearly without a penalty, the expected share of each label over all prompts is the mean of
    the wanted ones to 1e-6, whatever the base says and however the labels are spelled.
    """
    logprobs = first_lists(seed)
    wanted = np.random.default_rng(seed + 100).dirichlet((2, 3, 4), PROMPTS)
    delta = learned(weighted_answers(logprobs, wanted), 1e-9)
    reached = label_shares(logprobs, delta).mean(axis=0)
    assert np.abs(reached - wanted.mean(axis=0)).max() < 1e-6


@pytest.mark.parametrize("temperature", [1.0, 0.6, 1.4])
def test_predicted_shares_are_those_of_the_model(temperature: float) -> None:
    """From whole lists, the predicted shares are ``softmax((logits + bias) / T)`` summed by label,
    and the parts of prompts have the total variation as their mean.
    """
    logprobs = first_lists(5)
    order = np.argsort(-logprobs, axis=1)
    wanted = np.random.default_rng(7).dirichlet((2, 3, 4), PROMPTS)
    size = LABELS * SPELLINGS
    tokens = WantedTokens(np.arange(size), np.arange(size) % LABELS, np.zeros((PROMPTS, size)))
    examples = examples_of(wanted, [""] * PROMPTS)
    lists = FirstLists(
        order.astype(np.int32), np.take_along_axis(logprobs, order, axis=1).astype(np.float32)
    )
    first = AnswerStarts(
        tuple(examples),
        np.arange(PROMPTS),
        lists,
        lists,
        tuple(np.arange(size) for _ in examples),
        tuple((0,) for _ in examples),
        VOCAB,
        0,
        0,
        0,
        wanted=tokens,
    )
    scorer = SharesFromLists(first, WantedByPrompt.of(examples, "city"), [SAMPLED])
    delta = np.random.default_rng(8).normal(0, 1, VOCAB)
    tilted = (logprobs + delta) / temperature
    truth = np.exp(tilted - logsumexp(tilted, axis=1, keepdims=True))
    by_label = truth[:, :size].reshape(PROMPTS, SPELLINGS, LABELS).sum(axis=1)
    predicted = scorer.shares(RequestBias(dict(enumerate(delta.tolist()))), temperature)
    assert predicted[:, :LABELS] == pytest.approx(by_label, abs=1e-6)
    assert predicted.sum(axis=1) == pytest.approx(1)
    q = np.append(wanted.mean(axis=0), 0.0)
    parts = scorer.wanted.reward_parts(predicted)
    assert -parts.mean() == pytest.approx(np.abs(predicted.mean(axis=0) - q).sum() / 2)


def examples_of(wanted: Array, cities: list[str]) -> list[Example]:
    """A prompt for each row of ``wanted``."""
    return [
        Example(str(x), Prompt((), {"city": cities[x]}), NAMES, weights=tuple(row.tolist()))
        for x, row in enumerate(wanted)
    ]


def texts_of(rng: np.random.Generator, shares: Array, samples: int) -> list[list[str]]:
    """``samples`` texts a prompt, each of which names a label drawn from its row of ``shares``, or
    none.
    """
    words = (*NAMES, "well")
    return [
        [f"I say {words[number]}." for number in rng.choice(len(words), samples, p=row)]
        for row in shares
    ]


def test_the_distances_are_those_of_the_shares() -> None:
    """The mean of the parts of prompts is the distance itself, weighted by the prompts of each
    group; Jensen-Shannon is scipy's.
    """
    rng = np.random.default_rng(0)
    wanted = rng.dirichlet((2, 2, 2), 30)
    cities = ["north"] * 10 + ["south"] * 20
    shares = rng.dirichlet((3, 1, 1, 1), 30)
    texts = texts_of(rng, shares, 5)
    found = DrawnShares.of(examples_of(wanted, cities), texts, "city")
    words = (*NAMES, "well")
    counts = [[sum(word in text for text in row) for word in words] for row in texts]
    drawn = np.array(counts) / 5
    total = 0.0
    divergence = 0.0
    for places in (slice(0, 10), slice(10, 30)):
        p = drawn[places].mean(axis=0)
        q = np.append(wanted[places].mean(axis=0), 0.0)
        weight = len(range(30)[places]) / 30
        total += weight * np.abs(p - q).sum() / 2
        divergence += weight * jensenshannon(p, q) ** 2
    assert -np.mean([row.mean() for row in found.reward]) == pytest.approx(total)
    assert np.mean([row.mean() for row in found.divergence]) == pytest.approx(divergence)
    assert [group.group for group in found.rows] == ["", "north", "south"]
    shares_of_all = [*found.rows[0].drawn.values(), found.rows[0].no_label]
    assert shares_of_all == pytest.approx(drawn.mean(axis=0))


def test_chance_level_is_the_mean_distance_of_a_perfect_match() -> None:
    """Draws from the wanted shares themselves are as far from them as ``chance_level`` says."""
    rng = np.random.default_rng(1)
    wanted = np.tile((0.2, 0.3, 0.5), (40, 1))
    examples = examples_of(wanted, [""] * 40)
    shares = np.column_stack([wanted, np.zeros(40)])
    draws = [DrawnShares.of(examples, texts_of(rng, shares, 5), "city").rows[0] for _ in range(200)]
    mean = np.mean([draw.total_variation for draw in draws])
    assert mean == pytest.approx(draws[0].chance_level, rel=0.1)


def judged(rng: np.random.Generator, wanted: Array, base: Array, biased: Array) -> Verdict:
    """The verdict on minus the total variation of two policies with these shares by prompt."""
    examples = examples_of(wanted, [""] * len(wanted))
    sides = []
    for shares in (base, biased):
        drawn = DrawnShares.of(examples, texts_of(rng, shares, 6), "city")
        tokens = tuple(np.ones(6) for _ in examples)
        sides.append(PolicyScores(drawn.reward, None, tokens, shares=drawn))
    reward = parse_reward("distribution", max_tokens=8)
    return compare(SAMPLED, sides[0], sides[1], reward.label)[0]


def policy(rng: np.random.Generator, mean: tuple[float, ...], prompts: int) -> Array:
    """(p, labels + 1) shares that differ between prompts and have this mean."""
    shares: Array = rng.dirichlet(np.array(mean) * 8 + 1e-9, prompts)
    return shares


@pytest.mark.parametrize(
    ("base", "biased"),
    [
        ((0.6, 0.1, 0.1, 0.2), (0.3, 0.3, 0.35, 0.05)),
        ((0.6, 0.1, 0.1, 0.2), (0.2, 0.3, 0.5, 0.0)),
        ((0.5, 0.2, 0.2, 0.1), (0.5, 0.2, 0.2, 0.1)),
    ],
    ids=["nearer", "matched", "alike"],
)
def test_the_interval_of_the_difference_holds_the_truth(
    base: tuple[float, ...], biased: tuple[float, ...]
) -> None:
    """Over draws of prompts and completions, the 95 % interval never lies above the true gain in
    more than 2 of 40 draws: what few completions add to the distance works against the better
    policy. Without a difference, neither verdict comes in more than 3 of 40.
    """
    wanted = np.tile((0.2, 0.3, 0.5), (60, 1))
    target = np.array((0.2, 0.3, 0.5, 0.0))
    before = np.abs(np.array(base) - target).sum() / 2
    after = np.abs(np.array(biased) - target).sum() / 2
    gain = before - after
    too_high = 0
    shown = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        row = judged(rng, wanted, policy(rng, base, 60), policy(rng, biased, 60))
        too_high += row.low > gain
        shown += row.verdict != "NO EVIDENCE"
    assert too_high <= 2
    assert shown <= 3 if gain == 0 else shown >= 38
