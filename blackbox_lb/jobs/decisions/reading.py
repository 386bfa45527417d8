"""Reading the options' probabilities of rows: from an endpoint that decides, or from the first
token of an answer to the question as a prompt.

Index letters: ``n`` rows, ``c`` options.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from blackbox_lb.api.draw import Draw
from blackbox_lb.api.wire.decisions import answer_to, decision_rules, state_of
from blackbox_lb.bias.decisions import Reading
from blackbox_lb.errors import InputError
from blackbox_lb.estimate.inputs.checks import Bools, Vector
from blackbox_lb.literals import Endpoint
from blackbox_lb.providers.profile import Profile
from blackbox_lb.questions.answers import OptionScores
from blackbox_lb.questions.first_token import option_scores
from blackbox_lb.questions.layouts import LaidOut, Layout, laid_out
from blackbox_lb.questions.question import Question
from blackbox_lb.rollouts.answers.given_answers import first_completions, first_part, most_listed
from blackbox_lb.rollouts.judging.trials import Draws, StagePart, Trials
from blackbox_lb.types import NO_TOKEN, Completion, Example, Message, Sampling

ONCE = Sampling(temperature=1.0, max_tokens=1, top_logprobs=0)
"""A request to an endpoint that decides has none of these settings."""
LAYOUTS: tuple[Layout, ...] = ("letters", "words")
BOTH_ORDERS = "both-orders"


@dataclass(frozen=True, slots=True, eq=False)
class ReadRows:
    """One question as it was read of n rows.

    logprobs: (n, c) nats, NaN in rows that were not read. floored: (n, c) whether the endpoint
    printed 0, or the list missed the option. label_mass: (n,) the share of the next-token
    distribution that the options have, NaN where it is not told. is_read: (n,) False where the
    answer is a refusal, or holds none of the options. models: as the answers named them, each
    once.
    """

    logprobs: Vector
    floored: Bools
    label_mass: Vector
    is_read: Bools
    models: tuple[str, ...]

    @classmethod
    def of(
        cls, scores: Sequence[OptionScores | None], size: int, models: Sequence[str]
    ) -> ReadRows:
        """Those of n rows; None where nothing could be read. size: c."""
        is_read = np.array([score is not None and not score.refused for score in scores], np.bool_)
        logprobs = np.full((len(scores), size), np.nan)
        floored = np.zeros((len(scores), size), np.bool_)
        label_mass = np.full(len(scores), np.nan)
        for row, score in enumerate(scores):
            if score is None or score.refused:
                continue
            logprobs[row] = score.logprobs
            floored[row] = score.floored
            if score.label_mass is not None:
                label_mass[row] = score.label_mass
        return cls(logprobs, floored, label_mass, is_read, tuple(dict.fromkeys(models)))


@dataclass(frozen=True, slots=True)
class WayToRead:
    """How a question is put: to an endpoint of this shape, or as a prompt in this layout.

    both_orders: whether the mean of log p over the options in their order and reversed is read,
    for twice the requests.
    """

    reading: Reading
    both_orders: bool = False

    @property
    def name(self) -> str:
        """The way in words."""
        if self.both_orders:
            return f"{self.reading}, both orders"
        return self.reading


def ways_to_read(profile: Profile, endpoint: Endpoint, specs: Sequence[str]) -> list[WayToRead]:
    """The ways to read at an endpoint of a provider, those that ``specs`` name or all of one order;
    the first is what a deployment without this package would use.

    Raises InputError: no such layout, or one where an endpoint decides.
    """
    if endpoint == "decisions":
        named = [spec for spec in specs if spec != BOTH_ORDERS]
        if named:
            raise InputError(
                f"``layout={','.join(named)}`` puts the question as a prompt, and"
                f" {profile.name} decides at an endpoint with a layout of its own; leave it"
                " out"
            )
        ways = [WayToRead(decision_rules(profile).shape)]
    else:
        for spec in specs:
            if spec not in (*LAYOUTS, BOTH_ORDERS):
                raise InputError(
                    f"``layout={spec}`` is unknown; choose letters, words or {BOTH_ORDERS}"
                )
        layouts = [layout for layout in LAYOUTS if layout in specs] or list(LAYOUTS)
        ways = [WayToRead(layout) for layout in layouts]
    if BOTH_ORDERS in specs:
        ways += [replace(way, both_orders=True) for way in ways]
    return ways


async def read(
    trials: Trials,
    title: str,
    examples: Sequence[Example],
    questions: Sequence[Question],
    way: WayToRead,
) -> dict[str, ReadRows]:
    """Question id -> what was read of each example, drawn unless it is in the store.

    Raises ProviderError: the API failed; what was received is kept.
    """
    forward = await read_in_order(trials, title, examples, questions, way, is_reversed=False)
    if not way.both_orders:
        return forward
    backward = await read_in_order(trials, title, examples, questions, way, is_reversed=True)
    return {name: _mean(rows, backward[name]) for name, rows in forward.items()}


async def read_in_order(
    trials: Trials,
    title: str,
    examples: Sequence[Example],
    questions: Sequence[Question],
    way: WayToRead,
    *,
    is_reversed: bool,
) -> dict[str, ReadRows]:
    """See ``read``; with the options listed from the last to the first where ``is_reversed``. The
    result has them in the questions' own order.
    """
    if way.reading in LAYOUTS:
        return {
            question.id: await _read_prompts(
                trials, title, examples, question, way.reading, is_reversed=is_reversed
            )
            for question in questions
        }
    ordered = in_order(questions, is_reversed=is_reversed)
    by_question = await _read_endpoint(trials, title, examples, ordered)
    for question in questions:
        if is_reversed and question.kind == "choice":
            rows = by_question[question.id]
            by_question[question.id] = replace(
                rows, logprobs=rows.logprobs[:, ::-1], floored=rows.floored[:, ::-1]
            )
    return by_question


def in_order(questions: Sequence[Question], *, is_reversed: bool) -> tuple[Question, ...]:
    """The questions with their options in order, or from the last to the first."""
    if is_reversed:
        return tuple(question.reversed() for question in questions)
    return tuple(questions)


async def _read_endpoint(
    trials: Trials, title: str, examples: Sequence[Example], questions: tuple[Question, ...]
) -> dict[str, ReadRows]:
    """All questions by one request a row."""
    session = trials.session
    part = endpoint_part(title, examples, questions)
    [keys] = await trials.collect_all(title, [part], scored=False)
    answers: list[Mapping[str, OptionScores]] = []
    models: list[str] = []
    for completion in trials.store.completions(key for [key] in keys):
        if not completion.text:  # a content filter refused the request
            answers.append({})
            continue
        answer = answer_to(session.profile, questions, json.loads(completion.text))
        models.append(answer.model)
        answers.append(answer.scores)
    return {
        question.id: ReadRows.of(
            [scores.get(question.id) for scores in answers],
            len(question.options),
            models or [session.model],
        )
        for question in questions
    }


def endpoint_part(
    title: str, examples: Sequence[Example], questions: tuple[Question, ...]
) -> StagePart:
    """The requests to an endpoint that decides: all questions of a row in one."""
    return StagePart(title, examples, Draw(ONCE, endpoint="decisions", questions=questions), 1)


def list_width(profile: Profile, endpoint: Endpoint) -> int:
    """Alternatives of a first list; 0 at an endpoint that decides, which lists none."""
    if endpoint == "decisions":
        return 0
    return most_listed(profile, endpoint)


def parts_to_read(
    draws: Draws,
    examples: Sequence[Example],
    questions: Sequence[Question],
    way: WayToRead,
    width: int,
) -> Iterator[StagePart]:
    """All requests of ``read``. width: alternatives of a first list."""
    yield from parts_in_order(draws, examples, questions, way, width, is_reversed=False)
    if way.both_orders:
        yield from parts_in_order(draws, examples, questions, way, width, is_reversed=True)


def parts_in_order(
    draws: Draws,
    examples: Sequence[Example],
    questions: Sequence[Question],
    way: WayToRead,
    width: int,
    *,
    is_reversed: bool,
) -> Iterator[StagePart]:
    """All requests of ``read_in_order``; see ``parts_to_read``."""
    if way.reading not in LAYOUTS:
        yield endpoint_part("", examples, in_order(questions, is_reversed=is_reversed))
        return
    for question in questions:
        layouts = _layouts(way.reading, examples, question, is_reversed=is_reversed)
        yield first_part(draws, "", _prompts(examples, layouts), width)


async def _read_prompts(
    trials: Trials,
    title: str,
    examples: Sequence[Example],
    question: Question,
    layout: Layout,
    *,
    is_reversed: bool,
) -> ReadRows:
    """One question, a prompt and its first token a row."""
    layouts = _layouts(layout, examples, question, is_reversed=is_reversed)
    name = f"{title}, {layout}"
    if is_reversed:
        name = f"{name}, reversed order"
    completions, _ = await first_completions(trials, _prompts(examples, layouts), name, None)
    token_bytes = await _token_bytes(trials, completions)
    scores = [
        option_scores(_first_list(completion, token_bytes), row.spellings)
        for completion, row in zip(completions, layouts, strict=True)
    ]
    models = [completion.model for completion in completions if completion.model]
    return ReadRows.of(scores, len(question.options), models or [trials.session.model])


def _layouts(
    layout: Layout, examples: Sequence[Example], question: Question, *, is_reversed: bool
) -> list[LaidOut]:
    layouts = []
    for example in examples:
        messages = example.prompt.messages[len(_system(example)) :]
        state = state_of(replace(example.prompt, messages=messages))
        layouts.append(laid_out(layout, state, question, is_reversed=is_reversed))
    return layouts


def _prompts(examples: Sequence[Example], layouts: Sequence[LaidOut]) -> list[Example]:
    """The prompts of a question, each with the system message of its row."""
    prompts = []
    for example, row in zip(examples, layouts, strict=True):
        messages = (*_system(example), *row.prompt.messages)
        prompts.append(replace(example, prompt=replace(example.prompt, messages=messages)))
    return prompts


def system_of(examples: Sequence[Example]) -> str:
    """The system message before every prompt; "" for none.

    Raises InputError: it is not the same before every prompt, so that no later request would be
    read as these are.
    """
    texts = {"".join(message.content for message in _system(example)) for example in examples}
    if len(texts) > 1:
        raise InputError(
            "the rows have different system messages, and a question is put with one; give it with"
            " ``system``, or leave them out"
        )
    return texts.pop() if texts else ""


def _system(example: Example) -> tuple[Message, ...]:
    """The system message before others of a row; () for none."""
    first, *others = example.prompt.messages
    if first.role == "system" and others:
        return (first,)
    return ()


def _first_list(
    completion: Completion, token_bytes: Mapping[int, bytes]
) -> list[tuple[bytes, float]]:
    """The tokens of the first list, with their logprobs in nats."""
    if not len(completion.top_ids):
        return []
    pairs = zip(completion.top_ids[0].tolist(), completion.top_logprobs[0].tolist(), strict=True)
    return [(token_bytes[token], logprob) for token, logprob in pairs if token > NO_TOKEN]


async def _token_bytes(trials: Trials, completions: Sequence[Completion]) -> dict[int, bytes]:
    """Token id -> bytes of all tokens in the first lists."""
    ids = {
        token
        for completion in completions
        if len(completion.top_ids)
        for token in completion.top_ids[0].tolist()
        if token > NO_TOKEN
    }
    stored = dict(trials.store.token_bytes(trials.tokenizer.fingerprint))
    unknown = sorted(ids - stored.keys())
    answered = await trials.session.bytes_of(unknown)
    return {**stored, **dict(zip(unknown, answered, strict=True))}


def _mean(forward: ReadRows, backward: ReadRows) -> ReadRows:
    """The mean of log p of both orders; a row counts where both were read."""
    return replace(
        forward,
        logprobs=(forward.logprobs + backward.logprobs) / 2,
        floored=forward.floored | backward.floored,
        is_read=forward.is_read & backward.is_read,
        models=tuple(dict.fromkeys([*forward.models, *backward.models])),
    )
