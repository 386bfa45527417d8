"""Statistics is a monoid: laws that hold for any rollouts, any order, any sharding and any repetition."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blackbox_lb.errors import InputError
from blackbox_lb.estimate.ips import IPS
from blackbox_lb.estimate.ratio import Ratio
from blackbox_lb.estimate.rollouts import Rollouts
from blackbox_lb.estimate.snips import SNIPS
from blackbox_lb.estimate.statistics import Statistics, Unobserved

Row = tuple[str, float, Sequence[tuple[Any, ...]]]
"""Key, reward, and (token, logprob) or (token, logprob, bounded) of each position."""

rows = st.lists(
    st.tuples(
        st.text(min_size=1, max_size=6),
        st.one_of(st.floats(-20, 20), st.just(-np.inf)),
        st.lists(st.tuples(st.integers(0, 6), st.floats(-30, 0, width=32), st.booleans()), max_size=8),
    ),
    max_size=10,
    unique_by=lambda row: row[0],
)
draws = st.sampled_from([None, 1, 3])
rules = st.sampled_from(get_args(Unobserved))
clips = st.sampled_from([None, 1.0, 50.0])


def is_bounded(token: tuple[Any, ...]) -> bool:
    """Whether a position has no logprob of its own."""
    return len(token) == 3 and token[2]


def columns(some: Sequence[Row]) -> Rollouts:
    """Rollouts from rows."""
    tokens = [token for row in some for token in row[2]]
    return Rollouts(
        keys=tuple(row[0] for row in some),
        prompts=np.zeros(len(some), np.int64),
        rewards=np.array([row[1] for row in some], np.float64),
        lengths=np.array([len(row[2]) for row in some], np.int64),
        token_ids=np.array([token[0] for token in tokens], np.int32),
        logprobs=np.array([token[1] for token in tokens], np.float32),
        top_ids=np.zeros((len(tokens), 0), np.int32),
        top_logprobs=np.zeros((len(tokens), 0), np.float32),
        bounded=np.array([is_bounded(token) for token in tokens], np.bool_),
    )


def of(
    some: Sequence[Row],
    positions: int | None = None,
    seed: int = 0,
    rule: Unobserved = "bound",
    clip: float | None = None,
) -> Statistics:
    """Statistics of these rows."""
    return Statistics.of(columns(some), positions=positions, seed=seed, unobserved=rule, clip=clip)


@given(rows, draws, rules, clips)
def test_zero_is_neutral(some: list[Row], positions: int | None, rule: Unobserved, clip: float | None) -> None:
    """zero + s = s + zero = s, and no rollouts give zero."""
    s = of(some, positions, rule=rule, clip=clip)
    assert Statistics.zero() + s == s
    assert s + Statistics.zero() == s
    assert of([]) == Statistics.zero()


@given(rows, rows, rows, rules, clips)
def test_addition_is_associative_and_commutative(
    a: list[Row], b: list[Row], c: list[Row], rule: Unobserved, clip: float | None
) -> None:
    """Grouping and order of shards do not matter, bit for bit."""
    x, y, z = (
        of([(name + key, reward, tokens) for key, reward, tokens in part], rule=rule, clip=clip)
        for name, part in zip("abc", (a, b, c), strict=True)
    )
    assert (x + y) + z == x + (y + z)
    assert x + y == y + x


@given(rows, draws, st.integers(0, 3), rules, clips, st.data())
def test_any_sharding_and_order_is_the_whole(
    some: list[Row], positions: int | None, seed: int, rule: Unobserved, clip: float | None, data: st.DataObject
) -> None:
    """Shards in any order, of any size, overlapping or empty, add up to the statistics of all rollouts at once."""
    whole = of(some, positions, seed, rule, clip)
    shuffled = data.draw(st.permutations(some))
    where = [data.draw(st.sets(st.integers(0, 3), min_size=1)) for _ in some]
    shards = [[row for row, at in zip(shuffled, where, strict=True) if i in at] for i in range(4)]
    total = sum((of(shard, positions, seed, rule, clip) for shard in shards), Statistics.zero())
    assert total == whole
    if whole.observed.any() and (whole.rewards[whole.lengths > 0] > -np.inf).any():
        np.testing.assert_array_equal(IPS(total).zhat(1.3), IPS(whole).zhat(1.3))
        np.testing.assert_array_equal(IPS(total).clipping(1.3).removed, IPS(whole).clipping(1.3).removed)
        for each in (SNIPS, Ratio):
            np.testing.assert_array_equal(each(total).delta(1.3, 2.0), each(whole).delta(1.3, 2.0))


@given(rows, draws, rules, clips)
def test_resuming_adds_nothing(some: list[Row], positions: int | None, rule: Unobserved, clip: float | None) -> None:
    """Adding rollouts that are already in changes nothing."""
    s = of(some, positions, rule=rule, clip=clip)
    assert s + s == s
    assert s + of(some[: len(some) // 2], positions, rule=rule, clip=clip) == s


@given(rows, draws, rules, st.floats(1, 1e6))
def test_clipping_keeps_account_of_what_it_removes(
    some: list[Row], positions: int | None, rule: Unobserved, clip: float
) -> None:
    """Kept and removed sum to the row without clipping; what was not clipped lost nothing, and no clip is one beyond all."""
    whole, clipped = of(some, positions, rule=rule), of(some, positions, rule=rule, clip=clip)
    np.testing.assert_allclose(clipped.inverse + clipped.removed, whole.inverse, rtol=1e-12)
    np.testing.assert_array_equal(clipped.inverse[clipped.clipped == 0], whole.inverse[clipped.clipped == 0])
    np.testing.assert_array_equal(clipped.removed > 0, clipped.clipped > 0)
    assert (clipped.clipped <= clipped.counts).all()
    assert not whole.removed.any()
    assert whole == of(some, positions, rule=rule, clip=1e300)


@given(rows, rules)
def test_the_strictest_clip_counts(some: list[Row], rule: Unobserved) -> None:
    """With a clip of 1 every drawn position counts once, whatever its probability."""
    s = of(some, rule=rule, clip=1.0)
    row_of = np.repeat(np.arange(len(s)), np.diff(s.starts))
    sums = np.bincount(row_of, weights=s.inverse, minlength=len(s))
    np.testing.assert_allclose(sums, s.drawn > 0, rtol=1e-12)


@given(rows, draws, st.integers(0, 3))
def test_without_bounded_positions_there_is_one_answer(some: list[Row], positions: int | None, seed: int) -> None:
    """Where every logprob was given, what would be done about a missing one does not matter, bit for bit."""
    given_: list[Row] = [(key, reward, [token[:2] for token in tokens]) for key, reward, tokens in some]
    assert of(given_, positions, seed, "bound") == of(given_, positions, seed, "drop")
    with_bounds = of(some, positions, seed)
    assert of(given_, positions, seed).observed.sum() == sum(len(row[2]) for row in some)
    assert of(given_, positions, seed) == replace(with_bounds, observed=with_bounds.lengths), "read like a logprob"


@given(rows, draws, st.integers(0, 3))
def test_dropped_positions_are_not_drawn(some: list[Row], positions: int | None, seed: int) -> None:
    """ "drop" draws min(P, usable) of the positions with a logprob, and their mean of 1 / pi_0 is all that a row holds."""
    s = of(some, positions, seed, "drop")
    by_key = {row[0]: row[2] for row in some}
    for n, key in enumerate(s.keys):
        usable = [(token[0], token[1]) for token in by_key[key] if not is_bounded(token)]
        part = slice(s.starts[n], s.starts[n + 1])
        assert s.drawn[n] == min(len(usable), len(usable) if positions is None else positions)
        assert s.counts[part].sum() == s.lengths[n] == len(by_key[key])
        if s.drawn[n] == len(usable) > 0:
            expected = np.zeros(7)
            np.add.at(
                expected, [token for token, _ in usable], [np.exp(-logprob) / len(usable) for _, logprob in usable]
            )
            np.testing.assert_allclose(s.inverse[part], expected[s.token_ids[part]], rtol=1e-6)
        if not usable:
            assert not s.inverse[part].any()


@given(rows.filter(lambda some: any(row[2] for row in some)), st.data())
def test_a_key_with_two_contents_is_refused(some: list[Row], data: st.DataObject) -> None:
    """The same key with another reward or another logprob is an error that names the key."""
    key, reward, tokens = data.draw(st.sampled_from([row for row in some if row[2]]))
    changed = (key, 1.0 if reward == -np.inf else reward + 1, tokens)
    other = (key, reward, [(tokens[0][0], tokens[0][1] - 1, False), *tokens[1:]])
    for row in (changed, other):
        with pytest.raises(InputError, match="occurs twice with different contents") as caught:
            of(some) + of([row])
        assert key in str(caught.value)


@given(rows, st.integers(1, 9))
def test_rows_account_for_every_position(some: list[Row], positions: int) -> None:
    """P_n is min(P, T_n), counts cover all positions, and each row is its drawn positions' mean of 1 / pi_0."""
    s = of(some, positions)
    by_key = {row[0]: row for row in some}
    for n, key in enumerate(s.keys):
        tokens = by_key[key][2]
        part = slice(s.starts[n], s.starts[n + 1])
        assert s.drawn[n] == min(positions, len(tokens))
        assert s.counts[part].sum() == s.lengths[n] == len(tokens)
        if positions >= len(tokens) > 0:
            expected = np.zeros(7)
            for token, logprob, *_ in tokens:
                expected[token] += np.exp(-logprob) / len(tokens)
            np.testing.assert_allclose(s.inverse[part], expected[s.token_ids[part]], rtol=1e-6)


