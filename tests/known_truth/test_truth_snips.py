"""Self-normalised inverse propensities against the exact mean after an intervention, and against
plain ones.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from blackbox_lb.errors import InputError
from blackbox_lb.estimate.counting.ips import IPS
from blackbox_lb.estimate.counting.ratio import SNIPS, Ratio
from blackbox_lb.estimate.counting.token_matrix import Cells
from blackbox_lb.estimate.reweighting.weight_diagnostics import effective_sample_size
from tests.support.exact import ExactModel
from tests.support.statistics import statistics_of
from tests.support.truth import Exact

TAU = 0.8
TAUS = (0.3, 0.5, TAU, 1.0)
MODEL = ExactModel(8, 3, seed=7, end=True, prompts=2, sharpness=0.5)


def reward(tokens: tuple[int, ...], prompt: int) -> float:
    """Depends on content, length and prompt, and is -inf now and then."""
    return -np.inf if tokens[0] == 4 else 0.6 * tokens.count(2) - 0.3 * len(tokens) + 0.2 * prompt


def exact_relative(exact: Exact) -> np.ndarray:
    """(v,) the mean of exp(r / tau) after ``do(y_t = y)`` over all positions, over the mean without
    an intervention.
    """
    model, probability, v = exact.model, np.exp(exact.base), np.exp(exact.rewards / TAU)
    inserted = np.zeros((2, model.vocab_size))
    for t in range(model.horizon):
        running = exact.lengths > t
        prefixes, tokens = exact.sequences[running, :t], exact.sequences[running, t]
        table = model.next_logprobs(prefixes, exact.prompts[running])
        inverse = np.exp(-np.take_along_axis(table, tokens[:, None], axis=1)[:, 0])
        for row, weights in enumerate((np.ones_like(v), v)):
            np.add.at(inserted[row], tokens, (probability * weights)[running] * inverse)
    zbar = (probability * v) @ exact.lengths / (probability @ exact.lengths)
    relative: np.ndarray = inserted[1] / inserted[0] / zbar
    return relative


@pytest.mark.parametrize("positions", [None, 1])
def test_snips_converges_to_the_intervention_mean(positions: int | None) -> None:
    """At 20,000 rollouts Z / zbar is the exact one within 5 linearised standard errors, for every
    token and any P.
    """
    data = MODEL.rollouts(20_000, reward, 1, top=0)
    cells = Cells.of(data, positions=positions)
    truth, v = exact_relative(Exact(MODEL, reward)), np.exp(data.rewards / TAU)
    zbar = data.lengths @ v / data.lengths.sum()
    u = np.zeros((MODEL.vocab_size, len(v)))
    token_of = np.repeat(np.arange(MODEL.vocab_size), np.diff(cells.starts))
    u[token_of, cells.rows] = cells.inverse * data.lengths[cells.rows]
    spread = np.sqrt((((v / zbar) - truth[:, None]) ** 2 * u**2).sum(axis=1)) / u.sum(axis=1)
    snips = SNIPS(statistics_of(data, TAU, positions=positions))
    assert snips.token_ids.tolist() == list(range(MODEL.vocab_size))
    assert np.abs((snips.relative(TAU) - truth) / spread).max() < 5
    assert np.ptp(truth) > 20 * spread.max(), "a wrong truth would be noticed"


def test_it_is_not_what_the_ratio_estimates() -> None:
    """Where good prefixes choose a token it looks good to the ratio; SNIPS credits it with what it
    causes, which is nothing.
    """
    model = ExactModel(6, 2, seed=3, sharpness=1.5)
    first_only = lambda tokens, _: 2.0 * (tokens[0] == 0)  # noqa: E731
    data = model.rollouts(30_000, first_only, 2, top=0)
    second = statistics_of(
        replace(
            data, token_ids=data.token_ids[1::2], logprobs=data.logprobs[1::2], lengths=data.lengths // 2, bounded=None,
            top_ids=data.top_ids[1::2], top_logprobs=data.top_logprobs[1::2],
        ), TAUS)  # fmt: skip
    causes, company = np.log(SNIPS(second).relative(1.0)), np.log(Ratio(second).relative(1.0))
    assert np.abs(causes).max() < 0.2
    assert np.abs(company).max() > 0.5


def test_delta_is_the_formula() -> None:
    """``log[(kappa zbar + ess Z) / (kappa + ess)] - log zbar`` with ess of the shares, written out
    as a loop.
    """
    data, kappa = MODEL.rollouts(60, reward, 3), 2.5
    v = np.exp(data.rewards / TAU)
    zbar = data.lengths @ v / data.lengths.sum()
    u = np.zeros((60, 8))
    for row, token, logprob in zip(
        data.rollout_of, data.token_ids, data.logprobs.astype(float), strict=True
    ):
        u[row, token] += np.exp(-logprob)
    snips = SNIPS(statistics_of(data, TAUS))
    for at, token in enumerate(snips.token_ids):
        ess, z = effective_sample_size(u[:, token]), v @ u[:, token] / u[:, token].sum()
        assert snips.evidence[at] == pytest.approx(ess)
        expected = np.log((kappa * zbar + ess * z) / (kappa + ess)) - np.log(zbar)
        assert snips.delta(TAU, kappa)[at] == pytest.approx(expected, abs=1e-10)


@pytest.mark.parametrize("level", [0.0, -7.3, 1e4])
@pytest.mark.parametrize("positions", [None, 1])
def test_a_constant_reward_gives_exactly_no_bias(level: float, positions: int | None) -> None:
    """Whatever the constant, however long the completions, however many positions: 0, where plain
    IPS has noise.
    """
    statistics = statistics_of(MODEL.rollouts(100, lambda *_: level, 5), TAUS, positions=positions)
    assert not SNIPS(statistics).delta(0.3, 2.0).any()
    assert np.ptp(IPS(statistics).delta(0.3, 0.1, relative=True)) > 0.5


def test_a_planted_token_stands_out_and_shrinkage_pulls_it_back() -> None:
    """A token that is worth 2 nats wherever it occurs has the largest bias; kappa moves every value
    toward 0, none across it.
    """
    snips = SNIPS(
        statistics_of(MODEL.rollouts(3_000, lambda tokens, _: 2.0 * (5 in tokens), 6), TAUS)
    )
    weak, strong = snips.delta(1.0, 1.0), snips.delta(1.0, 1_000.0)
    assert snips.token_ids[weak.argmax()] == snips.token_ids[strong.argmax()] == 5
    assert (np.abs(strong) < np.abs(weak)).all()
    np.testing.assert_array_equal(np.sign(strong), np.sign(weak))
    assert np.abs(snips.delta(1.0, 1e12)).max() < 1e-6


def test_one_lucky_draw_does_not_rule() -> None:
    """A token seen once at probability 1e-6 in the best completion: plain IPS gives it over 5 nats,
    SNIPS at most log 2 at kappa as large as the reward says."""
    data = MODEL.rollouts(400, lambda tokens, _: 0.0, 8, top=0)
    last = int(data.lengths[:-1].sum())
    data.token_ids[last], data.logprobs[last] = 9, np.log(1e-6)
    lucky = replace(data, rewards=np.concatenate((np.zeros(399), [1.0])))
    statistics = statistics_of(lucky, TAUS)
    snips, ips = SNIPS(statistics), IPS(statistics)
    where = snips.token_ids.tolist().index(9)
    assert snips.evidence[where] == 1
    assert snips.delta(1.0, 4.0)[where] == pytest.approx(
        np.log((4 + snips.relative(1.0)[where]) / 5)
    )
    assert snips.delta(1.0, 4.0)[where] < 0.3 < 5 < ips.delta(1.0, 0.3, relative=True)[where]


def test_shrunk_means_beat_plain_inverse_propensities_at_equal_rollouts() -> None:
    """From 150 rollouts of 40 tokens the exact E[r] - tau KL, best setting of each, is higher than
    plain IPS's on the mean of four draws: SNIPS 1.5 times, SNIPS with a clip of 100 more, the ratio
    twice."""
    model, tau = ExactModel(40, 3, seed=11, end=True), 0.5
    data = [
        model.rollouts(
            150,
            lambda tokens, _: float(5 in tokens or 17 in tokens) - 0.1 * len(tokens),
            seed,
            top=0,
        )
        for seed in range(4)
    ]
    exact = Exact(model, lambda tokens, _: float(5 in tokens or 17 in tokens) - 0.1 * len(tokens))
    base = exact.expected_reward()

    def objective(token_ids: np.ndarray, delta: np.ndarray) -> float:
        full = np.zeros(40)
        full[token_ids] = delta
        return exact.expected_reward(full) - base - tau * exact.kl(full)

    def shrunk(estimator: SNIPS | Ratio) -> float:
        return max(
            objective(estimator.token_ids, estimator.delta(tau, kappa)) for kappa in (4, 16, 64)
        )

    def plain(ips: IPS) -> float:
        return max(
            objective(ips.token_ids, ips.delta(tau, alpha, relative=True))
            for alpha in (0.3, 1, 3, 10)
        )

    ips = np.mean([plain(IPS(statistics_of(each, TAUS))) for each in data])
    snips = np.mean([shrunk(SNIPS(statistics_of(each, TAUS))) for each in data])
    clipped = np.mean([shrunk(SNIPS(statistics_of(each, TAUS, clip=100.0))) for each in data])
    ratio = np.mean([shrunk(Ratio(statistics_of(each, TAUS))) for each in data])
    assert snips > 1.5 * ips > 0
    assert clipped > snips
    assert ratio > 2 * ips


def test_any_propensity_and_reward_that_float64_holds() -> None:
    """Inverse propensities of exp(690) are not squared into infinity, nor rewards of 10,000 nats
    exponentiated.
    """
    data = MODEL.rollouts(50, reward, 9)
    data.logprobs[:5] = -690.0
    snips = SNIPS(statistics_of(replace(data, rewards=data.rewards + 1e4), TAUS))
    assert np.isfinite(snips.delta(TAU, 2.0)).all()
    assert (snips.evidence >= 1).all()
    assert (snips.evidence <= 50).all()


def test_clipping_goes_from_snips_to_the_ratio() -> None:
    """With a clip of 1 every share is a count, so Z is the ratio's; ess is then of counts."""
    data = MODEL.rollouts(300, reward, 10)
    snips, ratio = SNIPS(statistics_of(data, TAUS, clip=1.0)), Ratio(statistics_of(data, TAUS))
    np.testing.assert_allclose(snips.relative(TAU), ratio.relative(TAU), rtol=1e-10)
    assert (snips.evidence <= ratio.evidence + 1e-9).all()


