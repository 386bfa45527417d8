"""Evidence from given answers: the model's lists along the answers of the training rows. Lists of
the validation prompts choose where they alone give the effects, else fresh completions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from blackbox_lb.bias.records import Calibration, Verdict
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
    informed,
    prompt_features,
    select_by,
)
from blackbox_lb.jobs.fitting.explain import Explanation, explain
from blackbox_lb.jobs.fitting.job import FitJob
from blackbox_lb.jobs.fitting.varying.by_lists import ByLists
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
        """See ``FitEvidence``: predicted shares of labels, predicted decisions, or the race by fresh
        completions.
        """
        validation = job.task.validation
        shares = await SharesFromLists.suiting(job.trials, validation, job.plan)
        if shares is not None:
            return await self._raced(job, shares, frozenset(shares.label_tokens))
        if not job.plan.selects_offline:
            scorer = FromSamples(
                job.trials, validation, self.positions.next_token, job.plan.goal, job.plan.settings
            )
            return await self._raced(job, scorer)
        return await self._predicted(
            job, await FromLists.of(job.trials, validation, job.plan, self.answers)
        )

    async def _raced(
        self,
        job: FitJob,
        scorer: FromSamples | SharesFromLists,
        label_tokens: frozenset[int] = frozenset(),
    ) -> Selected:
        """The choice by a scorer that knows no decisions. label_tokens: those of labels with wanted
        shares.
        """
        positions, facts = await informed(job, self.positions)
        features = await prompt_features(job)
        challengers = await challengers_by_samples(job, positions, features, label_tokens)
        choice = await select_by(scorer, job, positions, facts, challengers)
        return Selected(choice, positions, features)

    async def _predicted(self, job: FitJob, scorer: FromLists) -> Selected:
        """The choice by predicted decisions; at the goal's operating point where it names a
        positive label.
        """
        point = self._point(job, scorer)
        positions, facts = await informed(
            job, self.positions, await self._calibrations(job, scorer)
        )
        features = await prompt_features(job)
        challengers = [
            ByLists(
                of_prompt,
                len(job.examples),
                self.answers,
                scorer.first,
                job.limits,
                job.plan.sweep.seed,
            )
            for of_prompt in features
        ]
        choice = await select_by(scorer, job, positions, facts, challengers)
        selected = Selected(choice, positions, features, calibration=self._calibration(job, scorer))
        if point is None:
            return selected
        return at_point(job, selected, point)

    def _point(self, job: FitJob, scorer: FromLists) -> PointChoice | None:
        """The decision whose point is to be chosen, None where no positive label is named.

        Raises InputError: no point can be better than chance, or labels begin alike.
        """
        goal = job.plan.goal
        labels = job.plan.labels
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
        labels = job.plan.labels
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
        labels = job.plan.labels
        if labels is None or job.plan.searches == "named":
            return ()
        lists = [scorer.first.whole]
        if job.task.unlabelled:
            unlabelled, _ = await first_completions(
                job.trials, job.task.unlabelled, "unlabelled", job.plan.listed
            )
            lists.append(FirstLists.of(unlabelled))
        return label_priors(self.answers, labels, lists)

    def explain(self, job: FitJob, selected: Selected, verdict: Sequence[Verdict]) -> Explanation:
        """See ``FitEvidence``."""
        return explain(
            selected.positions,
            selected.choice.candidate,
            job.trials.reward,
            verdict,
            sweep=job.plan.sweep,
            vocab_size=job.trials.tokenizer.vocabulary_size,
            top_logprobs=job.trials.top_logprobs,
        )


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