@settings(max_examples=20)
@given(st.integers(2, 12), st.integers(1, 11), st.integers(0, 5))
def test_positions_are_drawn_uniformly(length: int, positions: int, seed: int) -> None:
    """Over 400 keys every position is drawn about equally often, exactly min(P, T) of each, never twice."""
    tokens = [(t, 0.0) for t in range(length)]
    s = of([(f"k{i}", 0.0, tokens) for i in range(400)], positions, seed)
    kept = s.inverse.reshape(400, length) > 0
    share = min(positions, length) / length
    assert (kept.sum(axis=1) == min(positions, length)).all()
    assert np.abs(kept.mean(axis=0) - share).max() < 5 * np.sqrt(share * (1 - share) / 400) + 1e-9


def test_the_draw_is_recorded() -> None:
    """The drawn positions of one key under one seed are a recorded fact, so that stored results can be reproduced."""
    s = of([("rollout", 0.0, [(t, 0.0) for t in range(10)])], 3, 1)
    assert s.token_ids[s.inverse > 0].tolist() == [0, 1, 6]


@pytest.mark.parametrize(
    ("logprob", "message"),
    [
        (np.nan, "sampled logprob nan in rollout bad"),
        (0.01, "sampled logprob 0.0[0-9]* in rollout bad"),
        (-np.inf, "-inf in rollout bad"),
        (-9999.0, "-9999 in rollout bad is a mark for 'not given'"),
    ],
)
def test_impossible_logprobs_are_refused_by_key(logprob: float, message: str) -> None:
    """NaN, positive, -inf and censored logprobs are errors that name the rollout."""
    with pytest.raises(InputError, match=message):
        of([("good", 0.0, [(1, -0.5)]), ("bad", 0.0, [(1, -0.5), (2, logprob)])])


