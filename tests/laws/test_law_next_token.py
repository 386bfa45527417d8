"""NextToken: laws of a log normaliser that hold for any lists and any bias."""

from __future__ import annotations

import dataclasses
from collections import Counter

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from scipy import optimize

from blackbox_lb.errors import InputError
from blackbox_lb.estimate.inputs.rollouts import Rollouts
from blackbox_lb.estimate.next_token.next_token import NextToken
from blackbox_lb.estimate.reweighting import tail_coverage
from blackbox_lb.estimate.sparse.support_search import SubsetProblem, whole_numbers
from tests.support.errors import raises_naming
from tests.support.exact import ExactModel
from tests.support.fits import problem_of
from tests.support.masses import kl

VOCAB = 12
SAMPLES = 25

tops = st.sampled_from([0, 1, 3, 6, VOCAB])
seeds = st.integers(0, 20)
biases = npst.arrays(np.float64, VOCAB, elements=st.floats(-8, 8))


def rollouts(seed: int, top: int) -> Rollouts:
    """25 completions of a peaked 12-token model with top-k lists."""
    model = ExactModel(VOCAB, 3, seed=seed, end=True, unigram=-0.3 * np.arange(VOCAB))
    return model.rollouts(SAMPLES, lambda *_: 0.0, seed, top=top)


def table_of(seed: int, top: int) -> NextToken:
    """Its next-token distributions."""
    return NextToken.of(rollouts(seed, top), vocab_size=VOCAB)


def by_hand(data: Rollouts, table: NextToken) -> np.ndarray:
    """(m, s + 1) pi_0 written out position by position; the last column is mass that no token can
    have.
    """
    ids, out = table.token_ids.tolist(), np.zeros((len(data.token_ids), len(table.token_ids) + 1))
    outside = Counter(
        int(y) for y, row in zip(data.token_ids, data.top_ids, strict=True) if y not in row
    )
    tails = []
    for m, (row, logprobs) in enumerate(zip(data.top_ids, data.top_logprobs, strict=True)):
        for token, logprob in zip(row, logprobs, strict=True):
            out[m, ids.index(token)] = np.exp(float(logprob))
        tail = 1 - out[m].sum()
        tails.append(tail if tail > 1e-6 else 0.0)  # less is float32 rounding of a complete list
    missed = {
        y: sum(tail for tail, row in zip(tails, data.top_ids, strict=True) if y not in row)
        for y in outside
    }
    rates = {y: count / max(missed[y], count) for y, count in outside.items()}
    if not data.top_ids.shape[1]:
        rates = {y: float(count) for y, count in outside.items()}
    for m, (tail, row) in enumerate(zip(tails, data.top_ids, strict=True)):
        shares = {y: rate for y, rate in rates.items() if y not in row}
        for y, rate in shares.items():
            out[m, ids.index(y)] += tail * rate / sum(shares.values())
        out[m, -1] = 0.0 if shares else tail
    out /= out.sum(axis=1, keepdims=True)
    return out


@given(seeds, tops, biases)
def test_it_is_the_distribution_of_the_definition(seed: int, top: int, bias: np.ndarray) -> None:
    """log_normaliser, expected and mean equal their definitions on the distribution written out by
    hand.
    """
    data = rollouts(seed, top)
    table = NextToken.of(data, vocab_size=VOCAB)
    delta = bias[table.token_ids]
    base = by_hand(data, table)
    tilted = base * np.exp(np.append(delta, 0.0))
    z = tilted.sum(axis=1)
    policy = tilted / z[:, None]
    np.testing.assert_allclose(table.log_normaliser(delta), np.log(z), atol=5e-6)
    np.testing.assert_allclose(
        table.expected(delta), policy[:, :-1].sum(axis=0), atol=1e-4, rtol=1e-5
    )
    known = policy @ np.append(delta, 0.0) - np.log(z)
    np.testing.assert_allclose(kl(table, delta), known, atol=5e-5)
    assert tail_coverage(table).unattributed == pytest.approx(base[:, -1].mean(), abs=1e-6)


@given(seeds, tops)
def test_no_bias_changes_nothing(seed: int, top: int) -> None:
    """At delta 0 every normaliser is 1 and no position has moved."""
    table = table_of(seed, top)
    zero = np.zeros(len(table.token_ids))
    np.testing.assert_allclose(table.log_normaliser(zero), 0, atol=1e-12)
    np.testing.assert_allclose(kl(table, zero), 0, atol=1e-12)


@given(seeds, tops, biases, biases, st.floats(0, 1))
def test_log_normaliser_is_convex(
    seed: int, top: int, a: np.ndarray, b: np.ndarray, t: float
) -> None:
    """On a segment between two biases it stays below the chord, at every position."""
    table = table_of(seed, top)
    a, b = a[table.token_ids], b[table.token_ids]
    chord = t * table.log_normaliser(a) + (1 - t) * table.log_normaliser(b)
    assert (table.log_normaliser(t * a + (1 - t) * b) <= chord + 1e-9).all()


