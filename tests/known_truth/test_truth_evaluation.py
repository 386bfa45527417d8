"""Evaluations that hold: of policies that are all the same, seldom is anything said, however many
are compared.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from blackbox_lb.bias.request_bias import RequestBias
from blackbox_lb.jobs.evaluation.compare import comparisons
from blackbox_lb.jobs.evaluation.policies import Policy
from blackbox_lb.jobs.evaluation.results import PolicyAnswers
from blackbox_lb.rollouts.judging.verdict import SAMPLED, PolicyScores
from tests.support.exact import ExactModel
from tests.support.exact.model import NOTHING

MODEL = ExactModel(12, 6, end=True, prompts=40, sharpness=0.7, seed=4)
SAMPLES = 4


def drawn(policy: Policy, seed: int, salt: int) -> PolicyAnswers:
    """Completions of the base model, whatever the policy is called: reward and accuracy ask for token
    3.
    """
    of = np.repeat(np.arange(MODEL.prompts), SAMPLES)
    rows = MODEL.sample(len(of), np.random.default_rng([seed, salt]), prompts=of)
    right = (rows == 3).any(axis=1).astype(np.float64).reshape(-1, SAMPLES)
    lengths = (rows != NOTHING).sum(axis=1).astype(np.float64).reshape(-1, SAMPLES)
    scores = PolicyScores(tuple(right / lengths), tuple(right), tuple(lengths))
    return PolicyAnswers(SAMPLED, policy, scores, 0.0, 0.0, (None,) * MODEL.prompts, len(of))


def loud(seed: int) -> set[str]:
    """The families in which anything is said of a bias, an alternative and both together, 3 and 4
    comparisons, none of which changes anything.
    """
    policies = [
        Policy(rival=rival, judged=name, sent=RequestBias({1: 1.0} if name else {}))
        for rival in ("", "same")
        for name in (None, "b")
    ]
    answers = [drawn(policy, seed, salt) for salt, policy in enumerate(policies)]
    rows = comparisons(answers, "share")
    assert Counter(row.family for row in rows) == {"primary": 3, "secondary": 4}
    return {row.family for row in rows if row.verdict != "NO EVIDENCE"}


@pytest.mark.parametrize(("runs", "most"), [(10, 1), pytest.param(200, 10, marks=pytest.mark.slow)])
def test_the_same_policies_are_seldom_told_apart(runs: int, most: int) -> None:
    """In at most 5 % of 200 evaluations is any of the comparisons of a family called anything; in
    ten one may be by chance.
    """
    counts = Counter(family for seed in range(runs) for family in loud(seed))
    print(f"\nnothing changes: something is said in {dict(counts)} of {runs} evaluations")
    assert max(counts.values(), default=0) <= most
