"""Arms: the policies of an evaluation: the base, each bias, each alternative, and the alternatives
with each bias.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeAlias

import numpy as np

from blackbox_lb.api.wire import asks_logprobs
from blackbox_lb.errors import InputError, NoLogprobs
from blackbox_lb.jobs.evaluation.document import Answer
from blackbox_lb.jobs.runs.answers import moved_tokens
from blackbox_lb.records import Decisions
from blackbox_lb.rollouts.judging.decisions import completion_of, remark_on_others, scores_of
from blackbox_lb.rollouts.judging.trials import StagePart, Trials
from blackbox_lb.rollouts.judging.verdict import GREEDY, PolicyScores, Setting, truncation_of
from blackbox_lb.rollouts.remote_rewards import fetch_rewards
from blackbox_lb.tasks.sets.labels import Labels
from blackbox_lb.types import AnyBias, Completion, Example, Message

HOTTEST = 2.0
"""The highest temperature that is judged."""
BASE = "base"
"""The name of the base policy."""
InstructionsOf: TypeAlias = Callable[[Example, int], Mapping[str, int]]
"""The instructions of an example for so many completions, with the number of completions of each.
"""
OwnBias: TypeAlias = Callable[[Trials], Awaitable[tuple[Mapping[int, float], int]]]
"""Makes a bias (token id -> nats), with the most tokens that a completion under it needs."""


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
        ...

    async def decide(self, trials: Trials) -> Decided:
        """Decide for each test prompt, without learning from the answers of these."""
        ...


@dataclass(frozen=True, slots=True)
class Alternative:
    """An alternative to a bias: one of these fields is set, the others keep their defaults.

    ``instruction`` is added to the prompt; ``instructions`` gives each prompt its own, as
    instruction -> how many of so many completions are asked with it; ``temperature`` replaces that
    of the setting, a higher one too where ``hotter`` says so;
    ``max_tokens`` cuts completions earlier or later, while the reward keeps its own T; ``best_of``
    completions are drawn for an answer (see ``draw``). ``shots`` are messages before the prompt;
    ``own_bias`` makes a ``bias`` (token id -> nats) of its own once there is a session;
    ``decision`` chooses a label for each prompt without drawing. ``cost``: in requests, in words.
    """

    name: str
    instruction: str | None = None
    instructions: InstructionsOf | None = field(default=None, repr=False, compare=False)
    temperature: float | None = None
    hotter: bool = False
    max_tokens: int | None = None
    best_of: int = 1
    shots: tuple[Message, ...] = ()
    bias: Mapping[int, float] = field(default_factory=dict, repr=False, compare=False)
    own_bias: OwnBias | None = field(default=None, repr=False, compare=False)
    decision: Decision | None = field(default=None, repr=False, compare=False)
    cost: str = ""

    @property
    def alone(self) -> bool:
        """Whether no bias can be sent with it: it sends its own, draws nothing, or decides what a
        bias would.
        """
        return self.own_bias is not None or self.decision is not None

    async def ready(self, trials: Trials) -> Alternative:
        """The alternative with its own bias.

        Raises InputError, BiasError: the task has none, or the provider does not take it;
        ProviderError: the API failed.
        """
        if self.own_bias is None:
            return self
        bias, longest = await self.own_bias(trials)
        cost = f"{self.cost}, of at most {longest} tokens, with a bias of {len(bias)} tokens"
        return replace(
            self, bias=bias, max_tokens=min(longest, trials.reward.max_tokens), cost=cost
        )

    def applies(self, setting: Setting) -> bool:
        """Whether it has an effect at ``setting``: a lower temperature (or another one, if
        ``hotter``), or several completions that can differ.
        """
        if self.temperature is not None and self.hotter:
            return self.temperature != setting.temperature
        if self.temperature is not None:
            return self.temperature < setting.temperature
        return self.best_of == 1 or not setting.deterministic

    def asked(self, example: Example) -> Example:
        """The example with the instruction in its last user message: after a space, after a blank
        line if the message has lines.

        Shots stand after the system messages.
        """
        messages = list(example.prompt.messages)
        if self.shots:
            begin = next(
                (place for place, message in enumerate(messages) if message.role != "system"), 0
            )
            messages[begin:begin] = self.shots
            return replace(example, prompt=replace(example.prompt, messages=tuple(messages)))
        if self.instruction is None:
            return example
        return self._instructed(example, self.instruction)

    def requests(self, example: Example, samples: int) -> list[tuple[Example, int]]:
        """The examples as they are asked for ``samples`` completions in all, with the number of
        completions of each.
        """
        if self.instructions is None:
            return [(self.asked(example), samples)]
        return [
            (self._instructed(example, instruction), count)
            for instruction, count in self.instructions(example, samples).items()
        ]

    @staticmethod
    def _instructed(example: Example, instruction: str) -> Example:
        """The example with ``instruction`` in its last user message."""
        messages = list(example.prompt.messages)
        users = [place for place, message in enumerate(messages) if message.role == "user"]
        place = users[-1] if users else len(messages) - 1
        text = messages[place].content
        glue = "\n\n" if "\n" in text else " "
        messages[place] = replace(messages[place], content=f"{text}{glue}{instruction}")
        return replace(example, prompt=replace(example.prompt, messages=tuple(messages)))


NO_ALTERNATIVE = Alternative("")


def alternatives(
    instructions: Sequence[str],
    temperatures: Sequence[float],
    max_tokens: Sequence[int],
    best_of: Sequence[int],
    *,
    settings: Sequence[Setting],
    limit: int,
    hotter: bool = False,
) -> tuple[Alternative, ...]:
    """One alternative for each value; ``limit``: that of the other policies, in tokens. ``hotter``:
    any temperature but greedy may be tried, since a wanted distribution can need a higher one.

    Raises InputError: a value that changes nothing at any of ``settings``, or an empty instruction.
    """
    hottest = max(setting.temperature for setting in settings)
    for text in instructions:
        if not text.strip():
            raise InputError(
                "``baseline_prompt`` is empty; give the instruction that you would add to the"
                " prompt"
            )
    for value in temperatures:
        if hotter and not 0 < value <= HOTTEST:
            raise InputError(
                f"``baseline_temperature={value:g}`` is not from above 0 to {HOTTEST:g}; greedy"
                " decoding has no distribution, and no API takes a higher one"
            )
        if not hotter and not 0 <= value < hottest:
            raise InputError(
                f"``baseline_temperature={value:g}`` is not below the highest temperature that is"
                f" judged, {hottest:g}; give a lower one, or judge at that temperature with"
                " ``deploy``"
            )
    for tokens in max_tokens:
        if tokens < 1 or tokens == limit:
            raise InputError(
                f"``baseline_max_tokens={tokens}`` is no other limit than the {limit} tokens of all"
                " policies; give a lower or a higher one"
            )
    for n in best_of:
        if n < 2 or hottest == 0:
            raise InputError(
                f"``best_of={n}`` would give what one completion"
                f" gives{' at greedy' if n > 1 else ''}; give 2 or more, and judge at a temperature"
                " above 0"
            )
    rivals = [
        Alternative(f'prompt + "{text.strip()}"', instruction=text.strip()) for text in instructions
    ]
    rivals += [
        Alternative(f"T = {value:g}" if value else "greedy", temperature=value, hotter=hotter)
        for value in temperatures
    ]
    rivals += [Alternative(f"max_tokens {tokens}", max_tokens=tokens) for tokens in max_tokens]
    rivals += [Alternative(f"best of {n}", best_of=n) for n in best_of]
    return tuple(dict.fromkeys(rivals))


@dataclass(frozen=True, slots=True)
class Arm:
    """One policy at one of the judged settings: a bias (token id -> nats) or none, an alternative
    or none. ``marked``: the bias whose tokens are marked in its completions.
    """

    setting: Setting
    bias_name: str | None = None
    bias: AnyBias = field(default_factory=dict, repr=False)
    alternative: Alternative = NO_ALTERNATIVE
    marked: AnyBias = field(default_factory=dict, repr=False, compare=False)

    @property
    def name(self) -> str:
        """The name for tables, unique at its setting."""
        parts = [part for part in (self.alternative.name, self.bias_name) if part]
        return " and ".join(parts) or BASE

    @property
    def sent(self) -> AnyBias:
        return self.alternative.bias or self.bias

    @property
    def drawn_at(self) -> Setting:
        temperature = 0.0 if self.alternative.decision is not None else self.alternative.temperature
        if temperature is None:
            return self.setting
        if temperature:
            return Setting(f"temperature {temperature:g}", temperature)
        return GREEDY


def arms_at(
    setting: Setting, biases: Mapping[str, AnyBias], alternatives: Sequence[Alternative]
) -> tuple[Arm, ...]:
    """The base, each bias, and each alternative that applies, alone and with each bias that it can
    be sent with; in this order. Completions without a bias are marked with the first one.
    """
    first: AnyBias = next(iter(biases.values()), {})
    arms = []
    for alternative in [
        NO_ALTERNATIVE,
        *(alternative for alternative in alternatives if alternative.applies(setting)),
    ]:
        arms.append(Arm(setting, None, {}, alternative, marked=first))
        if not alternative.alone:
            arms += [Arm(setting, name, bias, alternative, bias) for name, bias in biases.items()]
    return tuple(arms)


def unranked(trials: Trials, arm: Arm) -> str | None:
    """The reason why the provider's logprobs cannot rank several completions by the base model;
    None where they can.
    """
    profile = trials.session.profile
    where = trials.session.biased_endpoint
    if arm.alternative.best_of == 1:
        return None
    if not asks_logprobs(profile.endpoint(where), trials.top_logprobs):
        return f"no logprobs are returned on the {where} endpoint of {profile.name}"
    if profile.logprobs.meaning == "before bias" or (
        not arm.bias and arm.drawn_at.temperature == 1
    ):
        return None
    verb = "is not known to return" if profile.logprobs.meaning == "unknown" else "does not return"
    return (
        f"{profile.name} {verb} the base model's logprobs with a bias or at another temperature"
        " than 1"
    )


@dataclass(frozen=True, slots=True)
class ArmResult:
    """The results of one arm. ``prompt_tokens``, ``completion_tokens``: means over prompts of the
    tokens paid for an answer;
    ``first``: the first answer of each prompt, None for an unreadable one; ``answers``: their
    number; ``decisions``: the labels chosen, None where the task has no labels.
    """

    arm: Arm
    scores: PolicyScores
    prompt_tokens: float
    completion_tokens: float
    first: tuple[Answer | None, ...]
    answers: int
    decisions: Decisions | None = None


def result_of(
    trials: Trials,
    examples: Sequence[Example],
    arm: Arm,
    table: Sequence[Sequence[str]],
    labels: Labels | None = None,
) -> ArmResult:
    """The result of ``arm`` from its completions, scored on the plain examples, without an
    instruction.

    Best-of answers with the completion of each group with the highest mean token logprob: so it
    shares the draws of the policy without it, and gives fewer answers.

    ``table``: (x, samples) the keys of the completions of each example.

    Raises InputError: a score is not finite. NoLogprobs: completions that should be ranked came
    without.
    """
    best_of = arm.alternative.best_of
    title = _title(arm)
    paid: list[tuple[float, float]] = []
    best_completions: list[Completion | None] = []
    decided: list[tuple[Example, str]] = []
    bounded = 0

    def answered() -> Iterator[list[Completion]]:
        nonlocal bounded
        for example, keys in zip(examples, table, strict=True):
            completions = list(trials.store.completions(keys))
            bounded += sum(
                int(completion.bounded.sum())
                for completion in completions
                if completion.bounded is not None
            )
            groups = [
                completions[start : start + best_of]
                for start in range(0, len(completions), best_of)
            ]
            answers = [_best(group) for group in groups]
            readable = [
                (group, best) for group, best in zip(groups, answers, strict=True) if best.readable
            ]
            if readable:
                paid.append(
                    _paid(
                        [group for group, _ in readable],
                        trials.session.profile.sampling.shares_prompt,
                    )
                )
            first = (
                readable[0][1] if readable else None
            )  # without its lists, which would fill the memory
            best_completions.append(
                first
                and replace(first, top_ids=first.top_ids[:0], top_logprobs=first.top_logprobs[:0])
            )
            decided.extend((example, best.text) for _, best in readable if labels is not None)
            yield answers

    scores = trials.scored(title, examples, answered())
    if bounded and best_of > 1:
        trials.report.notice(
            f"{title}: {bounded} tokens have no logprob, only an upper bound, which ranks their"
            " completions"
        )
    cut = truncation_of(
        trials.reward, (completion for completion in best_completions if completion is not None)
    )
    if cut is not None and cut.hides_lengths and arm.name == BASE:
        trials.report.notice(f"{title}: {cut.warning}")
    prompt_tokens, completion_tokens = np.mean(paid, axis=0).tolist() if paid else (0.0, 0.0)
    answers = sum(row.size for row in scores.tokens)
    if labels is not None:
        remark_on_others(trials, title, labels, decided)
    decisions = None
    if labels is not None:
        decisions = scores_of(labels, trials.reward, decided)
    return ArmResult(
        arm,
        scores,
        prompt_tokens,
        completion_tokens,
        _first(trials, examples, arm, best_completions, scores),
        answers,
        decisions,
    )


async def collect_arms(
    trials: Trials, examples: Sequence[Example], arms: Sequence[Arm], samples: int
) -> list[list[list[str]]]:
    """(x, samples) the keys of the completions of each example, of every arm; the requests of all
    arms are in flight together.

    Greedy takes one sample a prompt, and best-of enough to fill its last group.
    """
    parts: list[StagePart] = []
    places: list[tuple[int, list[int]]] = []
    for number, arm in enumerate(arms):
        for part, rows in _parts(trials, examples, arm, samples):
            parts.append(part)
            places.append((number, rows))
    title = f"test prompts, {len(arms)} policies"
    if len(arms) == 1:
        title = _title(arms[0])
    tables: list[list[list[str]]] = [[[] for _ in examples] for _ in arms]
    if not arms:
        return tables
    collected = await trials.collect_all(title, parts)
    for (number, rows), keys in zip(places, collected, strict=True):
        for row, of_example in zip(rows, keys, strict=True):
            tables[number][row] += of_example
    return tables


def _parts(
    trials: Trials, examples: Sequence[Example], arm: Arm, samples: int
) -> Iterator[tuple[StagePart, list[int]]]:
    """What is to be collected for an arm, and which examples it is of: requests for one number of
    completions together.
    """
    draw_with = trials.draw(
        arm.drawn_at,
        arm.sent or None,
        trials.session.biased_endpoint,
        arm.alternative.max_tokens,
    )
    count_of_arm = 1
    if not arm.drawn_at.deterministic:
        count_of_arm = samples + -samples % arm.alternative.best_of
    by_count: dict[int, list[tuple[int, Example]]] = {}
    for place, example in enumerate(examples):
        for request, count in arm.alternative.requests(example, count_of_arm):
            by_count.setdefault(count, []).append((place, request))
    for count, requests in by_count.items():
        part = StagePart(
            _title(arm),
            [request for _, request in requests],
            draw_with,
            count,
            scored_as=[examples[place] for place, _ in requests],
        )
        yield part, [place for place, _ in requests]


def _title(arm: Arm) -> str:
    return f"{arm.setting.name}: {arm.name}"


async def decide(
    trials: Trials, examples: Sequence[Example], arm: Arm, labels: Labels
) -> ArmResult:
    """Decide for every example, and score each decision like a completion with its label's text.

    Raises InputError: the labels begin alike, or a score is not finite. ProviderError: the API
    failed.
    """
    if arm.alternative.decision is None:
        raise InputError(f"{arm.name} decides nothing here; draw it")
    decision = await arm.alternative.decision.decide(trials)
    paid = round(decision.completion_tokens)
    texts = ["" if number < 0 else labels.names[number] for number in decision.labels]
    answers = [completion_of(text, paid) for text in texts]
    await fetch_rewards(
        trials.store,
        trials.reward,
        zip(examples, answers, strict=True),
        trials.report,
        arm.name,
        trials.budget,
    )
    scores = trials.scored(arm.name, examples, ([answer] for answer in answers))
    first_answers = _first(trials, examples, arm, answers, scores)
    decisions = scores_of(labels, trials.reward, zip(examples, texts, strict=True))
    return ArmResult(
        arm,
        scores,
        decision.prompt_tokens,
        decision.completion_tokens,
        first_answers,
        len(answers),
        decisions,
    )


def _best(group: Sequence[Completion]) -> Completion:
    """The completion with the highest mean token logprob, one without tokens last; a group of one
    is not ranked.
    """
    if len(group) == 1:
        return group[0]
    readable = [completion for completion in group if completion.readable]
    for completion in readable:
        if completion.n_tokens and not len(completion.logprobs):
            raise NoLogprobs(
                "a completion came without logprobs, so the best of several is not known; drop"
                " ``best_of``"
            )
    means = [
        float(completion.logprobs.mean()) if len(completion.logprobs) else -np.inf
        for completion in readable
    ]
    if readable:
        return readable[int(np.argmax(means))]
    return group[0]


def _paid(groups: Sequence[Sequence[Completion]], shared: bool) -> tuple[float, float]:
    """Mean prompt and completion tokens of an answer; ``shared``: the completions of one request
    pay for its prompt once.
    """
    prompts = [
        sum(completion.prompt_tokens for completion in group) / (len(group) if shared else 1)
        for group in groups
    ]
    tokens = [sum(completion.n_tokens for completion in group) for group in groups]
    return float(np.mean(prompts)), float(np.mean(tokens))


def _first(
    trials: Trials,
    examples: Sequence[Example],
    arm: Arm,
    completions: Sequence[Completion | None],
    scores: PolicyScores,
) -> tuple[Answer | None, ...]:
    """The first answer of each example, with the places of its reward and its moved tokens; None
    for an unreadable one.
    """
    reward = trials.reward
    spelled = trials.store.token_bytes(trials.tokenizer.fingerprint)
    correct = scores.correct or [None] * len(completions)
    rows = zip(examples, completions, scores.reward, correct, strict=True)
    answers: list[Answer | None] = []
    for example, completion, values, right in rows:
        if completion is None:
            answers.append(None)
            continue
        spans = None
        if reward.has_spans:
            spans = reward.spans(example, completion)
        answer = Answer(
            policy=arm.name,
            text=completion.text,
            tokens=completion.n_tokens,
            correct=None if right is None else bool(right[0]),
            reward=float(values[0]),
            finish_reason=completion.finish_reason,
            spans=spans or (),
            moved=moved_tokens(completion, spelled, arm.marked, example.prompt),
        )
        answers.append(answer)
    return tuple(answers)
