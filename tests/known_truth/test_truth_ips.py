"""The paper's estimator against exact Z_avg."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from blackbox_lb.errors import InputError
from blackbox_lb.estimate.ips import IPS
from blackbox_lb.estimate.rollouts import Rollouts
from blackbox_lb.estimate.statistics import Statistics
from blackbox_lb.testing import Exact, ExactModel

TAU = 0.8


def reward(tokens: tuple[int, ...], prompt: int) -> float:
    """Depends on order, length and prompt, and is -inf now and then."""
    if tokens[0] == 4:
        return -np.inf
    return 0.4 * tokens.count(2) - 0.3 * len(tokens) + 0.2 * prompt * (tokens[-1] == 1)


def replicated(model: ExactModel, positions: int | None, replications: int, size: int) -> np.ndarray:
    """(replications, v) Zhat of independent rollout sets."""
    out = np.zeros((replications, model.vocab_size))
    for seed in range(replications):
        ips = IPS(Statistics.of(model.rollouts(size, reward, seed, top=0), positions=positions, seed=seed))
        out[seed, ips.token_ids] = ips.zhat(TAU)
    return out


@pytest.mark.parametrize("end", [False, True], ids=["fixed horizon", "stopping"])
@pytest.mark.parametrize("positions", [None, 1, 2])
def test_zhat_is_unbiased_for_z_avg(end: bool, positions: int | None) -> None:
    """Over 250 replications of 60 rollouts the mean of Zhat is Z_avg within Monte Carlo error, for every token."""
    model = ExactModel(6, 3, seed=7, end=end, prompts=2, sharpness=0.5)
    draws = replicated(model, positions, 250, 60)
    z = (draws.mean(0) - Exact(model, reward).z_avg(TAU)) / (draws.std(0, ddof=1) / np.sqrt(len(draws)))
    assert np.abs(z).max() < stats.norm.isf(0.0005 / model.vocab_size)


@pytest.mark.parametrize("end", [False, True], ids=["fixed horizon", "stopping"])
def test_the_z_test_has_power(end: bool) -> None:
    """The same test rejects an estimator that is off by 10 %, so that passing it means something."""
    model = ExactModel(6, 3, seed=7, end=end, prompts=2, sharpness=0.5)
    draws = 1.1 * replicated(model, None, 250, 60)
    z = (draws.mean(0) - Exact(model, reward).z_avg(TAU)) / (draws.std(0, ddof=1) / np.sqrt(len(draws)))
    assert np.abs(z).max() > 6


def test_matrix_form_is_the_sum_over_positions() -> None:
    """``exp(r / tau) @ M`` and ``IPS.zhat`` both equal the paper's sum (equation Z-hat), written out as a loop."""
    rollouts = ExactModel(5, 4, seed=1, end=True).rollouts(40, reward, 3)
    expected, at = np.zeros(5), 0
    for r, length in zip(rollouts.rewards, rollouts.lengths, strict=True):
        for m in range(at, at + length):
            expected[rollouts.token_ids[m]] += np.exp(r / TAU - rollouts.logprobs[m].astype(float)) / length / 40
        at += length
    statistics = Statistics.of(rollouts)
    np.testing.assert_allclose(np.exp(statistics.rewards / TAU) @ statistics.matrix(5), expected, rtol=1e-12)
    ips = IPS(statistics)
    np.testing.assert_allclose(ips.zhat(TAU), expected[ips.token_ids], rtol=1e-12)


def test_delta_and_center_are_the_papers() -> None:
    """delta + log(alpha) - c is ``log(alpha + Zhat) - c`` over the whole vocabulary, whose mean is 0."""
    ips = IPS(Statistics.of(ExactModel(30, 2, seed=1).rollouts(12, reward, 3)))
    alpha, vocab = 0.052, 50
    z = np.zeros(vocab)
    z[ips.token_ids] = ips.zhat(TAU)
    paper = np.log(alpha + z) - np.log(alpha + z).mean()
    c = ips.center(TAU, alpha, vocab)
    assert c == pytest.approx(np.log(alpha + z).mean(), rel=1e-12)
    np.testing.assert_allclose(ips.delta(TAU, alpha) + np.log(alpha) - c, paper[ips.token_ids], rtol=1e-10)
    np.testing.assert_allclose(ips.centered(TAU, alpha, vocab), paper, rtol=1e-10, atol=1e-14)
    assert len(ips.token_ids) < vocab