@settings(max_examples=25)
@given(seeds, tops, biases)
def test_expected_is_the_gradient(seed: int, top: int, bias: np.ndarray) -> None:
    """expected and potential agree with central differences of the weighted log normalisers."""
    table = table_of(seed, top)
    delta, weights = bias[table.token_ids], np.random.default_rng(seed).random(table.n_positions)

    def weighted(d: np.ndarray) -> float:
        return float(weights @ table.log_normaliser(d))

    numeric = optimize.approx_fprime(delta, weighted, 1e-6)
    np.testing.assert_allclose(table.expected(delta, weights), numeric, atol=1e-3, rtol=1e-3)
    value, gradient = table.potential(delta, weights)
    assert value == pytest.approx(float(weights @ table.log_normaliser(delta)), abs=1e-9)
    np.testing.assert_allclose(gradient, table.expected(delta, weights), atol=1e-12)


@given(seeds, biases, st.floats(-50, 50))
def test_full_lists_do_not_feel_a_shift(seed: int, bias: np.ndarray, c: float) -> None:
    """delta + c moves each log normaliser by c and leaves the policy as it is."""
    table = table_of(seed, VOCAB)
    delta = bias[table.token_ids]
    np.testing.assert_allclose(
        table.log_normaliser(delta + c), table.log_normaliser(delta) + c, atol=1e-9
    )
    np.testing.assert_allclose(table.expected(delta + c), table.expected(delta), atol=1e-9)
    np.testing.assert_allclose(kl(table, delta + c), kl(table, delta), atol=1e-9)


@given(seeds, tops, biases)
def test_policies_are_distributions(seed: int, top: int, bias: np.ndarray) -> None:
    """Expected counts are not negative and sum to the positions, less what no token can have; KL is
    not negative.
    """
    table = table_of(seed, top)
    expected = table.expected(bias[table.token_ids])
    assert (expected >= 0).all()
    assert expected.sum() <= table.n_positions + 1e-9
    if not table.rest.any():
        assert expected.sum() == pytest.approx(table.n_positions)
    assert (kl(table, bias[table.token_ids]) >= 0).all()


@given(seeds, tops, st.floats(100, 690), st.integers(0, VOCAB - 1))
def test_large_biases_stay_finite(seed: int, top: int, size: float, token: int) -> None:
    """Biases of hundreds of nats, the range that providers allow and beyond, give finite
    numbers.
    """
    table = table_of(seed, top)
    for sign in (-size, size):
        delta = np.where(table.token_ids == token, sign, 0.0)
        assert np.isfinite(table.log_normaliser(delta)).all()
        assert np.isfinite(table.expected(delta)).all()
        assert np.isfinite(kl(table, delta)).all()


@settings(max_examples=25)
@given(seeds, tops, biases, st.floats(0.01, 5))
def test_the_solver_finds_the_maximum(seed: int, top: int, target: np.ndarray, l2: float) -> None:
    """With counts made from a known policy, no other bias scores higher, and without l2 the policy
    itself is found.
    """
    table = table_of(seed, top)
    learned = target[table.token_ids] / 4
    linear = table.expected(learned)
    found = problem_of(linear, table, l2=l2).solve()
    rng = np.random.default_rng(seed)

    def score(delta: np.ndarray) -> float:
        return float(linear @ delta - table.log_normaliser(delta).sum() - l2 / 2 * delta @ delta)

    best = score(found.x)
    assert all(
        score(found.x + 0.1 * rng.standard_normal(len(learned))) <= best + 1e-9 for _ in range(5)
    )
    same = problem_of(linear, table).solve()
    np.testing.assert_allclose(table.expected(same.x), linear, atol=0.02)


@settings(max_examples=25)
@given(seeds, tops, biases)
def test_whole_numbers_end_where_no_step_helps(seed: int, top: int, bias: np.ndarray) -> None:
    """Its result is integer, in range, and not further from the target than rounding or any
    neighbour.
    """
    table = table_of(seed, top)
    learned, weights = bias[table.token_ids], np.ones(table.n_positions)
    usage, chosen = table.expected(learned), np.arange(0, len(table.token_ids), 2)
    allowed = np.isin(np.arange(len(learned)), chosen)
    problem = SubsetProblem(table, usage, weights, allowed, len(chosen), low=-6, high=6)
    found = whole_numbers(problem, np.where(allowed, learned, 0.0))
    assert (found == np.rint(found)).all()
    assert np.abs(found).max() <= 6
    assert not np.delete(found, chosen).any()

    def loss(values: np.ndarray) -> float:
        return float(table.log_normaliser(values).sum() - usage @ values)

    rounded = np.zeros_like(learned)
    rounded[chosen] = np.clip(np.rint(learned[chosen]), -6, 6)
    assert loss(found) <= loss(rounded) + 1e-6
    for token in chosen:
        for step in (-1, 1):
            moved = found.copy()
            moved[token] = np.clip(moved[token] + step, -6, 6)
            assert loss(found) <= loss(moved) + 1e-6


