"""Lists in blocks: however positions are cut, picked or left without a list, the numbers are those
of the whole table.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blackbox_lb.errors import InputError
from blackbox_lb.estimate.inputs.rollouts import Rollouts
from blackbox_lb.estimate.next_token.next_token import NextToken
from blackbox_lb.estimate.reweighting import divergence
from blackbox_lb.estimate.sparse.sparsify import sparsify
from blackbox_lb.types import UNNAMED
from tests.support.errors import raises_naming
from tests.support.exact import ExactModel
from tests.support.fits import projection
from tests.support.masses import dense, kl

VOCAB = 15
N = 60
MODEL = ExactModel(VOCAB, 4, seed=3, end=True, unigram=-0.3 * np.arange(VOCAB))

tops = st.sampled_from([0, 2, 5, VOCAB])
seeds = st.integers(0, 50)


def rollouts(top: int, seed: int = 0, unnamed: int | None = None) -> Rollouts:
    """60 completions with top-k lists; ``unnamed`` is listed without its id and never drawn."""
    data = MODEL.rollouts(N, lambda tokens, _: 1.0 * (2 in tokens), seed, top=top)
    if unnamed is None:
        return data
    kept = np.array(
        [unnamed not in part for part in np.split(data.token_ids, np.cumsum(data.lengths)[:-1])]
    )
    data = data.take(kept)
    return dataclasses.replace(
        data, top_ids=np.where(data.top_ids == unnamed, UNNAMED, data.top_ids).astype(np.int32)
    )


def pieces(data: Rollouts, size: int) -> Iterator[Rollouts]:
    """The rollouts, ``size`` at a time, and a block of none."""
    for start in range(0, len(data.keys), size):
        yield data.take(np.arange(start, min(start + size, len(data.keys))))
    yield data.take(np.zeros(0, np.int64))


def without_lists(data: Rollouts) -> Rollouts:
    """The completions of a provider that gives no logprobs, encoded."""
    m = len(data.token_ids)
    return dataclasses.replace(
        data,
        logprobs=np.zeros(m, np.float32),
        bounded=np.ones(m, np.bool_),
        top_ids=np.zeros((m, 0), np.int32),
        top_logprobs=np.zeros((m, 0), np.float32),
    )


def assert_same(one: NextToken, other: NextToken, seed: int = 0) -> None:
    """Every public number agrees."""
    rng = np.random.default_rng(seed)
    delta, weights = rng.normal(size=len(one.token_ids)), rng.random(one.n_positions)
    for name in (
        "token_ids",
        "tail_mass",
        "sampled",
        "sampled_outside",
        "unigram",
        "unnamed",
        "rest",
        "named_mass",
    ):
        np.testing.assert_allclose(
            getattr(one, name), getattr(other, name), atol=1e-15, err_msg=name
        )
    assert one.overfull == other.overfull
    np.testing.assert_allclose(one.log_normaliser(delta), other.log_normaliser(delta), atol=1e-13)
    np.testing.assert_allclose(kl(one, delta), kl(other, delta), atol=1e-13)
    np.testing.assert_allclose(
        one.expected(delta, weights), other.expected(delta, weights), atol=1e-12
    )
    np.testing.assert_allclose(
        one.potential(delta, weights)[0], other.potential(delta, weights)[0], atol=1e-11
    )
    np.testing.assert_allclose(
        one.sampled_counts(weights), other.sampled_counts(weights), atol=1e-12
    )
    np.testing.assert_allclose(dense(one), dense(other), atol=1e-15)


@settings(max_examples=40)
@given(tops, st.integers(1, N), seeds, st.sampled_from([None, 0, 4]))
def test_blocks_of_any_size_are_one_table(
    top: int, size: int, seed: int, unnamed: int | None
) -> None:
    """Cutting the rollouts changes no number, with and without tokens that have no id, before and
    after conditioning on those.
    """
    data = rollouts(top, seed, unnamed)
    whole, blocks = NextToken.of(data), NextToken.gather(pieces(data, size))
    assert_same(blocks, whole, seed)
    assert_same(blocks.named(), whole.named(), seed)


def test_arrays_may_live_in_files(tmp_path: Path) -> None:
    """With memory-mapped arrays the numbers are the same, and so are those of the columns that
    a search for whole numbers asks for.
    """
    given: list[Path] = []

    def allocate(size: int, dtype: type[np.generic], /) -> np.ndarray[Any, Any]:
        given.append(tmp_path / str(len(given)))
        return np.memmap(given[-1], dtype, "w+", shape=(max(size, 1),))[:size]

    data = rollouts(5)
    whole, mapped = NextToken.of(data), NextToken.gather(pieces(data, 7), allocate=allocate)
    assert_same(mapped, whole)
    assert sum(path.stat().st_size for path in given) >= 12 * 5 * whole.n_positions
    learned = np.linspace(-3.2, 3, len(whole.token_ids))
    one, two = (sparsify(table, learned, entries=4, integers=True) for table in (whole, mapped))
    assert dict(zip(one.token_ids, one.values, strict=True)) == dict(
        zip(two.token_ids, two.values, strict=True)
    )


@pytest.mark.parametrize("size", [7, N])
def test_complete_lists_are_exact_in_blocks(size: int) -> None:
    """With whole vocabularies every normaliser is the model's own."""
    data, delta = rollouts(VOCAB), np.random.default_rng(1).normal(size=VOCAB)
    table = NextToken.gather(pieces(data, size), vocab_size=VOCAB)
    prefixes = [
        (tuple(part[:t].tolist()), int(prompt))
        for part, prompt in zip(
            np.split(data.token_ids, np.cumsum(data.lengths)[:-1]), data.prompts, strict=True
        )
        for t in range(len(part))
    ]
    exact = [
        np.log(np.exp(MODEL.logprobs(prefix, prompt) + delta).sum()) for prefix, prompt in prefixes
    ]
    np.testing.assert_allclose(table.log_normaliser(delta[table.token_ids]), exact, atol=2e-6)
    assert not table.tail_mass.any()


