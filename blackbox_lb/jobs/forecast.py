"""Forecast: the most that a command will ask for, stage by stage, before its first request."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from operator import add

from blackbox_lb.api.limits.budget import prompt_bound
from blackbox_lb.bias.request_bias import RequestBias
from blackbox_lb.estimate.choice.table import most_candidates
from blackbox_lb.jobs.evaluation.policies import Decides
from blackbox_lb.jobs.evaluation.results import draws_of
from blackbox_lb.jobs.evaluation.run import EvalPlan
from blackbox_lb.jobs.fitting.choosing.proposing import most_beside
from blackbox_lb.jobs.fitting.choosing.select import Search
from blackbox_lb.jobs.fitting.judge import KL_PROMPTS
from blackbox_lb.jobs.fitting.plan import FitPlan
from blackbox_lb.providers.prices import Prices
from blackbox_lb.providers.profile import Profile
from blackbox_lb.rollouts.collect import batch_of
from blackbox_lb.rollouts.judging.trials import Trials
from blackbox_lb.rollouts.judging.verdict import SAMPLED, Setting
from blackbox_lb.tasks import Reward, Task
from blackbox_lb.types import Endpoint, Example, Sampling

CHARACTERS_A_TOKEN = 4
"""Characters a token of an English prompt."""


@dataclass(frozen=True, slots=True)
class ForecastStage:
    """``samples`` completions of each of ``examples``, of at most ``max_tokens`` (the run's own
    limit where None). along_answer: they are the lists along the example's answer, a request each,
    where the provider gives any.
    """

    examples: Sequence[Example]
    samples: int
    max_tokens: int | None = None
    along_answer: bool = False


@dataclass(frozen=True, slots=True)
class Forecast:
    """Requests, and tokens at most; ``prompt_tokens`` are the likely number. Sums by ``+``."""

    requests: int = 0
    completions: int = 0
    prompt_tokens: int = 0
    most_prompt_tokens: int = 0
    most_completion_tokens: int = 0

    def __add__(self, other: Forecast) -> Forecast:
        return Forecast(*map(add, astuple(self), astuple(other)))

    def sentence(self, prices: Prices | None, stored: int, mean: float) -> str:
        """The forecast in words. ``stored``: completions in the store, of ``mean`` tokens each."""
        text = (
            f"at most {self.requests:,} requests with about {self.prompt_tokens:,} prompt tokens,"
            f" for {self.completions:,} completions of at most {self.most_completion_tokens:,}"
            " tokens in all"
        )
        likely = round(self.completions * mean)
        if stored:
            text += f" (about {likely:,} if they are as long as those stored)"
        if prices is not None:
            most = prices.dollars(self.most_prompt_tokens, self.most_completion_tokens)
            expected = prices.dollars(self.prompt_tokens, likely)
            text += (
                f"; at most ${most:.2f}"
                + (f", likely ${expected:.2f}" if stored else "")
                + f" ({prices})"
            )
        if stored:
            text += f"; of {stored:,} completions in the store none is asked for again"
        return text


@dataclass(frozen=True, slots=True)
class RequestSettings:
    """What the requests of a command share; ``max_tokens`` is of a completion."""

    profile: Profile
    endpoint: Endpoint
    max_tokens: int
    top_logprobs: int
    seed: int | None = None
    stop: tuple[str, ...] = ()

    @classmethod
    def of(cls, trials: Trials) -> RequestSettings:
        """Those of open trials."""
        return cls(
            trials.session.profile,
            trials.session.endpoint,
            trials.reward.max_tokens,
            trials.top_logprobs,
            trials.seed,
            trials.stop,
        )


def forecast(settings: RequestSettings, stages: Iterable[ForecastStage | Forecast]) -> Forecast:
    """The sum of ``stages``, with nothing of them stored."""
    total = Forecast()
    for stage in stages:
        total += stage if isinstance(stage, Forecast) else _of(settings, stage)
    return total


def _of(settings: RequestSettings, stage: ForecastStage) -> Forecast:
    if stage.along_answer:
        return _along_answers(settings.profile, stage)
    most = stage.max_tokens or settings.max_tokens
    sampling = Sampling(1.0, most, settings.top_logprobs, settings.seed, settings.stop)
    requests = -(-stage.samples // batch_of(settings.profile, settings.endpoint, sampling))
    prompts = {example.prompt for example in stage.examples}
    texts = [prompt.sent_texts for prompt in prompts]
    return Forecast(
        requests=requests * len(prompts),
        completions=stage.samples * len(prompts),
        prompt_tokens=requests
        * sum(sum(map(len, parts)) // CHARACTERS_A_TOKEN + 1 for parts in texts),
        most_prompt_tokens=requests * sum(map(prompt_bound, texts)),
        most_completion_tokens=stage.samples * len(prompts) * most,
    )


def _along_answers(profile: Profile, stage: ForecastStage) -> Forecast:
    """A request for each list along an answer, each behind the prompt and the answer so far."""
    if profile.reference is None and profile.answers.continues is False:
        return Forecast()
    requests = stage.samples * len(stage.examples)
    texts = [example.prompt.sent_texts for example in stage.examples]
    likely = sum(sum(map(len, parts)) // CHARACTERS_A_TOKEN + 1 for parts in texts)
    most = sum(prompt_bound(parts) + stage.samples for parts in texts)
    return Forecast(
        requests=requests,
        completions=requests,
        prompt_tokens=stage.samples * likely,
        most_prompt_tokens=stage.samples * most,
        most_completion_tokens=requests,
    )


def _answer_stages(examples: Sequence[Example], reward: Reward) -> list[ForecastStage]:
    """The most lists along the answers: one a token, and no token is shorter than a byte. A token
    may begin with a space.
    """
    by_length: dict[int, list[Example]] = {}
    for example in examples:
        sizes = [len(answer.encode("utf-8", "replace")) + 1 for answer in example.answers]
        length = min(max(sizes, default=reward.max_tokens), reward.max_tokens - 1)
        by_length.setdefault(length, []).append(example)
    return [
        ForecastStage(rows, length, 1, along_answer=True)
        for length, rows in by_length.items()
        if length
    ]


def fit_stages(task: Task, plan: FitPlan, reward: Reward) -> list[ForecastStage]:
    """The most that a fit asks for: training, the race on the validation prompts, and the test."""
    if plan.learn_from == "unlabelled":
        samples = sum(2 * _count(setting, plan.test_samples) for setting in plan.settings)
        prompts = (*task.train[: plan.limit], *task.unlabelled)
        kl = ForecastStage(task.test[:KL_PROMPTS], 1)
        return [ForecastStage(prompts, 1, 1), ForecastStage(task.test, samples), kl]
    candidates = most_candidates(plan.sweep)
    if plan.searches != "named":
        candidates += most_beside(reward)
    firsts = []
    if plan.learn_from == "answers":
        firsts.append(ForecastStage(task.train[: plan.limit], 1, 1))
        firsts += _answer_stages(task.train[: plan.limit], reward)
    if plan.selects_offline:
        firsts += _answer_stages(task.validation, reward)
    settings = dict.fromkeys(plan.settings)
    judged = [
        (
            ForecastStage(task.validation, 1, 1)
            if plan.selects_offline
            else ForecastStage(
                task.validation,
                _validation_samples(plan, setting, candidates, len(task.validation)),
            )
        )
        for setting in settings
    ]
    policies = 2
    if plan.depends_on or plan.phases:
        policies += 1  # the fixed bias beside them
    if plan.phases:
        policies += 2  # completions of two parts
    judged += [
        ForecastStage(task.test, policies * _count(setting, plan.test_samples))
        for setting in settings
    ]
    if SAMPLED not in settings:
        judged.append(ForecastStage(task.test[:KL_PROMPTS], 1))
    return [
        *firsts,
        ForecastStage(
            task.train[: plan.limit],
            0 if plan.only_stored or plan.learn_from == "answers" else plan.samples,
        ),
        *judged,
    ]


def _validation_samples(plan: FitPlan, setting: Setting, candidates: int, prompts: int) -> int:
    """Most completions a validation prompt at one setting, of ``prompts``."""
    samples = _count(setting, plan.validation_samples)
    raced = Search.of(plan).most(candidates, prompts, lambda count: _count(setting, count))
    searched = -(-raced // max(prompts, 1))
    most = samples + searched
    proposers = len(plan.depends_on)
    parts = 0
    if plan.phases is not None:
        parts = 2 * (1 + proposers)  # with each feature of the prompt and alone, of two parts each
    if proposers or parts:
        most += samples * (proposers + parts + 1)  # the fixed bias may need more beside them
    return most


def _count(setting: Setting, samples: int) -> int:
    if setting.deterministic:
        return 1
    return samples


def eval_stages(
    task: Task, biases: Mapping[str, RequestBias], plan: EvalPlan
) -> list[ForecastStage]:
    """The most that an evaluation asks for: every policy of every setting on the test prompts, and
    the lists for decisions here.
    """
    stages = [
        ForecastStage(rival.decision.lists(), 1, 1)
        for rival in plan.rivals
        if isinstance(rival, Decides)
    ]
    for setting, policy in plan.judged(biases):
        if isinstance(policy, Decides):
            continue
        for count, draws in draws_of(policy, setting, task.test, plan.samples).items():
            examples = [draw.example for _, draw in draws]
            stages.append(ForecastStage(examples, count, policy.max_tokens))
    return stages
