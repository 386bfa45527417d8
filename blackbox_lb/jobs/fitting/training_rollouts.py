"""From a plan to scored rollouts: a first look at the reward, then the rest of the plan, or the
model's lists along the given answers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b

import numpy as np

from blackbox_lb.errors import InputError
from blackbox_lb.estimate.decisions.first_lists import FirstLists
from blackbox_lb.estimate.diagnosis.truncation import Truncation
from blackbox_lb.estimate.inputs.checks import Ids, Vector
from blackbox_lb.estimate.inputs.rollouts import Rollouts
from blackbox_lb.jobs.check import judged
from blackbox_lb.jobs.fitting.choosing.decision_goals import label_weights
from blackbox_lb.jobs.fitting.explain import room_for_gain
from blackbox_lb.jobs.fitting.plan import FitPlan
from blackbox_lb.rollouts.answers.given_answers import (
    MOST_LISTED,
    AnswerStarts,
    first_tokens,
    followed,
)
from blackbox_lb.rollouts.judging.decisions import own_label_tokens
from blackbox_lb.rollouts.judging.trials import Trials
from blackbox_lb.rollouts.judging.verdict import SAMPLED, check_values, truncation_of
from blackbox_lb.rollouts.positions import (
    Positions,
    scored,
    training_set,
)
from blackbox_lb.rollouts.progress import short
from blackbox_lb.rollouts.spelling import spell_tokens
from blackbox_lb.tasks import Reward
from blackbox_lb.tasks.rewards.spans import LocatedReward
from blackbox_lb.types import Completion, Example

OFTEN = 0.05
"""Share of prompts whose answer is outside its list above which longer lists are recommended."""


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
    after = await followed(trials, first)
    weights = None
    if plan.labels is not None:
        weights = label_weights(plan.goal, plan.labels, first.labels_of(plan.labels))
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


FIRST_LOOK = 50
"""Prompts before the first look at the reward's variance: enough to see that there is none, few
enough to cost little.
"""


class TrainingData:
    """The training completions of one fit, each scored once, the first look included.

    trials: with a reward that remembers its values. examples: the training prompts. plan: how many
    completions are drawn, and how. given: the answers of the prompts, None until they are
    collected, and where nothing is learned from them. truncation: of the completions of the first
    look, None before it and where the reward is not by length.
    """

    def __init__(self, trials: Trials, examples: Sequence[Example], plan: FitPlan) -> None:
        self.trials = replace(trials, reward=_remembered(trials.reward))
        self.examples = examples
        self.plan = plan
        self.given: AnswersToLearn | None = None
        self.truncation: Truncation | None = None

    async def first_look(self) -> None:
        """Report what the first prompts allow to learn.

        Raises:
            InputError: nothing, and the plan does not say to go on; or a reward is not finite or
            too large.
        """
        if self.plan.learn_from == "answers" or self.plan.only_stored:
            return
        first = self.examples[:FIRST_LOOK]
        trials = self.trials
        keys = await self._drawn(f"training, first {len(first)} prompts", first)
        rollouts, _ = scored(
            trials.store, first, keys, trials.reward, trials.end_tokens, lists=False
        )
        _check(trials.reward, rollouts.rewards)
        self.truncation = truncation_of(
            trials.reward, trials.store.completions([key for row in keys for key in row])
        )
        if self.truncation is not None and self.truncation.hides_lengths:
            trials.report.notice(f"first {len(first)} prompts: {self.truncation.warning}")
        room = room_for_gain(rollouts, trials.reward, min(self.plan.sweep.tau))
        if room is None:
            trials.report.notice(
                "what there is to learn was not checked: it takes two completions a prompt"
            )
            return
        trials.report.notice(f"first {len(first)} prompts: {room.sentence}")
        if room.decision == "nothing" and len(first) < len(self.examples) and not self.plan.go_on:
            remedy = "use another reward, or prompts that the model sometimes gets right"
            raise InputError(
                f"{room.sentence}; stopped after {len(first)} of {len(self.examples)} prompts,"
                f" before more is paid for: {self._longer_or(remedy)}, or ``go_on`` to collect all"
                " the same (what came is kept)"
            )

    def _longer_or(self, remedy: str) -> str:
        """A longer limit where this one hides the lengths of completions, else ``remedy``."""
        if self.truncation is None or not self.truncation.hides_lengths:
            return remedy
        return f"{self.truncation.sentence}, and {self.truncation.remedy}"

    async def collect(self) -> Positions:
        """Return all rollouts of the plan, drawn unless they are in the store.

        Raises:
            InputError: all rewards are equal, or one is not finite or too large.
        """
        if self.plan.learn_from == "answers":
            self.given = await given_answers(self.trials, self.examples, self.plan)
            vocab_size = self.trials.tokenizer.vocabulary_size
            return Positions.of(self.given.rollouts, vocab_size=vocab_size)
        keys = await self._drawn("training", self.examples)
        await spell_tokens(self.trials, self.examples, keys)
        training = training_set(
            self.trials.store,
            self.examples,
            keys,
            self.trials.reward,
            self.trials.end_tokens,
            vocab_size=self.trials.tokenizer.vocabulary_size,
            engine=self.trials.engine,
        )
        values = _announce(training, self.trials)
        if np.ptp(values) == 0:
            label = self.trials.reward.label
            remedy = self._longer_or(_remedy_for_equal(self.trials.reward, float(values[0])))
            raise InputError(
                f"every completion has the same {label} ({values[0]:.3g}): there is nothing to"
                f" learn from this reward; {remedy}"
            )
        return training

    async def _drawn(self, title: str, examples: Sequence[Example]) -> tuple[tuple[str, ...], ...]:
        """Keys of the plan's completions of ``examples``. Raises InputError: only stored ones are
        wanted, and there are none.
        """
        plan = self.plan
        trials = self.trials
        keys = await trials.collect(
            title, examples, trials.draw(SAMPLED), plan.samples, only_stored=plan.only_stored
        )
        stored = sum(map(len, keys))
        if not stored:
            raise InputError(
                f"{trials.store.path} holds no completion of these {len(examples)} training prompts"
                " under these settings (model, ``max_tokens``, ``top_logprobs``, ``seed``); check"
                " them and ``rollouts``, or leave out ``only_stored``"
            )
        if plan.only_stored:
            trials.report.notice(
                f"{title}: {stored:,} of {len(examples) * plan.samples:,} completions are stored;"
                " no more are asked for"
            )
        return keys


def _remembered(reward: Reward) -> Reward:
    """The same reward, with its function called only once a completion: it may be slow, or cost
    money.
    """
    measured: dict[tuple[str, str, str, int, bytes], LocatedReward] = {}

    def function(example: Example, completion: Completion) -> LocatedReward:
        tokens = blake2b(completion.token_ids.tobytes() + completion.logprobs.tobytes()).digest()
        key = (example.id, completion.text, completion.finish_reason, completion.n_tokens, tokens)
        if key not in measured:
            measured[key] = reward.measure(example, completion)
        return measured[key]

    return replace(reward, function=function)


def _announce(training: Positions, trials: Trials) -> Vector:
    """Report what the training completions are worth; return (n,) their rewards in the user's own
    unit.
    """
    reward = trials.reward
    positions = len(training.rollouts.token_ids)
    everywhere = len(training.learned_from.token_ids)
    if positions < everywhere:
        trials.report.notice(
            f"learned from {everywhere:,} positions; compiled and explained with {positions:,}"
            " of them, whose standard errors are larger than those of all"
        )
    values = _check(reward, training.learned_from.rewards)
    trials.report.notice(
        f"{len(values)} rollouts, {everywhere:,} tokens, mean {reward.label} {short(values.mean())}"
    )
    for sentence in training.notices:
        trials.report.notice(sentence)
    return values


def _remedy_for_equal(reward: Reward, value: float) -> str:
    """What to do where every completion has the same reward."""
    if not reward.needs_answer:
        return "use another reward, or other prompts"
    if value > 0:
        return "use another reward, or harder prompts"
    return "use another reward, or prompts that the model sometimes gets right"


def _check(reward: Reward, rewards: Vector) -> Vector:
    """The ``rewards`` (n,) in nats, checked, in the user's own unit. Raises InputError: one is not
    finite or too large.
    """
    values = np.array([reward.value(measured) for measured in rewards])
    check_values(f"training: {reward.label}", values)
    return values
