"""The projection against the optimum of the exact objective, found by gradient descent on the
enumerated model.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from blackbox_lb.errors import InputError
from blackbox_lb.estimate.next_token.next_token import NextToken
from blackbox_lb.estimate.projection.projection import Fit
from tests.support.errors import raises_naming
from tests.support.exact import ExactModel
from tests.support.fits import projection
from tests.support.truth import Exact

VOCAB, RARE, TAU, N, L2 = 40, 37, 0.5, 20_000, 5.0


def contains_rare(tokens: tuple[int, ...], prompt: int) -> float:
    """2 nats for a token that only 2.8 % of completions contain and that a top-5 list hardly ever
    shows.
    """
    return 2.0 if RARE in tokens else 0.0


@pytest.fixture(scope="module")
def truth() -> tuple[ExactModel, Exact, np.ndarray]:
    """Model with a heavy tail, its exact quantities and its exact optimum at the estimator's l2."""
    unigram = -0.7 * np.log1p(np.arange(VOCAB))
    unigram[RARE] -= 0.5
    model = ExactModel(VOCAB, 3, seed=3, sharpness=0.7, unigram=unigram)
    exact = Exact(model, contains_rare)
    return model, exact, exact.optimum(TAU, l2=L2 / N)


def dense(fit: Fit) -> np.ndarray:
    """(VOCAB,) with 0 for tokens that were never seen."""
    out = np.zeros(VOCAB)
    out[fit.token_ids] = fit.delta
    return out


def excess(exact: Exact, delta: np.ndarray, best: np.ndarray) -> float:
    """KL(p* || p_delta) beyond the best fixed bias's, as a share of what that one gains over no
    bias.
    """
    reached, least, none = (exact.kl_to_target(d, TAU) for d in (delta, best, np.zeros(VOCAB)))
    return (reached - least) / (none - least)


@pytest.mark.parametrize(("top", "tolerance"), [(None, 0.015), (20, 0.02), (5, 0.02)])
def test_projection_reaches_the_exact_optimum(
    truth: tuple[ExactModel, Exact, np.ndarray], top: int | None, tolerance: float
) -> None:
    """20,000 rollouts reach 98 % of the exact gain with full, top-20 (6 % tail) and top-5 (28 %
    tail) logprobs.
    """
    model, exact, best = truth
    fit = projection(model.rollouts(N, contains_rare, 1, top=top), tau=TAU, l2=L2)
    delta = dense(fit)
    assert 0 <= excess(exact, delta, best) < tolerance
    assert np.median(np.abs((delta - delta.mean()) - (best - best.mean()))) < 0.2
    assert delta[RARE] - delta.mean() == pytest.approx(best[RARE] - best.mean(), abs=0.2)
    assert exact.expected_reward(delta) == pytest.approx(exact.expected_reward(best), abs=0.06)
    assert exact.kl(delta) == pytest.approx(exact.kl(best), rel=0.1)


def test_more_rollouts_come_closer(truth: tuple[ExactModel, Exact, np.ndarray]) -> None:
    """The excess falls about tenfold with ten times the rollouts, as maximum likelihood should
    (here at least fourfold).
    """
    model, exact, best = truth
    few, many = (
        excess(
            exact,
            dense(projection(model.rollouts(n, contains_rare, 1), tau=TAU, l2=L2 * n / N)),
            best,
        )
        for n in (2_000, 20_000)
    )
    assert many < few / 4


def test_a_tail_left_at_zero_is_biased_upward(truth: tuple[ExactModel, Exact, np.ndarray]) -> None:
    """Why the tail is spread: with the unlisted mass at bias 0 the rare token's bias comes out more
    than 0.5 nats too high.
    """
    model, exact, best = truth
    rollouts = model.rollouts(N, contains_rare, 1, top=5)
    table = NextToken.of(rollouts)
    naive = NextToken.of(
        rollouts, tail=dataclasses.replace(table, unigram=np.zeros_like(table.unigram))
    )
    delta = dense(projection(rollouts, tau=TAU, l2=L2, next_token=naive))
    assert delta[RARE] - delta[0] > best[RARE] - best[0] + 0.5
    assert excess(exact, delta, best) > 3 * excess(
        exact, dense(projection(rollouts, tau=TAU, l2=L2)), best
    )


