"""Candidates: what each estimator learned, in the form that the provider takes, and nothing that it refuses."""

from __future__ import annotations

import numpy as np
import pytest

from blackbox_lb.estimate.candidates import Limits, Sweep, candidates
from blackbox_lb.estimate.normaliser import NextToken
from blackbox_lb.estimate.projection import projection
from blackbox_lb.estimate.sparse import support_by_usage
from blackbox_lb.testing import ExactModel

END, TAU = 19, 0.2
ROLLOUTS = ExactModel(20, 5, end=True, seed=1).rollouts(800, lambda tokens, prompt: -0.4 * len(tokens), seed=2, top=6)
TABLE = NextToken.of(ROLLOUTS)
HIGHEST = 16
"""Three of the twenty tokens, the end token among them, are above it."""
SWEEPS = {"projection": Sweep(tau=(TAU,), l2=(5.0,)), "ips": Sweep("ips", tau=(TAU,), alpha=(0.3,))}


def limits(entries: int | None = None, highest: int | None = HIGHEST, *, integers: bool = False) -> Limits:
    """A provider that takes ids up to ``highest``."""
    return Limits(entries, -100.0, 100.0, integers, highest)


@pytest.mark.parametrize("estimator", SWEEPS)
@pytest.mark.parametrize("entries", [None, 17, 4])
@pytest.mark.parametrize("integers", [False, True])
def test_ids_above_the_highest_are_never_sent(estimator: str, entries: int | None, integers: bool) -> None:
    """Whatever the estimator and the other limits, they are left out, and counted as dropped."""
    (made,) = candidates(ROLLOUTS, TABLE, SWEEPS[estimator], limits(entries, integers=integers))
    assert made.logit_bias
    assert max(made.logit_bias) <= HIGHEST
    assert made.learned[TABLE.token_ids.tolist().index(END)] != 0, "it was learned"
    assert made.sparse.entries_dropped == int((made.learned != 0).sum()) - made.sparse.entries
    assert made.sparse.entries_dropped >= 3
    assert made.sparse.kl_lost > 0


def test_the_rest_is_fitted_with_the_forbidden_ids_at_zero() -> None:
    """The projection is fitted anew to the reward with the allowed ids as its support, not cut."""
    (made,) = candidates(ROLLOUTS, TABLE, SWEEPS["projection"], limits())
    refit = projection(ROLLOUTS, tau=TAU, l2=5.0, support=np.arange(HIGHEST + 1))
    np.testing.assert_allclose(TABLE.align(made.sparse.token_ids, made.sparse.values), refit.delta, atol=2e-3)
    cut = np.where(TABLE.token_ids <= HIGHEST, made.learned, 0.0)
    assert np.abs(refit.delta - cut).max() > 0.1


def test_the_refit_earns_more_than_the_cut() -> None:
    """On the projection's own objective the refit with forbidden ids at 0 is better than the learned values without them."""
    (made,) = candidates(ROLLOUTS, TABLE, SWEEPS["projection"], limits())
    weights = np.exp(ROLLOUTS.rewards / TAU)[ROLLOUTS.rollout_of]

    def likelihood(delta: np.ndarray) -> float:
        return float(weights @ (delta[TABLE.sampled] - TABLE.log_normaliser(delta)) / weights.sum())

    cut = np.where(TABLE.token_ids <= HIGHEST, made.learned, 0.0)
    assert likelihood(TABLE.align(made.sparse.token_ids, made.sparse.values)) > likelihood(cut)


def test_support_by_usage_leaves_them_out() -> None:
    """Where entries are scarce, none is spent on a forbidden id."""
    (made,) = candidates(ROLLOUTS, TABLE, SWEEPS["projection"], limits(4))
    free = support_by_usage(TABLE, made.learned, 4)
    assert END in free
    assert len(made.logit_bias) == 4


@pytest.mark.parametrize("estimator", SWEEPS)
@pytest.mark.parametrize("entries", [None, 5])
def test_a_limit_that_forbids_nothing_changes_nothing(estimator: str, entries: int | None) -> None:
    """With the highest id of the vocabulary, or none, candidates are the same bit for bit."""
    for first, second in zip(
        *(candidates(ROLLOUTS, TABLE, SWEEPS[estimator], limits(entries, highest)) for highest in (None, END)),
        strict=True,
    ):
        assert first.logit_bias == second.logit_bias
        assert first.sparse.kl_lost == second.sparse.kl_lost


def test_only_ips_has_a_rule_for_bounded_tokens() -> None:
    """The projection reads no probability of a sampled token, so nothing is done about one."""
    assert Sweep(unobserved="drop").rule is None
    assert Sweep("ips", unobserved="drop").rule == "drop"
    assert Sweep("ips").rule == "bound"
