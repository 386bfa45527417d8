"""What a bias is expected to change of a reward that is a sum over positions, from completions of
the base model, against the exact change.
"""

from __future__ import annotations

import numpy as np
import pytest

from blackbox_lb.errors import InputError
from blackbox_lb.estimate.inputs.rollouts import Rollouts
from blackbox_lb.estimate.reweighting import LocatedCosts
from tests.support.exact import ExactModel

VOCABULARY = 40
MODEL = ExactModel(VOCABULARY, 1, seed=5)
LOGPROBS = MODEL.logprobs()
BIAS = np.random.default_rng(2).normal(size=VOCABULARY)
COSTS = np.where(np.arange(VOCABULARY) % 5 == 0, -1.0, 0.0)
DRAWN = 40_000


def first_tokens(temperature: float, listed: int) -> Rollouts:
    """Completions of one token, drawn at a temperature, with the likeliest tokens at 1."""
    chances = np.exp(LOGPROBS / temperature)
    tokens = np.random.default_rng(3).choice(VOCABULARY, DRAWN, p=chances / chances.sum())
    likeliest = np.argsort(-LOGPROBS)[:listed]
    return Rollouts(
        keys=tuple(map(str, range(DRAWN))),
        prompts=np.zeros(DRAWN, np.int64),
        rewards=COSTS[tokens],
        lengths=np.ones(DRAWN, np.int64),
        token_ids=tokens.astype(np.int32),
        logprobs=LOGPROBS[tokens].astype(np.float32),
        top_ids=np.tile(likeliest, (DRAWN, 1)).astype(np.int32),
        top_logprobs=np.tile(LOGPROBS[likeliest], (DRAWN, 1)).astype(np.float32),
        costs=COSTS[tokens],
    )


def exact_change(temperature: float) -> float:
    """Of the mean cost of one token, where the bias is added before the temperature divides."""
    plain = np.exp(LOGPROBS / temperature)
    biased = np.exp((LOGPROBS + BIAS) / temperature)
    return float(biased @ COSTS / biased.sum() - plain @ COSTS / plain.sum())


@pytest.mark.parametrize(("listed", "tolerance"), [(VOCABULARY, 0.0), (20, 0.03)])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_the_change_is_the_exact_one(temperature: float, listed: int, tolerance: float) -> None:
    """Within four standard errors with whole lists, and a little more with half of the tokens."""
    located = LocatedCosts.of(first_tokens(temperature, listed), temperature)
    changes = located.change(dict(enumerate(BIAS.tolist())))
    error = changes.std() / np.sqrt(DRAWN)
    assert abs(changes.mean() - exact_change(temperature)) <= 4 * error + tolerance


def test_no_bias_changes_nothing() -> None:
    """With and without entries."""
    located = LocatedCosts.of(first_tokens(0.7, VOCABULARY), 0.7)
    assert located.change({}) == pytest.approx(np.zeros(DRAWN), abs=1e-12)
    assert located.change({0: 0.0}) == pytest.approx(np.zeros(DRAWN), abs=1e-12)


def test_a_ban_takes_the_whole_cost_away() -> None:
    """Where every token that costs is forbidden, the change is minus all costs."""
    rollouts = first_tokens(1.0, VOCABULARY)
    ban = {int(token): -100.0 for token in np.flatnonzero(COSTS)}
    assert LocatedCosts.of(rollouts, 1.0).change(ban) == pytest.approx(-COSTS[rollouts.token_ids])


def test_a_reward_that_is_no_sum_is_refused() -> None:
    """So is a temperature of 0, at which nothing is drawn."""
    rollouts = first_tokens(1.0, 5)
    with pytest.raises(InputError):
        LocatedCosts.of(rollouts, 0.0)
    rollouts = Rollouts(*(getattr(rollouts, name) for name in Rollouts.__slots__[:8]))
    with pytest.raises(InputError):
        LocatedCosts.of(rollouts, 1.0)