def test_weights_within_prompts_reach_their_own_optimum() -> None:
    """With scale 'prompt' an easy prompt does not drown a hard one: each scale is best on its own
    exact objective.
    """
    model = ExactModel(8, 3, seed=5, prompts=3, sharpness=0.7, end=True)

    def reward(tokens: tuple[int, ...], prompt: int) -> float:
        return (0.5 + prompt) * (prompt + 1 in tokens)

    exact, rollouts = Exact(model, reward), model.rollouts(15_000, reward, 2)
    fits = {scale: projection(rollouts, l2=1.0, weights=scale) for scale in ("global", "prompt")}
    for scale, per_prompt in (("global", False), ("prompt", True)):
        reached = {
            name: exact.kl_to_target(fit.delta, per_prompt=per_prompt) for name, fit in fits.items()
        }
        least = exact.kl_to_target(
            exact.optimum(per_prompt=per_prompt, l2=1e-4), per_prompt=per_prompt
        )
        assert reached[scale] == min(reached.values())
        assert reached[scale] - least < 0.002


def test_support_and_start() -> None:
    """Only tokens of ``support`` may move, unseen ones are counted, and a warm start ends at the
    same place.
    """
    model = ExactModel(12, 3, seed=5)
    rollouts = model.rollouts(2_000, lambda tokens, _: 1.0 * (3 in tokens), 2, top=6)
    full = projection(rollouts)
    some = projection(rollouts, support=[3, 7, 99], start=full)
    assert set(some.token_ids[some.delta != 0]) == {3, 7}
    assert 0 < some.gain < full.gain
    again = projection(rollouts, start=full)
    assert again.iterations <= 2
    np.testing.assert_allclose(again.delta, full.delta, atol=1e-5)


def test_gain_is_the_weighted_likelihood_per_token() -> None:
    """``gain`` equals the mean over weighted tokens of log pi_delta / pi_0, read off the full
    lists, where the weight that all completions share counts the expected bias and not the sampled
    one.
    """
    rollouts = ExactModel(6, 3, seed=5, end=True).rollouts(
        300, lambda tokens, _: 0.4 * len(tokens), 2
    )
    fit = projection(rollouts, tau=0.5)
    tilted = np.exp(rollouts.rewards / 0.5)
    weights = (tilted / tilted.mean())[rollouts.rollout_of]
    by_token = fit.delta[np.searchsorted(fit.token_ids, rollouts.top_ids)]
    normaliser = np.log((np.exp(rollouts.top_logprobs + by_token)).sum(axis=1))
    sampled = fit.delta[np.searchsorted(fit.token_ids, rollouts.token_ids)]
    expected = (np.exp(rollouts.top_logprobs) * by_token).sum(axis=1)
    told = (weights - 1) @ sampled + expected.sum() - weights @ normaliser
    assert fit.gain == pytest.approx(told / weights.sum(), abs=1e-6)


def test_lists_may_come_apart_from_the_rollouts() -> None:
    """With ``next_token`` given, the rollouts' own lists are never read: without any they give the
    same fit.
    """
    rollouts = ExactModel(12, 3, seed=5).rollouts(
        300, lambda tokens, _: 1.0 * (3 in tokens), 2, top=6
    )
    none = np.zeros((len(rollouts.token_ids), 0))
    bare = dataclasses.replace(
        rollouts, top_ids=none.astype(np.int32), top_logprobs=none.astype(np.float32)
    )
    table = NextToken.of(rollouts)
    np.testing.assert_array_equal(
        projection(bare, next_token=table).delta, projection(rollouts).delta
    )


@pytest.mark.parametrize(
    ("options", "facts"),
    [
        ({"tau": 0.0}, ("tau", "0.0")),
        ({"l2": -1.0}, ("l2", "-1.0")),
        ({"weights": "each"}, ("weights", "'each'", "'global'", "'prompt'")),
    ],
)
def test_bad_options_are_named(options: dict[str, float], facts: tuple[str, ...]) -> None:
    """Each option out of range is refused by name."""
    rollouts = ExactModel(5, 2, seed=5).rollouts(20, lambda *_: 0.0, 2)
    with raises_naming(InputError, *facts):
        projection(rollouts, **options)  # type: ignore[arg-type]
