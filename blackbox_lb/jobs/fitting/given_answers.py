"""Learning from the answers in the training rows: collecting their lists, and choosing a candidate
without a request.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from blackbox_lb.errors import InputError
from blackbox_lb.estimate.choice.candidates import Candidate
from blackbox_lb.estimate.choice.goal import Objective
from blackbox_lb.estimate.choice.table import estimators
from blackbox_lb.estimate.decisions.prediction import FirstLists, begins_right
from blackbox_lb.estimate.decisions.scores import DecisionScores
from blackbox_lb.estimate.inputs.checks import Ids, Vector
from blackbox_lb.estimate.inputs.rollouts import Rollouts
from blackbox_lb.estimate.next_token.next_token import NextToken
from blackbox_lb.jobs.check import judged
from blackbox_lb.jobs.fitting.choosing.choice import Choice, Measured, TriedCandidate
from blackbox_lb.jobs.fitting.plan import FitPlan
from blackbox_lb.rollouts.answers.given_answers import (
    MOST_LISTED,
    FirstTokens,
    first_tokens,
    followed,
)
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
    others = ", ".join(
        name for name, each in estimators(plan.sweep).items() if not each.facts.learns_answers
    )
    if others:
        raise InputError(
            f"given answers are learned by projection, and not by {others}, which need completions"
            " that were drawn; use ``learn_from=samples``, or ``estimator=projection`` alone"
        )
    if trials.engine is not None:
        raise InputError(
            f"``learn_from={plan.learn_from}`` works in one process; leave out ``engine``, or use"
            " ``learn_from=samples``"
        )
    training = task.train[: plan.limit]
    if len({tuple(sorted(map(normalise, example.answers))) for example in training}) == 1:
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
            for each in (*task.validation, *task.test)
            if labels.of(each) is None
            for answer in each.answers[:1]
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
    """

    rollouts: Rollouts
    first: FirstTokens
    after: FirstLists | None
    begins: Ids
    ends: frozenset[int] = frozenset()

    def repeat_rate(self, bias: Mapping[int, float]) -> float:
        """The share of answers that greedy decoding under ``bias`` repeats at once; 0 where
        ``after`` is None.
        """
        if self.after is None:
            return 0.0
        base, biased = self.after.greedy({}), self.after.greedy(bias)
        return float(((base != biased) & np.isin(biased, self.begins)).mean())


async def given_answers(
    trials: Trials, examples: Sequence[Example], plan: FitPlan
) -> AnswersToLearn:
    """The given answers of ``examples`` with their lists, drawn unless they are in the store."""
    found = await first_tokens(trials, examples, "training", plan.listed)
    trials.report.notice(found.sentence)
    rules = trials.session.profile.logprobs
    if (
        found.outside > OFTEN * len(found.examples)
        and found.width < MOST_LISTED
        and rules.limit_is_setting
    ):
        trials.report.notice(
            "how far answers outside the lists are behind can only be guessed:"
            f" {rules.limit_remedy}"
        )
    if plan.labels is not None:
        trials.report.notice(
            "first lists, which do not tell what follows a label:"
            f" {judged(found, plan.labels).sentence}"
        )
    begins = np.unique(np.concatenate([np.zeros(0, np.int64), *found.accepted]))
    after = await followed(trials, found) if plan.learn_from == "answers" else None
    if after is None:
        return AnswersToLearn(found.rollouts(_weights(found, plan)), found, None, begins)
    rest, ends = after
    found = found.with_tokens(ends)
    rollouts = Rollouts.join([found.rollouts(_weights(found, plan)), rest])
    return AnswersToLearn(
        rollouts, found, FirstLists(rest.top_ids, rest.top_logprobs), begins, ends
    )


def alone(given: Rollouts, vocab_size: int | None) -> Training:
    """Training from given answers and nothing else; ``vocab_size``: lists of that many tokens are
    complete.
    """
    table = NextToken.of(given, vocab_size=vocab_size)
    return Training(given.without_lists(), table, 0, 0, base=np.zeros(len(given.keys), np.bool_))


def _weights(found: FirstTokens, plan: FitPlan) -> Vector | None:
    """Weights (p,) of the prompts: all labels alike where the goal is their mean F1, else all
    prompts alike.
    """
    if plan.goal.objective != "macro-f1" or plan.labels is None:
        return None
    numbers = np.array([plan.labels.of(example) for example in found.examples], np.float64)
    known = ~np.isnan(numbers)
    counts = np.bincount(numbers[known].astype(np.int64), minlength=len(plan.labels.names))
    weights = np.ones(len(numbers))
    weights[known] = (
        known.sum() / np.count_nonzero(counts) / counts[numbers[known].astype(np.int64)]
    )
    return weights


@dataclass(frozen=True, slots=True, eq=False)
class _Predicted:
    """Predicted effects of a bias on some prompts.

    accuracy: the share of right first tokens.
    score: the goal's value.
    likelihood: mean log-probability of the accepted answers' first tokens, in nats.
    unsure: prompts at which a token outside the list might win.
    """

    accuracy: float
    score: float
    likelihood: float
    unsure: int