@settings(max_examples=40)
@given(st.data(), tops, st.integers(1, N), st.sampled_from([None, 4]))
def test_taken_positions_keep_their_distributions(
    data: st.DataObject, top: int, size: int, unnamed: int | None
) -> None:
    """Positions in any order and any number of times, taken once or twice, have the rows that they
    had.
    """
    table = NextToken.gather(pieces(rollouts(top, 1, unnamed), size))
    picked = np.array(
        data.draw(st.lists(st.integers(0, table.n_positions - 1), min_size=1, max_size=80))
    )
    again = np.array(data.draw(st.lists(st.integers(0, len(picked) - 1), min_size=1, max_size=80)))
    delta = np.linspace(-2, 2, len(table.token_ids))
    for part, where in (
        (table.take(picked), picked),
        (table.named().take(picked).take(again), picked[again]),
    ):
        before = table.named() if where is not picked else table
        np.testing.assert_array_equal(part.unigram, table.unigram)
        np.testing.assert_allclose(
            part.log_normaliser(delta), before.log_normaliser(delta)[where], atol=1e-14
        )
        np.testing.assert_allclose(kl(part, delta), kl(before, delta)[where], atol=1e-14)
        np.testing.assert_allclose(dense(part), dense(before)[where], atol=1e-15)
        counts = np.bincount(where, minlength=table.n_positions).astype(np.float64)
        np.testing.assert_allclose(part.expected(delta), before.expected(delta, counts), atol=1e-12)
        np.testing.assert_allclose(part.sampled_counts(), before.sampled_counts(counts), atol=1e-12)


def test_a_fit_to_a_part_is_the_fit_to_those_rollouts() -> None:
    """Taking half of the rollouts and their positions gives the projection of that half, with full
    lists and no copy of them.
    """
    data = rollouts(VOCAB)
    table, chosen = NextToken.of(data, vocab_size=VOCAB), np.arange(N) % 2 == 0
    half = table.take(chosen[data.rollout_of])
    assert half.lists.parts[0].table is table.lists.parts[0].table
    one, own = (
        projection(data.take(chosen), next_token=each)
        for each in (half, NextToken.of(data.take(chosen), vocab_size=VOCAB))
    )
    np.testing.assert_allclose(
        one.delta[np.isin(one.token_ids, own.token_ids)], own.delta, atol=1e-4
    )
    for nothing in (np.zeros(table.n_positions), np.zeros(0)):
        with raises_naming(InputError, "token position"):
            table.take(nothing.astype(np.bool_))