def test_relative_alpha_forgets_the_scale_of_the_reward() -> None:
    """With alpha relative to the mean weight a constant added to all rewards, even 10,000 nats, changes nothing."""
    rollouts = ExactModel(6, 3, seed=2).rollouts(50, reward, 1)
    near, far = IPS(Statistics.of(rollouts)), IPS(Statistics.of(_shifted(rollouts, 1e4)))
    np.testing.assert_allclose(far.delta(TAU, 0.1, relative=True), near.delta(TAU, 0.1, relative=True), rtol=1e-8)
    mean = np.exp(rollouts.rewards / TAU).mean()
    np.testing.assert_allclose(near.delta(TAU, 0.1, relative=True), near.delta(TAU, 0.1 * mean), rtol=1e-10)


def test_zhat_refuses_what_float64_cannot_hold() -> None:
    """Nothing is subtracted silently: an overflowing Zhat is an error, and ``scaled`` still gives it with its scale."""
    ips = IPS(Statistics.of(_shifted(ExactModel(6, 3, seed=2).rollouts(50, reward, 1), 1e4)))
    with pytest.raises(InputError, match="subtract a constant"):
        ips.zhat(TAU)
    values, log_scale = ips.scaled(TAU)
    assert np.isfinite(values).all()
    assert log_scale > 1e4
    assert np.isfinite(ips.delta(TAU, 0.05)).all()


def test_log_accuracy_makes_tau_inert() -> None:
    """Rewards of 0 and -inf give the same Zhat at every tau."""
    model = ExactModel(5, 3, seed=3)
    ips = IPS(Statistics.of(model.rollouts(60, lambda tokens, _: 0.0 if 2 in tokens else -np.inf, 1)))
    np.testing.assert_array_equal(ips.zhat(0.3), ips.zhat(7.0))


def test_tokens_of_worthless_completions_get_no_bias() -> None:
    """A token seen only in completions of weight 0 has Zhat 0 and delta 0, like one never seen."""
    model = ExactModel(5, 2, seed=3)
    ips = IPS(Statistics.of(model.rollouts(200, lambda tokens, _: -np.inf if 2 in tokens else 0.0, 1)))
    where = ips.token_ids.tolist().index(2)
    assert ips.zhat(1.0)[where] == 0
    assert ips.delta(1.0, 0.05)[where] == 0
    assert ips.counts[where] > 0


@pytest.mark.parametrize("bad", [{"tau": 0.0}, {"tau": np.nan}, {"alpha": -1.0}, {"alpha": 0.0}])
def test_bad_settings_are_named(bad: dict[str, float]) -> None:
    """tau and alpha outside (0, inf) are refused by name."""
    ips = IPS(Statistics.of(ExactModel(5, 2, seed=3).rollouts(20, lambda *_: 0.0, 1)))
    with pytest.raises(InputError, match=next(iter(bad))):
        ips.delta(bad.get("tau", 1.0), bad.get("alpha", 0.1))


def test_no_reward_at_all_is_an_error() -> None:
    """All rewards -inf: the message says that no completion earned a reward."""
    ips = IPS(Statistics.of(ExactModel(5, 2, seed=3).rollouts(20, lambda *_: -np.inf, 1)))
    with pytest.raises(InputError, match="no completion earned a reward"):
        ips.zhat(1.0)


def _shifted(rollouts: Rollouts, by: float) -> Rollouts:
    names = ("keys", "prompts", "lengths", "token_ids", "logprobs", "top_ids", "top_logprobs")
    return Rollouts(rewards=rollouts.rewards + by, **{name: getattr(rollouts, name) for name in names})