@given(seeds, tops)
def test_align_inverts_the_support(seed: int, top: int) -> None:
    """A bias given by ids in any order lands on its tokens; unknown ids are left out."""
    table = table_of(seed, top)
    values = np.arange(1.0, len(table.token_ids) + 1)
    order = np.random.default_rng(seed).permutation(len(values))
    ids = np.append(table.token_ids[order], 10_000)
    np.testing.assert_array_equal(table.align(ids, np.append(values[order], 5.0)), values)


def broken(**changes: object) -> Rollouts:
    """Good rollouts with one thing wrong in the lists of the first."""
    return dataclasses.replace(rollouts(0, 3), **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [np.nan, 0.5])
def test_corrupt_lists_are_refused_by_key(value: float) -> None:
    """NaN and positive listed logprobs name the rollout."""
    bad = rollouts(0, 3).top_logprobs.copy()
    bad[0, 1] = value
    with raises_naming(InputError, value, "0/0000000"):
        NextToken.of(broken(top_logprobs=bad))


def test_a_token_listed_twice_is_refused() -> None:
    """One position may list a token once."""
    bad = rollouts(0, 3).top_ids.copy()
    bad[0, 1] = bad[0, 0]
    with raises_naming(InputError, "0/0000000"):
        NextToken.of(broken(top_ids=bad))


def test_an_id_beyond_any_vocabulary_is_refused() -> None:
    """Listed or sampled, the rollout is named."""
    listed, sampled = rollouts(0, 3).top_ids.copy(), rollouts(0, 3).token_ids.copy()
    listed[0, 1] = sampled[0] = 1 << 22
    for wrong in (broken(top_ids=listed), broken(token_ids=sampled)):
        with raises_naming(InputError, 1 << 22, "0/0000000", "4,194,303"):
            NextToken.of(wrong)


def test_lists_that_sum_to_more_than_one() -> None:
    """A little more is scaled and counted; much more is corrupt."""
    lists = rollouts(0, VOCAB).top_logprobs.astype(np.float64)
    table = NextToken.of(
        dataclasses.replace(rollouts(0, VOCAB), top_logprobs=_below_zero(lists + 0.04))
    )
    assert table.overfull == table.n_positions
    np.testing.assert_allclose(table.log_normaliser(np.zeros(len(table.token_ids))), 0, atol=1e-12)
    with raises_naming(InputError, "0/0000001", "2.014", "1.25"):
        NextToken.of(dataclasses.replace(rollouts(0, VOCAB), top_logprobs=_below_zero(lists + 0.7)))


def test_padding_is_not_a_token() -> None:
    """Rows padded with -1 and -inf mean the same as shorter rows."""
    short, padded = rollouts(1, 3), rollouts(1, 3)
    wider = dataclasses.replace(
        padded,
        top_ids=np.pad(padded.top_ids, ((0, 0), (0, 2)), constant_values=-1),
        top_logprobs=np.pad(padded.top_logprobs, ((0, 0), (0, 2)), constant_values=-np.inf),
    )
    delta = np.linspace(-1, 1, len(NextToken.of(short).token_ids))
    np.testing.assert_array_equal(
        NextToken.of(short).log_normaliser(delta), NextToken.of(wider).log_normaliser(delta)
    )


@given(seeds)
def test_wrong_shapes_are_refused(seed: int) -> None:
    """A delta or weights of another size, NaN, negative or all-zero weights are errors that say
    what is wanted.
    """
    table = table_of(seed, 3)
    size = len(table.token_ids)
    assume(size > 1)
    with raises_naming(InputError, "delta", (size,), (size - 1,)):
        table.log_normaliser(np.zeros(size - 1))
    with raises_naming(InputError, "delta", "nan"):
        table.log_normaliser(np.full(size, np.nan))
    with raises_naming(InputError, "position_weights", "-1.0"):
        table.expected(np.zeros(size), -np.ones(table.n_positions))
    with raises_naming(InputError, "position_weights", "all 0"):
        table.expected(np.zeros(size), np.zeros(table.n_positions))


def test_no_positions_is_an_error() -> None:
    """Nothing logged, nothing to normalise."""
    one = rollouts(0, 3)
    with raises_naming(InputError, "token position"):
        NextToken.of(
            Rollouts(
                keys=("a",),
                prompts=np.zeros(1, np.int64),
                rewards=np.zeros(1),
                lengths=np.zeros(1, np.int64),
                token_ids=one.token_ids[:0],
                logprobs=one.logprobs[:0],
                top_ids=one.top_ids[:0],
                top_logprobs=one.top_logprobs[:0],
            )
        )


def _below_zero(logprobs: np.ndarray) -> np.ndarray:
    return np.asarray(np.minimum(logprobs, 0.0), dtype=np.float32)