@pytest.mark.parametrize("rule", get_args(Unobserved))
def test_a_mark_is_no_bound(rule: Unobserved) -> None:
    """A mark for 'not given' is refused even where it is said to be a bound: nobody has put the bound in its place."""
    with pytest.raises(InputError, match="-9999 in rollout bad is a mark"):
        of([("bad", 0.0, [(1, -0.5, False), (2, -9999.0, True)])], rule=rule)


def test_shards_under_two_rules_are_refused() -> None:
    """The same rollout with its bounded position taken and dropped is not the same rollout; the message names the rule."""
    row: Row = ("a", 0.0, [(1, -0.5, False), (2, -3.0, True)])
    with pytest.raises(InputError, match="one rule for bounded positions"):
        of([row], rule="bound") + of([row], rule="drop")
    with pytest.raises(InputError, match="one clip"):
        of([row]) + of([row], clip=4.0)


def test_rounding_above_zero_is_clamped() -> None:
    """A logprob of 1e-4 is rounding and counts as probability 1."""
    assert of([("a", 0.0, [(1, 1e-4)])]).inverse.tolist() == [1.0]


def test_empty_completions_do_not_enter_n() -> None:
    """A completion without positions is counted apart, and the estimate is that of the others."""
    rows: list[Row] = [("a", 0.5, [(1, -0.5)]), ("b", 0.2, [(0, -1.0)])]
    with_empty = of([*rows, ("c", 3.0, [])])
    assert (with_empty.n_empty, with_empty.n_used) == (1, 2)
    np.testing.assert_array_equal(IPS(with_empty).zhat(1.0), IPS(of(rows)).zhat(1.0))
    for each in (IPS, SNIPS, Ratio):
        assert each(with_empty).token_ids.tolist() == [0, 1]
        with pytest.raises(InputError, match="no token position"):
            each(of([("c", 3.0, [])]))


