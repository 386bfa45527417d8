"""Evidence for a decision between an opening and everything else: first lists. One number on the
opening's tokens is learned from them.

The first lists give the log odds of the opening at every prompt; a shift of all its tokens adds to
them. The likeliest shift of the given answers is a logistic regression with a single intercept, and
the goal then chooses the point on the curve.

Index letters: ``p`` prompts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np

from blackbox_lb.errors import NoLogprobs
from blackbox_lb.estimate.choice.candidates import compiled
from blackbox_lb.estimate.choice.estimator import Proposal
from blackbox_lb.estimate.choice.goal import Goal
from blackbox_lb.estimate.decisions.first_lists import FirstLists
from blackbox_lb.estimate.decisions.prediction import roc_area
from blackbox_lb.estimate.inputs.checks import Bools, Vector
from blackbox_lb.estimate.label_fit import label_fit
from blackbox_lb.jobs.fitting.choosing.decision_goals import label_weights
from blackbox_lb.jobs.fitting.choosing.operating import LabelledLists, PointChoice
from blackbox_lb.jobs.fitting.choosing.proposing import calibration_of
from blackbox_lb.jobs.fitting.choosing.scorers import Choice
from blackbox_lb.jobs.fitting.document import Measured
from blackbox_lb.jobs.fitting.evidence.selection import Selected, at_point
from blackbox_lb.jobs.fitting.job import FitJob
from blackbox_lb.jobs.plan.check import check_opening_plan
from blackbox_lb.rollouts.answers.given_answers import first_completions, listed_places
from blackbox_lb.rollouts.answers.openings import Opening, opening_log_odds, opening_of
from blackbox_lb.rollouts.columns import columns
from blackbox_lb.rollouts.judging.trials import Trials
from blackbox_lb.rollouts.positions import Positions
from blackbox_lb.tasks.sets.labels import OPENING, OTHER, OpenLabels
from blackbox_lb.types import Completion, Example

SPREAD = 5.0
"""Nats, the standard deviation of a shift beforehand: it keeps the shift of separated prompts
finite, and weighs as much as a quarter of a prompt.
"""


@dataclass(frozen=True, slots=True, eq=False)
class OpenDecision:
    """The first lists of prompts whose answer is an opening or anything else.

    Attributes:
        labels: the opening, and everything else.
        opening: the tokens that begin it.
        positions: the first position of each training prompt, as training data.
        training, validation: the lists of the prompts with their labels.
    """

    labels: OpenLabels
    opening: Opening
    positions: Positions
    training: LabelledLists
    validation: LabelledLists

    async def choose(self, job: FitJob) -> Selected:
        """See ``FitEvidence``: the point of the goal on the validation prompts."""
        goal = job.plan.goal
        point = opening_point(goal, self.labels, self.opening, self.training, self.validation)
        job.trials.report.detail(point.check_ranking(go_on=job.plan.go_on))
        calibration = calibration_of(
            self.labels.names,
            point.label_tokens,
            self.training,
            [(self.training, self.validation)],
        )
        shift = shifted(self.labels, self.opening, self.training, goal)
        candidate = compiled(shift, self.positions.next_token, job.limits)
        choice = Choice(candidate, (), Measured(), sentence=candidate.origin)
        selected = Selected(choice, self.positions, calibration=calibration, has_errors=False)
        return at_point(job, selected, point)


async def collect(job: FitJob) -> OpenDecision:
    """Read the first lists unless they are in the store, and find the tokens of the opening.

    Raises:
        InputError: the plan is impossible, or no token begins the opening. NoLogprobs: no prompt
        came with a list. ProviderError: the API failed.
    """
    labels = cast(OpenLabels, job.plan.decision_labels)
    check_opening_plan(job, labels)
    job.announce(())
    trials = job.trials
    listed = job.plan.top_logprobs
    completions, training = await opening_lists(trials, job.examples, "training", listed, labels)
    _, validation = await opening_lists(trials, job.task.validation, "validation", listed, labels)
    opening = await opening_of(trials, labels, [training.lists, validation.lists])
    trials.report.detail(opening.sentence)
    rows = {str(number): completion for number, completion in enumerate(completions)}
    rollouts = columns(rows, range(len(rows)), [0.0] * len(rows), trials.end_tokens)
    positions = Positions.of(rollouts).with_tokens(opening.tokens)
    return OpenDecision(labels, opening, positions, training, validation)


async def opening_lists(
    trials: Trials,
    examples: Sequence[Example],
    title: str,
    listed: int | None,
    labels: OpenLabels,
) -> tuple[list[Completion], LabelledLists]:
    """The completions of one token of ``examples`` that came with a list, drawn unless they are in
    the store; and their lists with the numbers of the wanted labels.

    listed: alternatives of each list; None for as many as help. Raises NoLogprobs: no prompt came
    with a list; ProviderError: the API failed.
    """
    completions, width = await first_completions(trials, examples, title, listed)
    hidden = sum(bool(answer.tool_calls) and not len(answer.top_ids) for answer in completions)
    if hidden:
        raise NoLogprobs(
            f"{hidden} of {len(examples)} {title} prompts were answered by a call whose tokens"
            f" {trials.session.profile.name} does not list, so that nothing tells how likely a"
            " call was; use vllm, sglang, llamacpp or local"
        )
    lists = FirstLists.of(completions)
    places = listed_places(lists).tolist()
    trials.report.detail(
        f"{len(places)} of {len(examples)} {title} prompts came with a first list of up to"
        f" {width:,} tokens"
    )
    numbers = np.array([labels.of(examples[place]) for place in places], np.int64)
    return [completions[place] for place in places], LabelledLists(
        lists.only(lists.has_list), numbers
    )


def likeliest_shift(log_odds: Vector, is_wanted: Bools, weights: Vector | None) -> float:
    """The shift in nats with the likeliest answers, log-likelihood less ``shift^2 / (2 SPREAD^2)``.

    log_odds: (p,) of the opening without a bias. is_wanted: (p,). weights: (p,), None for 1 each.
    """
    _, shift = label_fit(
        log_odds[:, None],
        np.where(is_wanted, 0, 1),
        np.zeros(len(log_odds)),
        l2=1 / SPREAD**2,
        weights=weights,
    )
    return float(shift[0])


def shifted(labels: OpenLabels, opening: Opening, training: LabelledLists, goal: Goal) -> Proposal:
    """The likeliest shift of the opening's tokens."""
    weights = label_weights(goal, labels, training.labels)
    log_odds = opening_log_odds(training.lists.with_tokens(opening.tokens), opening.tokens)
    shift = likeliest_shift(log_odds, training.labels == OPENING, weights)
    return Proposal(
        {"decide": labels.spec, "likeliest": round(shift, 4)},
        opening.tokens,
        np.full(len(opening.tokens), shift),
        estimator="opening",
        origin=f"the likeliest shift of the opening ({shift:+.2f} nats)",
    )


def opening_point(
    goal: Goal,
    labels: OpenLabels,
    opening: Opening,
    training: LabelledLists,
    validation: LabelledLists,
) -> PointChoice:
    """The decision whose point the goal chooses."""
    parts = [
        LabelledLists(part.lists.with_tokens(opening.tokens), part.labels)
        for part in (training, validation)
    ]
    scores = np.concatenate([part.lists.margins(opening.tokens) for part in parts])
    is_wanted = np.concatenate([part.labels == OPENING for part in parts])
    return PointChoice(
        goal=goal,
        labels=labels,
        positive=OPENING,
        label_tokens=(opening.tokens, np.zeros(0, np.int64)),
        training=parts[0],
        validation=parts[1],
        area=roc_area(scores, is_wanted),
        otherwise=OTHER,
        learns_shift_alone=True,
    )