def test_a_token_that_is_never_given_a_logprob_stays_at_zero() -> None:
    """Under "drop" a token that is always bounded has no share: ess 0 and bias 0."""
    data = MODEL.rollouts(300, reward, 11)
    bounded = data.token_ids == 6
    snips = SNIPS(statistics_of(replace(data, bounded=bounded), TAUS, unobserved="drop"))
    where = snips.token_ids.tolist().index(6)
    assert (snips.evidence[where], snips.delta(TAU, 2.0)[where]) == (0, 0)


def test_one_rollout_says_nothing() -> None:
    """Every token is as good as all of them."""
    snips = SNIPS(statistics_of(MODEL.rollouts(1, lambda *_: -3.0, 9), TAUS))
    assert len(snips.token_ids) > 0
    assert not snips.delta(1.0, 2.0).any()


@pytest.mark.parametrize(
    "bad", [{"tau": 0.0}, {"tau": np.nan}, {"kappa": 0.0}, {"kappa": -1.0}, {"kappa": np.inf}]
)
def test_bad_settings_are_named(bad: dict[str, float]) -> None:
    """tau and kappa outside (0, inf) are refused by name."""
    with pytest.raises(InputError, match=next(iter(bad))):
        SNIPS(statistics_of(MODEL.rollouts(20, reward, 1), TAUS)).delta(
            bad.get("tau", 1.0), bad.get("kappa", 2.0)
        )


def test_no_reward_at_all_is_an_error() -> None:
    """All rewards -inf: the message says that no completion earned a reward."""
    with pytest.raises(InputError, match="no completion earned a reward"):
        SNIPS(statistics_of(MODEL.rollouts(20, lambda *_: -np.inf, 1), TAUS)).delta(1.0, 2.0)
