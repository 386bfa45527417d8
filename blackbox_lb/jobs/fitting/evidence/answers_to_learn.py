"""The answers that training rows have, with the model's lists at the places of these answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from blackbox_lb.errors import InputError
from blackbox_lb.estimate.decisions.feasibility import Feasibility, feasibility
from blackbox_lb.estimate.decisions.first_lists import FirstLists
from blackbox_lb.estimate.decisions.spellings import taught_tokens
from blackbox_lb.estimate.inputs.checks import Bools, Ids, Vector
from blackbox_lb.estimate.inputs.rollouts import Rollouts
from blackbox_lb.jobs.fitting.choosing.decision_goals import label_weights
from blackbox_lb.jobs.plan.plan import Plan
from blackbox_lb.rollouts.answers.given_answers import (
    MOST_LISTED,
    AnswerStarts,
    first_tokens,
    followed,
)
from blackbox_lb.rollouts.judging.decisions import own_label_tokens
from blackbox_lb.rollouts.judging.trials import Trials
from blackbox_lb.tasks.sets.labels import Labels
from blackbox_lb.types import Example

OFTEN = 0.05
"""Share of prompts whose answer is outside its list above which longer lists are recommended."""


@dataclass(frozen=True, slots=True, eq=False)
class AnswersToLearn:
    """The answers of the training rows with their lists.

    rollouts: as they are learned from.
    first: the first position of each prompt.
    rest: what follows the first token of each answer, None where nobody tells.
    begins: the tokens that begin an answer, sorted.
    ends: those that end one, as far as they are known.
    label_tokens: (l,) those that begin each label of a decision and no other; None where there are
        no labels, or a label has none.
    taught: (l,) those of them that stand for the label in what is learned (``taught_tokens``).
    weights: (p,) what each prompt counts for the goal, None where all count alike.
    """

    rollouts: Rollouts
    first: AnswerStarts
    rest: Rollouts | None
    begins: Ids
    ends: frozenset[int] = frozenset()
    label_tokens: list[Ids] | None = None
    taught: list[Ids] | None = None
    weights: Vector | None = None

    @property
    def every_label_token(self) -> Ids:
        """The tokens that begin a label, sorted."""
        return np.unique(np.concatenate([np.zeros(0, np.int64), *(self.label_tokens or ())]))

    def only(self, rows: Bools) -> AnswersToLearn:
        """Those of the ``rows`` (p,) of prompts. What was read off the lists of all of them stays:
        which spelling of an answer is the likeliest, and what ends one.
        """
        places = self.first.places[rows]

        def taken(rollouts: Rollouts) -> Rollouts:
            return rollouts.take(np.isin(rollouts.prompts, places))

        return replace(
            self,
            rollouts=taken(self.rollouts),
            first=self.first.only(rows),
            rest=None if self.rest is None else taken(self.rest),
            weights=None if self.weights is None else self.weights[rows],
        )

    def repeat_rate(self, bias: Mapping[int, float]) -> float:
        """The share of answers that greedy decoding under ``bias`` repeats at once; 0 where
        ``rest`` is None.
        """
        if self.rest is None:
            return 0.0
        after = FirstLists(self.rest.top_ids, self.rest.top_logprobs)
        base = after.greedy({})
        biased = after.greedy(bias)
        return float(((base != biased) & np.isin(biased, self.begins)).mean())


async def given_answers(trials: Trials, examples: Sequence[Example], plan: Plan) -> AnswersToLearn:
    """The given answers of ``examples`` with their lists, drawn unless they are in the store."""
    first = await first_tokens(trials, examples, "training", plan.top_logprobs)
    trials.report.detail(first.sentence)
    if first.wanted is not None and first.longer:
        trials.report.notice(
            "labels with wanted shares are longer than one token: a bias on their tokens acts at"
            " all places of a label, so their shares may not be met; labels of one token are met"
            " far better"
        )
    rules = trials.session.profile.logprobs
    if (
        first.outside > OFTEN * len(first.examples)
        and first.width < MOST_LISTED
        and rules.limit_is_setting
    ):
        trials.report.detail(
            "how far answers outside the lists are behind can only be guessed:"
            f" {rules.limit_remedy}"
        )
    if plan.decision_labels is not None:
        trials.report.detail(
            "first lists, which do not tell what follows a label:"
            f" {judged(first, plan.decision_labels).sentence}"
        )
    label_tokens = None
    if plan.decision_labels is not None:
        label_tokens = await own_label_tokens(trials, plan.decision_labels)
    of_labels = np.concatenate([np.zeros(0, np.int64), *(label_tokens or ())])
    # A label that no training row has, or that a list misses, is not impossible.
    first = first.with_tokens(of_labels.tolist())
    begins = np.unique(np.concatenate([of_labels, *first.accepted]))
    after = await followed(trials, first)
    weights = None
    taught = label_tokens
    if plan.decision_labels is not None:
        numbers = first.labels_of(plan.decision_labels)
        weights = label_weights(plan.goal, plan.decision_labels, numbers)
        if label_tokens is not None:
            longer = numbers[[len(ids) > 1 for ids in first.spelled]]
            may_be_single = ~np.isin(np.arange(len(label_tokens)), longer)
            taught = taught_tokens(first.whole, numbers, label_tokens, may_be_single)
            await _report_spellings(trials, plan.decision_labels, label_tokens, taught)
    ends = frozenset[int]()
    rest = None
    if after is not None:
        rest, ends = after
        first = first.with_tokens([*ends, *of_labels.tolist()])
    rollouts = _teaching(first, label_tokens, taught).rollouts(weights)
    if rest is not None:
        rollouts = Rollouts.join([rollouts, rest])
    return AnswersToLearn(rollouts, first, rest, begins, ends, label_tokens, taught, weights)


def _teaching(
    first: AnswerStarts, label_tokens: Sequence[Ids] | None, taught: Sequence[Ids] | None
) -> AnswerStarts:
    """The first positions with the taught tokens of each label as the only ones accepted."""
    if label_tokens is None or taught is None:
        return first
    dropped = np.setdiff1d(np.concatenate(label_tokens), np.concatenate(taught))
    accepted = tuple(ids[~np.isin(ids, dropped)] for ids in first.accepted)
    return replace(first, accepted=accepted)


async def _report_spellings(
    trials: Trials, labels: Labels, label_tokens: Sequence[Ids], taught: Sequence[Ids]
) -> None:
    """Tell which labels are taught as one of their spellings."""
    chosen = []
    for name, ids, tokens in zip(labels.names, label_tokens, taught, strict=True):
        if len(tokens) < len(ids):
            text = await trials.session.decode(tokens.tolist())
            chosen.append(f"{name} as {text!r}")
    if chosen:
        trials.report.detail(
            f"taught {', '.join(chosen)}: spellings that tell the labels apart better than the"
            " likeliest one"
        )


def judged(starts: AnswerStarts, labels: Labels, right: Bools | None = None) -> Feasibility:
    """Judge whether a bias can correct the decisions at these first positions; ``right`` (p,):
    whether greedy answers are right.
    """
    numbers = starts.labels_of(labels)
    has_label = numbers >= 0
    if not has_label.any():
        raise InputError(
            "none of the prompts that were looked at has one of the labels; name them with"
            " ``labels``"
        )
    right_of_labelled = None
    if right is not None:
        right_of_labelled = right[has_label]
    return feasibility(
        starts.lists.only(has_label),
        [ids for ids, has in zip(starts.accepted, has_label.tolist(), strict=True) if has],
        numbers[has_label],
        right_of_labelled,
    )
