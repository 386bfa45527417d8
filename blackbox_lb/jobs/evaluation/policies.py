"""Policies: the ways to answer a prompt that an evaluation judges beside each other.

The model itself, each bias, and each rival is one; so is a rival together with a bias. A policy
says what it asks for, and which completion is its answer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeAlias

import numpy as np

from blackbox_lb.api.wire import takes_messages
from blackbox_lb.bias.limits import check_limits
from blackbox_lb.bias.request_bias import NO_BIAS, RequestBias, with_phrases
from blackbox_lb.errors import InputError, NoLogprobs
from blackbox_lb.rollouts.judging.trials import Trials
from blackbox_lb.rollouts.judging.verdict import GREEDY, Setting
from blackbox_lb.rollouts.stepped import check_parts
from blackbox_lb.types import Completion, Example, Message

BASE = "base"
"""The name of the model itself, without anything."""
CLASSIFIER = "classifier tfidf"
"""The name of a classifier by the words of the prompts, without the model."""
InstructionsOf: TypeAlias = Callable[[Example, int], Mapping[str, int]]
"""The instructions of an example for so many completions, with the number of completions of each.
"""
BiasMaker: TypeAlias = Callable[[Trials], Awaitable[tuple[Mapping[int, float], int]]]
"""Makes a bias (token id -> nats), with the most tokens that a completion under it needs."""


@dataclass(frozen=True, slots=True)
class PromptDraw:
    """``samples`` completions of an example as it is sent."""

    example: Example
    samples: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The model itself or with a judged bias, and what every rival has unless it says otherwise.

    Attributes:
        rival: the rival's name, empty for the model itself.
        cost: in requests, in words; empty for a completion a test prompt and sample.
        judged: the name of the judged bias in it, None without one.
        sent: that bias.
    """

    rival: str = ""
    cost: str = ""
    judged: str | None = None
    sent: RequestBias = field(default=NO_BIAS, repr=False, compare=False)

    @property
    def name(self) -> str:
        """The name for tables, unique among the policies of an evaluation."""
        return " and ".join(part for part in (self.rival, self.judged) if part) or BASE

    @property
    def takes_bias(self) -> bool:
        """Whether a judged bias can be sent with it."""
        return True

    @property
    def bias(self) -> RequestBias:
        """What its requests send."""
        return self.sent

    @property
    def max_tokens(self) -> int | None:
        """Limit of a completion, that of the reward where None."""
        return None

    @property
    def group(self) -> int:
        """Completions that one answer takes."""
        return 1

    @property
    def facts(self) -> dict[str, Any]:
        """Its fields of ``PolicyResult`` that differ from their defaults."""
        return {}

    def with_unknown(self, bias: RequestBias) -> Policy:
        """The policy with ``bias`` in the place of one that is not made yet, for a forecast."""
        del bias
        return self

    async def ready(self, trials: Trials) -> Policy:
        """The policy with all that it needs of the session.

        Raises InputError, BiasError: the task or the provider has it not; ProviderError: the API
        failed.
        """
        del trials
        return self

    def applies(self, setting: Setting) -> bool:
        """Whether it differs from the model itself at ``setting``."""
        del setting
        return True

    def drawn_at(self, setting: Setting) -> Setting:
        """The setting of its requests where ``setting`` is judged."""
        return setting

    def requests(self, example: Example, samples: int) -> list[PromptDraw]:
        """What it asks for ``samples`` completions of ``example``."""
        return [PromptDraw(example, samples)]

    def answer(self, completions: Sequence[Completion]) -> Completion:
        """The answer of ``group`` completions of a prompt."""
        return completions[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Instructed(Policy):
    """An instruction in the last user message."""

    instruction: str

    @property
    def facts(self) -> dict[str, Any]:
        return {"instruction": self.instruction}

    def requests(self, example: Example, samples: int) -> list[PromptDraw]:
        return [PromptDraw(with_instruction(example, self.instruction), samples)]


@dataclass(frozen=True, slots=True, kw_only=True)
class InstructedByPrompt(Policy):
    """An instruction of its own for each prompt, or several that share its completions."""

    instructions: InstructionsOf = field(repr=False, compare=False)

    def requests(self, example: Example, samples: int) -> list[PromptDraw]:
        return [
            PromptDraw(with_instruction(example, instruction), count)
            for instruction, count in self.instructions(example, samples).items()
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class AtTemperature(Policy):
    """Another temperature than that of the setting.

    hotter: whether it may be a higher one, which a wanted distribution can need.
    """

    temperature: float
    hotter: bool = False

    def applies(self, setting: Setting) -> bool:
        if self.hotter:
            return self.temperature != setting.temperature
        return self.temperature < setting.temperature

    def drawn_at(self, setting: Setting) -> Setting:
        del setting
        if self.temperature:
            return Setting(f"temperature {self.temperature:g}", self.temperature)
        return GREEDY


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut(Policy):
    """Completions cut earlier or later, while the reward keeps its own limit."""

    limit: int

    @property
    def max_tokens(self) -> int | None:
        return self.limit


@dataclass(frozen=True, slots=True, kw_only=True)
class BestOf(Policy):
    """The likeliest of ``size`` completions: that with the highest mean logprob of its tokens under
    the base model. It shares the draws of the policy without it, and gives fewer answers.
    """

    size: int

    @property
    def group(self) -> int:
        return self.size

    @property
    def facts(self) -> dict[str, Any]:
        return {"best_of": self.size}

    def applies(self, setting: Setting) -> bool:
        return not setting.deterministic

    def answer(self, completions: Sequence[Completion]) -> Completion:
        """One without tokens comes last. NoLogprobs: a completion came without logprobs."""
        readable = [completion for completion in completions if completion.readable]
        means = []
        for completion in readable:
            if completion.n_tokens and not len(completion.logprobs):
                raise NoLogprobs(
                    "a completion came without logprobs, so the best of several is not known; drop"
                    " ``rival=best-of``"
                )
            mean = float(completion.logprobs.mean()) if len(completion.logprobs) else -np.inf
            means.append(mean)
        if readable:
            return readable[int(np.argmax(means))]
        return completions[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shots(Policy):
    """Messages before the prompt, behind its system messages."""

    shots: tuple[Message, ...]

    @property
    def facts(self) -> dict[str, Any]:
        return {"shots": len(self.shots)}

    async def ready(self, trials: Trials) -> Policy:
        endpoint = trials.session.biased_endpoint
        if not takes_messages(endpoint):
            raise InputError(
                f"{self.name} stands before the prompt as messages, and the {endpoint} endpoint"
                " takes one text; use ``endpoint=chat``, or drop ``rival=few-shot``"
            )
        return self

    def requests(self, example: Example, samples: int) -> list[PromptDraw]:
        messages = list(example.prompt.messages)
        begin = next(
            (place for place, message in enumerate(messages) if message.role != "system"), 0
        )
        messages[begin:begin] = self.shots
        prompt = replace(example.prompt, messages=tuple(messages))
        return [PromptDraw(replace(example, prompt=prompt), samples)]


@dataclass(frozen=True, slots=True, kw_only=True)
class HandBias(Policy):
    """A bias that nobody learned.

    make: makes it once there is a session. made: it. longest: the most tokens of a completion under
    it; None before it is made.
    """

    make: BiasMaker = field(repr=False, compare=False)
    made: RequestBias = field(default=NO_BIAS, repr=False, compare=False)
    longest: int | None = None

    @property
    def takes_bias(self) -> bool:
        return False

    @property
    def bias(self) -> RequestBias:
        return self.made

    @property
    def max_tokens(self) -> int | None:
        return self.longest

    def with_unknown(self, bias: RequestBias) -> Policy:
        return replace(self, made=bias)

    async def ready(self, trials: Trials) -> Policy:
        values, longest = await self.make(trials)
        check_limits(values, trials.session.profile, trials.session.highest_id)
        paid = self.cost or "a completion a test prompt and sample"
        cost = f"{paid}, of at most {longest} tokens, with a bias of {len(values)} tokens"
        return replace(
            self,
            made=RequestBias(values),
            longest=min(longest, trials.reward.max_tokens),
            cost=cost,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class WithoutPhrases(Policy):
    """Phrases are kept out by stepping back, beside those of a judged bias.

    entries: the list, as a bias file writes it.
    """

    entries: tuple[str, ...]

    @property
    def bias(self) -> RequestBias:
        return with_phrases(self.sent, self.entries)

    async def ready(self, trials: Trials) -> Policy:
        check_parts(trials.session, self.bias)
        return self


@dataclass(frozen=True, slots=True)
class Decided:
    """labels: (p,) the number of the decided label for each test prompt, -1 for none.
    prompt_tokens, completion_tokens: means over the test prompts of the tokens paid for a decision,
    without those paid for learning.
    """

    labels: tuple[int, ...]
    prompt_tokens: float = 0.0
    completion_tokens: float = 0.0


class Decision(Protocol):
    """A way to decide for a label without drawing an answer."""

    def lists(self) -> Sequence[Example]:
        """The prompts with a first list to read, one token each."""

    async def decide(self, trials: Trials) -> Decided:
        """Decide for each test prompt, without learning from the answers of these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decides(Policy):
    """A label for each prompt, decided here: nothing is drawn, and the setting changes nothing.

    tokens: that are paid for a decision at most.
    """

    decision: Decision = field(repr=False, compare=False)
    tokens: int

    @property
    def takes_bias(self) -> bool:
        return False

    @property
    def max_tokens(self) -> int | None:
        return self.tokens

    @property
    def facts(self) -> dict[str, Any]:
        return {"kind": "decisions"}

    def drawn_at(self, setting: Setting) -> Setting:
        del setting
        return GREEDY


def with_instruction(example: Example, instruction: str) -> Example:
    """The example with ``instruction`` in its last user message: after a space, after a blank line
    if the message has lines.
    """
    messages = list(example.prompt.messages)
    users = [place for place, message in enumerate(messages) if message.role == "user"]
    place = users[-1] if users else len(messages) - 1
    text = messages[place].content
    glue = "\n\n" if "\n" in text else " "
    messages[place] = replace(messages[place], content=f"{text}{glue}{instruction}")
    return replace(example, prompt=replace(example.prompt, messages=tuple(messages)))


def policies_at(
    setting: Setting,
    biases: Mapping[str, RequestBias],
    rivals: Sequence[Policy],
    parts: Collection[str] = (),
) -> Iterator[Policy]:
    """The model itself, and each rival that applies at ``setting``: alone, and with each bias where
    it takes one; in this order.

    parts: names of biases that are parts of others, which no rival is tried together with.
    """
    for policy in (Policy(), *rivals):
        if not policy.applies(setting):
            continue
        yield policy
        if not policy.takes_bias:
            continue
        for name, bias in biases.items():
            if not policy.rival or name not in parts:
                yield replace(policy, judged=name, sent=bias)
