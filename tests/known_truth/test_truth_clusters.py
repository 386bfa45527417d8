"""The cluster-tied estimator against exact Z_avg, and its two ends: one token a cluster, and one
cluster.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest

from bench.paper.clusters import TiedIPS
from blackbox_lb.errors import InputError
from blackbox_lb.estimate.counting.statistics import Statistics, TokenIPS
from blackbox_lb.estimate.inputs.rollouts import Rollouts
from tests.support.centering import center, centered
from tests.support.errors import raises_naming
from tests.support.exact import ExactModel
from tests.support.statistics import statistics_of, zhat_of
from tests.support.truth import Exact

TAU = 0.8
TAUS = (0.5, TAU, 1.0)
ALPHA = 0.05
VOCABULARY = 12
GROUPS = np.arange(VOCABULARY) % 3


class GroupedModel(ExactModel):
    """What follows depends on the groups of the tokens before and not on the tokens: within a group
    all have one Z.
    """

    def next_logprobs(
        self, prefixes: npt.NDArray[np.int64], prompts: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.float64]:
        """As ExactModel, each prefix read as the first tokens of its groups."""
        return super().next_logprobs(GROUPS[prefixes], prompts)


def grouped_reward(tokens: tuple[int, ...], prompt: int) -> float:
    """Counts groups: 0 is good, 2 is bad."""
    groups = [int(GROUPS[token]) for token in tokens]
    return 0.8 * groups.count(0) - 0.5 * groups.count(2) + 0.2 * prompt * (groups[-1] == 1)


def replicated(
    size: int, replications: int, *, sharpness: float = 0.7
) -> tuple[GroupedModel, list[Statistics]]:
    """Independent rollout sets of one grouped model."""
    model = GroupedModel(VOCABULARY, 3, seed=5, prompts=2, sharpness=sharpness)
    return model, [
        statistics_of(model.rollouts(size, grouped_reward, seed, top=0), TAUS)
        for seed in range(replications)
    ]


def some(size: int = 60, seed: int = 1) -> Statistics:
    """A few rollouts of a context-dependent model in which tokens of a group differ."""
    return statistics_of(
        ExactModel(VOCABULARY, 3, seed=2).rollouts(size, grouped_reward, seed, top=0), TAUS
    )


def test_tying_tokens_of_equal_value_reduces_the_error() -> None:
    """Where every token of a cluster has the same Z, the tied estimate has under half the squared
    error (4 tokens each).
    """
    model, sets = replicated(400, 40)
    truth = Exact(model, grouped_reward).z_avg(TAU)
    for group in range(3):
        np.testing.assert_allclose(truth[group == GROUPS], truth[group], rtol=1e-12)
    errors = np.zeros(2)
    for statistics in sets:
        alone = np.zeros(VOCABULARY)
        ips = TokenIPS(statistics)
        alone[ips.token_ids] = zhat_of(ips, TAU)
        tied = zhat_of(TiedIPS(statistics, GROUPS), TAU)
        errors += ((alone - truth) ** 2).sum(), ((tied - truth) ** 2).sum()
    assert errors[1] < errors[0] / 2


def test_a_mean_over_observed_tokens_only_is_too_high_where_many_are_not() -> None:
    """With 6 rollouts the mean over all of a cluster's tokens is unbiased; the paper's, over the
    sampled, is off by 40 %.
    """
    model, sets = replicated(6, 1000, sharpness=1.0)
    truth = Exact(model, grouped_reward).z_avg(TAU)[:3]
    whole, tied = np.zeros((len(sets), 3)), np.zeros((len(sets), 3))
    for row, statistics in enumerate(sets):
        estimate = TiedIPS(statistics, GROUPS)
        sampled = np.bincount(GROUPS[estimate.counts > 0], minlength=3)
        tied[row] = zhat_of(estimate, TAU)[:3]
        whole[row] = tied[row] * sampled / (VOCABULARY / 3)
    error = whole.std(0, ddof=1) / math.sqrt(len(sets))
    assert (np.abs(whole.mean(0) - truth) < 4 * error).all()
    assert (tied.mean(0) / truth).max() > 1.4


def test_every_token_its_own_cluster_is_plain_ips() -> None:
    """K = vocabulary gives the bias of ``TokenIPS`` bit for bit and 0 elsewhere, whether as labels or as
    no cluster at all.
    """
    statistics = some(8)
    ips = TokenIPS(statistics)
    expected = np.zeros(VOCABULARY)
    expected[ips.token_ids] = ips.delta(TAU, ALPHA, relative=True)
    assert len(ips.token_ids) < VOCABULARY
    for labels in (np.arange(VOCABULARY), np.full(VOCABULARY, -1), 10**12 * np.arange(VOCABULARY)):
        tied = TiedIPS(statistics, labels)
        np.testing.assert_array_equal(tied.delta(TAU, ALPHA, relative=True), expected)
        np.testing.assert_allclose(
            centered(tied, TAU, ALPHA, VOCABULARY),
            centered(ips, TAU, ALPHA, VOCABULARY),
            rtol=1e-12,
        )


def test_one_cluster_changes_no_policy() -> None:
    """K = 1 gives every token the same bias, which is no change of any softmax; the paper's centred
    bias is 0.
    """
    tied = TiedIPS(some(8), np.zeros(VOCABULARY, np.int64))
    delta = tied.delta(TAU, ALPHA)
    assert delta[0] > 0
    assert np.ptp(delta) == 0
    np.testing.assert_allclose(centered(tied, TAU, ALPHA, VOCABULARY), 0, atol=1e-12)


def test_the_tied_bias_is_the_papers() -> None:
    """``log(alpha + Z_tied) - c`` with Zbar(k) as a loop over the cluster's sampled tokens
    (algorithm "Cluster-tied Zbar").
    """
    statistics, labels = some(8), np.array([0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 3, 3])
    ips = TokenIPS(statistics)
    zhat = dict(zip(ips.token_ids.tolist(), zhat_of(ips, TAU).tolist(), strict=True))
    z = np.zeros(VOCABULARY)
    for token in range(VOCABULARY):
        mates = [zhat[y] for y in range(VOCABULARY) if labels[y] == labels[token] and y in zhat]
        z[token] = sum(mates) / len(mates) if mates else 0.0
    tied = TiedIPS(statistics, labels)
    np.testing.assert_allclose(zhat_of(tied, TAU), z, rtol=1e-12)
    paper = np.log(ALPHA + z) - np.log(ALPHA + z).mean()
    np.testing.assert_allclose(
        centered(tied, TAU, ALPHA, VOCABULARY), paper, rtol=1e-10, atol=1e-14
    )
    assert center(tied, TAU, ALPHA, VOCABULARY) == pytest.approx(
        np.log(ALPHA + z).mean(), rel=1e-12
    )
    np.testing.assert_allclose(
        tied.delta(TAU, ALPHA), np.log(ALPHA + z) - np.log(ALPHA), rtol=1e-10
    )


def drawn(*tokens: int, rewards: tuple[float, ...] | None = None) -> Statistics:
    """One-token completions, each token with probability 1/2."""
    n = len(tokens)
    return statistics_of(
        Rollouts(
            keys=tuple(f"{i:03d}" for i in range(n)),
            prompts=np.zeros(n, np.int64),
            rewards=np.zeros(n) if rewards is None else np.array(rewards),
            lengths=np.ones(n, np.int64),
            token_ids=np.array(tokens, np.int32),
            logprobs=np.full(n, -math.log(2), np.float32),
            top_ids=np.full((n, 0), -1, np.int32),
            top_logprobs=np.zeros((n, 0), np.float32),
        ),
        TAUS,
    )


def test_what_was_not_observed_is_zero_and_counted() -> None:
    """A cluster without a sampled token and an unsampled token without a cluster are at 0; both are
    counted.
    """
    tied = TiedIPS(drawn(0, 0, 1, 6), [4, 4, 4, 4, 9, 9, -1, -1])
    np.testing.assert_allclose(zhat_of(tied, 1.0), [0.75, 0.75, 0.75, 0.75, 0, 0, 0.5, 0])
    assert (tied.delta(1.0, 0.1)[[4, 5, 7]] == 0).all()
    assert (tied.n_clusters, tied.n_unobserved, tied.n_untied) == (2, 1, 1)
    assert tied.observed_share == pytest.approx(2 / 6)
    np.testing.assert_array_equal(tied.counts, [2, 1, 0, 0, 0, 0, 1, 0])


def test_a_token_seen_only_in_worthless_completions_is_observed() -> None:
    """It enters its cluster's mean with Zhat = 0, as one of the sampled tokens V_+."""
    tied = TiedIPS(drawn(0, 1, rewards=(0.0, -math.inf)), [0, 0, 0])
    np.testing.assert_allclose(zhat_of(tied, 1.0), [0.5, 0.5, 0.5])


