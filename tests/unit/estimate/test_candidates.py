"""Candidates: what each estimator learned, in the form that the provider takes, and nothing that it
refuses.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from blackbox_lb.estimate.choice.candidates import Candidate, CompileLimits, candidates
from blackbox_lb.estimate.choice.table import ROWS
from blackbox_lb.estimate.inputs.rollouts import Rollouts
from blackbox_lb.estimate.inputs.sweep import Sweep
from blackbox_lb.estimate.next_token.next_token import NextToken
from blackbox_lb.jobs.fitting.choosing.select import Search
from blackbox_lb.jobs.plan.plan import Plan
from blackbox_lb.rollouts.positions import Positions
from tests.support.exact import ExactModel
from tests.support.fits import projection

END, TAU = 19, 0.2
ROLLOUTS = ExactModel(20, 5, end=True, seed=1).rollouts(
    800, lambda tokens, prompt: -0.4 * len(tokens), seed=2, top=6
)
TABLE = NextToken.of(ROLLOUTS)
HIGHEST = 16
"""Three of the twenty tokens, the end token among them, are above it."""
SWEEPS = {name: Sweep((name,), tau=(TAU,), l2=(5.0,), alpha=(0.3,)) for name in ROWS}


def limits(
    entries: int | None = None, highest: int | None = HIGHEST, *, integers: bool = False
) -> CompileLimits:
    """A provider that takes ids up to ``highest``."""
    return CompileLimits(entries, -100.0, 100.0, integers, highest)


def made_of(rollouts: Rollouts, sweep: Sweep, limits: CompileLimits) -> list[Candidate]:
    """All candidates."""
    return list(candidates(Positions.of(rollouts), sweep, limits))


@pytest.mark.parametrize("estimator", SWEEPS)
@pytest.mark.parametrize(("entries", "integers"), [(None, False), (17, True), (4, False)])
def test_ids_above_the_highest_are_never_sent(
    estimator: str, entries: int | None, integers: bool
) -> None:
    """Whatever the estimator and the other limits, they are left out, and counted as dropped."""
    (made,) = made_of(ROLLOUTS, SWEEPS[estimator], limits(entries, integers=integers))
    assert made.estimator == estimator
    assert made.logit_bias
    assert max(made.logit_bias) <= HIGHEST
    assert made.values[TABLE.token_ids.tolist().index(END)] != 0, "it was learned"
    learned = TABLE.token_ids[made.values != 0]
    assert made.sparse.entries_dropped == len(np.setdiff1d(learned, list(made.logit_bias))) >= 2
    assert made.sparse.kl_lost > 0
    assert entries != 4 or len(made.logit_bias) == 4, "a forbidden id takes no entry"


def test_the_rest_is_fitted_with_the_forbidden_ids_at_zero() -> None:
    """The projection is fitted anew to the reward with the allowed ids as its support, not cut."""
    (made,) = candidates(Positions(ROLLOUTS, TABLE), SWEEPS["projection"], limits())
    refit = projection(ROLLOUTS, tau=TAU, l2=5.0, support=np.arange(HIGHEST + 1))
    np.testing.assert_allclose(
        TABLE.align(made.sparse.token_ids, made.sparse.values), refit.delta, atol=2e-3
    )
    cut = np.where(TABLE.token_ids <= HIGHEST, made.values, 0.0)
    assert np.abs(refit.delta - cut).max() > 0.1


def test_named_strengths_are_judged_whole_and_default_ones_within_a_budget() -> None:
    """Two named strengths draw what two candidates take; a default search the samples of three,
    whatever it tries; a thorough one of ten.
    """

    def drawn(plan: Plan, candidates: int) -> int:
        return Search.of(plan).most(candidates, 50, lambda samples: samples)

    named = Plan(reward="length", l2=(20.0, 5.0))
    assert named.searches == "named"
    assert drawn(named, 2) == 50 * 2 * named.validation_samples
    assert Plan(reward="length", estimator=("ips",)).searches == "named"
    brief = Plan(reward="length")
    assert brief.searches == "brief"
    for count in (2, 5, 9, 13):
        assert drawn(brief, count) <= 1.1 * 50 * 3 * brief.validation_samples
    thorough = Plan(reward="length", search="thorough")
    assert drawn(thorough, 13) <= 1.1 * 50 * 10 * brief.validation_samples
    assert drawn(thorough, 13) > 2 * drawn(brief, 13)


def test_a_tau_that_changes_nothing_is_tried_once() -> None:
    """Rewards of 0 and -inf make tau inert; so does any one number, unless alpha is an absolute one
    that it is added to.
    """
    for reward, scale, expected in (
        (0.0, "absolute", 1),
        (1.0, "relative", 1),
        (1.0, "absolute", 2),
    ):
        rollouts = replace(ROLLOUTS, rewards=np.where(ROLLOUTS.lengths > 2, reward, -np.inf))
        sweep = Sweep(("ips",), tau=(0.5, 1.0), alpha=(0.3,), alpha_scale=scale)  # type: ignore[arg-type]
        learned = [each.values for each in candidates(Positions(rollouts, TABLE), sweep, limits())]
        assert len(learned) == expected
        assert expected == 1 or np.abs(learned[0] - learned[1]).max() > 0.1


def test_results_do_not_depend_on_what_else_is_tried() -> None:
    """Fits start from each other, and end in the same place in any order, alone or not, within the
    solver's tolerance.
    """
    taus, strengths = (0.1, 2.0), (2.5, 40.0)
    sweeps = [
        Sweep(tau=taus, l2=strengths),
        Sweep(tau=taus[::-1], l2=strengths[::-1]),
        *(Sweep(tau=(tau,), l2=(l2,)) for tau in taus for l2 in strengths),
    ]
    found: dict[str, list[Candidate]] = {}
    for sweep in sweeps:
        for each in candidates(Positions(ROLLOUTS, TABLE), sweep, limits(5)):
            found.setdefault(each.label, []).append(each)
    assert len(found) == 4
    for one, *others in found.values():
        assert len(others) == 2
        for other in others:
            np.testing.assert_allclose(one.values, other.values, atol=2e-3)
            assert one.logit_bias == pytest.approx(other.logit_bias, abs=2e-3)
