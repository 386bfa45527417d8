"""The paper's estimator against exact Z_avg."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats

from blackbox_lb.errors import InputError
from blackbox_lb.estimate.counting.statistics import Statistics, TokenIPS
from blackbox_lb.estimate.inputs.rollouts import Rollouts
from blackbox_lb.estimate.reweighting import learned_record
from tests.support.errors import raises_naming
from tests.support.exact import ExactModel
from tests.support.exact.model import RewardOf
from tests.support.statistics import statistics_of, zhat_of
from tests.support.truth import Exact

TAU = 0.8
TAUS = (0.3, 0.5, TAU, 1.0, 7.0)
FEW = ExactModel(300, 2, seed=1).rollouts(40, lambda tokens, _: 0.4 * tokens.count(2), 3)
SLOW = pytest.mark.slow


def reward(tokens: tuple[int, ...], prompt: int) -> float:
    """Depends on order, length and prompt, and is -inf now and then."""
    if tokens[0] == 4:
        return -np.inf
    return 0.4 * tokens.count(2) - 0.3 * len(tokens) + 0.2 * prompt * (tokens[-1] == 1)


def replicated(
    model: ExactModel, positions: int | None, replications: int, clip: float | None = None
) -> np.ndarray:
    """(replications, v) Zhat of independent sets of 60 rollouts."""
    out = np.zeros((replications, model.vocab_size))
    for seed in range(replications):
        rollouts = model.rollouts(60, reward, seed, top=0)
        ips = TokenIPS(statistics_of(rollouts, TAUS, positions=positions, seed=seed, clip=clip))
        out[seed, ips.token_ids] = zhat_of(ips, TAU)
    return out


@pytest.mark.parametrize("end", [False, True], ids=["fixed horizon", "stopping"])
@pytest.mark.parametrize("positions", [None, 1, 2])
def test_zhat_is_unbiased_for_z_avg(end: bool, positions: int | None) -> None:
    """Over 250 replications of 60 rollouts the mean of Zhat is Z_avg within Monte Carlo error, for
    every token. The same test rejects an estimator that is off by 10 %, so that passing it means
    something.
    """
    model = ExactModel(6, 3, seed=7, end=end, prompts=2, sharpness=0.5)
    draws = replicated(model, positions, 250)
    truth = Exact(model, reward).z_avg(TAU)
    error = draws.std(0, ddof=1) / np.sqrt(len(draws))
    assert np.abs((draws.mean(0) - truth) / error).max() < stats.norm.isf(0.0005 / 6)
    if positions is None:
        assert np.abs((1.1 * draws.mean(0) - truth) / (1.1 * error)).max() > 6


@dataclass(frozen=True)
class Truth:
    """Exact moments of one completion's ``exp(r / tau) / T sum_t 1{y_t = y} min(1 / pi_0, clip)``,
    by enumeration.
    """

    mean: np.ndarray
    variance: np.ndarray


def exact_moments(exact: Exact, clip: float = np.inf) -> Truth:
    """(v,) mean and variance over completions of one term of Zhat, all positions drawn."""
    model, shape = exact.model, (len(exact.base), exact.model.vocab_size)
    value, probability = np.exp(exact.rewards / TAU) / exact.lengths, np.exp(exact.base)
    cells, terms = [], []
    for t in range(model.horizon):
        running = np.flatnonzero(exact.lengths > t)
        tokens = exact.sequences[running, t]
        logprobs = _logprobs(model, exact.sequences[running, :t], exact.prompts[running], tokens)
        cells.append(running * shape[1] + tokens)
        terms.append(value[running] * np.minimum(np.exp(-logprobs), clip))
    names, where = np.unique(np.concatenate(cells), return_inverse=True)
    sums, weights = np.bincount(where, np.concatenate(terms)), probability[names // shape[1]]
    mean, square = (
        np.bincount(names % shape[1], weights * power, shape[1]) for power in (sums, sums**2)
    )
    return Truth(mean, square - mean**2)


def _logprobs(
    model: ExactModel, prefixes: np.ndarray, prompts: np.ndarray, tokens: np.ndarray
) -> np.ndarray:
    """(n,) log pi_0 of the tokens after the prefixes, each different prefix computed once."""
    pairs, where = np.unique(np.column_stack((prefixes, prompts)), axis=0, return_inverse=True)
    table = model.next_logprobs(pairs[:, :-1], pairs[:, -1])
    found: np.ndarray = table[where.reshape(-1), tokens]
    return found


def pooled(model: ExactModel, reward: RewardOf, seed: int, parts: int, size: int) -> np.ndarray:
    """(v,) Zhat of ``parts * size`` rollouts, through the sum of the statistics of parts."""
    drawn = [model.rollouts(size, reward, 1_000 * seed + part, top=0) for part in range(parts)]
    named = [
        replace(each, keys=tuple(f"{part} {key}" for key in each.keys))
        for part, each in enumerate(drawn)
    ]
    highest = max(float(each.rewards.max()) for each in drawn)
    ips = TokenIPS(
        sum((statistics_of(each, TAU, highest=highest) for each in named), Statistics.zero())
    )
    out = np.zeros(model.vocab_size)
    out[ips.token_ids] = zhat_of(ips, TAU)
    return out


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize(
    ("vocab_size", "horizon", "parts"),
    [
        (12, 4, 1),
        (35, 3, 2),
        pytest.param(400, 2, 40, marks=SLOW),
        pytest.param(1_000, 2, 30, marks=SLOW),
    ],
)
def test_the_error_of_zhat_is_its_exact_standard_error(
    vocab_size: int, horizon: int, parts: int, seed: int
) -> None:
    """On stopping, context-dependent models of up to 1,000 tokens the error over the exact standard
    error is standard normal.
    """
    model = ExactModel(
        vocab_size,
        horizon,
        seed=seed,
        end=True,
        prompts=2 if vocab_size < 1_000 else 1,
        sharpness=0.35,
    )
    truth = exact_moments(exact := Exact(model, reward))
    np.testing.assert_allclose(truth.mean, exact.z_avg(TAU), rtol=1e-9)
    found = pooled(model, reward, seed, parts, 4_000)
    z = (found - truth.mean) / np.sqrt(truth.variance / (4_000 * parts))
    assert (
        np.abs(z).max() < stats.norm.isf(0.0005 / vocab_size) + 1
    )  # the tail of rare tokens is heavier than normal
    assert abs((z**2).mean() - 1) < 6 * np.sqrt(2 / vocab_size)
    assert abs(z.mean()) < 4 / np.sqrt(vocab_size) + 0.5  # one reward raises all tokens together


def test_zhat_is_the_sum_over_positions() -> None:
    """Zhat is the paper's sum (equation Z-hat), written out as a loop."""
    rollouts = ExactModel(5, 4, seed=1, end=True).rollouts(40, reward, 3)
    expected, at = np.zeros(5), 0
    for r, length in zip(rollouts.rewards, rollouts.lengths, strict=True):
        for m in range(at, at + length):
            expected[rollouts.token_ids[m]] += (
                np.exp(r / TAU - rollouts.logprobs[m].astype(float)) / length / 40
            )
        at += length
    ips = TokenIPS(statistics_of(rollouts, TAUS))
    np.testing.assert_allclose(zhat_of(ips, TAU), expected[ips.token_ids], rtol=1e-12)


