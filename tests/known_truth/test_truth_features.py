"""The projection with features, on exact models: the optimum of its objective for the prompt, for
phases and for both, its limits, and features that say nothing.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from scipy import sparse
from scipy.optimize import minimize
from scipy.special import logsumexp

from blackbox_lb import GivenAnswers
from blackbox_lb.bias.phases import Phases
from blackbox_lb.estimate.inputs.rollouts import Rollouts
from blackbox_lb.estimate.next_token.next_token import NextToken
from blackbox_lb.estimate.projection import projection as projections
from blackbox_lb.estimate.projection import with_features
from blackbox_lb.estimate.projection.with_features import (
    FeaturePositions,
    fit_features,
    standard_errors,
)
from blackbox_lb.jobs.fitting.varying.by_lists import tempered
from blackbox_lb.jobs.fitting.varying.feature_matrix import FeatureMatrix, PromptFeatures
from blackbox_lb.rollouts.phased import phase_of_positions
from blackbox_lb.types import Example, Prompt
from tests.support.biases import feature as parsed
from tests.support.exact import ExactModel
from tests.support.fits import projection

Array = npt.NDArray[np.float64]
VOCAB, PROMPTS, FEATURES = 20, 90, 4


def world(seed: int) -> tuple[Array, npt.NDArray[np.int64], sparse.csr_array]:
    """(p, v) logprobs at first positions, (p,) the answer of each, one of three tokens, and (p, f)
    features.
    """
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, 1, (PROMPTS, VOCAB))
    table = rng.normal(size=(PROMPTS, FEATURES)) * (rng.random((PROMPTS, FEATURES)) < 0.6)
    answers = (logits[:, :3] + 2 * table @ rng.normal(size=(FEATURES, 3))).argmax(axis=1)
    return logits - logsumexp(logits, axis=1, keepdims=True), answers, sparse.csr_array(table)


def rollouts(logprobs: Array, answers: npt.NDArray[np.int64], width: int = VOCAB) -> Rollouts:
    """The answers as rollouts of one token, with lists of the ``width`` likeliest tokens."""
    order = np.argsort(-logprobs, axis=1)[:, :width]
    rows = np.arange(len(answers))
    return Rollouts(
        keys=tuple(map(str, rows)),
        prompts=rows,
        rewards=np.zeros(len(rows)),
        lengths=np.ones(len(rows), np.int64),
        token_ids=answers.astype(np.int32),
        logprobs=logprobs[rows, answers].astype(np.float32),
        top_ids=order.astype(np.int32),
        top_logprobs=np.take_along_axis(logprobs, order, axis=1).astype(np.float32),
        shares=np.ones(len(rows)),
    )


def positions(given: Rollouts, tokens: npt.ArrayLike) -> FeaturePositions:
    """The positions of ``given`` for these tokens."""
    weights = GivenAnswers().weights(given)
    return FeaturePositions.of(
        NextToken.of(given),
        weights,
        np.asarray(tokens, np.int64),
        given.prompts,
        len(given.keys),
    )


SPOKEN = ExactModel(5, 3, seed=4, end=True, prompts=6, sharpness=0.8)
"""Completions of up to three of four tokens and an end token, of six prompts."""


@pytest.mark.parametrize(
    ("spec", "block"),
    [
        ("", 4096),
        ("words", 4),
        ("words", 4096),
        ("opening:2,until:b", 4096),
        ("words;first", 4),
    ],
)
def test_every_combination_reaches_the_optimum(
    spec: str, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the prompt, of phases, of both and of neither, in one block of contexts and in many: as a
    general optimiser finds it on the objective as written, position by position.
    """
    monkeypatch.setattr(with_features, "BLOCK", block)
    parts = [part for part in spec.split(";") if part]
    of_prompt = "words" in parts
    named = [part for part in parts if part != "words"]
    phases = Phases.parse(named) if named else Phases()
    drawn = SPOKEN.rollouts(120, lambda tokens, _: 0.0, seed=2)
    shares = np.random.default_rng(3).exponential(size=len(drawn.keys))
    given = replace(drawn, shares=shares)
    weights = GivenAnswers().weights(given)
    examples = [
        Example(str(n), Prompt.user(f"thing {'ab'[n % 2]} {'cde'[n % 3]}")) for n in range(6)
    ]
    features = PromptFeatures.of(parsed("words"), examples) if of_prompt else None
    known = {token: f" {'abcd'[token]}".encode() for token in range(4)}
    phase_of = phase_of_positions(phases, given, known)
    prompt_of = given.prompts[given.rollout_of]
    matrix = FeatureMatrix.of(features, phases, prompt_of, phase_of, 6)
    table = NextToken.of(given)
    positions = FeaturePositions.of(
        table, weights, np.arange(5), matrix.contexts, len(matrix.prompts)
    )
    found = fit_features(positions, matrix.table, l2=2.0, slope_l2=3.0)

    # The same, written down: the model's logits and the numbers of each position.
    rows: list[Array] = []
    start = 0
    for prompt, size in zip(given.prompts.tolist(), given.lengths.tolist(), strict=True):
        tokens = given.token_ids[start : start + size].tolist()
        rows.extend(SPOKEN.logprobs(tokens[:place], prompt) for place in range(size))
        start += size
    logits = np.array(rows)
    ones = np.ones((len(logits), 1))
    held = phase_of[:, None] >> np.arange(len(phases.features)) & 1
    of_prompts = ones[:, :0] if features is None else features.table.toarray()[prompt_of]
    design = np.hstack([ones, of_prompts, held])
    pull = np.array([2.0] + [3.0] * (design.shape[1] - 1))

    def loss(x: Array) -> float:
        delta = design @ x.reshape(design.shape[1], 5)
        scores = logits + delta
        told = scores[np.arange(len(scores)), given.token_ids] - logsumexp(scores, axis=1)
        squares = (x.reshape(design.shape[1], 5) ** 2).sum(axis=1)
        return float(pull @ squares / 2 - weights.values @ told)

    best = minimize(loss, np.zeros(design.shape[1] * 5), method="BFGS", options={"gtol": 1e-5})
    ours = np.vstack([found.common[None], found.slopes]).ravel()
    assert loss(ours) == pytest.approx(best.fun, abs=1e-4)
    assert np.abs(ours - best.x).max() < 5e-3
    if not spec:
        fixed = projections.projection(given, weights, l2=2.0)
        assert np.abs(found.common - fixed.delta).max() < 1e-3


