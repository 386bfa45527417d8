"""Given answers on exact models: the optimum of the objective, its majorise-minimise steps, and
sums of objectives.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import partial

import numpy as np
import numpy.typing as npt
import pytest
from scipy.optimize import minimize
from scipy.special import logsumexp

from blackbox_lb.estimate.choice.candidates import CompileLimits, candidates
from blackbox_lb.estimate.inputs.rollouts import Rollouts
from blackbox_lb.estimate.inputs.sweep import Sweep
from blackbox_lb.estimate.next_token.next_token import NextToken
from blackbox_lb.estimate.projection.projection import fit_sets, posterior_shares
from blackbox_lb.rollouts.positions import Positions
from tests.support.fits import projection

Vector = npt.NDArray[np.float64]
VOCAB, PROMPTS, L2 = 30, 80, 2.0


def world(seed: int, spellings: int = 1) -> tuple[Vector, list[npt.NDArray[np.int64]]]:
    """(p, v) logprobs at first positions, and the accepted tokens of each: one of three labels,
    each spelled in so many ways.
    """
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, 1, (PROMPTS, VOCAB)) + rng.normal(0, 1.5, VOCAB)
    labels = logits[:, :3].argmax(axis=1)
    logits[:, : 3 * spellings] -= 4.0  # the margin that all prompts share
    accepted = [np.array([label + 3 * way for way in range(spellings)]) for label in labels]
    return logits - logsumexp(logits, axis=1, keepdims=True), accepted


def answers(
    logprobs: Vector, accepted: list[npt.NDArray[np.int64]], width: int = VOCAB
) -> Rollouts:
    """The accepted tokens as given answers, with lists of ``width`` tokens and the answers' own at
    their true probability.
    """
    prompts = np.repeat(np.arange(len(accepted)), [len(each) for each in accepted])
    tokens = np.concatenate(accepted)
    wanted = np.unique(tokens)
    ids = np.array(
        [np.union1d(np.argsort(-row)[:width], wanted)[: width + len(wanted)] for row in logprobs],
        dtype=object,
    )
    size = max(map(len, ids))
    table, values = np.full((len(ids), size), -1, np.int32), np.full((len(ids), size), -np.inf)
    for at, row in enumerate(ids):
        order = row.astype(int)[np.argsort(-logprobs[at, row.astype(int)])]
        table[at, : len(order)], values[at, : len(order)] = order, logprobs[at, order]
    number = np.bincount(prompts)
    return Rollouts(
        keys=tuple(f"{p}.{t}" for p, t in zip(prompts, tokens, strict=True)),
        prompts=prompts,
        rewards=np.zeros(len(tokens)),
        lengths=np.ones(len(tokens), np.int64),
        token_ids=tokens.astype(np.int32),
        logprobs=logprobs[prompts, tokens].astype(np.float32),
        top_ids=table[prompts],
        top_logprobs=values[prompts].astype(np.float32),
        shares=1.0 / number[prompts],
    )


def objective(
    delta: Vector, logprobs: Vector, accepted: list[npt.NDArray[np.int64]], l2: float = L2
) -> float:
    """The penalised log-likelihood of the sets, from whole distributions."""
    tilted = logprobs + delta
    own = np.array(accepted)
    sets = logsumexp(np.take_along_axis(tilted, own, axis=1), axis=1)
    return float(np.sum(sets - logsumexp(tilted, axis=1)) - l2 / 2 * delta @ delta)


def learned(rollouts: Rollouts, l2: float = L2) -> Vector:
    """(v,) what the estimator learns."""
    table = NextToken.of(rollouts, vocab_size=VOCAB)
    begin = replace(
        rollouts, shares=posterior_shares(rollouts, table, np.zeros(len(table.token_ids)))[0]
    )
    fit, _ = fit_sets(begin, table, partial(projection, tau=1.0, l2=l2, next_token=table))
    delta = np.zeros(VOCAB)
    delta[fit.token_ids] = fit.delta
    return delta


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("width", "short"), [(VOCAB, 1e-5), (20, 0.02), (5, 0.15)])
def test_the_optimum_is_reached(seed: int, width: int, short: float) -> None:
    """Full lists give the optimum of the exact objective; shorter ones miss a little of its gain,
    never more than ``short``.
    """
    logprobs, accepted = world(seed)

    def loss(delta: Vector) -> float:
        return -objective(delta, logprobs, accepted)

    best = minimize(loss, np.zeros(VOCAB), method="L-BFGS-B", tol=1e-12)
    none = objective(np.zeros(VOCAB), logprobs, accepted)
    reached = objective(learned(answers(logprobs, accepted, width)), logprobs, accepted)
    assert (-best.fun - reached) / (-best.fun - none) < short


@pytest.mark.parametrize("seed", range(3))
def test_steps_never_lower_the_objective_and_spellings_help(seed: int) -> None:
    """The penalised likelihood of the sets rises with every solve, and ends above that of the
    likeliest spelling alone.
    """
    logprobs, accepted = world(seed, spellings=3)
    rollouts = answers(logprobs, accepted)
    table = NextToken.of(rollouts, vocab_size=VOCAB)
    seen: list[float] = []

    def watched(those: Rollouts, **options: object) -> object:
        fit = projection(those, tau=1.0, l2=L2, next_token=table, **options)  # type: ignore[arg-type]
        delta = np.zeros(VOCAB)
        delta[fit.token_ids] = fit.delta
        seen.append(objective(delta, logprobs, accepted))
        return fit

    fit_sets(rollouts, table, watched)  # type: ignore[arg-type]
    assert len(seen) > 1
    assert all(later >= earlier - 1e-6 for earlier, later in itertools.pairwise(seen))
    first = [each[:1] for each in accepted]
    alone = learned(answers(logprobs, first))
    assert seen[-1] >= objective(alone, logprobs, accepted)


def test_shares_of_a_prompt_sum_to_its_weight() -> None:
    """Spellings share one answer by their probability under the bias; drawn completions have
    none.
    """
    logprobs, accepted = world(0, spellings=2)
    rollouts = answers(logprobs, accepted)
    table = NextToken.of(rollouts, vocab_size=VOCAB)
    shares, likelihood = posterior_shares(rollouts, table, np.zeros(len(table.token_ids)))
    np.testing.assert_allclose(np.bincount(rollouts.prompts, weights=shares), 1.0)
    for p, own in enumerate(accepted):
        parts = np.exp(logprobs[p, own])
        np.testing.assert_allclose(shares[rollouts.prompts == p], parts / parts.sum(), rtol=1e-5)
    assert likelihood == pytest.approx(
        objective(np.zeros(VOCAB), logprobs, accepted) / PROMPTS, rel=1e-5
    )
    drawn = replace(rollouts, shares=np.full(len(rollouts.keys), np.nan))
    assert np.isnan(posterior_shares(drawn, table, np.zeros(len(table.token_ids)))[0]).all()


def test_both_is_the_sum_of_the_two_objectives() -> None:
    """Answers joined with rewarded samples are learned as the sum of both: answers weigh 1, samples
    exp(r / tau) with mean 1, of which the part that all samples share counts what was to be
    expected.
    """
    logprobs, accepted = world(1)
    given, rng = answers(logprobs, accepted), np.random.default_rng(3)
    tokens = np.array([rng.choice(VOCAB, p=np.exp(row) / np.exp(row).sum()) for row in logprobs])
    rewards = (tokens == 7).astype(float)
    one = answers(logprobs, [np.array([token]) for token in tokens])
    sampled = replace(
        one,
        keys=tuple(f"s{key}" for key in one.keys),
        rewards=rewards,
        shares=np.full(len(one.keys), np.nan),
    )
    both = Rollouts.join([sampled, given])
    weights = np.exp(rewards / 0.5)
    weights /= weights.mean()

    def total(delta: Vector) -> float:
        tilted = logprobs + delta
        expected = float((np.exp(logprobs) @ delta).sum())
        steps = (weights - 1) @ delta[tokens] + expected - weights @ logsumexp(tilted, axis=1)
        return -(objective(delta, logprobs, accepted) + float(steps))

    best = minimize(total, np.zeros(VOCAB), method="L-BFGS-B", tol=1e-12)
    table = NextToken.of(both, vocab_size=VOCAB)
    fit = projection(both, tau=0.5, l2=L2, next_token=table)
    np.testing.assert_allclose(fit.delta, best.x[fit.token_ids], atol=2e-3)


def test_a_sweep_learns_the_shared_margin_from_answers() -> None:
    """Through the table of estimators, with a limit of entries: each label is lifted by about what
    was taken from all of them.
    """
    logprobs, accepted = world(2)
    rollouts = answers(logprobs, accepted)
    table = NextToken.of(rollouts, vocab_size=VOCAB)
    limits = CompileLimits(entries=3, low=-100, high=100, integers=False)
    (found,) = candidates(Positions(rollouts, table), Sweep(l2=(0.3,)), limits)
    assert set(found.logit_bias) == {0, 1, 2}
    assert all(value > 2 for value in found.logit_bias.values())
    tilted = logprobs + np.array([found.logit_bias.get(token, 0.0) for token in range(VOCAB)])
    right = [row.argmax() in own for row, own in zip(tilted, accepted, strict=True)]
    before = [row.argmax() in own for row, own in zip(logprobs, accepted, strict=True)]
    assert np.mean(right) > np.mean(before) + 0.3