def test_delta_is_the_papers_but_for_its_center() -> None:
    """delta + log(alpha) - c is ``log(alpha + Zhat) - c`` over the whole vocabulary, whose mean is
    0: on sampled tokens delta is ``log(alpha + Zhat) - log(alpha)``, and 0 on all others.
    """
    ips, alpha = TokenIPS(statistics_of(FEW, TAUS)), 0.052
    expected = np.log(alpha + zhat_of(ips, TAU)) - np.log(alpha)
    np.testing.assert_allclose(ips.delta(TAU, alpha), expected, rtol=1e-10)


def test_relative_alpha_forgets_the_scale_of_the_reward() -> None:
    """With alpha relative to the mean weight a constant added to all rewards, even 10,000 nats,
    changes nothing.
    """
    rollouts = ExactModel(6, 3, seed=2).rollouts(50, reward, 1)
    near, far = (
        TokenIPS(statistics_of(rollouts, TAUS)),
        TokenIPS(statistics_of(_shifted(rollouts, 1e4), TAUS)),
    )
    np.testing.assert_allclose(
        far.delta(TAU, 0.1, relative=True), near.delta(TAU, 0.1, relative=True), rtol=1e-8
    )
    mean = np.exp(rollouts.rewards / TAU).mean()
    np.testing.assert_allclose(
        near.delta(TAU, 0.1, relative=True), near.delta(TAU, 0.1 * mean), rtol=1e-10
    )


def test_zhat_beyond_float64_has_a_scale() -> None:
    """Nothing is subtracted silently: ``scaled`` gives an overflowing Zhat with its scale."""
    ips = TokenIPS(
        statistics_of(_shifted(ExactModel(6, 3, seed=2).rollouts(50, reward, 1), 1e4), TAUS)
    )
    values, log_scale = ips.scaled(TAU)
    assert np.isfinite(values).all()
    assert log_scale > 1e4
    assert np.isfinite(ips.delta(TAU, 0.05)).all()