def test_a_vocabulary_of_one_token() -> None:
    """One token, one cluster: the paper's bias is 0."""
    tied = TiedIPS(drawn(0), [0])
    np.testing.assert_allclose(centered(tied, 1.0, 0.1, 1), [0.0])


def test_rewards_of_any_size_are_held() -> None:
    """10,000 nats on every reward change nothing where alpha is relative to the mean weight."""
    near = TiedIPS(drawn(0, 1, 2, rewards=(0.0, 1.0, 2.0)), [0, 0, 1])
    far = TiedIPS(drawn(0, 1, 2, rewards=(1e4, 1e4 + 1, 1e4 + 2)), [0, 0, 1])
    np.testing.assert_allclose(
        far.delta(TAU, 0.1, relative=True), near.delta(TAU, 0.1, relative=True), rtol=1e-9
    )


@pytest.mark.parametrize(
    ("labels", "facts"),
    [
        ([], ("(0,)", "float64")),
        ([[0, 1]], ("(1, 2)", "int64")),
        ([0.0, 1.0, 0.0], ("(3,)", "float64")),
        ([0, -2, 0], ("token 1", "-2")),
        ([0, 0], ("token id 2", "2 entries")),
    ],
    ids=["none", "a table", "no whole numbers", "below -1", "too short"],
)
def test_labels_that_do_not_fit_are_refused(labels: list[int], facts: tuple[str, ...]) -> None:
    """The message tells what the labels are and what they must be."""
    with raises_naming(InputError, *facts):
        TiedIPS(drawn(0, 2), labels)


def test_no_reward_at_all_is_an_error() -> None:
    """All rewards -inf: refused as by ``TokenIPS``."""
    with raises_naming(InputError, "reward", "2", "-inf"):
        TiedIPS(drawn(0, 1, rewards=(-math.inf, -math.inf)), [0, 1]).delta(1.0, 0.1)
