"""Choosing among candidates on the validation prompts: logged base completions first, fresh samples for those that are left."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from blackbox_lb.errors import InputError
from blackbox_lb.estimate.candidates import Candidate
from blackbox_lb.estimate.normaliser import NextToken
from blackbox_lb.estimate.off_policy import ByPrompt, OffPolicy, Outcome
from blackbox_lb.estimate.select import FINALISTS, Goal, Objective, rungs
from blackbox_lb.evaluate import SAMPLED, Scores
from blackbox_lb.logged import Logged, log_of_base
from blackbox_lb.progress import short
from blackbox_lb.trials import Trials
from blackbox_lb.types import Example

__all__ = ["Choice", "Tried", "choose"]

_OBJECTIVES: dict[Objective, str] = {
    "reward": "reward",
    "reward-kl": "reward less the price of its KL",
    "pareto": "tokens at the same accuracy",
}


@dataclass(frozen=True, slots=True)
class Tried:
    """One candidate and what the validation prompts said of it, all at temperature 1.

    reward: mean over prompts as a user reads it, tokens, accuracy (None where no answer is known) and kl (nats a completion, only
    measured for objective "reward-kl"): of ``samples`` fresh completions a prompt, NaN where there were none. off_policy: what
    logged base completions said before, None where they could say nothing. fate: "chosen", or where and why it was dropped.
    """

    estimator: str
    settings: dict[str, float | int | str | None]
    entries: int
    reward: float
    samples: int = 0
    fate: str = ""
    tokens: float = math.nan
    accuracy: float | None = None
    kl: float | None = None
    off_policy: OffPolicy | None = None

    def as_json(self) -> dict[str, Any]:
        """For a program: null for what is not known, and of an estimate that is not trusted only why it is not."""
        return {
            "estimator": self.estimator,
            "settings": self.settings,
            "entries": self.entries,
            "reward": _known(self.reward),
            "tokens": _known(self.tokens),
            "accuracy": _known(self.accuracy),
            "kl_nats_per_completion": _known(self.kl),
            "samples": self.samples,
            "fate": self.fate,
            "off_policy": None if self.off_policy is None else _estimate_json(self.off_policy),
        }


@dataclass(frozen=True, slots=True)
class Choice:
    """``candidate``: the best by the goal. ``tried``: all candidates in the order given. ``base_reward``: of the base model.

    The numbers in ``tried`` are what chose, so that of the chosen one is too good; what it is worth, other prompts must say.
    """

    candidate: Candidate
    tried: tuple[Tried, ...]
    base_reward: float


async def choose(
    trials: Trials,
    examples: Sequence[Example],
    candidates: Iterable[Candidate],
    next_token: NextToken,
    *,
    samples: int,
    goal: Goal | None = None,
    finalists: int = FINALISTS,
) -> Choice:
    """The best of ``candidates`` on ``examples``, of which none was used to fit them.

    next_token: of the training rollouts, for its tail. samples: completions a prompt for the base, and on average for each
    candidate that is sampled at all; successive halving gives more to those that look better. goal: by default the reward.
    finalists: most candidates that are sampled although logged completions already tell their reward.

    Raises:
        InputError: no candidates, no completion that passed a content filter, rewards that are not finite, or a goal that needs
            what the data or the provider does not tell.
        ProviderError: the API failed; what was received is kept.
    """
    field = list(candidates)
    if not field:
        raise InputError("the sweep is empty: give at least one --tau, and one --l2 or --alpha")
    race = _Race(trials, examples, field, next_token, goal or Goal())
    base = await race.start(samples)
    await race.screen(samples, finalists)
    best = await race.run(samples)
    race.conclude(best)
    return Choice(field[best], tuple(race.rows), base)


class _Race:
    """One selection under way: the rows of its table, and what has been measured so far."""

    def __init__(
        self, trials: Trials, examples: Sequence[Example], field: list[Candidate], next_token: NextToken, goal: Goal
    ) -> None:
        self.trials, self.examples, self.field, self.next_token, self.goal = trials, examples, field, next_token, goal
        self.rows = [Tried(each.estimator, each.settings, each.sparse.entries, math.nan) for each in field]
        self.outcomes: dict[int, Outcome] = {}

    async def start(self, samples: int) -> float:
        """Sample the base; its mean reward."""
        self.drawn = await self._scores("validation, base", samples)
        self.base = _outcome(self.drawn, ByPrompt(np.zeros(len(self.examples))))
        self.base_reward = self.drawn.mean_reward
        if math.isnan(self.base_reward):
            raise InputError(
                "no completion of the validation prompts passed the content filter; use other validation prompts"
            )
        self.goal.keeps(self.base, self.base)  # raises where accuracy is wanted and not known, before more is paid for
        return self.base_reward

    async def screen(self, samples: int, finalists: int) -> None:
        """Drop repeated candidates, and those that logged completions speak against clearly."""
        seen: dict[tuple[tuple[int, float], ...], int] = {}
        for index, each in enumerate(self.field):
            first = seen.setdefault(tuple(each.logit_bias.items()), index)
            if first != index:
                self._drop(index, f"the same bias as {self.field[first].label}")
        racing = self.racing
        logged = await log_of_base(self.trials, self.examples, self.drawn, samples, self.next_token)
        if isinstance(logged, Logged):
            self._estimate(racing, logged, finalists)
        else:
            self._say(f"no off-policy estimates: {logged}; all {len(racing)} candidates are sampled afresh")
        if self.goal.objective == "reward-kl" and not self.trials.session.tells_base_logprobs:
            self._drop_without_kl()

    async def run(self, samples: int) -> int:
        """Successive halving over fresh samples; the number of the winner."""
        racing = self.racing
        plan = rungs(len(racing), samples)
        for number, rung in enumerate(plan):
            for index in racing:
                await self._measure(index, rung.samples)
            order = self.goal.ranking(self.base, [self.outcomes[index] for index in racing])
            kept = plan[number + 1].candidates if number + 1 < len(plan) else 1
            ranked = [racing[place] for place in order]
            racing = sorted(ranked[:kept])
            for index in ranked[kept:]:
                self._told(index)
                self._drop(index, f"after {rung.samples} samples a prompt")
        self._told(racing[0])
        return racing[0]

    def conclude(self, best: int) -> None:
        """Mark the winner and say what its number is worth."""
        self.rows[best] = replace(self.rows[best], fate="chosen")
        sampled, outcome = len(self.outcomes), self.outcomes[best]
        if math.isnan(self.goal.gain(self.base, outcome).value) and not math.isnan(outcome.reward.value):
            raise InputError(
                "objective 'reward-kl' needs a KL, and no candidate has one: no biased completion lists all of its tokens; choose "
                "'reward' or 'pareto'"
            )
        if not self.goal.beats(self.base, outcome):
            self._say(
                f"no candidate beat the base on the validation prompts by {_OBJECTIVES[self.goal.objective]}; the best of them is "
                "judged all the same"
            )
        if sampled > 1:
            self._say(
                f"chosen: {self.field[best].label}; as the best of {sampled} its validation number is too good: the test prompts "
                "say what it is worth"
            )

    @property
    def racing(self) -> list[int]:
        """The candidates that have not been dropped."""
        return [index for index, row in enumerate(self.rows) if not row.fate]

    def _estimate(self, racing: list[int], logged: Logged, finalists: int) -> None:
        found = [logged.estimate(self.field[index].logit_bias) for index in racing]
        why = self.goal.screen(logged.estimate({}).outcome, found, finalists)
        for index, each, reason in zip(racing, found, why, strict=True):
            self.rows[index] = replace(self.rows[index], off_policy=each)
            if reason is not None:
                self._drop(index, f"off-policy: {reason}")
        trusted, dropped = sum(each.trusted for each in found), sum(reason is not None for reason in why)
        self._say(
            f"off-policy, from {logged.size} base completions of the validation prompts: {trusted} of {len(found)} candidates have "
            f"an estimate to trust, {dropped} are dropped by it, {len(found) - dropped} are sampled afresh"
        )

    def _drop_without_kl(self) -> None:
        """Where only logged completions tell a KL, a candidate without a trusted estimate cannot be ranked."""
        for index in self.racing:
            estimate = self.rows[index].off_policy
            if estimate is None or not estimate.trusted:
                self._drop(index, "its KL is not known")
        if not self.racing:
            raise InputError(
                f"objective 'reward-kl' needs the KL of each candidate, but {self.trials.session.profile.name} does not return the "
                "base model's logprobs with a bias, and the logged completions cannot tell it; choose 'reward' or 'pareto'"
            )

    async def _measure(self, index: int, samples: int) -> None:
        bias = self.field[index].logit_bias
        scores = await self._scores(f"validation, {self.field[index].label}", samples, bias)
        kl = await self._kl(index, samples) if self.goal.objective == "reward-kl" else None
        outcome = _outcome(scores, None if kl is None else ByPrompt(np.full(len(self.examples), kl)))
        self.outcomes[index] = outcome
        self.rows[index] = replace(
            self.rows[index],
            reward=scores.mean_reward,
            samples=samples,
            tokens=outcome.tokens.value,
            accuracy=None if outcome.accuracy is None else outcome.accuracy.value,
            kl=kl,
        )

    async def _kl(self, index: int, samples: int) -> float:
        """Measured where biased completions carry the base's logprobs, else the trusted estimate; NaN where no completion tells."""
        if self.trials.session.tells_base_logprobs:
            return await self.trials.kl(self.examples, samples, self.field[index].logit_bias, self.next_token)
        estimate = self.rows[index].off_policy
        return math.nan if estimate is None or estimate.outcome.kl is None else estimate.outcome.kl.value

    async def _scores(self, title: str, samples: int, bias: dict[int, float] | None = None) -> Scores:
        return await self.trials.scores(title, self.examples, SAMPLED, samples, bias)

    def _drop(self, index: int, why: str) -> None:
        self.rows[index] = replace(self.rows[index], fate=why)

    def _told(self, index: int) -> None:
        row, label = self.rows[index], self.trials.reward.label
        told = f"{label} {short(row.reward)} (base {short(self.base_reward)}; {row.samples} samples a prompt)"
        if self.goal.objective == "reward-kl" and row.kl is not None:
            told += f", KL {short(row.kl)} nats a completion"
        if self.goal.objective == "pareto":
            tokens, base = self.outcomes[index].tokens.value, self.base.tokens.value
            told += f", tokens {short(tokens)} (base {short(base)})"
            if row.accuracy is not None and self.base.accuracy is not None:
                told += f", accuracy {short(row.accuracy)} (base {short(self.base.accuracy.value)})"
        self._say(f"validation, {self.field[index].label}: {told}")

    def _say(self, text: str) -> None:
        self.trials.report.remark(text)


def _outcome(scores: Scores, kl: ByPrompt | None) -> Outcome:
    return Outcome(
        reward=_means(scores.reward),
        tokens=_means(scores.tokens),
        accuracy=None if scores.correct is None else _means(scores.correct),
        kl=kl,
    )


def _means(rows: Sequence[Any]) -> ByPrompt:
    return ByPrompt(np.array([row.mean() if row.size else math.nan for row in rows], dtype=np.float64))


def _known(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else value


def _estimate_json(estimate: OffPolicy) -> dict[str, Any]:
    told: dict[str, Any] = {
        "trusted": estimate.trusted,
        "doubts": list(estimate.doubts),
        "effective_sample_size": estimate.effective_sample_size,
        "effective_prompts": estimate.effective_prompts,
        "mean_weight": _known(estimate.mean_weight),
    }
    if estimate.trusted:
        outcome = estimate.outcome
        parts = {"reward": outcome.reward, "tokens": outcome.tokens, "accuracy": outcome.accuracy, "kl": outcome.kl}
        for name, part in parts.items():
            if part is not None:
                told[name] = {"value": _known(part.value), "standard_error": _known(part.standard_error)}
    return told
