"""The divergence of a biased policy, against the exact one."""

from __future__ import annotations

import numpy as np
import pytest

from blackbox_lb.estimate.counting.statistics import TokenIPS
from blackbox_lb.estimate.next_token.next_token import NextToken
from blackbox_lb.estimate.reweighting import divergence
from blackbox_lb.rollouts.judging.trials import seems_dropped
from tests.support.exact import ExactModel
from tests.support.frontier.estimators import shortened
from tests.support.masses import kl
from tests.support.statistics import statistics_of
from tests.support.truth import Exact

RARE = np.where(np.arange(40) < 25, 0.0, -3.0)
MODEL = ExactModel(40, 3, seed=5, unigram=RARE)


def ends_low(tokens: tuple[int, ...], prompt: int) -> float:
    """1 nat where the last token has a low id."""
    return float(tokens[-1] < 10)


@pytest.mark.parametrize("kind", ["random", "ips"])
def test_the_divergence_is_the_exact_one(kind: str) -> None:
    """With complete lists within Monte Carlo error, with top-20 and top-5 within a few percent,
    rare promoted tokens or not.
    """
    base = MODEL.rollouts(4000, ends_low, seed=1)
    delta = np.random.default_rng(2).normal(size=40)
    if kind == "ips":
        ips = TokenIPS(statistics_of(base, 1.0))
        delta = np.zeros(40)
        delta[ips.token_ids] = ips.delta(1.0, 0.05)
    truth = Exact(MODEL, ends_low).kl(delta)
    biased = MODEL.rollouts(20_000, ends_low, 3, delta=delta)
    for top, tolerance in ((40, 0.02), (20, 0.03), (5, 0.06)):
        tail = NextToken.of(shortened(base, top))
        found = divergence(shortened(biased, top), np.arange(40), delta, tail)
        assert found.kl == pytest.approx(truth, rel=tolerance, abs=0.02), top


def test_the_factor_mends_a_tail_that_is_misjudged() -> None:
    """A large bias on a token that is always very rare: the tail model alone takes it for common,
    the factor puts it right.
    """
    base = MODEL.rollouts(4000, ends_low, seed=1, top=5)
    delta = np.where(RARE < 0, 4.0, 0.0)
    rollouts = MODEL.rollouts(20_000, ends_low, 3, top=5, delta=delta)
    table = NextToken.of(base)
    truth = Exact(MODEL, ends_low).kl(delta)
    found = divergence(rollouts, np.arange(40), delta, table)
    unmended = NextToken.of(rollouts, tail=table)
    plain = float(kl(unmended, unmended.align(np.arange(40), delta)).sum() / 20_000)
    assert abs(found.kl - truth) < abs(plain - truth)


@pytest.mark.parametrize(
    ("scale", "seen"), [(0.0, False), (0.001, False), (0.1, False), (1.0, True)]
)
def test_a_dropped_bias_is_seen_where_it_is_strong_and_never_else(scale: float, seen: bool) -> None:
    """With lists of 5, 20 and all tokens, a bias that acts is never taken for a dropped one, and one
    of practically zero accuses nobody: its effect is below the error of the lists' tail. A strong
    one that is dropped is seen.
    """
    base = MODEL.rollouts(4000, ends_low, seed=1)
    tails = {top: NextToken.of(shortened(base, top)) for top in (5, 20, 40)}
    accused = {(top, acts): 0 for top in tails for acts in (True, False)}
    for seed in range(10):
        delta = np.random.default_rng(seed).normal(size=40) * scale
        for acts in (True, False):
            drawn = MODEL.rollouts(480, ends_low, seed + 100, delta=delta if acts else None)
            for top, tail in tails.items():
                found = divergence(shortened(drawn, top), np.arange(40), delta, tail)
                assert found.expected.shape == (480,)
                assert (found.expected >= 0).all()
                accused[top, acts] += seems_dropped(found.per_completion, found.expected)
    for top in tails:
        assert accused[top, True] == 0
        assert accused[top, False] >= 8 if seen else accused[top, False] == 0
