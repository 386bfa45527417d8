"""Choosing among candidates on the validation prompts, at the settings that the user deploys with.

Every candidate is sampled afresh, and the better half of them further, until one is left.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from blackbox_lb.errors import InputError
from blackbox_lb.estimate.choice.candidates import Candidate
from blackbox_lb.estimate.choice.goal import Goal, Objective, Rung, race_cost, rungs
from blackbox_lb.estimate.choice.outcome import ByPrompt, Outcome
from blackbox_lb.estimate.next_token.next_token import NextToken
from blackbox_lb.jobs.fitting.choosing.choice import Choice, Measured, TriedCandidate
from blackbox_lb.rollouts.judging.trials import Trials
from blackbox_lb.rollouts.judging.verdict import SAMPLED, PolicyScores, Setting
from blackbox_lb.rollouts.progress import short
from blackbox_lb.types import Example

_OBJECTIVES: dict[Objective, str] = {
    "reward": "reward",
    "reward-kl": "reward less the price of its KL",
    "pareto": "tokens at the same accuracy",
}


async def choose(
    trials: Trials,
    examples: Sequence[Example],
    candidates: Iterable[Candidate],
    next_token: NextToken,
    *,
    samples: int,
    paid: int | None = None,
    goal: Goal | None = None,
    settings: Sequence[Setting] = (SAMPLED,),
) -> Choice:
    """Return the best of ``candidates`` on ``examples`` unseen by their fits, by the mean of the
    goal over ``settings``.

    next_token: of the training rollouts, for its tail. samples: completions a prompt and setting
    for the base, and on average for each candidate; successive halving gives more to better ones.
    paid: number of candidates whose samples all of them share, None for all. Greedy takes one a
    prompt. goal: by default the reward. Of equally good candidates the first one wins.

    Objective "reward-kl" also draws at temperature 1, where that is not among ``settings``. A
    single candidate is chosen without a sample.

    Raises:
        InputError: no candidates, no completion that passed a content filter, rewards that are not
        finite, or a goal that cannot be measured with this data or provider. ProviderError: the API
        failed; what was received is kept.
    """
    field = list(candidates)
    if not field:
        raise InputError("the sweep is empty: give at least one --tau, and one --l2 or --alpha")
    race = _Race(trials, examples, field, next_token, goal or Goal(), tuple(settings))
    race.drop_repeated()
    if len(race.racing) == 1:
        best = race.racing[0]
        race.only(best)
        return Choice(field[best], tuple(race.rows), Measured())
    plan = race.plan(samples, paid)
    await race.start(samples)
    best = await race.run(plan)
    await race.measure_kl()
    race.conclude(best)
    return Choice(field[best], tuple(race.rows), race.base_mean, race.base_by_setting)


class _Race:
    """A selection under way: the rows of its table, and the measurements so far."""

    def __init__(
        self,
        trials: Trials,
        examples: Sequence[Example],
        field: list[Candidate],
        next_token: NextToken,
        goal: Goal,
        settings: tuple[Setting, ...],
    ) -> None:
        self.trials, self.examples, self.field, self.next_token, self.goal = (
            trials,
            examples,
            field,
            next_token,
            goal,
        )
        self.settings = settings
        self.rows = [
            TriedCandidate(each.estimator, each.settings, each.sparse.entries, math.nan)
            for each in field
        ]
        self.outcomes: dict[int, Outcome] = {}

    def drop_repeated(self) -> None:
        """Drop candidates that send the same bias as an earlier one."""
        seen: dict[tuple[tuple[int, float], ...], int] = {}
        for index, each in enumerate(self.field):
            first = seen.setdefault(tuple(each.logit_bias.items()), index)
            if first != index:
                self._drop(index, f"the same bias as {self.field[first].label}")

    def only(self, index: int) -> None:
        """Choose the only candidate."""
        self._drop(index, "chosen")
        self._report(
            f"chosen: {self.field[index].label}, the only candidate: with nothing to choose"
            " between, nothing is drawn on the validation prompts"
        )

    def plan(self, samples: int, paid: int | None) -> tuple[Rung, ...]:
        """The rungs of the race, with a sentence on what they cost. Nothing is halved where all is
        greedy.
        """
        sampled = sum(not setting.deterministic for setting in self.settings)
        greedy = len(self.settings) - sampled
        candidates, prompts = len(self.racing), len(self.examples)
        plan = rungs(candidates, samples, paid) if sampled else rungs(candidates, 1)
        for_kl = self.goal.objective == "reward-kl" and SAMPLED not in self.settings
        raced = (race_cost(plan) * (sampled + for_kl) + candidates * greedy) * prompts
        base = (samples * sampled + greedy) * prompts
        sampling = " where sampled" if sampled and greedy else ""
        steps = [f"{plan[0].samples} for each"]
        steps += [f"{rung.samples} for the best {rung.candidates}" for rung in plan[1:]]
        self._report(
            f"{candidates} candidates race on {prompts} validation prompts, for at most"
            f" {raced:,} completions beside {base:,} of the base; completions a prompt{sampling}:"
            f" {', '.join(steps)}"
        )
        return plan

    async def start(self, samples: int) -> None:
        """Sample the base."""
        drawn = await self._scores("base", samples)
        self.base = outcome_of(drawn.values(), ByPrompt(np.zeros(len(self.examples))))
        self.base_mean, self.base_by_setting = _measured(self.base), self._by_setting(drawn)
        if math.isnan(self.base_mean.reward):
            raise InputError(
                "no completion of the validation prompts passed the content filter; use other"
                " validation prompts"
            )
        self.goal.keeps(
            self.base, self.base
        )  # raises where accuracy is wanted and not known, before more costs

    async def run(self, plan: Sequence[Rung]) -> int:
        """Halve successively over fresh samples; return the winner's number."""
        racing = self.racing
        for number, rung in enumerate(plan):
            for index in racing:
                await self._measure(index, rung.samples)
            order = self.goal.ranking(self.base, [self.outcomes[index] for index in racing])
            kept = plan[number + 1].candidates if number + 1 < len(plan) else 1
            ranked = [racing[place] for place in order]
            racing = sorted(ranked[:kept])
            for index in ranked[kept:]:
                self._report_candidate(index)
                self._drop(index, f"after {rung.samples} samples a prompt")
        self._report_candidate(racing[0])
        return racing[0]

    def conclude(self, best: int) -> None:
        """Mark the winner and report its numbers."""
        self.rows[best] = replace(self.rows[best], status="chosen")
        sampled, outcome = len(self.outcomes), self.outcomes[best]
        if math.isnan(self.goal.gain(self.base, outcome).value) and not math.isnan(
            outcome.reward.value
        ):
            raise InputError(
                "objective 'reward-kl' needs a KL, and no candidate has one: no biased completion"
                " lists all of its tokens; choose 'reward' or 'pareto'"
            )
        if not self.goal.beats(self.base, outcome):
            self._report(
                "no candidate beat the base on the validation prompts by"
                f" {_OBJECTIVES[self.goal.objective]}; the best of them is judged all the same, and"
                " no bias may well be better"
            )
        if sampled > 1:
            self._report(
                f"chosen: {self.field[best].label}; as the best of {sampled} its validation number"
                " is too good: the test prompts say what it is worth"
            )

    @property
    def racing(self) -> list[int]:
        """The candidates still in the race."""
        return [index for index, row in enumerate(self.rows) if not row.status]

    async def _measure(self, index: int, samples: int) -> None:
        bias = self.field[index].logit_bias
        scores = await self._scores(self.field[index].label, samples, bias)
        kl = await self._kl(index, samples) if self.goal.objective == "reward-kl" else None
        outcome = outcome_of(
            scores.values(), None if kl is None else ByPrompt(np.full(len(self.examples), kl))
        )
        self.outcomes[index], mean = outcome, _measured(outcome)
        self.rows[index] = replace(
            self.rows[index],
            reward=mean.reward,
            samples=samples,
            tokens=mean.tokens,
            accuracy=mean.accuracy,
            kl=kl,
            by_setting=self._by_setting(scores),
        )

    async def measure_kl(self) -> None:
        """Measure the KL of every sampled candidate, from its own completions at temperature 1:
        nothing more is drawn.
        """
        if SAMPLED not in self.settings or not self.trials.session.tells_base_logprobs:
            return
        for index in self.outcomes:
            if self.rows[index].kl is None:
                self.rows[index] = replace(
                    self.rows[index], kl=await self._kl(index, self.rows[index].samples)
                )

    async def _kl(self, index: int, samples: int) -> float:
        """The KL of a candidate, from its completions at temperature 1."""
        return await self.trials.kl(
            self.examples, samples, self.field[index].logit_bias, self.next_token
        )

    async def _scores(
        self, policy: str, samples: int, bias: dict[int, float] | None = None
    ) -> dict[float, PolicyScores]:
        """Temperature -> scores, in the order of the settings."""
        found = {}
        for setting in self.settings:
            title = (
                f"validation{'' if len(self.settings) == 1 else f' at {setting.name}'}, {policy}"
            )
            count = 1 if setting.deterministic else samples
            found[setting.temperature] = await self.trials.scores(
                title, self.examples, setting, count, bias
            )
        return found

    def _by_setting(self, scores: Mapping[float, PolicyScores]) -> tuple[Measured, ...]:
        pairs = zip(self.settings, scores.values(), strict=True)
        return tuple(
            replace(_measured(outcome_of([each], None)), setting=setting.name)
            for setting, each in pairs
        )

    def _drop(self, index: int, why: str) -> None:
        self.rows[index] = replace(self.rows[index], status=why)

    def _report_candidate(self, index: int) -> None:
        row, label = self.rows[index], self.trials.reward.label
        told = (
            f"{label} {short(row.reward)} (base {short(self.base_mean.reward)}; {row.samples}"
            f" samples a prompt{self._where})"
        )
        if self.goal.objective == "reward-kl" and row.kl is not None:
            told += f", KL {short(row.kl)} nats a completion"
        if self.goal.objective == "pareto":
            tokens, base = self.outcomes[index].tokens.value, self.base.tokens.value
            told += f", tokens {short(tokens)} (base {short(base)})"
            if row.accuracy is not None and self.base.accuracy is not None:
                told += f", accuracy {short(row.accuracy)} (base {short(self.base.accuracy.value)})"
        self._report(f"validation, {self.field[index].label}: {told}")

    @property
    def _where(self) -> str:
        """The settings that a number is a mean over, in words, where they are several or not
        temperature 1.
        """
        names = [setting.name for setting in self.settings]
        return (
            ""
            if self.settings == (SAMPLED,)
            else f" at {names[0]}"
            if len(names) == 1
            else f", mean of {', '.join(names)}"
        )

    def _report(self, text: str) -> None:
        self.trials.report.notice(text)


def outcome_of(settings: Collection[PolicyScores], kl: ByPrompt | None) -> Outcome:
    """The outcome of a policy: its mean over settings, prompt by prompt; NaN for a prompt without a
    completion at one of them. ``kl`` in nats a completion, None where the goal does not read it.
    """
    correct = [each.correct for each in settings if each.correct is not None]
    return Outcome(
        reward=_means([each.reward for each in settings]),
        tokens=_means([each.tokens for each in settings]),
        accuracy=_means(correct) if len(correct) == len(settings) else None,
        kl=kl,
    )


def _means(settings: Sequence[Sequence[Any]]) -> ByPrompt:
    return ByPrompt(
        np.array(
            [[row.mean() if row.size else math.nan for row in rows] for rows in settings],
            dtype=np.float64,
        ).mean(axis=0)
    )


def _measured(outcome: Outcome) -> Measured:
    accuracy = outcome.accuracy
    return Measured(
        outcome.reward.value, outcome.tokens.value, None if accuracy is None else accuracy.value
    )
