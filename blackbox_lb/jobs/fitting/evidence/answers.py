"""Evidence from given answers: the model's lists along the answers of the training rows. Lists of
the validation prompts choose where they alone give the effects, else fresh completions.

Where there are no validation prompts, the training prompts choose by cross-fitting: the bias is
learned from all of them, and each of them judges what is learned without its fold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import cast

import numpy as np

from blackbox_lb.bias.records import Calibration, Comparison
from blackbox_lb.errors import InputError
from blackbox_lb.estimate.decisions.first_lists import FirstLists
from blackbox_lb.estimate.inputs.checks import Ids
from blackbox_lb.estimate.projection.projection import Prior
from blackbox_lb.jobs.fitting.choosing.from_lists import FromLists, SharesFromLists
from blackbox_lb.jobs.fitting.choosing.operating import LabelledLists, PointChoice
from blackbox_lb.jobs.fitting.choosing.proposing import calibration_of, label_priors
from blackbox_lb.jobs.fitting.choosing.scorers import FromSamples
from blackbox_lb.jobs.fitting.evidence.answers_to_learn import AnswersToLearn, given_answers
from blackbox_lb.jobs.fitting.evidence.selection import (
    LearnedFrom,
    Selected,
    at_point,
    check_plan,
    select_by,
)
from blackbox_lb.jobs.fitting.job import FitJob
from blackbox_lb.jobs.fitting.varying.by_lists import challengers_by_lists
from blackbox_lb.jobs.fitting.varying.by_samples import challengers_by_samples
from blackbox_lb.jobs.fitting.varying.by_words import compared_by_words, words_sentence
from blackbox_lb.rollouts.answers.given_answers import first_completions
from blackbox_lb.rollouts.positions import Positions
from blackbox_lb.tasks.sets.labels import Labels

FOLDS = 5
"""Parts of the rows in cross-fitting."""


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
            drawing = FromSamples(job.trials, validation, job.plan.goal, job.plan.settings)
            return await select_by(drawing, job, self.positions, challengers_by_samples)
        if not validation:
            return await self._crossed(job)
        lists = await FromLists.of(job.trials, validation, job.plan, self.answers)
        point = self._point(job, lists)
        unlabelled = [lists.first.whole, *await _unlabelled(job)]
        by_lists = partial(challengers_by_lists, answers=self.answers, validation=lists.first)
        calibrations = _calibrations(job, self.answers, unlabelled)
        selected = await select_by(lists, job, self.positions, by_lists, calibrations)
        selected = replace(
            selected,
            calibration=self._calibration(job, lists),
            by_words=await _by_words(job, lists, selected),
        )
        if point is None:
            return selected
        return at_point(job, selected, point)

    async def _crossed(self, job: FitJob) -> Selected:
        """The choice by cross-fitting over the training prompts."""
        answers = self.answers
        labels = cast(Labels, job.plan.decision_labels)  # ``check_plan`` refuses none
        numbers = answers.first.labels_of(labels)
        folds = dealt(numbers, job.plan.sweep.seed)
        without_answers = await _unlabelled(job)
        vocab_size = job.trials.tokenizer.vocabulary_size
        left_out = []
        for fold in range(int(folds.max()) + 1):
            part = answers.only(folds != fold)
            unlabelled = [answers.first.whole.only(folds == fold), *without_answers]
            left_out.append(
                LearnedFrom(
                    Positions.of(part.rollouts, vocab_size=vocab_size),
                    _calibrations(job, part, unlabelled),
                )
            )
        scorer = FromLists.crossed(job.trials.reward, job.plan, answers, folds)
        selected = await select_by(
            scorer,
            job,
            self.positions,
            partial(challengers_by_lists, answers=answers, validation=scorer.first),
            _calibrations(job, answers, without_answers),
            left_out,
        )
        return replace(
            selected,
            calibration=self._calibration(job, scorer),
            by_words=await _by_words(job, scorer, selected),
        )

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
        job.trials.report.detail(point.check_ranking(go_on=job.plan.go_on))
        return point

    def _calibration(self, job: FitJob, scorer: FromLists) -> Calibration | None:
        """The probabilities of the labels by their first lists; None where labels begin alike."""
        labels = job.plan.decision_labels
        tokens = self.answers.label_tokens
        if labels is None or tokens is None:
            return None
        numbers = self.answers.first.labels_of(labels)
        training = LabelledLists.of(self.answers.first.whole, numbers)
        if scorer.folds is None:
            first = scorer.first
            held_out = [(training, LabelledLists.of(first.whole, first.labels_of(labels)))]
        else:
            folds = scorer.folds[numbers >= 0]
            held_out = [
                (training.only(folds != fold), training.only(folds == fold))
                for fold in np.unique(folds)
            ]
        return calibration_of(labels.names, tokens, training, held_out)


def dealt(numbers: Ids, seed: int) -> Ids:
    """(p,) the fold of each prompt: ``FOLDS`` of them, over which each label is spread evenly.

    numbers: (p,) of their labels, -1 for none of them.
    """
    order = np.lexsort((np.random.default_rng(seed).random(len(numbers)), numbers))
    folds = np.empty(len(numbers), np.int64)
    folds[order] = np.arange(len(numbers)) % FOLDS
    return folds


async def _by_words(job: FitJob, lists: FromLists, selected: Selected) -> Comparison | None:
    """What a bias that depends on words would decide; it changes nothing."""
    compared = await compared_by_words(job, lists, selected.choice)
    if compared is not None:
        job.trials.report.detail(words_sentence(compared))
    return compared


async def _unlabelled(job: FitJob) -> list[FirstLists]:
    """The lists of rows without an answer, where the mean answer of the model is to be known."""
    plan = job.plan
    if plan.decision_labels is None or plan.searches == "named" or not job.task.unlabelled:
        return []
    completions, _ = await first_completions(
        job.trials, job.task.unlabelled, "unlabelled", plan.top_logprobs
    )
    return [FirstLists.of(completions)]


def _calibrations(
    job: FitJob, answers: AnswersToLearn, unlabelled: Sequence[FirstLists]
) -> tuple[Prior, ...]:
    """The calibration by the answers and batch calibration, where the model decides between labels.
    The latter reads the lists of ``unlabelled`` prompts, too.
    """
    labels = job.plan.decision_labels
    if labels is None or job.plan.searches == "named":
        return ()
    return label_priors(answers, labels, unlabelled)


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
