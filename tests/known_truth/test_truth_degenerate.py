"""Degenerate input: every estimator gives a right answer through ``candidates`` or says in one
sentence what is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from blackbox_lb.errors import InputError
from blackbox_lb.estimate.choice.candidates import Candidate, CompileLimits, candidates
from blackbox_lb.estimate.choice.table import ROWS
from blackbox_lb.estimate.inputs.rollouts import Rollouts
from blackbox_lb.estimate.inputs.sweep import Sweep
from blackbox_lb.estimate.next_token.next_token import NextToken
from blackbox_lb.rollouts.positions import Positions
from tests.support.errors import raises_naming
from tests.support.exact import ExactModel

NAMES = tuple(ROWS)
VOCAB, N = 8, 24
BASE = ExactModel(VOCAB, 4, end=True, seed=1, prompts=4).rollouts(
    N, lambda tokens, _: float(5 in tokens), 2, top=4
)

LIMITS = {
    "none": CompileLimits(None, -100.0, 100.0, integers=False),
    "two entries": CompileLimits(2, -100.0, 100.0, integers=False),
    "two integers": CompileLimits(2, -100.0, 100.0, integers=True),
    "integers up to 5": CompileLimits(None, -5.0, 5.0, integers=True),
    "no entries": CompileLimits(0, -100.0, 100.0, integers=False),
    "only the integer 0": CompileLimits(None, -0.5, 0.5, integers=True),
    "ids up to 3": CompileLimits(None, -2.0, 2.0, integers=True, highest_id=3),
}


def rewarded(rewards: object, rollouts: Rollouts = BASE) -> Rollouts:
    """The same completions with other rewards."""
    return replace(
        rollouts,
        rewards=np.broadcast_to(np.asarray(rewards, dtype=np.float64), len(rollouts.keys)).copy(),
    )


def emptied(rows: object, rollouts: Rollouts = BASE) -> Rollouts:
    """The same completions, those at ``rows`` without a token."""
    empty = np.isin(np.arange(len(rollouts.keys)), np.asarray(rows))
    left = ~empty[rollouts.rollout_of]
    return replace(
        rollouts,
        lengths=np.where(empty, 0, rollouts.lengths),
        bounded=rollouts.bounded[left],
        **{
            name: getattr(rollouts, name)[left]
            for name in ("token_ids", "logprobs", "top_ids", "top_logprobs")
        },
    )


def bare(rollouts: Rollouts = BASE) -> Rollouts:
    """The same tokens without a logprob anywhere."""
    m = len(rollouts.token_ids)
    none, table = np.zeros(m), np.zeros((m, 0))
    return replace(
        rollouts,
        logprobs=none.astype(np.float32),
        bounded=np.ones(m, dtype=np.bool_),
        top_ids=table.astype(np.int32),
        top_logprobs=table.astype(np.float32),
    )


def single_token() -> Rollouts:
    """Five completions of a vocabulary of one token, with different rewards."""
    none = np.zeros(10)
    return Rollouts(
        keys=tuple("abcde"),
        prompts=np.zeros(5, np.int64),
        rewards=np.arange(5.0),
        lengths=np.array([3, 1, 2, 3, 1]),
        token_ids=none.astype(np.int32),
        logprobs=none.astype(np.float32),
        top_ids=none[:, None].astype(np.int32),
        top_logprobs=none[:, None].astype(np.float32),
    )


ONE = np.where(np.arange(N) == 3, 0.0, -np.inf)
UNPRICED = ("logprob", "projection")
BY_PROPENSITY: dict[str, tuple[str, ...]] = {"ips": UNPRICED}

CASES: dict[str, tuple[Rollouts, dict[str, tuple[str, ...]]]] = {
    "one rollout": (BASE.take([0]), {}),
    "one prompt": (BASE.take(BASE.prompts == 0), {}),
    "equal rewards": (rewarded(1.0), {}),
    "large equal rewards": (rewarded(1e6), {}),
    "rewards far apart": (rewarded(np.linspace(-1e4, 0, N)), {}),
    "one reward": (rewarded(ONE), {}),
    "no reward": (rewarded(-np.inf), dict.fromkeys(NAMES, ("24", "-inf"))),
    "vocabulary of one": (single_token(), {}),
    "all censored": (
        replace(BASE, bounded=np.ones(len(BASE.token_ids), dtype=np.bool_)),
        BY_PROPENSITY,
    ),
    "no logprobs": (bare(), BY_PROPENSITY),
    "some empty": (emptied([0, 3, 5]), {}),
    "only an empty one earned a reward": (
        rewarded(ONE, emptied([3])),
        {**dict.fromkeys(NAMES, ("23", "-inf")), "projection": ("token", "max_tokens")},
    ),
}


def sweeps(name: str) -> Iterator[Sweep]:
    """The ways in which an estimator can be asked for."""
    fixed = Sweep((name,), tau=(0.5,), l2=(5.0,), alpha=(0.3,))
    yield fixed
    if name == "projection":
        yield replace(fixed, weights="prompt")
    else:
        yield replace(fixed, unobserved="drop", positions=2, clip=20.0)


def made(
    rollouts: Rollouts, sweep: Sweep, limits: CompileLimits = LIMITS["none"]
) -> list[Candidate]:
    """All candidates."""
    return list(candidates(Positions.of(rollouts), sweep, limits))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("case", CASES)
def test_a_right_answer_or_one_sentence(case: str, name: str) -> None:
    """Numbers that the provider takes, finite, and no further from what was learned than sending
    nothing; or an InputError. A provider's limits come after learning: one way to ask is tried with
    all of them.
    """
    rollouts, refused = CASES[case]
    for number, sweep in enumerate(sweeps(name)):
        if name in refused:
            with raises_naming(InputError, *refused[name]):
                made(rollouts, sweep)
            continue
        for limits in LIMITS.values() if number == 0 else [LIMITS["two integers"]]:
            (candidate,) = made(rollouts, sweep, limits)
            values = np.array(list(candidate.logit_bias.values()))
            sparse = candidate.sparse
            assert np.isfinite(candidate.values).all()
            assert np.isfinite([sparse.kl_lost, sparse.kl_learned, sparse.kept]).all()
            assert len(values) <= (VOCAB if limits.entries is None else limits.entries)
            assert ((values != 0) & (limits.low <= values) & (values <= limits.high)).all()
            assert not limits.integers or (values == np.rint(values)).all()
            assert max(candidate.logit_bias, default=0) <= (limits.highest_id or VOCAB)
            # A refit of few integers is closest to the reward and not to what all tokens together
            # learned.
            assert name == "projection" or sparse.kept >= -1e-9


@pytest.mark.parametrize("name", NAMES)
def test_a_vocabulary_of_one_has_one_policy(name: str) -> None:
    """Whatever bias its only token is given, nothing changes."""
    (candidate,) = made(CASES["vocabulary of one"][0], next(sweeps(name)))
    assert candidate.sparse.kl_learned == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_a_constant_reward_counts_as_any_other(name: str) -> None:
    """exp(r / tau) divides out, also where it is beyond float64."""
    (one,), (other,) = (
        made(CASES[case][0], next(sweeps(name)))
        for case in ("equal rewards", "large equal rewards")
    )
    np.testing.assert_allclose(one.values, other.values, atol=1e-6)


def test_empty_completions_are_not_there() -> None:
    """What holds no token says nothing of any: the estimate is that of the others."""
    rollouts = CASES["some empty"][0]
    (one,), (other,) = (
        made(each, next(sweeps("ips"))) for each in (rollouts, rollouts.take(rollouts.lengths > 0))
    )
    np.testing.assert_allclose(one.values, other.values, atol=1e-12)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_rewards_that_are_no_number_are_refused_with_their_row(value: float) -> None:
    """NaN and +inf are named with the completion that has them."""
    with raises_naming(InputError, "7", BASE.keys[7], value):
        rewarded(np.where(np.arange(N) == 7, value, 0.0))


@pytest.mark.parametrize(
    "rollouts", [BASE.take([]), emptied(np.arange(N))], ids=["none", "all empty"]
)
def test_no_token_at_all_is_refused(rollouts: Rollouts) -> None:
    """No completion, or none with a token: there is nothing to learn from, whatever the
    estimator.
    """
    with raises_naming(InputError, "token position"):
        NextToken.of(rollouts)


def test_rewards_that_only_dropped_tokens_earned() -> None:
    """Where the rewarded completion has no logprob and those are dropped, no token has a value."""
    rollouts = rewarded(ONE)
    rollouts = replace(rollouts, bounded=rollouts.rollout_of == 3)
    sweep = Sweep(("ips",), tau=(0.5,), alpha=(0.3,), unobserved="drop", clip=5.0)
    (candidate,) = made(rollouts, sweep)
    assert candidate.sparse.entries == 0
