"""Forecast: what a command will ask for, before its first request. The parts of its steps are
counted as a collection counts them: equal requests once, nothing that is stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from operator import add
from typing import TypeAlias
from urllib.parse import urlsplit

from blackbox_lb.api.draw import Draw
from blackbox_lb.api.limits.budget import prompt_bound
from blackbox_lb.api.session import CHARACTERS_A_TOKEN, Session
from blackbox_lb.bias.features import Feature
from blackbox_lb.bias.phases import MOST_PARTS
from blackbox_lb.bias.request_bias import AnyBias, RequestBias
from blackbox_lb.bias.stepping import MOST_IN_ANSWER, REQUESTS_A_STEP, REST
from blackbox_lb.jobs.evaluation.policies import Decides
from blackbox_lb.jobs.evaluation.results import answer_parts
from blackbox_lb.jobs.evaluation.run import EvalPlan
from blackbox_lb.jobs.records.run_record import earlier_pace
from blackbox_lb.literals import Endpoint
from blackbox_lb.providers.prices import Prices
from blackbox_lb.providers.profile import Profile
from blackbox_lb.rollouts.answers.continued import requests_along
from blackbox_lb.rollouts.answers.given_answers import first_part, most_listed
from blackbox_lb.rollouts.collect import (
    Series,
    keys_of,
    missing_requests,
    request_settings,
)
from blackbox_lb.rollouts.judging.trials import StagePart, Trials, draw_at
from blackbox_lb.rollouts.judging.verdict import Setting
from blackbox_lb.rollouts.progress import Shorter, duration, work
from blackbox_lb.rollouts.stepped import PART
from blackbox_lb.safety.network import is_loopback
from blackbox_lb.store import RolloutStore, request_hash
from blackbox_lb.tasks import Task
from blackbox_lb.types import Example, Prompt

PARTS = 2
"""Requests of a completion whose bias changes once."""
STEPS = 4
"""Phrases of a completion that is kept free of them, each of which takes two requests."""


@dataclass(frozen=True, slots=True)
class AnswerLists:
    """The lists along the answers of examples. sizes: (x,) tokens of each answer. listed:
    alternatives of a list.
    """

    examples: Sequence[Example]
    sizes: Sequence[int]
    listed: int


Part: TypeAlias = StagePart | AnswerLists
"""What a step asks for."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """What is likely of requests, completions and prompts, and tokens at most. Sums by ``+``.

    completion_tokens: of the likely completions, each at its limit.
    """

    requests: int = 0
    completions: int = 0
    prompt_tokens: int = 0
    most_prompt_tokens: int = 0
    most_completion_tokens: int = 0
    completion_tokens: int = 0

    def __add__(self, other: Forecast) -> Forecast:
        return Forecast(*map(add, astuple(self), astuple(other)))

    def sentence(self, prices: Prices | None, stored: int, mean: float) -> str:
        """The forecast in words. ``stored``: completions in the store, of ``mean`` tokens each."""
        text = (
            f"about {self.requests:,} requests with about {self.prompt_tokens:,} prompt tokens,"
            f" for about {self.completions:,} completions of at most"
            f" {self.most_completion_tokens:,} tokens in all"
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


def likely_seconds(total: Forecast, pace: tuple[float, float, float]) -> tuple[float, float]:
    """What a forecast takes at the pace of an earlier run (``earlier_pace``): seconds, and the
    share of the limit that completions have.
    """
    second, prompt, completion = pace
    longest = total.completion_tokens / max(total.completions, 1)
    share = min(completion / max(longest, 1.0), 1.0)
    return second * work(prompt * total.completions, share * total.completion_tokens), share


@dataclass(frozen=True, slots=True)
class RequestSettings:
    """What the requests of a command share.

    Attributes:
        profile: of the provider.
        endpoint: that samples.
        max_tokens: of a completion.
        top_logprobs: alternatives of each position.
        seed: of the draws, None for none.
        stop: stop texts.
        model: its name; empty before a server was asked, as is ``tokenizer``, its fingerprint.
        store: None before one is open.
        follows_ids: whether the server continues token ids; None for what the profile says.
    """

    profile: Profile
    endpoint: Endpoint
    max_tokens: int
    top_logprobs: int
    seed: int | None = None
    stop: tuple[str, ...] = ()
    model: str = ""
    tokenizer: str = ""
    store: RolloutStore | None = None
    follows_ids: bool | None = None

    @classmethod
    def of(cls, trials: Trials) -> RequestSettings:
        """Those of open trials."""
        session = trials.session
        return cls(
            session.profile,
            session.endpoint,
            trials.reward.max_tokens,
            trials.top_logprobs,
            trials.seed,
            trials.stop,
            session.model,
            trials.tokenizer.fingerprint,
            trials.store,
            session.profile.follows_ids(session.vocabulary),
        )

    def draw(
        self,
        setting: Setting,
        bias: AnyBias = None,
        endpoint: Endpoint | None = None,
        max_tokens: int | None = None,
        top_logprobs: int | None = None,
    ) -> Draw:
        """See ``Trials.draw``."""
        longest = max_tokens or self.max_tokens
        listed = top_logprobs or self.top_logprobs
        return draw_at(setting, longest, listed, self.seed, self.stop, bias, endpoint)

    @property
    def biased_endpoint(self) -> Endpoint:
        """The endpoint that takes a bias."""
        return self.profile.biased_endpoint(self.endpoint)

    def width(self, listed: int | None) -> int:
        """Alternatives of a first list; ``listed``: those that were asked for."""
        if listed is not None:
            return listed
        return most_listed(self.profile, self.endpoint)


def forecast(settings: RequestSettings, parts: Iterable[Part]) -> Forecast:
    """What the parts ask for, one after the other."""
    total = Forecast()
    covered = set[str]()
    for part in parts:
        if isinstance(part, AnswerLists):
            total += _along_answers(settings, part)
        else:
            total += _missing(settings, part, covered)
    return total


def _missing(settings: RequestSettings, part: StagePart, covered: set[str]) -> Forecast:
    """What a part asks for beside the keys in ``covered``, which it joins."""
    profile = settings.profile
    series = Series([example.prompt for example in part.examples], part.draw, part.samples)
    request = request_hash(
        request_settings(profile, settings.model, settings.tokenizer, settings.endpoint, part.draw)
    )
    keys = keys_of(request, series)
    if settings.store is not None:
        covered |= settings.store.keys(request)
    requests = missing_requests(profile, settings.endpoint, covered, series, keys)
    longest = part.draw.sampling.max_tokens
    phases = part.draw.bias.phases
    likely = 1
    most = 1
    sent_again = 0
    discarded = 0
    if "prefix" in part.draw.bias.scopes:
        likely = PARTS
        most = MOST_PARTS if phases.back else PARTS
        sent_again = longest  # a later part has the earlier ones in its prompt
    if part.draw.bias.phrases is not None:
        likely = -(-longest // PART) + REQUESTS_A_STEP * STEPS
        most = -(-longest // PART) + REQUESTS_A_STEP * MOST_IN_ANSWER
        sent_again = longest
        discarded = MOST_IN_ANSWER * PART
        if profile.logprobs.drops_fragments:
            discarded += most * REST
    completions = sum(len(missing.samples) for missing in requests)
    texts = part.draw.sent_texts
    bounds = sum(prompt_bound([*missing.prompt.sent_texts, *texts]) for missing in requests)
    return Forecast(
        requests=likely * len(requests),
        completions=completions,
        prompt_tokens=likely * sum(likely_tokens(missing.prompt, texts) for missing in requests),
        most_prompt_tokens=most * (bounds + sent_again * len(requests)),
        most_completion_tokens=completions * (longest + discarded),
        completion_tokens=completions * longest,
    )


def _along_answers(settings: RequestSettings, part: AnswerLists) -> Forecast:
    """The requests for lists along answers, each behind the prompt and the answer so far; none
    where the provider gives none.
    """
    profile = settings.profile
    by_ids = settings.follows_ids
    if by_ids is None:
        by_ids = profile.reference is not None
    if not by_ids and (profile.answers.continues is False or settings.endpoint != "chat"):
        return Forecast()
    requests = 0
    likely = 0
    most = 0
    for example, size in zip(part.examples, part.sizes, strict=True):
        prompt = example.prompt
        of_answer = requests_along(profile, prompt, size, part.listed, by_ids=by_ids)
        requests += of_answer
        likely += of_answer * likely_tokens(prompt)
        most += size * (prompt_bound(prompt.sent_texts) + size)
    return Forecast(requests, requests, likely, most, sum(part.sizes), requests)


def likely_tokens(prompt: Prompt, texts: Sequence[str] = ()) -> int:
    """Those of a prompt, and of ``texts`` that go out with it."""
    return sum(map(len, [*prompt.sent_texts, *texts])) // CHARACTERS_A_TOKEN + 1


def announcement(trials: Trials, total: Forecast, shorter: Shorter) -> str:
    """What is about to be asked for, of whom, with which key and for how much. The reporter gets
    what is to come, to say how long it takes.
    """
    trials.report.expect(total.completions, total.prompt_tokens, total.completion_tokens, shorter)
    session = trials.session
    size = trials.store.size()
    mean = size.tokens / size.completions if size.completions else 0.0
    host = urlsplit(session.base_url).hostname or ""
    hosted = is_hosted(session)
    if not hosted and trials.budget.prices is None:
        stored = ""
        if size.completions:
            stored = f"; {size.completions:,} completions are stored and not asked for again"
        pace = earlier_pace(trials.store.path.parent, session.profile.name)
        time = ""
        if pace is not None:
            time = f", about {duration(likely_seconds(total, pace)[0])} as fast as before"
        return f"{session.model} at {host}: about {total.requests:,} requests{time}{stored}"
    key = session.profile.connection.api_key_env
    owner = ""
    if hosted and key:
        owner = f", with the key in {key}"
    sentence = (
        f"{session.model} at {host}{owner}:"
        f" {total.sentence(trials.budget.prices, size.completions, mean)}"
    )
    if hosted and trials.budget.prices is None:
        return f"{sentence}; the price is not known (``price=PROMPT,COMPLETION``)"
    return sentence


def is_hosted(session: Session) -> bool:
    """Whether requests go to somebody who takes a key."""
    host = urlsplit(session.base_url).hostname or ""
    return session.profile.connection.api_key_required and not is_loopback(host)


def unknown_bias(number: int, features: Sequence[Feature] = ()) -> RequestBias:
    """In the place of a bias that is not learned yet; one with another number is another one."""
    return RequestBias({0: float(number + 1)}, features)


def eval_forecast(
    settings: RequestSettings, task: Task, biases: Mapping[str, RequestBias], plan: EvalPlan
) -> Forecast:
    """What an evaluation asks for: every policy of every setting on the test prompts, and the lists
    for decisions here.
    """
    parts: list[Part] = []
    rivals = []
    for number, rival in enumerate(plan.rivals):
        if isinstance(rival, Decides):
            width = settings.width(None)
            parts.append(first_part(settings.draw, rival.name, rival.decision.lists(), width))
            continue
        rivals.append(rival.with_unknown(unknown_bias(number)))
    judged = replace(plan, rivals=tuple(rivals)).judged(biases)
    where = settings.biased_endpoint
    parts += [
        part for _, _, part in answer_parts(settings.draw, task.test, judged, plan.samples, where)
    ]
    return forecast(settings, parts)