def test_the_gradient_is_that_of_the_loss() -> None:
    """With cut-off lists, a tail that is shared out, and tokens of which some may have no bias."""
    logprobs, answers, table = world(2)
    given = positions(rollouts(logprobs, answers, width=8), [0, 1, 2, 5, 7])
    rng = np.random.default_rng(0)
    common, slopes = (
        rng.normal(size=len(given.token_ids)),
        rng.normal(size=(FEATURES, len(given.token_ids))),
    )
    loss = given.problem(table, l2=0.0, slope_l2=0.0).loss
    _, slope = loss(np.vstack([common, slopes]))
    step = 1e-5
    for token in range(len(given.token_ids)):
        moved = common.copy()
        moved[token] += step
        low = common.copy()
        low[token] -= step
        rise = loss(np.vstack([moved, slopes]))[0] - loss(np.vstack([low, slopes]))[0]
        assert rise / (2 * step) == pytest.approx(slope[0, token], abs=1e-5)
        up, down = slopes.copy(), slopes.copy()
        up[1, token] += step
        down[1, token] -= step
        rise = loss(np.vstack([common, up]))[0] - loss(np.vstack([common, down]))[0]
        assert rise / (2 * step) == pytest.approx(slope[2, token], abs=1e-5)


@pytest.mark.parametrize("nats", [30.0, 100.0])
def test_the_loss_of_a_far_bias_is_convex_and_has_its_slope(nats: float) -> None:
    """Along a line through biases of hundreds of nats, the loss rises at least as its slope says;
    and nothing overflows farther out.
    """
    logprobs, answers, table = world(2)
    given = positions(rollouts(logprobs, answers, width=8), range(VOCAB))
    problem = given.problem(table, l2=0.0, slope_l2=0.0)
    rng = np.random.default_rng(0)
    direction = rng.normal(size=problem.linear.shape)
    assert np.isfinite(problem.loss(100 * nats * direction)[1]).all()
    loss, slope = problem.loss(nats * direction)
    for length in (0.9, 0.999, 1.001, 1.1):
        step = (length - 1) * nats * direction
        rise = problem.loss(nats * direction + step)[0] - loss
        assert rise >= (slope * step).sum() - 1e-9 * abs(loss)


