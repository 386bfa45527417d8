"""Scorers: what a bias earns on the validation prompts, known from lists or from completions."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from blackbox_lb.bias.request_bias import RequestBias
from blackbox_lb.errors import InputError, NoLogprobs
from blackbox_lb.estimate.choice.candidates import Candidate
from blackbox_lb.estimate.choice.goal import ByPrompt, Goal, Outcome
from blackbox_lb.estimate.inputs.checks import Bools, Vector
from blackbox_lb.estimate.inputs.rollouts import Rollouts
from blackbox_lb.estimate.reweighting import LocatedCosts
from blackbox_lb.jobs.fitting.document import Measured, TriedCandidate
from blackbox_lb.providers.profile import Profile
from blackbox_lb.rollouts.judging.trials import NamedBias, Trials
from blackbox_lb.rollouts.judging.verdict import SAMPLED, PolicyScores, Setting
from blackbox_lb.rollouts.positions import scored
from blackbox_lb.tasks import Reward
from blackbox_lb.types import Example


@dataclass(frozen=True, slots=True, eq=False)
class Challenger:
    """A candidate that is richer than the one that stands, and has to prove itself.

    candidate: its entries. bias: these with its features, as requests get it. errors: (s,) standard
    errors of its entries in nats, NaN where not known. left_out: (p,) gains over the one that
    stands on training prompts that were left out, which count beside those on validation prompts;
    () for none.
    """

    candidate: Candidate
    bias: RequestBias
    errors: Vector
    left_out: Vector


class Challengers(Protocol):
    """Makes richer candidates from the one that stands."""

    @property
    def name(self) -> str:
        """The features that it adds, as they are given on the command line."""

    async def challenge(self, standing: Candidate) -> list[Challenger] | str:
        """Richer candidates, or the sentence why there are none."""


@dataclass(frozen=True, slots=True)
class Choice:
    """``candidate``: the best by the goal. ``tried``: all candidates in the order given. ``base``:
    the model without a bias. ``sentence``: where the winner comes from, and what came second.
    ``uncut``: the winner before it was cut to fewer entries. ``richer``: the candidate with
    features that proved to be better than it, None where none did.

    The numbers in ``tried`` made the choice, so that of the chosen one is too good; only other
    prompts show its worth.
    """

    candidate: Candidate
    tried: tuple[TriedCandidate, ...]
    base: Measured
    sentence: str = ""
    uncut: Candidate | None = None
    richer: Challenger | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Scored:
    """What a policy earned on the validation prompts.

    Attributes:
        outcome: prompt by prompt.
        samples: completions a prompt behind it, 0 where it was predicted.
        tie: what decides between equals, higher being better.
        unsure: prompts whose number is a guess.
        sure: (p,) whether each prompt is decided right for sure, where that is known; a richer
            candidate is proven by these.
    """

    outcome: Outcome
    samples: int = 0
    tie: float = 0.0
    unsure: int = 0
    sure: Vector | None = None

    def measured(self) -> Measured:
        """The means over prompts and settings."""
        outcome = self.outcome
        accuracy = math.nan
        if outcome.accuracy is not None:
            accuracy = outcome.accuracy.value
        return Measured.of(outcome.reward.value, outcome.tokens.value, accuracy)


class Scorer(Protocol):
    """Scores of biases on the validation prompts."""

    @property
    def prompts(self) -> int:
        """The number of prompts."""

    def cost(self, samples: int) -> int:
        """Completions a prompt for a score from so many samples."""

    @property
    def exact(self) -> bool:
        """Whether scores are known without drawing, so that every candidate is scored at once."""

    @property
    def where(self) -> str:
        """What a score is a mean over, in words."""

    async def score(
        self, policies: Sequence[NamedBias], samples: int, among: Bools | None = None
    ) -> list[Scored]:
        """What each policy earns.

        Args:
            policies: those to score, which are drawn together.
            samples: completions a prompt and setting; a setting without randomness takes one.
            among: (p,) the prompts to score, all of them if None.
        """

    def described(self, scored: Scored, base: Scored) -> str:
        """What there is to say of the score of the chosen bias."""

    async def foresight(self, samples: int) -> Foresight | None:
        """What biases change of the reward, from ``samples`` completions a prompt of the base
        alone; None where these do not tell.
        """


@dataclass(frozen=True, slots=True, eq=False)
class Foresight:
    """What a bias changes of a reward that is a sum over positions, from completions of the base.

    Attributes:
        prompts: their number.
        settings: the located costs at each setting with randomness.
    """

    prompts: int
    settings: tuple[LocatedCosts, ...]

    def change(self, bias: Mapping[int, float]) -> float:
        """The expected change of the mean reward over prompts, in the reward's unit."""
        means = []
        for located in self.settings:
            total = np.bincount(located.prompts, located.change(bias), self.prompts)
            count = np.bincount(located.prompts, minlength=self.prompts)
            means.append(float((total[count > 0] / count[count > 0]).mean()))
        return float(np.mean(means))


