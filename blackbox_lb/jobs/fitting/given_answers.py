"""Learning from the answers in the training rows: collecting their lists."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from blackbox_lb.errors import InputError
from blackbox_lb.estimate.choice.table import estimators
from blackbox_lb.estimate.decisions.prediction import FirstLists
from blackbox_lb.estimate.inputs.checks import Ids, Vector
from blackbox_lb.estimate.inputs.rollouts import Rollouts
from blackbox_lb.estimate.next_token.next_token import NextToken
from blackbox_lb.jobs.check import judged
from blackbox_lb.jobs.fitting.choosing.decision_goals import label_weights
from blackbox_lb.jobs.fitting.plan import FitPlan
from blackbox_lb.rollouts.answers.given_answers import (
    MOST_LISTED,
    AnswerStarts,
    first_tokens,
    followed,
)
from blackbox_lb.rollouts.judging.decisions import own_label_tokens
from blackbox_lb.rollouts.judging.trials import Trials
from blackbox_lb.rollouts.training import Training
from blackbox_lb.tasks import Task
from blackbox_lb.tasks.rewards.matching import normalise
from blackbox_lb.tasks.sets.labels import Labels
from blackbox_lb.types import Example

OFTEN = 0.05
"""Share of prompts whose answer is outside its list above which longer lists are recommended."""
RARE = 0.02
"""Share of the training rows below which a label is reported as rare: of 300 rows, fewer than six.
"""


def check_answers(trials: Trials, task: Task, plan: FitPlan) -> None:
    """Raise InputError where the answers of ``task`` teach nothing; return remarks on labels that
    training hardly has.
    """
    names = ", ".join(
        name
        for name, estimator in estimators(plan.sweep).items()
        if not estimator.facts.learns_answers
    )
    if names:
        raise InputError(
            f"given answers are learned by projection, and not by {names}, which need completions"
            " that were drawn; use ``learn_from=samples``, or ``estimator=projection`` alone"
        )
    if trials.engine is not None:
        raise InputError(
            f"``learn_from={plan.learn_from}`` works in one process; leave out ``engine``, or use"
            " ``learn_from=samples``"
        )
    training = task.train[: plan.limit]
    has_shares = any(example.weights for example in training)
    kinds = {tuple(sorted(map(normalise, example.answers))) for example in training}
    if len(kinds) == 1 and not has_shares:
        raise InputError(
            f"all {len(training)} training rows have the same answer, {training[0].answers[0]!r}:"
            " no decision can be learned from it; give rows with other answers, too"
        )
    if plan.labels is not None:
        for sentence in unequal(plan.labels, task, plan.limit):
            trials.report.notice(sentence)


def unequal(labels: Labels, task: Task, limit: int | None = None) -> list[str]:
    """A sentence on uneven labels, and one on labels that training hardly has."""
    counts = labels.counts(task.train[:limit])
    total = sum(counts.values())
    sentences = [
        f"{len(counts)} labels in {total} training rows:"
        f" {', '.join(f'{k} {v}' for k, v in counts.items())}"
    ]
    if rare := [f"{name} ({count})" for name, count in counts.items() if count < RARE * total]:
        sentences.append(f"labels with too few training rows to be learned: {', '.join(rare)}")
    unseen = sorted(
        {
            answer
            for example in (*task.validation, *task.test)
            if labels.of(example) is None
            for answer in example.answers[:1]
        }
    )
    if unseen:
        sentences.append(
            f"answers of validation or test that no training row has: {', '.join(unseen[:10])}"
        )
    return sentences


@dataclass(frozen=True, slots=True, eq=False)
class AnswersToLearn:
    """The answers of the training rows with their lists.

    rollouts: as they are learned from.
    first: the first position of each prompt.
    after: the lists of what follows each answer, None where nobody tells.
    begins: the tokens that begin an answer, sorted.
    ends: those that end one, as far as they are known.
    label_tokens: (l,) those that begin each label of a decision and no other; None where there are
        no labels, or a label has none.
    weights: (p,) what each prompt counts for the goal, None where all count alike.
    """

    rollouts: Rollouts
    first: AnswerStarts
    after: FirstLists | None
    begins: Ids
    ends: frozenset[int] = frozenset()
    label_tokens: list[Ids] | None = None
    weights: Vector | None = None

    @property
    def every_label_token(self) -> Ids:
        """The tokens that begin a label, sorted."""
        return np.unique(np.concatenate([np.zeros(0, np.int64), *(self.label_tokens or ())]))

    def repeat_rate(self, bias: Mapping[int, float]) -> float:
        """The share of answers that greedy decoding under ``bias`` repeats at once; 0 where
        ``after`` is None.
        """
        if self.after is None:
            return 0.0
        base = self.after.greedy({})
        biased = self.after.greedy(bias)
        return float(((base != biased) & np.isin(biased, self.begins)).mean())


async def given_answers(
    trials: Trials, examples: Sequence[Example], plan: FitPlan
) -> AnswersToLearn:
    """The given answers of ``examples`` with their lists, drawn unless they are in the store."""
    first = await first_tokens(trials, examples, "training", plan.listed)
    trials.report.notice(first.sentence)
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
        trials.report.notice(
            "how far answers outside the lists are behind can only be guessed:"
            f" {rules.limit_remedy}"
        )
    if plan.labels is not None:
        trials.report.notice(
            "first lists, which do not tell what follows a label:"
            f" {judged(first, plan.labels).sentence}"
        )
    label_tokens = None
    if plan.labels is not None:
        label_tokens = await own_label_tokens(trials, plan.labels)
    of_labels = np.concatenate([np.zeros(0, np.int64), *(label_tokens or ())])
    # A label that no training row has, or that a list misses, is not impossible.
    first = first.with_tokens(of_labels.tolist())
    begins = np.unique(np.concatenate([of_labels, *first.accepted]))
    after = None
    if plan.learn_from == "answers":
        after = await followed(trials, first)
    weights = _weights(first, plan)
    if after is None:
        return AnswersToLearn(
            first.rollouts(weights),
            first,
            None,
            begins,
            label_tokens=label_tokens,
            weights=weights,
        )
    rest, ends = after
    first = first.with_tokens([*ends, *of_labels.tolist()])
    rollouts = Rollouts.join([first.rollouts(weights), rest])
    follow = FirstLists(rest.top_ids, rest.top_logprobs)
    return AnswersToLearn(rollouts, first, follow, begins, ends, label_tokens, weights)


def alone(given: Rollouts, vocab_size: int | None) -> Training:
    """Training from given answers and nothing else; ``vocab_size``: lists of that many tokens are
    complete.
    """
    table = NextToken.of(given, vocab_size=vocab_size)
    return Training(given.without_lists(), table, 0, 0, base=np.zeros(len(given.keys), np.bool_))


def _weights(found: AnswerStarts, plan: FitPlan) -> Vector | None:
    """Weights (p,) of the prompts by what their labels count for the goal, None where all prompts
    count alike.
    """
    labels = plan.labels
    if labels is None:
        return None
    numbers = [labels.of(example) for example in found.examples]
    label_numbers = [-1 if number is None else number for number in numbers]
    return label_weights(plan.goal, labels, np.array(label_numbers, np.int64))
