"""Intervals, tests and verdicts: the paper's definitions by eye, scipy's bootstrap to the last
digit, published tables, and how seldom a bias that does nothing is said to do something.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from blackbox_lb.bias.records import Comparison
from blackbox_lb.errors import InputError
from blackbox_lb.rollouts.judging.verdict import (
    GREEDY,
    REPLICATES,
    SAMPLED,
    PolicyScores,
    Setting,
    bootstrap,
    compare,
    paired,
    parse_setting,
    sample_size,
    sign_test,
    together,
)
from blackbox_lb.tasks import parse_reward
from tests.support.errors import raises_naming


@pytest.mark.parametrize("size", [8, 45, 800])
def test_the_papers_interval_is_scipys(size: int) -> None:
    """B = 10,000 replicates of the same generator: scipy.stats.bootstrap's percentile interval is
    ours to the last digits.
    """
    values = np.random.default_rng(1).gamma(1.0, size=size)
    ours = bootstrap(values, seed=7)
    theirs = stats.bootstrap(
        (values,),
        np.mean,
        n_resamples=REPLICATES,
        method="percentile",
        rng=np.random.default_rng(7),
    ).confidence_interval
    assert REPLICATES == 10_000
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


@pytest.mark.parametrize("prompts", [12, 60])
def test_the_interval_covers(prompts: int) -> None:
    """Over 400 data sets of prompts with several correlated completions each, 92 to 98 % of 95 %
    intervals hold the truth.
    """
    rng = np.random.default_rng(3)
    hits = 0
    for number in range(400):
        prompt_effect = rng.normal(0.3, 1.0, size=prompts)
        means = (prompt_effect[:, None] + rng.normal(size=(prompts, 4))).mean(axis=1)
        found = bootstrap(means, replicates=2000, seed=number)
        hits += found.low <= 0.3 <= found.high
    assert 0.92 <= hits / 400 <= 0.98


@pytest.mark.parametrize("sizes", ["one", "several"])
@pytest.mark.parametrize("prompts", [50, pytest.param(200, marks=pytest.mark.slow)])
def test_few_changed_prompts_prove_little(prompts: int, sizes: str) -> None:
    """Where 4, 5, 8 or 20 of 50 or 200 prompts change, each as often for the better as for the
    worse, the 95 % interval holds 0 in at least 93 % of draws, and p is below .05 in at most 5 %.
    """
    rng = np.random.default_rng(8)
    draws = 500
    shown_in_all = 0
    for changed in (4, 5, 8, 20):
        covered = shown = 0
        for number in range(draws):
            differences = np.zeros(prompts)
            differences[:changed] = rng.choice([-1.0, 1.0], changed)
            if sizes == "several":
                differences[:changed] = rng.random(changed) - rng.random(changed)
            found = bootstrap(differences, replicates=1000, seed=number)
            covered += found.low <= 0 <= found.high
            shown += found.p <= 0.05
        assert covered / draws >= 0.93
        assert shown <= stats.binom.isf(0.01, draws, 0.05), "more often than luck at a rate of 5 %"
        shown_in_all += shown
    assert shown_in_all / (4 * draws) <= 0.05


@pytest.mark.parametrize(("changed", "is_shown"), [(1, False), (4, False), (5, False), (6, True)])
def test_the_floor_of_p_counts_the_prompts_that_differ(changed: int, is_shown: bool) -> None:
    """Changes of one sign on few of 50 prompts have no smaller p than a sign test over them: six
    are the fewest that are shown, by the p-value and by the interval.
    """
    differences = np.zeros(50)
    differences[:changed] = 1.0
    found = bootstrap(differences)
    assert found.p >= sign_test(differences)
    assert (found.p <= 0.05) == is_shown
    assert (found.low > 0) == is_shown


def test_rounding_is_no_change() -> None:
    """Means that are equal but for the last digit are the same answer, and no evidence."""
    base = [np.array([value]) for value in (0.1 + 0.2, 1 / 3, 0.5)]
    other = [np.array([value]) for value in (0.3, 1 - 2 / 3, 0.75)]
    assert paired(base, other)[2].tolist() == [0.0, 0.0, 0.25]


@pytest.mark.parametrize("prompts", [6, 40])
def test_the_p_value_is_the_level_of_the_interval(prompts: int) -> None:
    """Moved so that 0 is just on the end of the 95 % interval, a mean has p = .05; a sign test's
    floor aside.
    """
    values = np.random.default_rng(4).normal(size=prompts)
    found = bootstrap(values - bootstrap(values).low)
    assert found.p == pytest.approx(0.05, abs=0.002)
    assert bootstrap(np.zeros(prompts)).p == 1
    assert bootstrap(np.ones(prompts)).p == pytest.approx(
        max(2.0 ** (1 - prompts), found.p / 100), abs=0.002
    )


def test_no_prompts_is_refused() -> None:
    """Nothing evaluated is an error, not a verdict."""
    with raises_naming(InputError, "no prompts"):
        bootstrap(np.array([]))


def test_sign_test_by_eye() -> None:
    """Nine of ten prompts better: (1 + 10) / 2^10 on either side, .0215. Ties say nothing, and
    nothing but ties is p = 1.
    """
    assert sign_test(np.array([1.0] * 9 + [-5.0])) == pytest.approx(2 * 11 / 1024)
    assert sign_test(np.array([1.0] * 9 + [-5.0] + [0.0] * 30)) == pytest.approx(2 * 11 / 1024)
    assert sign_test(np.zeros(5)) == 1


@pytest.mark.parametrize(("effect", "prompts"), [(0.2, 199), (0.5, 34), (0.8, 15)])
def test_sample_sizes_of_the_tables(effect: float, prompts: int) -> None:
    """Cohen's small, medium and large effect, paired and two-sided: the numbers that G*Power
    prints; their sign does not matter.
    """
    assert sample_size(effect, 1.0) == sample_size(-10 * effect, 10.0) == prompts


def test_sample_sizes_at_the_ends() -> None:
    """No effect cannot be shown; one that never varies takes six prompts, as in a sign test; more
    comparisons take more prompts.
    """
    assert sample_size(0.0, 1.0) is None
    assert sample_size(1e-12, 1.0) is None
    assert sample_size(0.1, 0.0) == 6
    sizes = [sample_size(0.5, 1.0, level=0.05 / rows) or 0 for rows in (1, 10, 40)]
    assert sizes == sorted(sizes)
    assert sizes[0] < sizes[-1]


@pytest.mark.parametrize("level", [0.05, 0.05 / 20])
def test_so_many_prompts_do_show_it(level: float) -> None:
    """Drawn 300 times with the number of prompts that is told, differences of that size are shown
    by our own p in 75 to 85 %.
    """
    effect, rng = 0.45, np.random.default_rng(6)
    prompts = sample_size(effect, 1.0, level=level)
    assert prompts is not None
    draws = (
        bootstrap(rng.normal(effect, 1.0, prompts), replicates=4000, seed=number)
        for number in range(300)
    )
    assert 0.75 <= sum(found.p <= level for found in draws) / 300 <= 0.85


# Verdicts

REWARD = parse_reward("correct-and-short", max_tokens=8)


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
    assert (reward.base, reward.biased) == (1.5, 3.5)
    assert (reward.difference, reward.low, reward.high) == (2, 2, 2)
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
    assert together([]) == []


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
    ["", "temperature", "temperature=", "temperature=-1", "temperature=3", "temperature=nan"],
)
def test_what_is_no_setting_is_refused(spec: str) -> None:
    """The form is named."""
    with raises_naming(InputError, "temperature=T"):
        parse_setting(spec)
