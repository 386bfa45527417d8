"""Standard errors of the projection against the spread of fits, and against exact optima, over many
sets of prompts.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest
from scipy import stats

from blackbox_lb.errors import InputError
from blackbox_lb.estimate.inputs.checks import Vector
from blackbox_lb.estimate.inputs.rollouts import Rollouts
from blackbox_lb.estimate.inputs.sweep import Scale
from blackbox_lb.estimate.next_token import tails
from blackbox_lb.estimate.next_token.derivatives import hessian
from blackbox_lb.estimate.next_token.next_token import NextToken
from blackbox_lb.estimate.projection import standard_errors as module
from blackbox_lb.types import NO_TOKEN, UNNAMED
from tests.support.errors import raises_naming
from tests.support.exact import ExactModel
from tests.support.fits import projection, standard_errors
from tests.support.truth import Exact

VOCAB, PROMPTS, DRAWN, TAU, L2 = 14, 50, 40, 1.0, 5.0
UNLIMITED = 200
"""A fit to this many times the rollouts, of all prompts, stands for the limit: its own error is a
14th of those measured.
"""


def liked(tokens: tuple[int, ...], prompt: int) -> float:
    """1 nat for a token that depends on the prompt, half a nat for token 7, and a price for
    length.
    """
    return 1.0 * (prompt % 6 in tokens) + 0.5 * (7 in tokens) - 0.3 * len(tokens)


@dataclass(frozen=True)
class Population:
    """A model of many prompts, of which DRAWN are drawn, with ``each`` completions of each."""

    model: ExactModel
    each: int

    @property
    def n(self) -> int:
        """Completions of one draw."""
        return DRAWN * self.each

    def draw(self, seed: int, top: int | None = None) -> Rollouts:
        """Prompts are drawn from all with replacement: two draws of one prompt are two prompts."""
        chosen = np.random.default_rng(seed).integers(0, self.model.prompts, DRAWN)
        rollouts = self.model.rollouts(self.n, liked, seed, prompts=chosen.tolist(), top=top)
        return replace(rollouts, prompts=np.arange(self.n) % DRAWN)

    @functools.cache  # noqa: B019 - two populations, that live as long as the module
    def truth(self) -> tuple[np.ndarray, np.ndarray]:
        """(v,) the best bias under the penalty per rollout, and the expected weighted samples of
        each token.
        """
        exact = Exact(self.model, liked)
        weights = np.exp(exact.base + exact.rewards / TAU)
        sampled = np.array(
            [
                (exact.sequences == token).sum(axis=1) @ weights
                for token in range(self.model.vocab_size)
            ]
        )
        return exact.optimum(TAU, l2=L2 / self.n), self.n * sampled / weights.sum()

    @functools.cache  # noqa: B019
    def limit(self, top: int | None) -> np.ndarray:
        """(v,) what the estimator tends to with lists of ``top`` tokens; with complete ones it is
        the truth.
        """
        if top is None:
            return self.truth()[0]
        rollouts = self.model.rollouts(UNLIMITED * self.n, liked, 0, top=top)
        table = NextToken.of(rollouts).with_tokens(np.arange(self.model.vocab_size))
        return projection(rollouts, tau=TAU, l2=UNLIMITED * L2, next_token=table).delta


SMALL = Population(
    ExactModel(
        VOCAB,
        3,
        seed=11,
        end=True,
        prompts=PROMPTS,
        sharpness=0.7,
        unigram=-0.6 * np.arange(VOCAB) ** 0.8,
    ),
    8,
)
LARGE = Population(
    ExactModel(
        60,
        2,
        seed=3,
        end=True,
        prompts=PROMPTS,
        sharpness=0.7,
        unigram=-0.35 * np.arange(60) ** 0.8,
    ),
    16,
)


def intervals(found: module.StandardErrors, rollouts: Rollouts) -> tuple[np.ndarray, np.ndarray]:
    """(s,) ends of 95 % intervals by Student's t. Its degrees of freedom are the effective number of
    prompts with weighted samples of a token, ``(sum c)^2 / sum c^2``, less 1; a token that one
    prompt at most has sampled has none.
    """
    counts = np.zeros((DRAWN, len(found.token_ids)))
    places = np.searchsorted(found.token_ids, rollouts.token_ids)
    owner = rollouts.rollout_of
    weights = np.exp(rollouts.rewards / TAU)
    np.add.at(counts, (rollouts.prompts[owner], places), weights[owner])
    informants = counts.sum(axis=0) ** 2 / np.maximum((counts**2).sum(axis=0), 1e-300)
    reach = np.full(len(found.errors), np.inf)
    several = informants > 1 + 1e-9
    reach[several] = stats.t.isf(0.025, informants[several] - 1) * found.errors[several]
    reach[found.errors == 0] = 0.0
    return found.delta - reach, found.delta + reach


@dataclass(frozen=True)
class Coverage:
    """(runs, v) of each draw: whether the 95 % interval holds the truth and the limit; delta less
    the limit; its standard error.
    """

    truth: np.ndarray
    limit: np.ndarray
    miss: np.ndarray
    errors: np.ndarray

    @classmethod
    def of(cls, population: Population, runs: int, top: int | None) -> Coverage:
        """A token that no list and no sample holds is left at 0, with an interval that holds
        everything.
        """
        truth, limit = population.truth()[0], population.limit(top)
        shape = (runs, population.model.vocab_size)
        out = cls(
            np.ones(shape, np.bool_), np.ones(shape, np.bool_), np.zeros(shape), np.zeros(shape)
        )
        for run in range(runs):
            rollouts = population.draw(1000 + run, top)
            table = NextToken.of(rollouts)
            fit = projection(rollouts, tau=TAU, l2=L2, next_token=table)
            found = standard_errors(rollouts, table, fit, tau=TAU, l2=L2)
            low, high = intervals(found, rollouts)
            ids = found.token_ids
            out.truth[run, ids] = (low <= truth[ids]) & (truth[ids] <= high)
            out.limit[run, ids] = (low <= limit[ids]) & (limit[ids] <= high)
            out.miss[run, ids] = found.delta - limit[ids]
            out.errors[run, ids] = found.errors
        return out

    def size(self, tokens: np.ndarray) -> float:
        """Root mean square of the standard errors of ``tokens``, over that of what they are the
        errors of.
        """
        return float(
            np.sqrt((self.errors[:, tokens] ** 2).mean() / (self.miss[:, tokens] ** 2).mean())
        )


@pytest.mark.parametrize("top", [None, 6, 0])
def test_errors_are_the_spread_of_fits(top: int | None) -> None:
    """Over 25 sets of prompts, errors of tokens with 20 weighted samples or more are the deviations
    from the limit; rarer too.
    """
    found, common = Coverage.of(SMALL, 25, top), SMALL.truth()[1] >= 20
    assert common.sum() >= 6
    assert 0.85 < found.size(common) < 1.15
    assert 0.8 < found.size(~common) < 1.3
    assert 0.91 < found.limit[:, common].mean() < 0.99


@pytest.mark.slow
@pytest.mark.parametrize(("population", "top"), [(SMALL, None), (SMALL, 6), (SMALL, 0), (LARGE, 5)])
def test_intervals_cover_at_their_level(population: Population, top: int | None) -> None:
    """Over 400 sets of prompts 93 to 97 % of 95 % intervals hold the limit where a token has 20
    weighted samples or more.

    Rarer tokens are covered about as often: their intervals know that few prompts speak for them.
    The limit is that of the estimator with these lists. Wherever there are any, it is so near the
    truth under complete lists that as many intervals hold that, too.
    """
    truth, samples = population.truth()
    found, limit = Coverage.of(population, 400, top), population.limit(top)
    print(
        f"\n{population.model.vocab_size} tokens, top {top}: token, weighted samples, truth, limit,"
        " coverage of both, size"
    )
    for token in np.argsort(-samples):
        row = (
            found.truth[:, token].mean(),
            found.limit[:, token].mean(),
            found.size(np.arange(len(samples)) == token),
        )
        print(
            f"{token:5d} {samples[token]:8.1f} {truth[token]:7.3f} {limit[token]:7.3f}"
            f" {row[0]:7.3f} {row[1]:7.3f} {row[2]:7.2f}"
        )
    common = samples >= 20
    for name, tokens in {"common": common, "rare": ~common}.items():
        covered = found.truth[:, tokens].mean(), found.limit[:, tokens].mean()
        print(
            f"{name}: truth {covered[0]:.4f} limit {covered[1]:.4f} size {found.size(tokens):.3f}"
        )
    assert 0.93 <= found.limit[:, common].mean() <= 0.97
    assert (found.limit[:, common].mean(axis=0) > 0.91).all()
    assert top == 0 or 0.93 <= found.truth[:, common].mean() <= 0.97
    assert found.limit[:, ~common].mean() > 0.92
    assert 0.9 < found.size(common) < 1.1


@pytest.mark.parametrize("scale", ["global", "prompt"])
@pytest.mark.parametrize("top", [None, 4, 0])
def test_contributions_are_what_leaving_a_prompt_out_changes(scale: Scale, top: int | None) -> None:
    """Refits without each prompt, its samples of the tail included, move delta by its contribution,
    to second order.
    """
    rollouts = SMALL.draw(3, top)
    table = NextToken.of(rollouts)
    fit = projection(rollouts, tau=TAU, l2=L2, weights=scale, next_token=table)
    found = standard_errors(rollouts, table, fit, tau=TAU, l2=L2, weights=scale)
    assert len(found.contributions) == DRAWN
    for prompt in range(5):
        rest = rollouts.take(rollouts.prompts != prompt)
        without = projection(rest, tau=TAU, l2=L2 * len(rest.keys) / SMALL.n, weights=scale)
        moved = fit.delta - table.align(without.token_ids, without.delta)
        np.testing.assert_allclose(found.contributions[prompt], moved, atol=0.02)
        assert np.corrcoef(found.contributions[prompt], moved)[0, 1] > 0.95


@pytest.mark.parametrize(("top", "bare"), [(0, 0), (1, 0), (5, 0), (5, 400), (VOCAB, 0)])
def test_tails_shared_anew_are_as_if_read_so(top: int, bare: int) -> None:
    """with_unigram equals reading the lists with that unigram: named or not, picked, on a larger
    support, in place, and back.
    """
    rollouts = SMALL.draw(0, top)
    rollouts.top_ids[:bare], rollouts.top_logprobs[:bare] = NO_TOKEN, -np.inf
    rollouts = replace(
        rollouts,
        top_ids=np.where(rollouts.top_ids == 2, UNNAMED, rollouts.top_ids).astype(np.int32),
    )
    table, rng, spare = NextToken.of(rollouts), np.random.default_rng(0), None
    size = len(table.token_ids)
    for unigram in (
        rng.integers(0, 3, size),
        np.zeros(size),
        np.eye(size)[1],
        2.0**-20 * rng.integers(0, 9, size),
    ):
        read = NextToken.of(rollouts, tail=replace(table, unigram=unigram.astype(np.float64)))
        spare = table.with_unigram(unigram, out=spare)
        delta, some = rng.normal(size=size), rng.integers(0, table.n_positions, 30)
        wide = spare.with_tokens([99])
        for one, other, bias in (
            (spare, read, delta),
            (table.named().with_unigram(unigram), read.named(), delta),
            (table.take(some).with_unigram(unigram), read.take(some), delta),
            (
                table.with_tokens([99]).with_unigram(np.append(unigram, 0)),
                read.with_tokens([99]),
                np.append(delta, 1),
            ),
            (
                wide.with_unigram(np.append(table.unigram, 0)),
                table.with_tokens([99]),
                np.append(delta, 1),
            ),
        ):
            np.testing.assert_allclose(
                one.log_normaliser(bias), other.log_normaliser(bias), atol=1e-12
            )
            np.testing.assert_allclose(one.expected(bias), other.expected(bias), atol=1e-10)
            np.testing.assert_allclose(one.rest, other.rest, atol=1e-12)
    with raises_naming(InputError, "unigram", "-1"):
        table.with_unigram(-np.ones(size))


class Memoryless(ExactModel):
    """What comes next depends on prompt and position only, so that no token changes the future."""

    def next_logprobs(self, prefixes: np.ndarray, prompts: np.ndarray) -> np.ndarray:
        """(h, v) as after a prefix of zeros."""
        return super().next_logprobs(np.zeros_like(prefixes), prompts)


@pytest.mark.parametrize("top", [6, 0])
def test_part_of_a_large_table_tells_nearly_the_same(
    top: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A quarter of the positions for the curvature moves few errors by more than they are known to,
    and the noise hardly.
    """
    model = ExactModel(40, 12, seed=5, end=True, prompts=16, unigram=-0.1 * np.arange(40))
    rollouts = model.rollouts(
        800, lambda tokens, _: 1.0 * (2 in tokens) + 0.5 * (7 in tokens), 0, top=top
    )
    monkeypatch.setattr(tails, "PART", (1 + top) << 8)
    table = NextToken.of(rollouts)
    fit = projection(rollouts, tau=TAU, l2=L2, next_token=table)
    whole, read = standard_errors(rollouts, table, fit, tau=TAU, l2=L2), []

    def counted(
        part: NextToken, delta: Vector, weights: Vector
    ) -> tuple[Vector, Callable[[Vector], Vector]]:
        read.append(part.n_positions)
        return hessian(part, delta, weights)

    monkeypatch.setattr(module, "hessian", counted)
    monkeypatch.setattr(module, "CURVED", table.n_positions // 5)
    found = standard_errors(rollouts, table, fit, tau=TAU, l2=L2)
    assert max(read) < table.n_positions / 3
    ratios = found.errors / whole.errors
    assert np.abs(ratios - 1).max() < 0.2
    assert np.median(np.abs(ratios - 1)) < 0.04
    assert found.noise == pytest.approx(whole.noise, rel=0.03)


def test_a_planted_bias_comes_back_within_its_errors() -> None:
    """Where log Z is a token's own value plus a term of the prefix, delta is that value / tau: mean
    z^2 is near 1.
    """
    planted = np.random.default_rng(0).normal(size=VOCAB) * 0.5
    model = Memoryless(VOCAB, 6, seed=2, prompts=DRAWN, sharpness=0.5)
    z, inside = [], []
    for seed in range(6):
        rollouts = model.rollouts(1600, lambda tokens, _: float(planted[list(tokens)].sum()), seed)
        table = NextToken.of(rollouts)
        fit = projection(rollouts, tau=TAU, l2=0.1, next_token=table)
        found = standard_errors(rollouts, table, fit, tau=TAU, l2=0.1)
        miss = fit.delta - (planted - planted.mean()) / TAU
        low, high = intervals(found, rollouts)
        z.append(miss / found.errors)
        inside.append((low - fit.delta <= -miss) & (-miss <= high - fit.delta))
        assert found.signal == pytest.approx(planted.var(), rel=0.5)
    assert 0.75 < np.square(z).mean() < 1.3
    assert np.mean(inside) > 0.92


def test_noise_has_no_signal_and_more_rollouts_have_less_noise() -> None:
    """A reward that nothing in the text explains leaves almost all of delta to chance."""
    model = ExactModel(VOCAB, 3, seed=4, prompts=DRAWN)
    coin = np.random.default_rng(0)
    noise = model.rollouts(400, lambda *_: float(coin.normal()), 1)
    real = model.rollouts(400, lambda tokens, _: 2.0 * (3 in tokens), 1)
    of, apart = {}, {}
    for name, rollouts in {"noise": noise, "real": real}.items():
        table = NextToken.of(rollouts)
        of[name] = standard_errors(
            rollouts, table, projection(rollouts, next_token=table), tau=1.0, l2=5.0
        )
        low, high = intervals(of[name], rollouts)
        apart[name] = (low > 0) | (high < 0)
    assert of["noise"].signal < of["noise"].noise
    assert of["real"].signal > 3 * of["real"].noise
    assert apart["noise"].mean() < 0.2
    assert apart["real"][3]


def test_a_sparse_fit_has_errors_on_its_support_only() -> None:
    """Tokens that had to stay at 0 have error 0, and one that nobody sampled has one."""
    model = ExactModel(
        VOCAB, 3, seed=4, prompts=DRAWN, unigram=np.where(np.arange(VOCAB) == 9, -30.0, 0.0)
    )
    rollouts = model.rollouts(400, lambda tokens, _: 1.0 * (3 in tokens), 1)
    table = NextToken.of(rollouts)
    some = projection(rollouts, next_token=table, support=[3, 5, 9])
    found = standard_errors(rollouts, table, some, tau=1.0, l2=5.0, support=[3, 5, 9])
    assert set(found.token_ids[found.errors > 0]) == {3, 5, 9}


def test_one_prompt_counts_its_rollouts_and_many_are_dealt_into_groups() -> None:
    """With one rewarded prompt each rollout stands for itself, at most 100 groups are made, and
    every group has a reward.
    """
    model = ExactModel(6, 2, seed=4, prompts=300)
    for prompts in ([5], None):
        rollouts = model.rollouts(
            600,
            lambda tokens, p: -0.5 * tokens[1] if p in (5, 6) or tokens[0] == p % 6 else -np.inf,
            1,
            prompts=prompts,
        )
        table = NextToken.of(rollouts)
        found = standard_errors(
            rollouts, table, projection(rollouts, next_token=table), tau=1.0, l2=5.0
        )
        assert len(found.contributions) == 100
        assert (found.errors > 0).all()
        assert np.isfinite(found.errors).all()


def test_what_has_no_standard_error_is_refused() -> None:
    """Another fit's delta, a rounded one, one rewarded completion: each is named."""
    model = ExactModel(6, 2, seed=4, prompts=4)
    rollouts = model.rollouts(200, lambda tokens, _: 1.0 * (3 in tokens), 1)
    table = NextToken.of(rollouts)
    fit = projection(rollouts, next_token=table)
    with raises_naming(InputError, "delta", "tau", "l2", "1e-05"):
        standard_errors(rollouts, table, fit, tau=0.5, l2=5.0)
    with raises_naming(InputError, "delta", "tau", "l2", "1e-05"):
        standard_errors(rollouts, table, replace(fit, delta=np.round(fit.delta)), tau=1.0, l2=5.0)
    once = replace(rollouts, rewards=np.where(np.arange(200) == 7, 0.0, -np.inf))
    with raises_naming(InputError, "1", "200"):
        standard_errors(once, table, projection(once, next_token=table), tau=1.0, l2=5.0)
