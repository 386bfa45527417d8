"""Evidence from given answers: the model's lists along the answers of the training rows. Lists of
the validation prompts choose where they alone give the effects, else fresh completions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from blackbox_lb.bias.records import Calibration
from blackbox_lb.errors import InputError
from blackbox_lb.estimate.decisions.first_lists import FirstLists
from blackbox_lb.estimate.projection.projection import Prior
from blackbox_lb.jobs.fitting.choosing.from_lists import FromLists, SharesFromLists
from blackbox_lb.jobs.fitting.choosing.operating import LabelledLists, PointChoice
from blackbox_lb.jobs.fitting.choosing.proposing import calibration_of, label_priors
from blackbox_lb.jobs.fitting.choosing.scorers import FromSamples
from blackbox_lb.jobs.fitting.evidence.answers_to_learn import AnswersToLearn, given_answers
from blackbox_lb.jobs.fitting.evidence.selection import (
    Selected,
    at_point,
    check_plan,
    select_by,
)
from blackbox_lb.jobs.fitting.job import FitJob
from blackbox_lb.jobs.fitting.varying.by_lists import challengers_by_lists
from blackbox_lb.jobs.fitting.varying.by_samples import challengers_by_samples
from blackbox_lb.rollouts.answers.given_answers import first_completions
from blackbox_lb.rollouts.positions import Positions


@dataclass(frozen=True, slots=True, eq=False)
class Answers:
    """The given answers of the training prompts.

    Attributes:
        answers: with their lists.
        positions: the same as training data.
    """

    answers: AnswersToLearn
    positions: Positions

    async def choose(self, job: FitJob) -> Selected:
        """See ``FitEvidence``: predicted shares of labels, predicted decisions, or the race by
        fresh completions.
        """
        validation = job.task.validation
        shares = await SharesFromLists.suiting(job.trials, validation, job.plan)
        if shares is not None:
            lifted = partial(challengers_by_samples, label_tokens=frozenset(shares.label_tokens))
            return await select_by(shares, job, self.positions, lifted)
        if not job.plan.selects_offline:
            drawing = FromSamples(
                job.trials, validation, self.positions.next_token, job.plan.goal, job.plan.settings
            )
            return await select_by(drawing, job, self.positions, challengers_by_samples)
        lists = await FromLists.of(job.trials, validation, job.plan, self.answers)
        point = self._point(job, lists)
        calibrations = await self._calibrations(job, lists)
        by_lists = partial(challengers_by_lists, answers=self.answers, validation=lists.first)
        selected = await select_by(lists, job, self.positions, by_lists, calibrations)
        selected = replace(selected, calibration=self._calibration(job, lists))
        if point is None:
            return selected
        return at_point(job, selected, point)

    def _point(self, job: FitJob, scorer: FromLists) -> PointChoice | None:
        """The decision whose point is to be chosen, None where no positive label is named.

        Raises InputError: no point can be better than chance, or labels begin alike.
        """
        goal = job.plan.goal
        labels = job.plan.decision_labels
        if labels is None or goal.positive is None:
            return None
        tokens = self.answers.label_tokens
        if tokens is None:
            raise InputError(
                f"``positive={goal.positive}`` has no operating point: two of the labels begin with"
                " the same tokens, so that a shift moves both; rename one in the prompts and in"
                " ``labels``"
            )
        point = PointChoice.of(goal, labels, tokens, self.answers.first, scorer.first)
        job.trials.report.notice(point.check_ranking(go_on=job.plan.go_on))
        return point

    def _calibration(self, job: FitJob, scorer: FromLists) -> Calibration | None:
        """The probabilities of the labels by their first lists; None where labels begin alike."""
        labels = job.plan.decision_labels
        tokens = self.answers.label_tokens
        if labels is None or tokens is None:
            return None
        training, validation = [
            LabelledLists.of(first.whole, first.labels_of(labels))
            for first in (self.answers.first, scorer.first)
        ]
        return calibration_of(labels.names, tokens, training, validation)

    async def _calibrations(self, job: FitJob, scorer: FromLists) -> tuple[Prior, ...]:
        """The calibration by the answers and batch calibration, where the model decides between
        labels. The latter reads the prompts of training, validation and rows without an answer.
        """
        labels = job.plan.decision_labels
        if labels is None or job.plan.searches == "named":
            return ()
        lists = [scorer.first.whole]
        if job.task.unlabelled:
            unlabelled, _ = await first_completions(
                job.trials, job.task.unlabelled, "unlabelled", job.plan.top_logprobs
            )
            lists.append(FirstLists.of(unlabelled))
        return label_priors(self.answers, labels, lists)


async def collect(job: FitJob) -> Answers:
    """Read the lists along the answers of the training prompts, unless they are in the store.

    Raises:
        InputError: the plan is impossible, or an answer cannot be spelled. NoLogprobs: no prompt
        came with a list. ProviderError: the API failed.
    """
    check_plan(job)
    answers = await given_answers(job.trials, job.examples, job.plan)
    vocab_size = job.trials.tokenizer.vocabulary_size
    return Answers(answers, Positions.of(answers.rollouts, vocab_size=vocab_size))
