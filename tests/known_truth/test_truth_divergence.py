"""The divergence of a biased policy, against the exact one."""

from __future__ import annotations

import numpy as np
import pytest

from blackbox_lb.estimate.counting.statistics import TokenIPS
from blackbox_lb.estimate.inputs.rollouts import Rollouts
from blackbox_lb.estimate.next_token.next_token import NextToken
from blackbox_lb.estimate.reweighting import divergence
from blackbox_lb.rollouts.judging.trials import seems_dropped
from tests.support.exact import ExactModel
from tests.support.statistics import statistics_of
from tests.support.truth import Exact

RARE = np.where(np.arange(40) < 25, 0.0, -3.0)
MODEL = ExactModel(40, 3, seed=5, unigram=RARE)


def ends_low(tokens: tuple[int, ...], prompt: int) -> float:
    """1 nat where the last token has a low id."""
    return float(tokens[-1] < 10)


def biased_rollouts(
    delta: np.ndarray[tuple[int], np.dtype[np.float64]], n: int, top: int, seed: int
) -> Rollouts:
    """Completions of the biased model that list the base model's likeliest tokens."""
    tokens = MODEL.sample(n, np.random.default_rng(seed), delta)
    logprobs = np.stack(
        [MODEL.next_logprobs(tokens[:, :t], np.zeros(n, np.int64)) for t in range(3)], axis=1
    ).reshape(-1, 40)
    flat = tokens.reshape(-1)
    listed = np.argsort(-logprobs, axis=1)[:, :top]
    return Rollouts(
        keys=tuple(str(number) for number in range(n)),
        prompts=np.zeros(n, np.int64),
        rewards=np.zeros(n),
        lengths=np.full(n, 3),
        token_ids=flat.astype(np.int32),
        logprobs=logprobs[np.arange(3 * n), flat].astype(np.float32),
        top_ids=listed.astype(np.int32),
        top_logprobs=np.take_along_axis(logprobs, listed, axis=1).astype(np.float32),
    )


@pytest.mark.parametrize(("top", "tolerance"), [(40, 0.02), (20, 0.03), (5, 0.06)])
@pytest.mark.parametrize("kind", ["random", "ips", "none"])
def test_the_divergence_is_the_exact_one(kind: str, top: int, tolerance: float) -> None:
    """With complete lists within Monte Carlo error, with top-20 and top-5 within a few percent,
    rare promoted tokens or not.
    """
    base = MODEL.rollouts(4000, ends_low, seed=1, top=top)
    delta = np.zeros(40)
    if kind == "random":
        delta = np.random.default_rng(2).normal(size=40)
    if kind == "ips":
        ips = TokenIPS(statistics_of(base, 1.0))
        delta[ips.token_ids] = ips.delta(1.0, 0.05)
    truth = Exact(MODEL, ends_low).kl(delta)
    found = divergence(
        biased_rollouts(delta, 20_000, top, 3), np.arange(40), delta, NextToken.of(base)
    )
    assert found.kl == pytest.approx(truth, rel=tolerance, abs=0.02)


def test_the_factor_mends_a_tail_that_is_misjudged() -> None:
    """A large bias on a token that is always very rare: the tail model alone takes it for common,
    the factor puts it right.
    """
    base = MODEL.rollouts(4000, ends_low, seed=1, top=5)
    delta = np.where(RARE < 0, 4.0, 0.0)
    rollouts = biased_rollouts(delta, 20_000, 5, 3)
    table = NextToken.of(base)
    truth = Exact(MODEL, ends_low).kl(delta)
    found = divergence(rollouts, np.arange(40), delta, table)
    unmended = NextToken.of(rollouts, tail=table)
    plain = float(unmended.kl(unmended.align(np.arange(40), delta)).sum() / 20_000)
    assert abs(found.kl - truth) < abs(plain - truth)


@pytest.mark.parametrize("top", [5, 20, 40])
@pytest.mark.parametrize(
    ("scale", "seen"), [(0.0, False), (0.001, False), (0.1, False), (1.0, True)]
)
def test_a_dropped_bias_is_seen_where_it_is_strong_and_never_else(
    scale: float, seen: bool, top: int
) -> None:
    """A bias that acts is never taken for a dropped one, and one of practically zero accuses
    nobody: its effect is below the error of the lists' tail. A strong one that is dropped is seen.
    """
    tail = NextToken.of(MODEL.rollouts(4000, ends_low, seed=1, top=top))
    accused = {True: 0, False: 0}
    for seed in range(10):
        delta = np.random.default_rng(seed).normal(size=40) * scale
        for acts in accused:
            rollouts = biased_rollouts(delta if acts else 0 * delta, 480, top, seed + 100)
            found = divergence(rollouts, np.arange(40), delta, tail)
            assert found.expected.shape == (480,)
            assert (found.expected >= 0).all()
            accused[acts] += seems_dropped(found.per_completion, found.expected)
    assert accused[True] == 0
    assert accused[False] >= 8 if seen else accused[False] == 0
