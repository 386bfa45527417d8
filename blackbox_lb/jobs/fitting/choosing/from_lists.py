"""Scores predicted from one list a prompt: greedy decisions and shares of labels. Nothing is drawn,
so no noise of few samples decides between candidates.

A completion is taken to name the label that it begins with. What is predicted is judged afterwards
on fresh completions, by the first label named anywhere in them. Of labels of several tokens the
first one does not tell whether the rest follows, most of all under a bias, which acts on the rest,
too; so candidates for these are compared by completions.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from blackbox_lb.bias.request_bias import RequestBias
from blackbox_lb.errors import InputError
from blackbox_lb.estimate.choice.goal import ByPrompt, Goal, Objective, Outcome
from blackbox_lb.estimate.decisions.first_lists import Shifts, begins_right
from blackbox_lb.estimate.inputs.checks import Bools, Ids, Vector
from blackbox_lb.jobs.fitting.choosing.decision_goals import decision_parts
from blackbox_lb.jobs.fitting.choosing.scorers import Scored
from blackbox_lb.jobs.fitting.evidence.answers_to_learn import AnswersToLearn
from blackbox_lb.jobs.plan.plan import Plan
from blackbox_lb.rollouts.answers.given_answers import AnswerStarts, first_tokens
from blackbox_lb.rollouts.judging.decisions import WantedByPrompt
from blackbox_lb.rollouts.judging.trials import NamedBias, Trials
from blackbox_lb.rollouts.judging.verdict import Setting
from blackbox_lb.tasks import Reward
from blackbox_lb.tasks.sets.labels import Labels
from blackbox_lb.types import Example, Prompt

NAMES: dict[Objective, str] = {
    "balanced": "balanced accuracy",
    "cost": "less mean cost",
}
"""What a goal that counts labels differently is called."""
BY_LABEL = frozenset(NAMES)


class _Predicted:
    """What all scores that need no drawing have in common; see ``Scorer``."""

    exact = True
    where = ""
    first: AnswerStarts

    @property
    def prompts(self) -> int:
        """How many are compared."""
        return len(self.first.examples)

    def cost(self, samples: int) -> int:
        """No completion."""
        del samples
        return 0

    async def score(
        self, policies: Sequence[NamedBias], samples: int, among: Bools | None = None
    ) -> list[Scored]:
        """See ``Scorer``: all prompts, without a sample."""
        del samples, among
        return [self._scored(policy) for policy in policies]

    def _scored(self, policy: NamedBias) -> Scored:
        """What a bias, or the model itself, earns on all prompts."""
        raise NotImplementedError

    async def foresight(self, samples: int) -> None:
        """The scores are exact as they are."""
        del samples


class FromLists(_Predicted):
    """What a goal of decisions says of the first tokens under a bias: by default the share of right
    ones.

    Where an answer that stands there twice is wrong, a decision that would begin it once more, as
    the lists after the ``given`` answers show, counts less.

    Attributes:
        first: the first position of each prompt.
        folds: (p,) the fold of each, where a bias is learned from these prompts too: it is scored
            by what it would be without the fold. None for prompts that nothing is learned from.
        may_repeat: whether an answer that stands there twice is as right as one.
    """

    def __init__(
        self,
        first: AnswerStarts,
        answers: AnswersToLearn,
        goal: Goal,
        labels: Labels | None,
        *,
        may_repeat: bool = False,
        folds: Ids | None = None,
    ) -> None:
        self.first = first
        self.folds = folds
        self.is_accepted = first.lists.holds(first.accepted)
        self.given = answers
        self.may_repeat = may_repeat
        self.goal = goal
        self.labels = labels if goal.objective in BY_LABEL else None
        self.label_of_token: dict[int, int] = {}
        if self.labels is not None:
            self.label_of_token = label_of_tokens(first, self.labels)

    @classmethod
    async def of(
        cls, trials: Trials, examples: Sequence[Example], plan: Plan, answers: AnswersToLearn
    ) -> FromLists:
        """Collect the lists of ``examples``, unless they are in the store."""
        lists = await first_tokens(trials, examples, "validation", plan.top_logprobs)
        first = lists.with_tokens([*answers.ends, *answers.every_label_token.tolist()])
        return cls(
            first,
            answers,
            plan.goal,
            plan.decision_labels,
            may_repeat=may_repeat(trials.reward, first.examples),
        )

    @classmethod
    def crossed(cls, reward: Reward, plan: Plan, answers: AnswersToLearn, folds: Ids) -> FromLists:
        """On the prompts of ``answers`` themselves, each scored by what is learned without its
        fold: nothing more is collected.
        """
        first = answers.first.with_tokens([*answers.ends, *answers.every_label_token.tolist()])
        return cls(
            first,
            answers,
            plan.goal,
            plan.decision_labels,
            may_repeat=may_repeat(reward, first.examples),
            folds=folds,
        )

    def _shifts(self, policy: NamedBias) -> Shifts:
        """The policy at each prompt; where it was learned from the prompt, what it would be without
        it.
        """
        if self.folds is None or not policy.left_out:
            return of_each_prompt(self.first.examples, policy.bias)
        biases = policy.left_out
        tokens = sorted({token for bias in biases for token in bias})
        values = [[bias.get(token, 0.0) for token in tokens] for bias in biases]
        by_fold = np.array(values, np.float64).reshape(len(biases), -1)
        return np.array(tokens, np.int64), by_fold[self.folds]

    def _scored(self, policy: NamedBias) -> Scored:
        """Ties go to the bias with the likeliest answers."""
        lists = self.first.lists
        shifts = self._shifts(policy)
        tilted = lists.tilted(shifts)
        tokens = lists.taken(tilted)
        unsure = lists.unsure(shifts)
        is_right = begins_right(tokens, self.first.accepted).astype(np.float64)
        # Where features change the bias, what holds without any tells how often answers repeat.
        once = 1.0
        if not self.may_repeat:
            once -= self.given.repeat_rate(policy.bias.at(Prompt.user("")))
        parts = is_right * once
        if self.labels is not None:
            parts = self._by_label(tokens, self.labels)
            worst = min(float(np.nanmin(parts)), 0.0)
            parts = worst + (parts - worst) * once
        outcome = Outcome(
            reward=ByPrompt(parts),
            tokens=ByPrompt(np.full(len(is_right), np.nan)),
            accuracy=ByPrompt(is_right * once),
        )
        return Scored(
            outcome,
            tie=self._likelihood(tilted),
            unsure=int(unsure.sum()),
            sure=is_right * ~unsure,
        )

    def described(self, scored: Scored, base: Scored) -> str:
        """What is predicted of the chosen bias, in words."""
        goal = NAMES.get(self.goal.objective, "right first tokens")
        unsure = ""
        if scored.unsure:
            unsure = f", {scored.unsure} of them unsure"
        prompts = f"{self.prompts} validation prompts"
        if self.folds is not None:
            prompts = f"the same {self.prompts} prompts, each by what was learned without it"
        return (
            f"; predicted for greedy decoding on {prompts}, without"
            f" drawing: {goal} {scored.outcome.reward.value:.3f} (base"
            f" {base.outcome.reward.value:.3f}){unsure}"
        )

    def _by_label(self, tokens: Ids, labels: Labels) -> Vector:
        """(p,) numbers whose mean is what the goal says of these first tokens."""
        right = self.first.labels_of(labels)
        decided = [self.label_of_token.get(token, -1) for token in tokens.tolist()]
        return decision_parts(self.goal, labels, right, np.array(decided, np.int64))

    def _likelihood(self, tilted: Vector) -> float:
        """Mean log-probability of the accepted answers' first tokens, in nats; ``tilted`` (p, k)
        as in ``FirstLists``.
        """
        everything = np.logaddexp.reduce(tilted, axis=1)
        accepted = np.logaddexp.reduce(np.where(self.is_accepted, tilted, -np.inf), axis=1)
        return float((accepted - everything).mean())


def may_repeat(reward: Reward, examples: Sequence[Example]) -> bool:
    """Whether an answer that stands there twice is as right as one."""
    is_right = reward.right
    return all(
        is_right(example, f"{answer} {answer}")
        for example in examples
        for answer in example.answers
    )


def of_each_prompt(examples: Sequence[Example], bias: RequestBias) -> Shifts:
    """``bias`` at the first position of each prompt."""
    if "prompt" not in bias.scopes:
        return bias.of_text(None)
    bias.prepare([example.prompt for example in examples])
    rows = [bias.at(example.prompt) for example in examples]
    tokens = sorted({token for row in rows for token in row})
    values = [[row.get(token, 0.0) for token in tokens] for row in rows]
    return np.array(tokens, np.int64), np.array(values, np.float64).reshape(len(rows), -1)


def surely_right(first: AnswerStarts, bias: RequestBias) -> tuple[Bools, Bools]:
    """(p,) whether greedy decoding begins the answer of each prompt right where no token outside
    its list might win, and (p,) where one might.
    """
    shifts = of_each_prompt(first.examples, bias)
    unsure = first.lists.unsure(shifts)
    return begins_right(first.lists.greedy(shifts), first.accepted) & ~unsure, unsure


def label_of_tokens(first: AnswerStarts, labels: Labels) -> dict[int, int]:
    """Token -> the label whose spellings it begins, for the labels of the prompts in ``first``."""
    label_of: dict[int, int] = {}
    for example, tokens in zip(first.examples, first.accepted, strict=True):
        number = labels.of(example)
        if number is not None:
            label_of |= dict.fromkeys(tokens.tolist(), number)
    return label_of


Array = npt.NDArray[np.float64]


class SharesFromLists(_Predicted):
    """Minus the total variation between the predicted and the wanted shares of the labels.

    Attributes:
        first: the first position of each prompt.
        wanted: the shares of each prompt, and the groups within which they are compared.
        settings: to deploy with.
    """

    def __init__(
        self, first: AnswerStarts, target: WantedByPrompt, settings: Sequence[Setting]
    ) -> None:
        if first.wanted is None:
            raise InputError("these first lists are of answers without wanted shares")
        self.first = first
        self.wanted = target
        self.settings = tuple(settings)
        self._tokens = first.wanted.tokens
        labels = first.wanted.labels
        self._label_tokens = [
            self._tokens[labels == label] for label in range(int(labels.max()) + 1)
        ]

    @classmethod
    async def suiting(
        cls, trials: Trials, examples: Sequence[Example], plan: Plan
    ) -> SharesFromLists | None:
        """Collect the lists of ``examples``, unless they are in the store; None where completions
        must be drawn: the reward compares with no shares, or a label is longer than one token.

        Raises NoLogprobs, ProviderError: see ``first_tokens``.
        """
        column = trials.reward.grouped_by
        if column is None:
            return None
        first = await first_tokens(trials, examples, "validation", plan.top_logprobs)
        if first.longer:
            return None
        return cls(first, WantedByPrompt.of(first.examples, column), plan.settings)

    @property
    def label_tokens(self) -> tuple[int, ...]:
        """The tokens that begin a label."""
        return tuple(self._tokens.tolist())

    def _scored(self, policy: NamedBias) -> Scored:
        """The mean over the settings to deploy with."""
        parts = [
            self.wanted.reward_parts(self.shares(policy.bias, setting.temperature))
            for setting in self.settings
        ]
        unknown = ByPrompt(np.full(self.prompts, np.nan))
        return Scored(Outcome(ByPrompt(np.mean(parts, axis=0)), unknown, None))

    def described(self, scored: Scored, base: Scored) -> str:
        """What is predicted of the chosen bias, in words."""
        return (
            f"; predicted from the first lists of {self.prompts} validation prompts, without"
            f" drawing: total variation {-scored.outcome.reward.value:.3f} (base"
            f" {-base.outcome.reward.value:.3f})"
        )

    def shares(self, bias: RequestBias, temperature: float) -> Array:
        """(x, l + 1) the probability that a completion begins with each label, the last for none;
        see ``FirstLists.shares``.
        """
        shifts = of_each_prompt(self.first.examples, bias)
        return self.first.lists.shares(self._label_tokens, shifts, temperature)
