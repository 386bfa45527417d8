"""All test numbers of a fit, from one collection of completions of the test prompts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from blackbox_lb.bias.operating import OperatingCurve
from blackbox_lb.bias.records import Comparison, Verdict
from blackbox_lb.bias.request_bias import NO_BIAS, RequestBias
from blackbox_lb.estimate.next_token.next_token import NextToken
from blackbox_lb.jobs.fitting.choosing.operating import checked_point
from blackbox_lb.jobs.fitting.document import BothDecisions, BothShares
from blackbox_lb.jobs.fitting.evidence.selection import Selected
from blackbox_lb.jobs.fitting.job import FitJob
from blackbox_lb.jobs.fitting.scored_policies import (
    BASE,
    BIASED,
    FIXED,
    SettingTest,
    score_policies,
    verdict_of,
)
from blackbox_lb.jobs.fitting.varying.by_lists import classified
from blackbox_lb.jobs.plan.plan import Plan
from blackbox_lb.rollouts.judging.decisions import beside_commonest
from blackbox_lb.rollouts.judging.verdict import SAMPLED, comparison
from blackbox_lb.tasks import Task
from blackbox_lb.types import Example

KL_PROMPTS = 40
"""Test prompts answered at temperature 1 for the KL alone, where the verdict is at other settings.
"""


@dataclass(frozen=True, slots=True, eq=False)
class Judgement:
    """What the test prompts tell of the chosen bias; see ``FitResult``.

    Attributes:
        tests: the completions and their scores, in the order of the settings.
        operating: the curve with the check of its point, None without one.
        kl: nats a completion, NaN where it could not be computed.
    """

    tests: tuple[SettingTest, ...]
    verdict: list[Verdict]
    decisions: dict[str, BothDecisions]
    shares: dict[str, BothShares]
    beside: tuple[Comparison, ...]
    operating: OperatingCurve | None
    kl: float


async def judge(
    job: FitJob, selected: Selected, bias: RequestBias, fixed: RequestBias
) -> Judgement:
    """Compare fresh completions of the test prompts, with ``bias`` and without. ``fixed``: the same
    bias without features, compared where it is another one.

    Raises InputError: a score is not finite. ProviderError: the API failed.
    """
    plan = job.plan
    reward = job.trials.reward
    examples = judged_examples(job.task, plan)
    policies = {BASE: NO_BIAS, BIASED: bias}
    if fixed is not bias:
        policies[FIXED] = fixed
    tail = selected.positions.next_token
    tests: list[SettingTest] = []
    if examples:
        tests = await score_policies(
            job.trials,
            examples,
            plan.settings,
            plan.test_samples,
            policies,
            plan.decision_labels,
            tail,
        )
    decisions = {}
    shares = {}
    for test in tests:
        base = test.policies[BASE]
        biased = test.policies[BIASED]
        if base.decisions is not None and biased.decisions is not None:
            decisions[test.setting.name] = BothDecisions(
                base=base.decisions, biased=biased.decisions
            )
        if base.scores.shares is not None and biased.scores.shares is not None:
            shares[test.setting.name] = BothShares(
                base=base.scores.shares.rows, biased=biased.scores.shares.rows
            )
    biased_decisions = {name: both.biased for name, both in decisions.items()}
    operating = selected.operating
    if operating is not None and biased_decisions:
        checked = checked_point(operating, list(biased_decisions.values())[-1])
        operating = operating.replacing(checked=checked)
    return Judgement(
        tests=tuple(tests),
        verdict=beside_commonest(verdict_of(tests, reward.label), biased_decisions, reward.name),
        decisions=decisions,
        shares=shares,
        beside=tuple(_beside(job, selected, bias, tests)),
        operating=operating,
        kl=await _kl(job, tests, bias, tail),
    )


def _beside(
    job: FitJob, selected: Selected, bias: RequestBias, tests: Sequence[SettingTest]
) -> Iterator[Comparison]:
    """The chosen bias against what else decides: the fixed bias, where another is sent, and for
    each feature of the prompt a classifier on it alone. The features are those of the bias; all
    that were tried where it has none.
    """
    label = job.trials.reward.label
    specs = [feature.spec for feature in bias.features]
    features = [tried for tried in selected.features if tried.feature.spec in specs]
    labels = job.plan.decision_labels
    classifiers = []
    for tried in features or selected.features:
        if labels is not None and tried.table.shape[1]:
            right = classified(tried, job.examples, job.task.test, labels)
            classifiers.append((f"classifier on {tried.feature.kind}", tuple(right[:, None])))
    for test in tests:
        biased = test.policies[BIASED].scores
        if FIXED in test.policies:
            fixed = test.policies[FIXED].scores
            yield comparison(test.setting, fixed, biased, label, policies=(FIXED, "bias"))
        if biased.correct is None:
            continue
        correct = replace(biased, reward=biased.correct)
        for name, alone in classifiers:
            rival = replace(biased, reward=alone)
            yield comparison(test.setting, rival, correct, label, policies=(name, "bias"))


async def _kl(
    job: FitJob, tests: Sequence[SettingTest], bias: RequestBias, tail: NextToken
) -> float:
    """The KL at temperature 1: of the judged completions, else of a few that are drawn for it."""
    for test in tests:
        if test.setting == SAMPLED:
            return test.policies[BIASED].kl
    examples, samples = kl_draws(job.task, job.plan)
    return await job.trials.kl(examples, samples, bias, tail)


def judged_examples(task: Task, plan: Plan) -> tuple[Example, ...]:
    """The test prompts that a bias is judged on: rows without an answer say nothing of one that
    was learned without any.
    """
    if plan.learn_from == "unlabelled":
        return tuple(example for example in task.test if example.answers)
    return task.test


def kl_draws(task: Task, plan: Plan) -> tuple[tuple[Example, ...], int]:
    """The prompts and samples of the KL where nothing is judged at temperature 1."""
    if SAMPLED in plan.settings:
        return task.test, plan.test_samples
    return task.test[:KL_PROMPTS], 1