def test_log_accuracy_makes_tau_inert() -> None:
    """Rewards of 0 and -inf give the same Zhat at every tau."""
    model = ExactModel(5, 3, seed=3)
    ips = TokenIPS(
        statistics_of(
            model.rollouts(60, lambda tokens, _: 0.0 if 2 in tokens else -np.inf, 1), TAUS
        )
    )
    np.testing.assert_array_equal(zhat_of(ips, 0.3), zhat_of(ips, 7.0))


def test_tokens_of_worthless_completions_get_no_bias() -> None:
    """A token seen only in completions of weight 0 has Zhat 0 and delta 0, like one never seen."""
    model = ExactModel(5, 2, seed=3)
    ips = TokenIPS(
        statistics_of(
            model.rollouts(200, lambda tokens, _: -np.inf if 2 in tokens else 0.0, 1), TAUS
        )
    )
    where = ips.token_ids.tolist().index(2)
    assert zhat_of(ips, 1.0)[where] == 0
    assert ips.delta(1.0, 0.05)[where] == 0
    assert ips.counts[where] > 0


@pytest.mark.parametrize("alpha", [-1.0, 0.0])
def test_a_bad_alpha_is_named(alpha: float) -> None:
    """One outside (0, inf) is refused."""
    ips = TokenIPS(statistics_of(ExactModel(5, 2, seed=3).rollouts(20, lambda *_: 0.0, 1), TAUS))
    with raises_naming(InputError, "alpha", alpha):
        ips.delta(1.0, alpha)


CLIP = 5.0


@pytest.mark.parametrize("end", [False, True], ids=["fixed horizon", "stopping"])
@pytest.mark.parametrize("positions", [None, 1])
def test_clipping_lowers_the_expectation_as_far_as_it_should(
    end: bool, positions: int | None
) -> None:
    """Over 200 replications the mean of the clipped Zhat is its exact expectation within Monte
    Carlo error, for every token.
    """
    model = ExactModel(8, 3, seed=7, end=end, prompts=2, sharpness=0.6)
    exact = Exact(model, reward)
    clipped, whole = exact_moments(exact, CLIP).mean, exact.z_avg(TAU)
    assert ((clipped - whole) / whole).min() < -0.3, "a clip that matters"
    values = replicated(model, positions, 200, CLIP)
    spread = values.std(0, ddof=1) / np.sqrt(len(values))
    np.testing.assert_array_less(
        np.abs(values.mean(0) - clipped), stats.norm.isf(0.0005 / 8) * spread + 1e-12
    )


def test_clipping_comes_on_top_of_bounds() -> None:
    """Of bounded positions clipping takes what is beyond the bound: less than of the same rollouts
    uncensored.
    """
    model, clip = ExactModel(20, 3, seed=2, end=True, sharpness=1.0), 15.0
    censored, given_ = (
        model.rollouts(300, reward, 1, top=4, censored=censored) for censored in (True, False)
    )

    def removed(data: Rollouts) -> npt.NDArray[np.float64]:
        return zhat_of(TokenIPS(statistics_of(data, TAUS)), TAU) - zhat_of(
            TokenIPS(statistics_of(data, TAUS, clip=clip)), TAU
        )

    bound, whole = removed(censored), removed(given_)
    assert 0 < bound.sum() < whole.sum()
    assert (bound <= whole + 1e-12).all()


def test_the_papers_statistics_are_of_the_centred_bias() -> None:
    """Sampled fraction, sigma, min, max and selected fraction of ``delta`` are those of the whole
    centred vector, by definition.
    """
    ips, vocab = TokenIPS(statistics_of(FEW, TAUS)), 1_000
    found, full = learned_record(ips.delta(TAU, 0.052), vocab), np.zeros(vocab)
    full[ips.token_ids] = ips.delta(TAU, 0.052)
    full -= full.mean()
    assert found.sampled_fraction == len(ips.token_ids) / vocab
    assert (found.sigma, found.low, found.high) == pytest.approx(
        (full.std(), full.min(), full.max())
    )
    assert found.selected_fraction == (np.abs(full) >= 5 * np.median(np.abs(full))).mean()
    assert found.low == pytest.approx(-ips.delta(TAU, 0.052).sum() / vocab), (
        "unsampled tokens are lowest, at -c"
    )


def _shifted(rollouts: Rollouts, by: float) -> Rollouts:
    return replace(rollouts, rewards=rollouts.rewards + by)
