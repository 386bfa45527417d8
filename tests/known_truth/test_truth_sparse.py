"""Sparse compilation against brute force on models small enough to try every support."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from blackbox_lb import GivenAnswers
from blackbox_lb.errors import InputError
from blackbox_lb.estimate.next_token.next_token import NextToken
from blackbox_lb.estimate.projection.projection import linear_term
from blackbox_lb.estimate.sparse.sparsify import sparsify
from blackbox_lb.estimate.sparse.support_search import SubsetProblem, best_support
from tests.support.errors import raises_naming
from tests.support.exact import ExactModel
from tests.support.fits import problem_of, projection
from tests.support.masses import dense

VOCAB = 9


def problem(seed: int, top: int | None = None) -> tuple[NextToken, np.ndarray]:
    """Logged positions and a learned bias; in odd ones a common and a rare token are all but
    forbidden.
    """
    model = ExactModel(VOCAB, 3, seed=seed, sharpness=0.8, unigram=-0.4 * np.arange(VOCAB))
    table = NextToken.of(model.rollouts(120, lambda *_: 0.0, seed, top=top))
    delta = (0.3, 0.6, 1.5)[seed % 3] * np.random.default_rng(seed).standard_normal(
        len(table.token_ids)
    )
    if seed % 2:
        delta[[0, -1]] = -5.0, -6.0
    return table, delta


def kl(table: NextToken, learned: np.ndarray, values: np.ndarray) -> float:
    """Mean KL(pi_learned || pi_values), from its definition on full lists."""
    base = dense(table)
    p, q = base * np.exp(learned), base * np.exp(values)
    p, q = p / p.sum(axis=1, keepdims=True), q / q.sum(axis=1, keepdims=True)
    return float((p * np.log(p / q)).sum() / table.n_positions)


def refitted(table: NextToken, learned: np.ndarray, support: np.ndarray) -> float:
    """The least KL on a given support."""
    usage = table.expected(learned)
    return kl(table, learned, problem_of(usage, table, free=support).solve().x)


@pytest.mark.parametrize("seed", range(6))
def test_everything_fits(seed: int) -> None:
    """Without limits, or with enough entries, the learned values come back exactly and nothing is
    lost.
    """
    table, delta = problem(seed, top=3)
    for entries in (None, VOCAB):
        sparse = sparsify(table, delta, entries=entries)
        np.testing.assert_array_equal(sparse.values, delta)
        assert sparse.kept == pytest.approx(1)
        assert (sparse.entries_dropped, sparse.clipped) == (0, 0)
        assert sparse.kl_lost == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("entries", [2, 4])
def test_refit_is_never_worse_than_cut(seed: int, entries: int) -> None:
    """The loss reported is the KL of what is listed, below a cut to the same support and below
    sending nothing.
    """
    table, delta = problem(seed)
    sparse = sparsify(table, delta, entries=entries)
    values = table.align(sparse.token_ids, sparse.values)
    assert sparse.entries <= entries
    assert sparse.kl_lost == pytest.approx(kl(table, delta, values), abs=1e-6)
    assert sparse.kl_learned == pytest.approx(kl(table, delta, np.zeros(VOCAB)), abs=1e-6)
    listed = np.isin(table.token_ids, sparse.token_ids)
    for shift in np.linspace(-3, 3, 25):
        assert sparse.kl_lost <= kl(table, delta, np.where(listed, delta - shift, 0.0)) + 1e-6
    assert 0 <= sparse.kept <= 1


def hard(seed: int) -> SubsetProblem:
    """5 to 12 tokens and 1 to 3 entries: small and large biases, suppressed tokens, common shifts,
    lists that are cut, forbidden ids, ranges, penalties."""
    rng = np.random.default_rng(seed)
    size, entries = int(rng.integers(5, 13)), int(rng.integers(1, 4))
    model = ExactModel(
        size,
        3,
        seed=seed,
        sharpness=rng.choice([0.3, 0.8, 1.5]),
        unigram=-rng.choice([0, 0.2, 0.5]) * np.arange(size),
    )
    table = NextToken.of(model.rollouts(60, lambda *_: 0.0, seed, top=(None, 3, 4)[seed % 3]))
    s = len(table.token_ids)
    delta = rng.choice([0.3, 0.6, 1.5, 3.0]) * rng.standard_normal(s)
    if seed % 2:
        delta[rng.integers(s, size=2)] -= 5.0, 6.0
    if seed % 5 == 0:
        delta += rng.choice([-3, 3])
    allowed = np.ones(s, dtype=bool)
    allowed[rng.integers(s)] = seed % 4 > 0
    reach = 1.0 if seed % 7 == 0 else 100.0
    l2 = 5.0 if seed % 6 == 0 else 0.0
    weights = np.ones(table.n_positions)
    linear = table.expected(delta) + l2 * delta
    return SubsetProblem(table, linear, weights, allowed, entries, l2, -reach, reach)


def least_loss(problem: SubsetProblem) -> float:
    """The least loss of all supports, each refitted: Newton's method on full tables, all supports
    at once.
    """
    entries = problem.entries
    chosen = np.array(list(itertools.combinations(np.flatnonzero(problem.allowed), entries)))
    base, w, linear = dense(problem.next_token), problem.weights, problem.linear[chosen]
    p, rest = base[:, chosen].transpose(1, 0, 2), 1 - base[:, chosen].sum(axis=2).T
    low, high, l2, eye = problem.low, problem.high, problem.l2, np.eye(entries)

    def loss(values: np.ndarray) -> np.ndarray:
        z = rest + np.einsum("smk,sk->sm", p, np.exp(values))
        return np.asarray(
            np.log(z) @ w - (linear * values).sum(axis=1) + l2 / 2 * (values**2).sum(axis=1)
        )

    values = np.zeros(chosen.shape)
    for _ in range(60):
        q = p * np.exp(values)[:, None, :]
        q /= (rest + q.sum(axis=2))[:, :, None]
        usage = np.einsum("smk,m->sk", q, w)
        slope = usage - linear + l2 * values
        bend = (usage + l2 + 1e-9)[:, :, None] * eye - np.einsum(
            "smk,sml,m->skl", q, q, w, optimize=True
        )
        free = ~(((values <= low) & (slope > 0)) | ((values >= high) & (slope < 0)))
        bend = np.where(free[:, :, None] & free[:, None, :], bend, eye)
        step = -np.linalg.solve(bend, np.where(free, slope, 0.0)[:, :, None])[:, :, 0]
        step *= np.minimum(1, 2 / np.maximum(np.abs(step).max(axis=1), 1e-9))[:, None]
        share, before = np.ones(len(chosen)), loss(values)
        for _ in range(10):
            worse = loss(np.clip(values + share[:, None] * step, low, high)) > before + 1e-12
            share[worse] /= 2
        moved = np.where(worse[:, None], values, np.clip(values + share[:, None] * step, low, high))
        if np.abs(moved - values).max() < 1e-8:
            break
        values = moved
    return float(loss(values).min())


def test_the_support_is_nearly_the_best_of_all() -> None:
    """The refitted loss falls by nearly as much as on the best of all supports."""
    kept = []
    for seed in range(60):
        problem = hard(seed)
        found = best_support(problem)
        assert len(found.support) <= problem.entries
        assert problem.allowed[found.support].all()
        assert found.loss == pytest.approx(
            problem.on(found.support).loss(found.values)[0], abs=1e-6
        )
        nothing, _ = problem.on(None).loss(np.zeros_like(problem.linear))
        kept.append((nothing - found.loss) / (nothing - least_loss(problem)))
    assert np.mean(kept) > 0.98
    assert np.median(kept) > 1 - 1e-6


def test_whole_numbers_are_nearly_the_best_of_all() -> None:
    """Of all biases with at most 3 values from -3 to 3 on 4 to 7 tokens, none keeps much more of
    the learned policy than what is sent.
    """
    kept = []
    for seed in range(60):
        rng = np.random.default_rng(seed)
        size, entries = int(rng.integers(4, 8)), int(rng.integers(1, 4))
        model = ExactModel(size, 3, seed=seed)
        table = NextToken.of(model.rollouts(60, lambda *_: 0.0, seed, top=(None, 3)[seed % 2]))
        delta = rng.choice([0.5, 1.0, 2.0]) * rng.standard_normal(len(table.token_ids))
        if seed % 5 == 0:
            delta += rng.choice([-2, 2])
        base, usage, best = dense(table), table.expected(delta), np.inf
        grid = np.array(list(itertools.product(range(-3, 4), repeat=entries)))
        for chosen in map(list, itertools.combinations(range(len(delta)), entries)):
            z = 1 + np.expm1(grid) @ base[:, chosen].T
            best = min(best, float((np.log(z).sum(axis=1) - grid @ usage[chosen]).min()))
        sent = sparsify(table, delta, entries=entries, low=-3, high=3, integers=True)
        values = table.align(sent.token_ids, sent.values)
        loss = np.log(1 + np.expm1(values) @ base.T).sum() - usage @ values
        learned = table.log_normaliser(delta).sum() - usage @ delta
        kept.append((best - loss) / -learned)  # shares of the learned gain
    assert np.mean(kept) > -0.02
    assert np.median(kept) > -1e-6


@pytest.mark.parametrize("seed", range(4))
def test_entries_freed_by_rounding_are_used(seed: int) -> None:
    """Where whole numbers leave refitted values at 0, other tokens are listed, and the loss is less
    than without them.
    """
    model = ExactModel(40, 3, seed=seed, sharpness=0.7, unigram=-0.7 * np.log1p(np.arange(40)))
    table = NextToken.of(model.rollouts(300, lambda *_: 0.0, seed, top=8))
    delta = 0.5 * np.random.default_rng(seed).standard_normal(len(table.token_ids))
    real = sparsify(table, delta, entries=12)
    alone = sparsify(
        table, delta, integers=True, forbidden=np.setdiff1d(table.token_ids, real.token_ids)
    )
    whole = sparsify(table, delta, entries=12, integers=True)
    assert alone.entries < whole.entries <= 12
    assert whole.kl_lost < alone.kl_lost


def test_kept_is_the_share_of_the_estimated_gain() -> None:
    """Of the divergence from given answers on the logged prefixes, where the learned policy has no
    penalty to speak of.
    """
    model = ExactModel(8, 4, seed=2, sharpness=0.5)
    tilt = np.sin(np.arange(8.0))
    drawn = model.rollouts(2_000, lambda *_: 0.0, 1, delta=tilt)
    answers = replace(drawn, shares=np.ones(len(drawn.keys)))
    table = NextToken.of(answers)
    weights = GivenAnswers().weights(answers)
    fit = projection(answers, next_token=table, l2=1e-6)

    def likelihood(values: np.ndarray) -> float:
        return float(linear_term(table, weights) @ values - table.log_normaliser(values).sum())

    sparse = sparsify(table, fit.delta, entries=2)
    gain = likelihood(table.align(sparse.token_ids, sparse.values)) / likelihood(fit.delta)
    assert 0.2 < sparse.kept < 0.99
    assert sparse.kept == pytest.approx(gain, abs=1e-3)


def test_the_usual_cut_does_harm_where_the_refit_does_not() -> None:
    """A bias that lifts all common tokens alike is no bias; keeping its largest entries suppresses
    the rest, refitting does not.
    """
    model = ExactModel(30, 2, seed=1, sharpness=0.3, unigram=-0.3 * np.arange(30))
    table = NextToken.of(model.rollouts(100, lambda *_: 0.0, 1))
    delta = np.where(np.arange(30) < 10, 4.0, 0.0)
    delta[1] += 0.5
    centred = delta - delta.mean()
    largest = np.argsort(-np.abs(centred), kind="stable")[:3]
    cut = np.zeros(30)
    cut[largest] = centred[largest]
    nothing = kl(table, delta, np.zeros(30))
    assert kl(table, delta, cut) > 2 * nothing
    assert sparsify(table, delta, entries=3).kl_lost < nothing / 2


@pytest.mark.parametrize("seed", range(6))
def test_whole_numbers_are_never_worse_than_rounding(seed: int) -> None:
    """Integers only, a loss at most that of rounding the refit, and no single step of one that
    would lower it.
    """
    table, delta = problem(seed)
    real = sparsify(table, delta, entries=5)
    whole = sparsify(table, delta, entries=5, integers=True)
    values = table.align(whole.token_ids, whole.values)
    np.testing.assert_array_equal(values, np.rint(values))
    rounded = np.rint(table.align(real.token_ids, real.values))
    assert whole.kl_lost <= kl(table, delta, rounded) + 1e-6
    assert whole.entries <= 5
    chosen = np.searchsorted(table.token_ids, real.token_ids)
    for token, step in itertools.product(chosen, (-1, 1)):
        if values[token] == 0 and whole.entries == 5:
            continue
        moved = values.copy()
        moved[token] += step
        assert kl(table, delta, moved) >= whole.kl_lost - 1e-6


@pytest.mark.parametrize("seed", [4, 10, 61, 149, 151, 176, 189, 286])
def test_integers_are_never_worse_than_none(seed: int) -> None:
    """Values that differ by .5 at most around a common one are close to no bias; rounded to two
    integers a whole nat apart they are not, and in these problems no single step leads back (6 % of
    300, by up to 1.5 times what was learned)."""
    table, _ = problem(seed % 6)
    rng = np.random.default_rng(seed)
    delta = rng.uniform(0.5, 2.5) + rng.choice([0.0, 0.15, 0.3, -0.2], VOCAB)
    sparse = sparsify(table, delta, integers=True)
    assert sparse.kept >= -1e-9
    assert sparse.kl_lost == pytest.approx(
        kl(table, delta, table.align(sparse.token_ids, sparse.values)), abs=1e-6
    )


@pytest.mark.parametrize("integers", [False, True])
def test_a_range_without_room_sends_nothing(integers: bool) -> None:
    """Where 0 alone is allowed, as of integers in [-0.5, 0.5], the answer is no entry and no
    error.
    """
    table, delta = problem(1)
    reach = 0.5 if integers else 0.0
    sparse = sparsify(table, delta, low=-reach, high=reach, integers=integers)
    assert (sparse.entries, sparse.entries_dropped) == (0, VOCAB)
    assert sparse.kept == pytest.approx(0)
    assert not problem_of(table.expected(delta), table, low=0.0, high=0.0).solve().x.any()


def test_room_is_used_where_an_id_is_forbidden() -> None:
    """Without a limit of entries every other token may be refitted, also one of which the bare cut
    would do harm.
    """
    for seed in range(6):
        model = ExactModel(40, 3, seed=seed, sharpness=0.7, unigram=-0.7 * np.log1p(np.arange(40)))
        table = NextToken.of(model.rollouts(300, lambda *_: 0.0, seed, top=5))
        delta = np.random.default_rng(seed).standard_normal(len(table.token_ids))
        delta[::3] = 0.0
        sparse = sparsify(table, delta, forbidden=table.token_ids[1:2])
        assert sparse.kept > 0.999, seed


def test_range_and_forbidden_ids_are_kept() -> None:
    """Values stay inside the range, which costs something; one forbidden id costs none: under whole
    lists the others shift.
    """
    table, delta = problem(1)
    sparse = sparsify(table, delta, low=-2.0, high=2.0)
    assert np.abs(sparse.values).max() <= 2
    assert sparse.clipped >= 1
    assert 0 < sparse.kl_lost < sparse.kl_learned
    whole = sparsify(table, delta, low=-2.5, high=2.5, integers=True)
    assert np.abs(whole.values).max() == 2
    assert whole.clipped >= 1
    banned = sparsify(table, delta, forbidden=[int(table.token_ids[0])])
    assert table.token_ids[0] not in banned.token_ids
    assert banned.entries_dropped >= 1
    assert banned.kl_lost == pytest.approx(0, abs=1e-12)
    assert banned.kl_learned > 0.1


def test_no_value_is_rounded_out_of_the_range() -> None:
    """A value at a limit is the limit, to the last bit: a provider that takes -100 refuses
    -100.00000000000001.
    """
    for seed in (1, 2, 3):  # they learn more than 1.1 nats
        table, delta = problem(seed)
        for reach in np.linspace(0.1, 1.1, 11):
            values = sparsify(table, delta, low=-reach, high=reach).values
            assert np.abs(values).max() == reach, (seed, reach)


@pytest.mark.parametrize(
    ("options", "facts"),
    [
        ({"entries": -1}, ("entries", "-1")),
        ({"low": 1.0}, ("[1.0, 100.0]", "0")),
        ({"high": np.nan}, ("[-100.0, nan]", "0")),
    ],
)
def test_bad_limits_are_named(options: dict[str, float], facts: tuple[str, ...]) -> None:
    """Impossible limits are refused."""
    table, delta = problem(0)
    with raises_naming(InputError, *facts):
        sparsify(table, delta, **options)  # type: ignore[arg-type]
