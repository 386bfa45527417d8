"""What a fit will ask for: the parts of its steps, before anything is learned.

Two numbers are not known beforehand. How long an answer is in tokens is guessed from its letters,
and a race that completions of the base may shorten is taken to be shortened where a rule about the
text is the reward. At most, a token is a byte and nothing is shortened.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from blackbox_lb.bias.request_bias import NO_BIAS, RequestBias
from blackbox_lb.estimate.choice.goal import Rung, race_cost
from blackbox_lb.estimate.choice.table import most_candidates
from blackbox_lb.jobs.decisions.fit import decision_parts
from blackbox_lb.jobs.fitting.choosing.proposing import most_beside
from blackbox_lb.jobs.fitting.choosing.scorers import foreseeable
from blackbox_lb.jobs.fitting.choosing.select import FORESEEN, Search
from blackbox_lb.jobs.fitting.fit import source_of
from blackbox_lb.jobs.fitting.judge import judged_examples, kl_draws
from blackbox_lb.jobs.fitting.scored_policies import BASE, BIASED, FIXED
from blackbox_lb.jobs.forecast import (
    AnswerLists,
    Forecast,
    Part,
    RequestSettings,
    forecast,
    unknown_bias,
)
from blackbox_lb.jobs.plan.plan import Plan
from blackbox_lb.rollouts.answers.given_answers import first_part
from blackbox_lb.rollouts.judging.trials import NamedBias, StagePart, policy_parts, stage_part
from blackbox_lb.rollouts.judging.verdict import SAMPLED
from blackbox_lb.rollouts.progress import LONG, duration, work
from blackbox_lb.tasks import Reward, Task
from blackbox_lb.tasks.rewards.forms.formulas import LENGTH
from blackbox_lb.tasks.rewards.forms.formulas import TOKENS as TOKENS_PAID
from blackbox_lb.types import Example

TOKENS = re.compile(r"[A-Za-z]{1,10}|\d{1,3}|[^\sA-Za-z\d]")
"""A guess of the tokens of an answer: words of up to ten letters, numbers of up to three digits,
and every other sign.
"""


def fit_forecast(settings: RequestSettings, task: Task, plan: Plan, reward: Reward) -> Forecast:
    """What a fit asks for as is likely, and its tokens at most."""
    if plan.question is not None:
        parts = decision_parts(settings.profile, settings.endpoint, settings.draw, task, plan)
        return forecast(settings, parts)
    likely = forecast(settings, _Demand(settings, task, plan, reward).parts())
    bound = forecast(settings, _Demand(settings, task, plan, reward, at_most=True).parts())
    return replace(
        likely,
        most_prompt_tokens=bound.most_prompt_tokens,
        most_completion_tokens=bound.most_completion_tokens,
    )


SHORTER = (
    ("samples_per_prompt", 4),
    ("validation_samples", 2),
    ("test_samples", 2),
    ("max_tokens", 64),
    ("limit", 30),
)
"""Settings that a plan is made shorter by, one after the other, and the most of each."""
WORTH = 0.9
"""Share of the work that a shorter setting leaves at most."""


def shorter_plan(
    settings: RequestSettings,
    task: Task,
    plan: Plan,
    reward: Reward,
    second: float,
    share: float,
) -> str:
    """The end of a sentence on a plan that takes at most ``LONG`` seconds, or as few as the
    settings of ``SHORTER`` allow; "" where they change nothing.

    second: seconds of a unit of work. share: of the limit that completions have.
    """

    def units(plan: Plan, longest: int) -> float:
        total = fit_forecast(replace(settings, max_tokens=longest), task, plan, reward)
        return work(total.prompt_tokens, share * total.completion_tokens)

    fields: dict[str, int] = {}
    longest = settings.max_tokens
    now = units(plan, longest)
    for name, most in SHORTER:
        shorter = plan
        limit = longest
        if name == "max_tokens":
            if reward.label not in (LENGTH, TOKENS_PAID):
                limit = min(longest, most)
        elif (getattr(plan, name) or len(task.train)) > most:
            shorter = plan.for_data(plan.decision_labels, plan.notices, **{name: most})
        after = units(shorter, limit)
        if after > WORTH * now:
            continue
        plan = shorter
        longest = limit
        now = after
        fields[name] = most
        if second * now <= LONG:
            break
    if not fields:
        return ""
    options = " ".join(f"``{name}={value}``" for name, value in fields.items())
    return f"; shorter, about {duration(second * now)}: {options}"


@dataclass(frozen=True, slots=True)
class _Demand:
    """The parts of one fit. at_most: nothing is guessed, and no fit asks for more."""

    settings: RequestSettings
    task: Task
    plan: Plan
    reward: Reward
    at_most: bool = False

    def parts(self) -> Iterator[Part]:
        """Everything, in the order of the flow."""
        plan = self.plan
        examples = self.task.train[: plan.limit]
        match source_of(plan):
            case "unlabelled":
                yield self._first((*examples, *self.task.unlabelled))
            case "opening":
                yield self._first(examples)
                yield self._first(self.task.validation)
            case "answers":
                yield self._first(examples)
                yield self._along(examples)
                yield from self._choice_by_answers()
            case "samples":
                if not plan.only_stored:
                    yield stage_part(
                        self.settings.draw, "training", examples, SAMPLED, plan.samples_per_prompt
                    )
                yield from self._race()
        yield from self._test()

    def _choice_by_answers(self) -> Iterator[Part]:
        """Lists where they alone give the effects, else the race."""
        validation = self.task.validation
        if self.reward.of_shares:
            yield self._first(validation)
            if any(size > 1 for size in self._along(validation).sizes):
                yield from self._race()
        elif self.plan.selects_offline:
            yield self._first(validation)
            if self.plan.decision_labels is not None and self.plan.searches != "named":
                yield self._first(self.task.unlabelled)
        else:
            yield from self._race()

    def _race(self) -> Iterator[StagePart]:
        """Completions of the validation prompts: of the base, of the candidates of each rung, and
        of candidates with features.
        """
        plan = self.plan
        prompts = len(self.task.validation)
        search = Search.of(plan)
        if plan.most_entries is not None:
            sizes = tuple(size for size in search.sizes if size < plan.most_entries)
            search = replace(search, sizes=sizes)
        has_costs = self._is_sum or (self.at_most and self.reward.credit == "open")
        candidates = most_candidates(plan.sweep, has_costs=has_costs)
        if plan.searches != "named":
            candidates += most_beside(self.reward)
        is_alone = candidates == 1 and not search.refines
        if not prompts or (is_alone and not plan.parsed_features and plan.parsed_phases is None):
            return
        if self._is_foreseen and search.neighbours:
            candidates = min(candidates, FORESEEN)
        yield from self._scored(Rung(1, search.samples, prompts), [NO_BIAS])
        if self.at_most:  # fewer candidates may get more samples
            candidates = max(
                range(1, candidates + 1),
                key=lambda count: race_cost(search.race(count, prompts, self._cost), self._cost),
            )
        tried = 0
        for rung in search.race(candidates, prompts, self._cost):
            yield from self._scored(rung, [unknown_bias(n) for n in range(rung.candidates)])
            tried = max(tried, rung.candidates)
        for rung in search.later(prompts, self._cost):
            biases = [unknown_bias(tried + n) for n in range(rung.candidates)]
            yield from self._scored(rung, biases)
            tried += rung.candidates
        richer = self._richer(tried)
        if richer:
            standing = unknown_bias(tried + len(richer)) if self.at_most else unknown_bias(0)
            biases = [standing, *richer]
            yield from self._scored(Rung(len(biases), search.samples, prompts), biases)

    def _richer(self, tried: int) -> list[RequestBias]:
        """A bias for each feature of the prompt, for the phases, and for both."""
        of_prompt = tried + len(self.plan.parsed_features)
        biases = [unknown_bias(number) for number in range(tried, of_prompt)]
        if self.plan.parsed_phases is not None and self.plan.confined_to is None:
            features = self.plan.parsed_phases.features
            biases += [unknown_bias(number, features) for number in range(tried, of_prompt + 1)]
        return biases

    @property
    def _is_foreseen(self) -> bool:
        """Whether completions of the base are likely to tell what to expect of each candidate."""
        if self.at_most:
            return False
        settings = foreseeable(
            self.reward, self.plan.goal, self.plan.settings, self.settings.profile
        )
        return self._is_sum and bool(settings)

    @property
    def _is_sum(self) -> bool:
        """Whether the reward is likely to be a sum over places."""
        return self.reward.has_spans or self.reward.has_token_costs

    def _cost(self, samples: int) -> int:
        """Completions a prompt for a score from so many samples."""
        return sum(setting.samples_of(samples) for setting in self.plan.settings)

    def _scored(self, rung: Rung, biases: Sequence[RequestBias]) -> Iterator[StagePart]:
        """Completions of the validation prompts with each bias."""
        examples = self.task.validation[: rung.prompts]
        named = [NamedBias("validation", bias) for bias in biases]
        where = self.settings.biased_endpoint
        for setting in self.plan.settings:
            yield from policy_parts(
                self.settings.draw, examples, setting, rung.samples, named, where
            )

    def _test(self) -> Iterator[StagePart]:
        """Completions of the test prompts, and those of the KL."""
        plan = self.plan
        features = () if plan.parsed_phases is None else plan.parsed_phases.features
        sent = unknown_bias(0, features)
        policies = [NamedBias(BASE, NO_BIAS), NamedBias(BIASED, sent)]
        is_confined = plan.confined_to is not None
        if plan.parsed_features or (features and not is_confined):
            fixed = unknown_bias(1, features if is_confined else ())
            policies.append(NamedBias(FIXED, fixed))
        examples = judged_examples(self.task, plan)
        where = self.settings.biased_endpoint
        for setting in plan.settings:
            yield from policy_parts(
                self.settings.draw, examples, setting, plan.test_samples, policies, where
            )
        if self.settings.profile.tells_base_logprobs(self.settings.endpoint):
            kl_examples, samples = kl_draws(self.task, plan)
            if SAMPLED not in plan.settings or not examples:
                yield stage_part(self.settings.draw, "KL", kl_examples, SAMPLED, samples, sent)

    def _first(self, examples: Sequence[Example]) -> StagePart:
        """The first lists of ``examples``."""
        return first_part(
            self.settings.draw, "first", examples, self.settings.width(self.plan.top_logprobs)
        )

    def _along(self, examples: Sequence[Example]) -> AnswerLists:
        """The lists along the answers of ``examples``."""
        room = self.reward.max_tokens - 1
        sizes = [min(self._tokens(example), room) for example in examples]
        return AnswerLists(examples, sizes, self.settings.width(self.plan.top_logprobs))

    def _tokens(self, example: Example) -> int:
        """Tokens of an answer. A token may begin with a space."""
        if not example.answers:  # refused before anything is asked for
            return 0
        if self.at_most:
            return max(len(answer.encode("utf-8", "replace")) + 1 for answer in example.answers)
        return len(TOKENS.findall(example.answers[0]))