@pytest.mark.parametrize("rule", get_args(Unobserved))
def test_without_any_logprob_only_the_ratio_is_left(rule: Unobserved) -> None:
    """Where no sampled token has a logprob there are no propensities: the message names the estimator that needs none."""
    rows: list[Row] = [("a", 0.5, [(1, 0.0, True)]), ("b", 0.2, [(0, 0.0, True), (1, 0.0, True)])]
    for each in (IPS, SNIPS):
        with pytest.raises(InputError, match=r"none of the 3 sampled tokens has a logprob.*--estimator ratio"):
            each(of(rows, rule=rule))
    given_: list[Row] = [(key, reward, [token[:2] for token in tokens]) for key, reward, tokens in rows]
    np.testing.assert_array_equal(Ratio(of(rows, rule=rule)).delta(1.0, 2.0), Ratio(of(given_)).delta(1.0, 2.0))


def test_completions_of_another_policy_are_refused() -> None:
    """Their logprobs are not the base's; a policy that happens to be the base is the base."""
    rollouts = columns([("a", 0.5, [(1, -0.5)]), ("b", 0.2, [(0, -1.0)])])
    with pytest.raises(InputError, match=r"1 of 2 rollouts were drawn from another policy.*projection"):
        Statistics.of(replace(rollouts, log_ratios=np.array([0.0, 0.3])))
    assert Statistics.of(replace(rollouts, log_ratios=np.zeros(2))) == Statistics.of(rollouts)


def test_bad_arguments_are_named() -> None:
    """No positions, an unknown rule, a vocabulary that is too small and a negative id are errors."""
    with pytest.raises(InputError, match="'guess' is unknown; choose 'bound' or 'drop'"):
        of([], rule="guess")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="positions is 0"):
        of([], 0)
    for clip in (0.99, -1.0, np.nan, np.inf):
        with pytest.raises(InputError, match=f"clip is {clip}"):
            of([], clip=clip)
    with pytest.raises(InputError, match="vocabulary has 2 entries"):
        of([("a", 0.0, [(5, -0.5)])]).matrix(2)
    with pytest.raises(InputError, match="token id -1 in rollout a"):
        of([("a", 0.0, [(-1, -0.5)])])