def test_without_slopes_it_is_the_projection() -> None:
    """An infinite pull on the slopes leaves the fixed bias."""
    logprobs, answers, table = world(3)
    given = rollouts(logprobs, answers)
    found = fit_features(positions(given, range(VOCAB)), table, l2=2.0, slope_l2=1e9)
    fixed = projection(given, l2=2.0)
    assert (
        np.abs(found.common - fixed.delta[np.isin(fixed.token_ids, found.token_ids)]).max() < 1e-3
    )
    assert np.abs(found.slopes).max() < 1e-6


def test_groups_without_a_pull_are_separate_fits() -> None:
    """One-hot features with hardly any pull towards the common vector: the fit of each group
    alone.
    """
    logprobs, answers, _ = world(4)
    group = np.arange(PROMPTS) % 2
    table = sparse.csr_array(np.eye(2)[group])
    given = rollouts(logprobs, answers)
    found = fit_features(positions(given, range(VOCAB)), table, l2=1e6, slope_l2=2.0)
    for number in (0, 1):
        alone = given.take(group == number)
        fixed = projection(alone, l2=2.0, next_token=NextToken.of(alone))
        ours = found.bias(table)[np.flatnonzero(group == number)[0]]
        assert np.abs(ours[np.isin(found.token_ids, fixed.token_ids)] - fixed.delta).max() < 2e-3


def test_the_argmax_under_a_weight_is_that_of_the_bias_that_is_sent() -> None:
    """Lists tempered by w decide with delta as the model's own lists do with delta / w."""
    logprobs, answers, _ = world(5)
    given, weight = rollouts(logprobs, answers), 0.25
    less = tempered(given, weight)
    assert np.exp(less.top_logprobs).sum(axis=1) == pytest.approx(1.0, abs=1e-5)
    delta = np.random.default_rng(0).normal(0, 2, VOCAB)
    one = (less.top_logprobs + delta[less.top_ids]).argmax(axis=1)
    assert (one == (given.top_logprobs + delta[given.top_ids] / weight).argmax(axis=1)).all()
    assert (
        replace(less, top_logprobs=given.top_logprobs, logprobs=given.logprobs).keys == given.keys
    )


def test_standard_errors_are_the_spread_over_other_prompts() -> None:
    """Of 60 samples of prompts the estimates vary as much as each sample says of itself, but for a
    tenth; the pull is in both.
    """
    size, tokens = 300, 3
    rng = np.random.default_rng(0)
    truth = np.array([[0.5, -0.5, 0.0], [1.5, 0.0, -1.0]])
    estimates, told = [], []
    for draw in range(60):
        table = np.stack([np.ones(size), rng.random(size) < 0.4], axis=1)
        logits = rng.normal(size=(size, tokens))
        logprobs = logits - logsumexp(logits, axis=1, keepdims=True)
        answers = (logprobs + table @ truth + rng.gumbel(size=(size, tokens))).argmax(axis=1)
        features = sparse.csr_array(table[:, 1:])
        given = positions(rollouts(logprobs, answers), np.arange(tokens))
        fit = fit_features(given, features, l2=0.5, slope_l2=0.5)
        estimates.append(np.vstack([fit.common, fit.slopes]))
        if draw < 6:
            told.append(
                np.vstack(
                    standard_errors(
                        given,
                        features,
                        fit,
                        l2=0.5,
                        slope_l2=0.5,
                        draws=40,
                        prompts=np.arange(size),
                        seed=draw,
                    )
                )
            )
    np.testing.assert_allclose(np.mean(told, axis=0), np.std(estimates, axis=0, ddof=1), rtol=0.25)
    assert abs(np.mean(np.mean(told, axis=0) / np.std(estimates, axis=0, ddof=1)) - 1) < 0.1
