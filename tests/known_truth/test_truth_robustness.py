"""Logprobs as hosted APIs return them: what rounding, noise and censoring take from the gain of
each estimator.
"""

from __future__ import annotations

import numpy as np
import pytest

from bench.problems import PROBLEMS
from bench.studies.robustness import DISTURBANCES, NAMES, Plan, losses
from blackbox_lb.estimate.counting.ips import IPS
from blackbox_lb.estimate.inputs.rollouts import Rollouts
from blackbox_lb.estimate.projection.projection import projection
from tests.support.policy import estimate_policy
from tests.support.statistics import statistics_of

PROBLEM = PROBLEMS["rare"]
MODEL = PROBLEM.model()


def reported(kind: str, seed: int) -> Rollouts:
    """1,000 completions, the same for every kind of logprobs."""
    return MODEL.rollouts(1000, PROBLEM.reward, seed, top=20, **DISTURBANCES[kind])


def test_the_completions_are_the_same_and_the_logprobs_are_not() -> None:
    """Only what is reported of the completions differs, so that a loss is the logprobs' doing."""
    exact = reported("exact", 1)
    for kind in DISTURBANCES:
        other = reported(kind, 1)
        np.testing.assert_array_equal(other.token_ids, exact.token_ids)
        np.testing.assert_array_equal(other.rewards, exact.rewards)
        assert (kind == "exact") == np.array_equal(other.logprobs, exact.logprobs)
        assert ("censored" in kind or "three" in kind) == bool(other.is_bounded.any())


def test_the_projection_hardly_moves_and_ips_does() -> None:
    """Quick: all three together move the projection by less than a tenth of what they move ips, in
    KL.
    """
    moved = {"projection": 0.0, "ips": 0.0}
    for seed in range(2):
        exact, other = reported("exact", seed), reported("all three", seed)
        prefixes = MODEL.next_logprobs(np.zeros((8, 0), dtype=np.int64), np.arange(8))
        for name, fit in (("projection", _projected), ("ips", _inverse)):
            one, two = (_policies(prefixes, fit(rollouts)) for rollouts in (exact, other))
            moved[name] += float((np.exp(one) * (one - two)).sum())
    assert moved["projection"] < 0.1 * moved["ips"]


def test_the_projection_keeps_its_gain() -> None:
    """Quick: at one setting, the gain in E[r] - tau KL with all three is at least 85 % of that with
    exact logprobs.
    """
    gains = {"exact": 0.0, "all three": 0.0}
    for kind in gains:
        for seed in range(3):
            found = estimate_policy(
                MODEL, _projected(reported(kind, seed)), PROBLEM.reward, 3000, seed
            )
            gains[kind] += (found.reward - 0.095 - PROBLEM.tau[0] * found.kl) / 3
    assert gains["exact"] > 0.1
    assert gains["all three"] > 0.85 * gains["exact"]


@pytest.mark.slow
def test_the_projection_loses_less_than_5_percent() -> None:
    """The criterion: in the mean over three problems and eight draws, for both lengths of lists,
    and every kind of logprobs.
    """
    plan = Plan(estimators=tuple(name for name in NAMES if name.startswith("projection")))
    found = [losses(problem, plan, processes=2) for problem in ("rare", "length", "answer")]
    for name in plan.estimators:
        for kind in DISTURBANCES:
            lost = np.mean([1 - gains[name][kind] / gains[name]["exact"] for gains in found])
            assert lost < 0.05, (name, kind)


def _projected(rollouts: Rollouts) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    fit = projection(rollouts, tau=0.35, l2=5.0)
    return _dense(fit.token_ids, fit.delta)


def _inverse(rollouts: Rollouts) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    ips = IPS(statistics_of(rollouts, 0.35))
    return _dense(ips.token_ids, ips.delta(0.35, 0.3, relative=True))


def _dense(
    token_ids: np.ndarray, values: np.ndarray
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    full = np.zeros(MODEL.vocab_size)
    full[token_ids] = values
    return full


def _policies(logprobs: np.ndarray, delta: np.ndarray) -> np.ndarray:
    tilted = logprobs + delta
    return np.asarray(tilted - np.logaddexp.reduce(tilted, axis=1)[:, None])