async def choose_predicted(
    trials: Trials,
    examples: Sequence[Example],
    field: Sequence[Candidate],
    plan: FitPlan,
    given: AnswersToLearn,
) -> Choice:
    """Return the candidate with the best greedy decisions on ``examples``, known from one list a
    prompt, without drawing any.

    Decisions that begin the answer once more after it, as the ``given`` ones show, count less. Ties
    go to the candidate with the likeliest answers. Raises InputError: no candidate.
    """
    if not field:
        raise InputError("the sweep is empty: give at least one ``l2``")
    found = (await first_tokens(trials, examples, "validation", plan.listed)).with_tokens(
        given.ends
    )
    along = (
        await followed(trials, found, "validation")
        if found.longer and given.after is not None
        else None
    )
    judge = _Judge(
        found, plan.goal.objective, plan.labels, given, None if along is None else along[0]
    )
    base = judge.of({})
    rows = [judge.of(each.logit_bias) for each in field]
    best = max(
        range(len(field)),
        key=lambda number: (round(rows[number].score, 9), rows[number].likelihood),
    )
    tried = tuple(
        TriedCandidate(
            each.estimator,
            each.settings,
            each.sparse.entries,
            reward=row.score,
            accuracy=row.accuracy,
            status=(
                "chosen" if number == best else "predicted to be worse on the validation prompts"
            ),
        )
        for number, (each, row) in enumerate(zip(field, rows, strict=True))
    )
    goal = "macro-F1" if plan.goal.objective == "macro-f1" else "right first tokens"
    unsure = f", {rows[best].unsure} of them unsure" if rows[best].unsure else ""
    trials.report.notice(
        f"chosen: {field[best].label}; predicted for greedy decoding on {len(found.examples)}"
        f" validation prompts, without drawing: {goal} {rows[best].score:.3f} (base"
        f" {base.score:.3f}){unsure}{judge.verbatim(field[best].logit_bias)}"
    )
    if rows[best].score <= base.score:
        trials.report.notice(
            "no candidate is predicted to beat the base on the validation prompts; the best of them"
            " is judged all the same, and no bias may well be better"
        )
    return Choice(field[best], tried, Measured(base.score, math.nan, base.accuracy))


class _Judge:
    """Predicts the effects of biases at the first positions of some prompts."""

    def __init__(
        self,
        found: FirstTokens,
        objective: Objective,
        labels: Labels | None,
        given: AnswersToLearn,
        along: Rollouts | None,
    ) -> None:
        self.found, self.lists, self.given, self.along = (
            found,
            FirstLists(found.ids, found.logprobs),
            given,
            along,
        )
        self.labels = labels if objective == "macro-f1" else None
        self.of_token = {} if self.labels is None else label_of_tokens(found, self.labels)

    def of(self, bias: Mapping[int, float]) -> _Predicted:
        """The predicted effects of ``bias``."""
        tokens = self.lists.greedy(bias)
        hit = begins_right(tokens, self.found.accepted)
        score = float(hit.mean())
        if self.labels is not None:
            numbers = [self.labels.of(example) for example in self.found.examples]
            there = [place for place, number in enumerate(numbers) if number is not None]
            said = [self.of_token.get(token, -1) for token in tokens[there].tolist()]
            right = [number for number in numbers if number is not None]
            score = DecisionScores.of(self.labels.names, right, said).macro_f1
        whole = 1.0 - self.given.repeat_rate(bias)
        accuracy = float(hit.mean()) * whole
        return _Predicted(
            accuracy, score * whole, self._likelihood(bias), int(self.lists.unsure(bias).sum())
        )

    def verbatim(self, bias: Mapping[int, float]) -> str:
        """A sentence on answers longer than a token: how many greedy decoding writes word for word,
        and how far it comes.
        """
        if self.along is None:
            return ""
        rows = []
        for without in ({}, bias):
            kept = (
                FirstLists(self.along.top_ids, self.along.top_logprobs).greedy(without)
                == self.along.token_ids
            )
            hit = begins_right(self.lists.greedy(without), self.found.accepted)
            each = [
                np.append(hit[row], kept[self.along.prompts == place][:-1])
                for row, place in enumerate(self.found.places)
            ]
            rows.append(
                (
                    np.mean([all(one) for one in each]),
                    np.mean([one.cumprod().mean() for one in each]),
                )
            )
        (base, before), (whole, reached) = rows
        return (
            f"; {whole:.3f} of the answers word for word (base {base:.3f}), {reached:.3f} of their"
            f" tokens before the first that differs (base {before:.3f})"
        )

    def _likelihood(self, bias: Mapping[int, float]) -> float:
        tilted = self.lists.tilted(bias)
        wanted = np.stack(
            [
                np.isin(row, ids)
                for row, ids in zip(self.lists.ids, self.found.accepted, strict=True)
            ]
        )
        whole = np.logaddexp.reduce(tilted, axis=1)
        return float(
            (np.logaddexp.reduce(np.where(wanted, tilted, -np.inf), axis=1) - whole).mean()
        )


def label_of_tokens(found: FirstTokens, labels: Labels) -> dict[int, int]:
    """Token -> the label whose spellings it begins, for the labels of the prompts in ``found``."""
    known: dict[int, int] = {}
    for example, tokens in zip(found.examples, found.accepted, strict=True):
        number = labels.of(example)
        if number is not None:
            known |= dict.fromkeys(tokens.tolist(), number)
    return known
