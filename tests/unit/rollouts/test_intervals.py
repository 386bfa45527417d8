"""Intervals, tests and verdicts: the paper's definitions by eye, scipy's bootstrap to the last
digit, and published tables. How seldom a bias that does nothing is said to do something is known
truth (``test_truth_verdicts``).
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from blackbox_lb.errors import InputError
from blackbox_lb.rollouts.judging.verdict import (
    GREEDY,
    SAMPLED,
    PolicyScores,
    Setting,
    bootstrap,
    compare,
    parse_setting,
    sample_size,
    sign_test,
    together,
)
from tests.support.errors import raises_naming


@pytest.mark.parametrize("size", [8, 45, 800])
def test_the_papers_interval_is_scipys(size: int) -> None:
    """B = 10,000 replicates of the same generator: scipy.stats.bootstrap's percentile interval is
    ours to the last digits.
    """
    values = np.random.default_rng(1).gamma(1.0, size=size)
    ours = bootstrap(values, seed=7)
    rng = np.random.default_rng(7)
    theirs = stats.bootstrap(
        (values,), np.mean, n_resamples=10_000, method="percentile", rng=rng
    ).confidence_interval
    assert (ours.percentile_low, ours.percentile_high) == pytest.approx(
        (theirs.low, theirs.high), rel=1e-12
    )


def test_the_expanded_interval_is_wider_for_few_prompts_and_the_papers_for_many() -> None:
    """By sqrt(12/11) t(11)/z = 1.17 with 12 prompts; by less than 1 % with 1,000."""
    for size, ratio in (
        (12, np.sqrt(12 / 11) * stats.t.isf(0.025, 11) / stats.norm.isf(0.025)),
        (1000, 1.0),
    ):
        found = bootstrap(np.random.default_rng(3).normal(size=size), replicates=100_000)
        widened = (found.high - found.low) / (found.percentile_high - found.percentile_low)
        assert widened == pytest.approx(ratio, rel=0.02)


@pytest.mark.parametrize("prompts", [6, 40])
def test_the_p_value_is_the_level_of_the_interval(prompts: int) -> None:
    """Moved so that 0 is just on the end of the 95 % interval, a mean has p = .05. Nothing
    evaluated is an error, not a verdict.
    """
    values = np.random.default_rng(4).normal(size=prompts)
    assert bootstrap(values - bootstrap(values).low).p == pytest.approx(0.05, abs=0.002)
    assert bootstrap(np.zeros(prompts)).p == 1
    with raises_naming(InputError, "no prompts"):
        bootstrap(np.array([]))


def test_sign_test_by_eye() -> None:
    """Nine of ten prompts better: (1 + 10) / 2^10 on either side, .0215. Ties say nothing, and
    nothing but ties is p = 1; means that are equal but for the last digit are ties.
    """
    assert sign_test(np.array([1.0] * 9 + [-5.0])) == pytest.approx(2 * 11 / 1024)
    assert sign_test(np.array([1.0] * 9 + [-5.0] + [0.0] * 30)) == pytest.approx(2 * 11 / 1024)
    assert sign_test(np.zeros(5)) == 1
    base, other = rows([0.1 + 0.2], [1 / 3]), rows([0.3], [1 - 2 / 3])
    assert compare(SAMPLED, base, other, "reward")[0].difference == 0.0


@pytest.mark.parametrize(
    ("effect", "sd", "prompts"),
    [
        # Cohen's small, medium and large effect, paired and two-sided, as G*Power prints them.
        (0.2, 1.0, 199),
        (0.5, 1.0, 34),
        (-5.0, 10.0, 34),
        (0.8, 1.0, 15),
        # No effect cannot be shown; one that never varies takes six prompts, as in a sign test.
        (0.0, 1.0, None),
        (1e-12, 1.0, None),
        (0.1, 0.0, 6),
    ],
)
def test_sample_sizes_of_the_tables(effect: float, sd: float, prompts: int | None) -> None:
    """More comparisons take more prompts."""
    assert sample_size(effect, sd) == prompts
    if sd and prompts:
        sizes = [sample_size(effect, sd, level=0.05 / rows) or 0 for rows in (1, 10, 40)]
        assert sizes == sorted(set(sizes))


# Verdicts


def rows(*values: list[float]) -> PolicyScores:
    """Scores with the same numbers as reward, correctness and tokens."""
    arrays = tuple(np.array(value) for value in values)
    return PolicyScores(arrays, arrays, arrays)


def test_a_comparison_by_eye() -> None:
    """Prompt means 1 and 2 against 3 and 4, three times: every metric is 2 higher, which helps a
    reward and hurts a length.
    """
    base, biased = rows(*([0.0, 2.0], [2.0, 2.0]) * 3), rows(*([3.0], [4.0]) * 3)
    reward, accuracy, tokens = compare(SAMPLED, base, biased, "reward")
    assert (reward.base, reward.biased) == (1.5, 3.5)
    assert (reward.difference, reward.low, reward.high) == (2, 2, 2)
    assert (reward.n_prompts, reward.n_base, reward.n_biased) == (6, 12, 6)
    assert [row.verdict for row in (reward, accuracy, tokens)] == ["HELPS", "HELPS", "HURTS"]


@pytest.mark.parametrize(
    ("differences", "verdict"),
    [
        ([1.0], "NO EVIDENCE"),
        ([1.0] * 5, "NO EVIDENCE"),
        ([1.0] * 6, "HELPS"),
        ([1.0] * 5 + [0.0] * 45, "NO EVIDENCE"),
        ([1.0] * 6 + [0.0] * 44, "HELPS"),
        ([-1.0] * 6, "HURTS"),
        ([1.01, -0.99] * 25, "NO EVIDENCE"),
        ([2.01, 0.01] * 25, "HELPS"),
        ([-0.01, -2.01] * 25, "HURTS"),
    ],
    ids=lambda value: value if isinstance(value, str) else f"{len(value)} of {value[0]}",
)
def test_the_verdict_follows_the_interval(differences: list[float], verdict: str) -> None:
    """An interval that holds 0 is no evidence, whatever the mean; five differences of one sign
    happen by chance once in 16 times, however many prompts do not differ.
    """
    base = rows(*([0.0] for _ in differences))
    biased = rows(*([difference] for difference in differences))
    assert compare(SAMPLED, base, biased, "reward")[0].verdict == verdict


def test_rows_are_judged_together() -> None:
    """Holm's worked example: .01, .04, .03, .005 become .03, .06, .06, .02."""
    one = compare(SAMPLED, rows([0.0]), rows([1.0]), "reward")[0]
    alone = [
        one.replacing(p=p, biased=difference, difference=difference)
        for p, difference in ((0.01, 1.0), (0.04, 1.0), (0.03, 1.0), (0.005, -1.0))
    ]
    judged = together(alone)
    assert [row.p for row in judged] == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert [row.verdict for row in judged] == ["HELPS", "NO EVIDENCE", "NO EVIDENCE", "HURTS"]
    assert together([]) == []


def test_settings() -> None:
    """greedy, temperature=T; temperature 0 is greedy; names are the same however they are
    written. Another form is refused.
    """
    assert parse_setting("greedy") == parse_setting("temperature=0") == GREEDY
    assert parse_setting("temperature=1.0") == SAMPLED
    assert parse_setting("temperature=0.50") == Setting("temperature 0.5", 0.5)
    for spec in ("", "temperature=", "temperature=-1", "temperature=3", "temperature=nan"):
        with raises_naming(InputError, "temperature=T"):
            parse_setting(spec)
