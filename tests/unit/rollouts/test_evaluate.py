"""Verdicts: worked examples, and how seldom a bias that does nothing is said to do something."""

from __future__ import annotations

import numpy as np
import pytest

from blackbox_lb.bias.records import Comparison
from blackbox_lb.errors import InputError
from blackbox_lb.rollouts.judging.verdict import (
    GREEDY,
    SAMPLED,
    PolicyScores,
    Setting,
    bootstrap,
    compare,
    parse_setting,
    score,
    together,
)
from blackbox_lb.tasks import parse_reward
from blackbox_lb.types import Completion, Example, Prompt
from tests.support.errors import raises_naming

REWARD = parse_reward("correct-and-short", max_tokens=8)


def completion(text: str, tokens: int) -> Completion:
    """A completion of which only text and length matter."""
    nothing = np.zeros((tokens, 0))
    return Completion(
        text,
        "stop",
        np.zeros(tokens, np.int32),
        np.zeros(tokens, np.float32),
        nothing.astype(np.int32),
        nothing.astype(np.float32),
    )


def test_scores_by_eye() -> None:
    """Right in 4 of 8 tokens is worth 2, right in 8 is worth 1, wrong is worth 0."""
    example = Example("1", Prompt.user("capital of France?"), ("Paris",))
    found = score(
        REWARD,
        [example],
        [[completion("Paris", 4), completion("It is Paris.", 8), completion("Rome", 2)]],
    )
    assert found.reward[0].tolist() == [2.0, 1.0, 0.0]
    assert found.correct is not None
    assert found.correct[0].tolist() == [1.0, 1.0, 0.0]
    assert found.tokens[0].tolist() == [4.0, 8.0, 2.0]


def rows(*values: list[float]) -> PolicyScores:
    """Scores with the same numbers as reward, correctness and tokens."""
    arrays = tuple(np.array(value) for value in values)
    return PolicyScores(arrays, arrays, arrays)


def test_a_comparison_by_eye() -> None:
    """Prompt means 1 and 2 against 3 and 4, three times: every metric is 2 higher, which helps a
    reward and hurts a length.
    """
    reward, accuracy, tokens = compare(
        SAMPLED, rows(*([0.0, 2.0], [2.0, 2.0]) * 3), rows(*([3.0], [4.0]) * 3), REWARD.label
    )
    assert (reward.base, reward.biased, reward.difference, reward.low, reward.high) == (
        1.5,
        3.5,
        2,
        2,
        2,
    )
    assert (reward.n_prompts, reward.n_base, reward.n_biased) == (6, 12, 6)
    assert [row.verdict for row in (reward, accuracy, tokens)] == ["HELPS", "HELPS", "HURTS"]


@pytest.mark.parametrize("prompts", [1, 2, 5])
def test_a_handful_of_prompts_proves_nothing(prompts: int) -> None:
    """Five differences of one sign happen by chance once in 16 times, which is no 95 % verdict."""
    row = compare(SAMPLED, rows(*([0.0],) * prompts), rows(*([1.0],) * prompts), REWARD.label)[0]
    assert (row.difference, row.verdict) == (1, "NO EVIDENCE")


@pytest.mark.parametrize(
    ("shift", "verdict"), [(0.0, "NO EVIDENCE"), (1.0, "HELPS"), (-1.0, "HURTS")]
)
def test_the_verdict_follows_the_interval(shift: float, verdict: str) -> None:
    """An interval that holds 0 is no evidence, whatever the mean."""
    noise = np.random.default_rng(0).normal(size=50)
    noise -= noise.mean() - 0.01
    row = compare(
        SAMPLED,
        rows(*([0.0] for _ in noise)),
        rows(*([value + shift] for value in noise)),
        REWARD.label,
    )[0]
    assert row.verdict == verdict


def row(p: float, metric: str = "tokens", difference: float = 1.0) -> Comparison:
    """A verdict of which only the p-value and the direction matter."""
    numbers = {
        "base": 0.0,
        "biased": difference,
        "difference": difference,
        "low": -9.0,
        "high": 9.0,
        "p": p,
    }
    paired = {"percentile_low": -9.0, "percentile_high": 9.0, "p_sign": p, "sd": 1.0}
    counts = {"n_prompts": 9, "n_base": 9, "n_biased": 9}
    return Comparison(
        policy="bias",
        against="base",
        setting="greedy",
        metric=metric,
        better="higher",
        verdict="NO EVIDENCE",
        **numbers,
        **paired,
        **counts,
    )


def test_rows_are_judged_together() -> None:
    """Holm's worked example: .01, .04, .03, .005 become .03, .06, .06, .02."""
    rows = together([row(0.01), row(0.04), row(0.03), row(0.005, difference=-1.0)])
    assert [each.p for each in rows] == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert [each.verdict for each in rows] == ["HELPS", "NO EVIDENCE", "NO EVIDENCE", "HURTS"]


def test_a_bias_that_does_nothing_is_seldom_said_to_do_something() -> None:
    """Of 400 tables with six rows of noise at most 7 % hold any verdict; judged row by row more
    than 15 % would.
    """
    rng, alone, all_rows = np.random.default_rng(5), 0, 0
    for number in range(400):
        found = [bootstrap(rng.normal(size=40), replicates=1000, seed=number).p for _ in range(6)]
        alone += min(found) <= 0.05
        all_rows += any(each.verdict != "NO EVIDENCE" for each in together([row(p) for p in found]))
    assert alone / 400 > 0.15
    assert all_rows / 400 <= 0.07


def test_settings() -> None:
    """greedy, temperature=T; temperature 0 is greedy; names are the same however they are
    written.
    """
    assert parse_setting("greedy") == parse_setting("temperature=0") == GREEDY
    assert parse_setting("temperature=1.0") == SAMPLED
    assert parse_setting("temperature=0.50") == Setting("temperature 0.5", 0.5)


@pytest.mark.parametrize(
    "spec",
    [
        "",
        "hot",
        "temperature",
        "temperature=",
        "temperature=x",
        "temperature=-1",
        "temperature=3",
        "temperature=nan",
    ],
)
def test_what_is_no_setting_is_refused(spec: str) -> None:
    """The form is named."""
    with raises_naming(InputError, "temperature=T"):
        parse_setting(spec)