@pytest.mark.parametrize("top", [0, 4, VOCAB])
def test_tokens_that_nobody_saw_may_join(top: int) -> None:
    """They have no mass, a bias on them changes nothing, and compilation carries it through."""
    table = NextToken.of(rollouts(top, 2, 3))
    wider = table.with_tokens([700, 3, 20, int(table.token_ids[0])])
    assert wider.token_ids.tolist() == sorted({*table.token_ids.tolist(), 3, 20, 700})
    old = np.isin(wider.token_ids, table.token_ids)
    np.testing.assert_array_equal(dense(wider)[:, old], dense(table))
    assert not dense(wider)[:, ~old].any()
    delta = np.where(old, 0.0, 5.0)
    delta[old] = np.linspace(-1, 1, old.sum())
    np.testing.assert_allclose(
        wider.log_normaliser(delta), table.log_normaliser(delta[old]), atol=1e-14
    )
    np.testing.assert_allclose(kl(wider, delta), kl(table, delta[old]), atol=1e-14)
    np.testing.assert_allclose(wider.expected(delta)[old], table.expected(delta[old]), atol=1e-12)
    assert not wider.expected(delta)[~old].any()
    assert wider.align([700, 3], [1.0, 2.0]).tolist().count(0.0) == len(delta) - 2
    assert_same(NextToken.of(rollouts(top, 2, 3)).with_tokens([3, 20, 700]), wider)
    assert_same(wider.take(np.arange(9)), table.take(np.arange(9)).with_tokens([3, 20, 700]))
    sent = sparsify(wider, delta)
    assert dict(zip(sent.token_ids.tolist(), sent.values.tolist(), strict=True))[700] == 5.0
    with raises_naming(InputError, "-2"):
        table.with_tokens([-2])


def test_without_any_list_the_model_is_the_unigram() -> None:
    """Every position has the shares of the sampled tokens, and the projection a closed form:
    rewarded over plain shares.
    """
    data = without_lists(rollouts(5))
    table = NextToken.gather(pieces(data, 11))
    shares = table.sampled_counts() / table.n_positions
    assert (table.tail_mass == 1).all()
    np.testing.assert_allclose(dense(table), np.tile(shares, (table.n_positions, 1)), atol=1e-15)
    weights = np.exp(data.rewards)[data.rollout_of]
    rewarded = table.sampled_counts(weights) / weights.sum()
    delta = projection(data, next_token=table, l2=1e-6).delta
    expected = np.log(rewarded / shares)
    np.testing.assert_allclose(delta - delta @ shares, expected - expected @ shares, atol=1e-3)


@pytest.mark.parametrize("size", [13, 2 * N])
def test_completions_with_and_without_lists_do_not_mix(size: int) -> None:
    """Beside completions without lists the others keep their tails; the former have the shares of
    everything sampled.
    """
    listed, bare = rollouts(4, 1), without_lists(rollouts(4, 2))
    both = Rollouts.join([listed, bare])
    shuffled = np.random.default_rng(0).permutation(2 * N)
    table, alone = NextToken.gather(pieces(both.take(shuffled), size)), NextToken.of(listed)
    is_bare = (shuffled >= N)[np.repeat(np.arange(2 * N), both.lengths[shuffled])]
    np.testing.assert_allclose(table.log_normaliser(np.zeros(len(table.token_ids))), 0, atol=1e-14)
    shares = table.sampled_counts() / table.n_positions
    np.testing.assert_allclose(
        dense(table)[is_bare], np.tile(shares, (is_bare.sum(), 1)), atol=1e-15
    )
    seen, order = (
        np.isin(table.token_ids, alone.token_ids),
        _positions(listed, shuffled[shuffled < N]),
    )
    np.testing.assert_allclose(dense(table)[~is_bare][:, seen], dense(alone)[order], atol=1e-15)
    assert not dense(table)[~is_bare][:, ~seen].any()


def _positions(data: Rollouts, order: np.ndarray) -> np.ndarray:
    """The positions of the rollouts ``order``, one after the other."""
    ends = np.cumsum(data.lengths)
    return np.concatenate([np.arange(ends[row] - data.lengths[row], ends[row]) for row in order])


def test_the_divergence_needs_no_list() -> None:
    """Biased completions without lists are compared with the unigram of the unbiased ones, and no
    bias is no divergence.
    """
    data = without_lists(rollouts(3))
    table, delta = NextToken.of(data), np.linspace(-1, 1, VOCAB)
    assert divergence(data, [], [], table).kl == pytest.approx(0, abs=1e-12)
    found = divergence(data, np.arange(VOCAB), delta, table)
    steps = delta[data.token_ids] - table.log_normaliser(delta[table.token_ids])
    np.testing.assert_allclose(
        found.per_completion, np.bincount(data.rollout_of, steps), atol=1e-12
    )
