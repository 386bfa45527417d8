"""What the sources of evidence have in common: what they hand on, and the race on the validation
prompts, by completions or by lists.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import NamedTuple, Protocol, TypeAlias

from blackbox_lb.bias.operating import OperatingCurve, point_sentence
from blackbox_lb.bias.records import Calibration, Comparison
from blackbox_lb.bias.request_bias import embedding_model
from blackbox_lb.estimate.choice.candidates import Candidate, crossed
from blackbox_lb.estimate.diagnosis.truncation import Truncation
from blackbox_lb.estimate.inputs.sweep import PROMISE_L2, Sweep
from blackbox_lb.estimate.projection.projection import Prior
from blackbox_lb.jobs.fitting.choosing.operating import PointChoice
from blackbox_lb.jobs.fitting.choosing.proposing import (
    Knowledge,
    knowledge,
    proposals,
    with_knowledge,
)
from blackbox_lb.jobs.fitting.choosing.scorers import Challengers, Choice, Scorer
from blackbox_lb.jobs.fitting.choosing.select import Search, select
from blackbox_lb.jobs.fitting.job import FitJob
from blackbox_lb.jobs.fitting.varying.feature_matrix import PromptFeatures
from blackbox_lb.jobs.plan.check import check_fit_plan
from blackbox_lb.rollouts.judging.decisions import confusable
from blackbox_lb.rollouts.positions import Positions


@dataclass(frozen=True, slots=True, eq=False)
class Selected:
    """What was chosen from the evidence.

    Attributes:
        choice: the candidate, what it was compared with, and a richer one that beat it.
        positions: that it was learned from, with every token of which something is known.
        features: those of the prompt that were tried.
        operating: the curve of a decision with a positive label, None without one.
        calibration: the probabilities of the labels, None where no list shows them.
        truncation: of the first completions, None where the reward is not by length.
        by_words: a bias that depends on the words of the prompt, predicted beside the fixed one;
            None where words were not tried.
        has_errors: whether its values were estimated, so that they have standard errors.
    """

    choice: Choice
    positions: Positions
    features: tuple[PromptFeatures, ...] = ()
    operating: OperatingCurve | None = None
    calibration: Calibration | None = None
    truncation: Truncation | None = None
    by_words: Comparison | None = None
    has_errors: bool = True


class FitEvidence(Protocol):
    """What a fit collected."""

    async def choose(self, job: FitJob) -> Selected:
        """The best bias by the goal.

        Raises InputError: nothing can be learned, or no bias keeps a promise. ProviderError: the
        API failed; what was received is kept.
        """


def check_plan(job: FitJob) -> None:
    """Refuse an impossible plan that learns from samples or answers, and announce a possible one.

    Raises InputError, ProfileError or NoLogprobs: see ``check_fit_plan``.
    """
    check_fit_plan(job)
    labels = job.plan.decision_labels
    notices: list[str] = []
    if labels is not None:
        notices += confusable(labels, job.trials.reward.matcher)
    if job.task.note:
        notices.append(job.task.note)
    job.announce(notices)


ChallengersOf: TypeAlias = Callable[
    [FitJob, Positions, Sequence[PromptFeatures]], Awaitable[Sequence[Challengers]]
]
"""Makes what proposes biases with features, from the positions that are learned from."""


class LearnedFrom(NamedTuple):
    """Positions, and calibrations where the model decides between labels."""

    positions: Positions
    labels: tuple[Prior, ...] = ()


async def select_by(
    scorer: Scorer,
    job: FitJob,
    positions: Positions,
    challengers_of: ChallengersOf,
    labels: tuple[Prior, ...] = (),
    left_out: Sequence[LearnedFrom] = (),
) -> Selected:
    """Learn a candidate for each setting of the sweep, and choose one by ``scorer``.

    labels: calibrations, where the model decides between labels.
    left_out: what is learned from without each fold of the rows, where these choose too.
    """
    plan = job.plan
    search = Search.of(plan)
    sweep = plan.sweep
    if plan.goal.is_promise and sweep.l2_is_default:
        sweep = replace(sweep, l2=PROMISE_L2)
    positions, field = await _learned(job, sweep, LearnedFrom(positions, labels))
    if left_out:
        parts = [[*(await _learned(job, sweep, part))[1]] for part in left_out]
        field = crossed(field, parts)
    features = []
    for feature in plan.parsed_features:
        model = embedding_model([feature], job.trials.store)
        features.append(await asyncio.to_thread(PromptFeatures.of, feature, job.examples, model))
        if model is not None and model.tokens:
            job.trials.report.detail(
                f"{model.tokens:,} tokens of prompts were embedded by {model.name}"
            )
    if plan.goal.is_promise:
        # A promise on fresh prompts: the validation answers choose the point and nothing else.
        field = islice(field, 1)
        search = Search(plan.validation_samples)
    choice = await select(
        field,
        scorer,
        plan.goal,
        search,
        positions.next_token,
        job.limits,
        job.trials.report,
        job.trials.reward.label,
        await challengers_of(job, positions, features),
    )
    return Selected(choice, positions, tuple(features))


async def _learned(
    job: FitJob, sweep: Sweep, source: LearnedFrom
) -> tuple[Positions, Iterable[Candidate]]:
    """The positions with every token that something is known of, and all that is proposed."""
    plan = job.plan
    positions = source.positions
    facts = Knowledge()
    if plan.searches != "named":
        facts = await knowledge(job.trials, positions, job.limits, source.labels)
        positions = with_knowledge(positions, facts)
    return positions, proposals(positions, sweep, job.limits, facts)


def at_point(job: FitJob, selected: Selected, point: PointChoice) -> Selected:
    """``selected`` at the operating point of the goal.

    Raises BiasError: no point keeps the promise on the validation prompts.
    """
    candidate, curve = point.choose(
        selected.choice.candidate, selected.positions.next_token, job.limits
    )
    job.trials.report.detail(point_sentence(curve))
    choice = replace(
        selected.choice,
        candidate=candidate,
        sentence=f"{candidate.origin}; {candidate.sparse.entries:,} entries",
    )
    return replace(selected, choice=choice, operating=curve)
