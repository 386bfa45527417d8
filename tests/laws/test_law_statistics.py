"""Statistics is a monoid: laws that hold for any rollouts, any order, any sharding and any
repetition.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blackbox_lb.errors import InputError
from blackbox_lb.estimate.counting.statistics import (
    Cells,
    Recipe,
    Statistics,
    TokenIPS,
)
from blackbox_lb.estimate.inputs.rollouts import Rollouts
from blackbox_lb.estimate.inputs.sweep import Sweep, Unobserved
from tests.support.errors import raises_naming
from tests.support.statistics import close, statistics_of, zhat_of

Row = tuple[str, float, Sequence[tuple[Any, ...]]]
"""Key, reward, and (token, logprob) or (token, logprob, bounded) of each position."""

rows = st.lists(
    st.tuples(
        st.text(min_size=1, max_size=6),
        st.one_of(st.floats(-20, 20), st.just(-np.inf)),
        st.lists(
            st.tuples(st.integers(0, 6), st.floats(-30, 0, width=32), st.booleans()), max_size=8
        ),
    ),
    max_size=10,
    unique_by=lambda row: row[0],
)
draws = st.sampled_from([None, 1, 3])
rules = st.sampled_from(get_args(Unobserved))
clips = st.sampled_from([None, 1.0, 50.0])

TAU = (0.7, 1.3)
HIGHEST = 20.0
"""No reward below is higher."""


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
    highest: float | None = HIGHEST,
) -> Statistics:
    """Statistics of these rows."""
    return statistics_of(
        columns(some),
        TAU,
        highest=highest,
        positions=positions,
        seed=seed,
        unobserved=rule,
        clip=clip,
    )


def cells_of(
    some: Sequence[Row],
    positions: int | None = None,
    seed: int = 0,
    rule: Unobserved = "bound",
    clip: float | None = None,
) -> Cells:
    """The cells of these rows."""
    return Cells.of(columns(some), Recipe(TAU, HIGHEST, positions, seed, rule, clip))


def tokens_of(cells: Cells) -> np.ndarray:
    """(c,) the token of each cell."""
    return np.repeat(np.arange(len(cells.starts) - 1), np.diff(cells.starts))


@given(rows, draws, rules, clips)
def test_zero_is_neutral(
    some: list[Row], positions: int | None, rule: Unobserved, clip: float | None
) -> None:
    """zero + s = s + zero = s, and no rollouts give zero."""
    s = of(some, positions, rule=rule, clip=clip)
    assert close(Statistics.zero() + s, s)
    assert close(s + Statistics.zero(), s)
    assert close(of([]), Statistics.zero())


@given(rows, rows, rows, rules, clips)
def test_addition_is_associative_and_commutative(
    a: list[Row], b: list[Row], c: list[Row], rule: Unobserved, clip: float | None
) -> None:
    """Grouping and order of shards do not matter."""
    x, y, z = (
        of([(name + key, reward, tokens) for key, reward, tokens in part], rule=rule, clip=clip)
        for name, part in zip("abc", (a, b, c), strict=True)
    )
    assert close((x + y) + z, x + (y + z))
    assert close(x + y, y + x)


@given(rows, draws, st.integers(0, 3), rules, clips, st.data())
def test_any_sharding_and_order_is_the_whole(
    some: list[Row],
    positions: int | None,
    seed: int,
    rule: Unobserved,
    clip: float | None,
    data: st.DataObject,
) -> None:
    """Shards in any order and of any size, some empty, add up to the statistics of all rollouts at
    once.
    """
    whole = of(some, positions, seed, rule, clip)
    shuffled = data.draw(st.permutations(some))
    where = [data.draw(st.integers(0, 3)) for _ in some]
    shards = [[row for row, at in zip(shuffled, where, strict=True) if i == at] for i in range(4)]
    total = sum((of(shard, positions, seed, rule, clip) for shard in shards), Statistics.zero())
    assert close(total, whole)
    if whole.observed and (columns(some).rewards[columns(some).lengths > 0] > -np.inf).any():
        np.testing.assert_allclose(
            zhat_of(TokenIPS(total), 1.3), zhat_of(TokenIPS(whole), 1.3), rtol=1e-12
        )


@settings(max_examples=30)
@given(rows, st.integers(1, 12), st.integers(1, 3), clips)
def test_blocks_and_threads_cannot_be_told(
    some: list[Row], positions: int, threads: int, clip: float | None
) -> None:
    """Blocks of any size give the same sums, and any number of threads the same bits."""
    recipe = Recipe(TAU, HIGHEST, clip=clip)
    gathered, alone = (
        Statistics.gather(columns(some).blocks(positions), recipe, threads=each)
        for each in (threads, 1)
    )
    assert close(gathered, of(some, clip=clip))
    assert np.array_equal(gathered.inverse, alone.inverse)


@given(rows, draws, rules, st.floats(1, 1e6))
def test_clipping_only_lowers(
    some: list[Row], positions: int | None, rule: Unobserved, clip: float
) -> None:
    """A rollout without a clipped token keeps its row, every other one is lower or the same, and no
    clip is one beyond all.
    """
    whole, clipped = (
        cells_of(some, positions, rule=rule),
        cells_of(some, positions, rule=rule, clip=clip),
    )
    assert (clipped.inverse <= whole.inverse).all()
    data = columns(some)
    beyond = np.bincount(data.rollout_of[np.exp(-data.logprobs) > clip], minlength=len(some)) > 0
    kept = ~beyond[clipped.rows]
    np.testing.assert_array_equal(clipped.inverse[kept], whole.inverse[kept])
    same, far = of(some, positions, rule=rule), of(some, positions, rule=rule, clip=1e300)
    assert np.array_equal(same.inverse, far.inverse)


@given(rows, rules)
def test_the_strictest_clip_counts(some: list[Row], rule: Unobserved) -> None:
    """With a clip of 1 every drawn position counts once, whatever its probability."""
    cells = cells_of(some, rule=rule, clip=1.0)
    sums = np.bincount(cells.rows, weights=cells.inverse, minlength=len(some))
    np.testing.assert_allclose(sums, cells.drawn > 0, rtol=1e-12)


@given(rows, draws, st.integers(0, 3))
def test_without_bounded_positions_there_is_one_answer(
    some: list[Row], positions: int | None, seed: int
) -> None:
    """Where every logprob was given, what would be done about a missing one does not matter."""
    given_: list[Row] = [
        (key, reward, [token[:2] for token in tokens]) for key, reward, tokens in some
    ]
    bound, drop = (of(given_, positions, seed, rule) for rule in get_args(Unobserved))
    assert close(drop, replace(bound, recipe=drop.recipe))
    with_bounds = of(some, positions, seed)
    assert bound.observed == sum(len(row[2]) for row in some)
    assert close(bound, replace(with_bounds, observed=with_bounds.tokens)), "read like a logprob"


@given(rows, draws, st.integers(0, 3), rules)
def test_rows_account_for_every_drawn_position(
    some: list[Row], positions: int | None, seed: int, rule: Unobserved
) -> None:
    """P_n is min(P, usable), the samples are all positions, and each row is its drawn positions'
    mean of 1 / pi_0. "drop" uses the positions with a logprob alone.
    """
    s = cells_of(some, positions, seed, rule)
    assert s.sampled.sum() == sum(len(row[2]) for row in some)
    for n, (_, _, tokens) in enumerate(some):
        usable = [token for token in tokens if rule == "bound" or not is_bounded(token)]
        part = s.rows == n
        assert s.drawn[n] == min(len(usable), len(usable) if positions is None else positions)
        if s.drawn[n] == len(usable):
            expected = np.zeros(7)
            for token, logprob, *_ in usable:
                expected[token] += np.exp(-logprob) / len(usable)
            np.testing.assert_allclose(s.inverse[part], expected[tokens_of(s)[part]], rtol=1e-6)


@settings(max_examples=20)
@given(st.integers(2, 12), st.integers(1, 11), st.integers(0, 5))
def test_positions_are_drawn_uniformly(length: int, positions: int, seed: int) -> None:
    """Over 400 keys every position is drawn about equally often, exactly min(P, T) of each, never
    twice.
    """
    tokens = [(t, 0.0) for t in range(length)]
    s = cells_of([(f"k{i}", 0.0, tokens) for i in range(400)], positions, seed)
    kept = s.inverse.reshape(length, 400).T > 0
    share = min(positions, length) / length
    assert (kept.sum(axis=1) == min(positions, length)).all()
    assert np.abs(kept.mean(axis=0) - share).max() < 5 * np.sqrt(share * (1 - share) / 400) + 1e-9


def test_the_draw_is_recorded() -> None:
    """The drawn positions of one key under one seed are a recorded fact, so that stored results can
    be reproduced.
    """
    s = of([("rollout", 0.0, [(t, 0.0) for t in range(10)])], 3, 1)
    assert np.flatnonzero(s.drawn_tokens).tolist() == [0, 1, 6]


@pytest.mark.parametrize(
    ("logprob", "facts"),
    [
        (np.nan, ("nan", "0")),
        (0.01, (np.float32(0.01).item(), "0")),
        (-np.inf, ("-inf", "-700")),
        (-9999.0, ("-9999", "-700")),
    ],
)
def test_impossible_logprobs_are_refused_by_key(logprob: float, facts: tuple[object, ...]) -> None:
    """NaN, positive, -inf and censored logprobs are errors that name the rollout."""
    with raises_naming(InputError, "rollout bad", *facts):
        of([("good", 0.0, [(1, -0.5)]), ("bad", 0.0, [(1, -0.5), (2, logprob)])])


@pytest.mark.parametrize("rule", get_args(Unobserved))
def test_a_mark_is_no_bound(rule: Unobserved) -> None:
    """A mark for 'not given' is refused even where it is said to be a bound: nobody has put the
    bound in its place.
    """
    with raises_naming(InputError, "-9999", "bad"):
        of([("bad", 0.0, [(1, -0.5, False), (2, -9999.0, True)])], rule=rule)


def test_rounding_above_zero_is_clamped() -> None:
    """A logprob of 1e-4 is rounding and counts as probability 1."""
    assert cells_of([("a", 0.0, [(1, 1e-4)])]).inverse.tolist() == [1.0]


def test_empty_completions_do_not_enter_n() -> None:
    """A completion without positions is counted apart, and the estimate is that of the others."""
    rows: list[Row] = [("a", 0.5, [(1, -0.5)]), ("b", 0.2, [(0, -1.0)])]
    with_empty = of([*rows, ("c", 3.0, [])])
    assert (with_empty.n_empty, with_empty.n_used) == (1, 2)
    np.testing.assert_array_equal(
        zhat_of(TokenIPS(with_empty), 1.3), zhat_of(TokenIPS(of(rows)), 1.3)
    )
    assert TokenIPS(with_empty).token_ids.tolist() == [0, 1]
    with raises_naming(InputError, "1", "token position"):
        TokenIPS(of([("c", 3.0, [])]))


@pytest.mark.parametrize("rule", get_args(Unobserved))
def test_without_any_logprob_there_is_no_estimate(rule: Unobserved) -> None:
    """Where no sampled token has a logprob there are no propensities."""
    rows: list[Row] = [("a", 0.5, [(1, 0.0, True)]), ("b", 0.2, [(0, 0.0, True), (1, 0.0, True)])]
    with raises_naming(InputError, "3"):
        TokenIPS(of(rows, rule=rule))


def test_bad_arguments_are_named() -> None:
    """No positions, an unknown rule, a vocabulary that is too small and a negative id are
    errors.
    """
    with raises_naming(InputError, "'guess'", "'bound'", "'drop'"):
        Sweep(unobserved="guess")  # type: ignore[arg-type]
    with raises_naming(InputError, "positions", "0"):
        Sweep(positions=0)
    with raises_naming(InputError, "tau", "0"):
        Sweep(tau=(1.0, 0.0))
    for clip in (0.99, -1.0, np.nan, np.inf):
        with raises_naming(InputError, "clip", clip):
            Sweep(clip=clip)
    with raises_naming(InputError, "-1", "a"):
        of([("a", 0.0, [(-1, -0.5)])])
