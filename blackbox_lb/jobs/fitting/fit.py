"""The main job: collect the evidence, choose a bias by it, judge the bias on unseen test prompts,
explain the verdict, and write all of it down.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from blackbox_lb.bias.request_bias import RequestBias
from blackbox_lb.jobs.decisions.fit import fit_decisions
from blackbox_lb.jobs.fitting.evidence import answers, opening, samples, unlabelled
from blackbox_lb.jobs.fitting.evidence.selection import FitEvidence
from blackbox_lb.jobs.fitting.explain import explain
from blackbox_lb.jobs.fitting.job import FitJob
from blackbox_lb.jobs.fitting.judge import judge
from blackbox_lb.jobs.fitting.left_hits import advice
from blackbox_lb.jobs.fitting.result import Fitted, recorded, uncompiled_of, written
from blackbox_lb.jobs.fitting.varying.by_samples import confined
from blackbox_lb.jobs.plan.plan import Plan
from blackbox_lb.rollouts.judging.trials import Trials
from blackbox_lb.tasks import Task
from blackbox_lb.tasks.sets.labels import OpenLabels

Source: TypeAlias = Literal["samples", "answers", "opening", "unlabelled"]
"""What a bias is learned from."""


async def fit(trials: Trials, task: Task, plan: Plan) -> Fitted:
    """Learn a bias and judge it on fresh completions. The trials' store keeps everything received:
    the same call resumes.

    Raises:
        ProviderError: the API failed; what was received is kept.
        InputError: nothing can be learned, for instance because no completion earned a reward.
    """
    if plan.question is not None:
        return await fit_decisions(trials, task, plan)
    job = FitJob.of(trials, task, plan)
    evidence = await collect(job)
    selected = await evidence.choose(job)

    fixed = confined(job, RequestBias(selected.choice.candidate.logit_bias))
    sent = fixed
    if selected.choice.richer is not None:
        sent = confined(job, selected.choice.richer.bias)
    test = await judge(job, selected, sent, fixed)
    sentence = advice(job, test)
    if sentence:
        trials.report.notice(sentence)

    why = explain(job, selected, test.verdict)
    bias = await written(job, selected, sent, test, why)
    uncompiled = uncompiled_of(job.trials, bias, selected.choice.candidate, selected.positions)
    return recorded(job, selected, test, bias, uncompiled)


async def collect(job: FitJob) -> FitEvidence:
    """What the plan learns from, drawn unless it is in the store.

    Raises InputError: the plan is impossible, or there is nothing to learn; NoLogprobs: the lists
    that it needs did not come; ProviderError: the API failed.
    """
    match source_of(job.plan):
        case "samples":
            return await samples.collect(job)
        case "answers":
            return await answers.collect(job)
        case "opening":
            return await opening.collect(job)
        case "unlabelled":
            return await unlabelled.collect(job)


def source_of(plan: Plan) -> Source:
    """The source of evidence that a plan learns from."""
    if plan.learn_from == "answers" and isinstance(plan.decision_labels, OpenLabels):
        return "opening"
    return plan.learn_from or "samples"