class FromSamples:
    """Scores from fresh completions, at the settings to deploy with."""

    exact = False

    def __init__(
        self,
        trials: Trials,
        examples: Sequence[Example],
        goal: Goal,
        settings: Sequence[Setting],
    ) -> None:
        self.trials = trials
        self.examples = examples
        self.goal = goal
        self.settings = tuple(settings)

    @property
    def prompts(self) -> int:
        """See ``Scorer``."""
        return len(self.examples)

    def cost(self, samples: int) -> int:
        """See ``Scorer``: a setting without randomness takes one."""
        return sum(setting.samples_of(samples) for setting in self.settings)

    @property
    def where(self) -> str:
        """The settings that a number is a mean over, where they are not temperature 1 alone."""
        names = [setting.name for setting in self.settings]
        if self.settings == (SAMPLED,):
            return ""
        if len(names) == 1:
            return f" at {names[0]}"
        return f", mean of {', '.join(names)}"

    async def score(
        self, policies: Sequence[NamedBias], samples: int, among: Bools | None = None
    ) -> list[Scored]:
        """See ``Scorer``. Completions that are in the store are not drawn again."""
        examples = self.examples
        if among is not None:
            pairs = zip(self.examples, among.tolist(), strict=True)
            examples = [example for example, is_scored in pairs if is_scored]
        by_setting: list[list[PolicyScores]] = []
        for setting in self.settings:
            place = "validation"
            if len(self.settings) != 1:
                place += f" at {setting.name}"
            named = [NamedBias(f"{place}, {policy.name}", policy.bias) for policy in policies]
            title = named[0].name
            if len(policies) > 1:
                title = f"{place}, {len(policies)} biases"
            by_setting.append(
                await self.trials.scores_of_all(title, examples, setting, samples, named)
            )
        drawn = 1 if all(setting.deterministic for setting in self.settings) else samples
        scored: list[Scored] = []
        for number in range(len(policies)):
            outcome = outcome_of([scores[number] for scores in by_setting])
            if among is not None:
                outcome = _spread(outcome, among)
            scored.append(Scored(outcome, drawn))
        return scored

    def described(self, scored: Scored, base: Scored) -> str:
        """See ``Scorer``."""
        del scored, base
        return ""

    async def foresight(self, samples: int) -> Foresight | None:
        """See ``Scorer``: where the reward is a sum over places in the text, and not one of its
        length, which a token changes by what it makes follow; and where the lists are those of the
        model at a known temperature.
        """
        if not self.trials.reward.has_spans:
            return None
        profile = self.trials.session.profile
        settings = []
        for setting in foreseeable(self.trials.reward, self.goal, self.settings, profile):
            rollouts = await self._base_rollouts(setting, samples)
            if rollouts is None:
                return None
            settings.append(LocatedCosts.of(rollouts, setting.temperature))
        if settings:
            return Foresight(len(self.examples), tuple(settings))
        return None

    async def _base_rollouts(self, setting: Setting, samples: int) -> Rollouts | None:
        """The base model's stored completions at ``setting``, with the lists of their positions;
        None where the reward is no sum over positions.
        """
        trials = self.trials
        draw = trials.draw(setting, None, trials.session.biased_endpoint)
        keys = await trials.collect(
            "validation, base", self.examples, draw, samples, only_stored=True
        )
        try:
            rollouts, _ = scored(
                trials.store, self.examples, keys, trials.reward, trials.end_tokens
            )
        except NoLogprobs:
            return None
        if rollouts.costs is not None:
            return rollouts
        return None


def foreseeable(
    reward: Reward, goal: Goal, settings: Sequence[Setting], profile: Profile
) -> list[Setting]:
    """The settings at which completions of the base tell what biases change of a reward that is a
    sum over places; see ``FromSamples.foresight``.
    """
    if reward.credit == "tokens" or goal.objective != "reward":
        return []
    is_known = profile.logprobs.meaning == "before bias"
    return [
        setting
        for setting in settings
        if not setting.deterministic and (is_known or setting == SAMPLED)
    ]


def outcome_of(settings: Collection[PolicyScores]) -> Outcome:
    """The outcome of a policy: its mean over settings, prompt by prompt; NaN for a prompt without a
    completion at one of them.
    """
    correct = [scores.correct for scores in settings if scores.correct is not None]
    is_correct = None
    if len(correct) == len(settings):
        is_correct = _means(correct)
    return Outcome(
        reward=_means([scores.reward for scores in settings]),
        tokens=_means([scores.tokens for scores in settings]),
        accuracy=is_correct,
    )


def check_base(base: Scored, goal: Goal) -> None:
    """Raise InputError: nothing can be compared with the base."""
    if math.isnan(base.outcome.reward.value):
        raise InputError(
            "no completion of the validation prompts passed the content filter; use other"
            " validation prompts"
        )
    goal.keeps(base.outcome, base.outcome)  # raises where accuracy is wanted and not known


def _means(settings: Sequence[Sequence[Any]]) -> ByPrompt:
    return ByPrompt(
        np.array(
            [[row.mean() if row.size else math.nan for row in rows] for rows in settings],
            dtype=np.float64,
        ).mean(axis=0)
    )


def _spread(outcome: Outcome, among: Bools) -> Outcome:
    """``outcome`` of some prompts, in the places that they have among all; NaN at the others."""

    def placed(part: ByPrompt) -> ByPrompt:
        parts = np.full(len(among), np.nan)
        parts[among] = part.parts
        return ByPrompt(parts)

    accuracy = None
    if outcome.accuracy is not None:
        accuracy = placed(outcome.accuracy)
    return Outcome(placed(outcome.reward), placed(outcome.tokens), accuracy)
