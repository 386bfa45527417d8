"""The model's lists along given answers, asked for in the ways that the rows of a profile allow;
nothing is asked for twice.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from blackbox_lb.api.draw import Draw
from blackbox_lb.api.limits.concurrency import run_all
from blackbox_lb.api.session import Session
from blackbox_lb.api.wire import with_prompt
from blackbox_lb.errors import ContentFiltered, CorruptResponse, RequestRejected
from blackbox_lb.providers.profile import Profile
from blackbox_lb.rollouts.collect import settings_of
from blackbox_lb.rollouts.judging.trials import Trials
from blackbox_lb.rollouts.judging.verdict import SAMPLED
from blackbox_lb.store import Writer, prompt_hash, request_hash, rollout_key
from blackbox_lb.types import Completion, Message, Prompt

Begun = tuple[Prompt, tuple[int, ...]]
"""A prompt, and the token ids that its answer begins with."""
Ask = Callable[[Session, Draw, Prompt, tuple[int, ...]], Awaitable[Completion]]
"""Sends the request for one ``Begun``."""

ENTRY = 70
"""Bytes of an alternative in a list of prompt logprobs: an id, a logprob, a rank and a text."""
CHARACTERS = 4
"""Of a prompt, for each of its tokens."""
SAVED = 200_000
"""Bytes of prompt logprobs that one request less is worth: some milliseconds of a server that reads
its prefixes from a cache.
"""


def worth_it(prompt: Prompt, tokens: int, listed: int) -> bool:
    """Whether one request, which lists the whole prompt, too, is cheaper than one for each of the
    ``tokens`` of an answer: from two tokens on, where it takes at most ``SAVED`` bytes for each
    request less.
    """
    return (len(prompt.text) / CHARACTERS + tokens) * listed * ENTRY <= SAVED * (tokens - 1)


def requests_along(
    profile: Profile, prompt: Prompt, tokens: int, listed: int, *, by_ids: bool
) -> int:
    """Requests for the lists along an answer of so many tokens.

    by_ids: whether the server continues token ids.
    """
    at_once = by_ids and profile.answers.prompt_logprobs is not False
    if at_once and worth_it(prompt, tokens, listed):
        return 1
    return tokens


async def lists_along(
    trials: Trials, title: str, answers: Sequence[Begun]
) -> list[list[Completion]] | None:
    """For every prompt with its answer, the lists that follow the answer's first, second, ..., last
    token, as completions of one token. That token is the answer's next one, or another one where
    the list is not whole or the answer ends. None where the profile allows no way to ask.

    Raises ProviderError: the API failed; what was received is kept. BudgetExhausted, Interrupted:
    the budget allows no more.
    """
    session = trials.session
    profile = trials.session.profile
    listed = trials.top_logprobs
    rules = profile.answers
    by_ids = profile.follows_ids(session.vocabulary)
    if not by_ids and (rules.continues is False or session.endpoint != "chat"):
        return None
    if not any(ids for _, ids in answers):
        return [[] for _ in answers]
    field: str | bool | None = False
    if by_ids:
        field = rules.prompt_logprobs
    at_once = [field is not False and worth_it(prompt, len(ids), listed) for prompt, ids in answers]
    where = None
    if by_ids and profile.reference:
        where = profile.reference.endpoint
    draw = replace(trials.draw(SAMPLED, max_tokens=1), endpoint=where)
    scored: list[Completion] = []
    if any(at_once):
        scored_answers = [
            answer for answer, is_scored in zip(answers, at_once, strict=True) if is_scored
        ]
        try:
            scored = await _stored(
                trials,
                title,
                scored_answers,
                replace(draw, fields={str(field): listed}),
                scored_along,
            )
        except (CorruptResponse, RequestRejected) as error:
            trials.report.notice(f"prompt logprobs cannot be had: {error}")
            at_once = [False] * len(answers)
    parts = [
        (prompt, ids[: size + 1])
        for (prompt, ids), is_scored in zip(answers, at_once, strict=True)
        if not is_scored
        for size in range(len(ids))
    ]
    if by_ids:
        single = await _stored(trials, title, parts, replace(draw, fields={}), _after_ids)
    else:
        fields = dict(rules.continues or {})
        ask = partial(_after_text, {})
        single = await _stored(trials, title, parts, replace(draw, fields=fields), ask)
    trials.report.detail(_sentence(profile, by_ids, len(scored), single))
    together = iter(scored)
    one_by_one = iter(single)
    return [
        _apart(next(together), len(ids)) if is_scored else [next(one_by_one) for _ in ids]
        for (_, ids), is_scored in zip(answers, at_once, strict=True)
    ]


def _sentence(profile: Profile, by_ids: bool, scored: int, single: Sequence[Completion]) -> str:
    """Which ways were taken, and what is not proven of them."""
    parts = []
    if scored:
        parts.append(f"prompt logprobs, one request each of {scored} answers")
    if single:
        way = "a trailing assistant message that is continued"
        if by_ids:
            way = "prompts of token ids"
        parts.append(f"{way}, {len(single)} requests")
        if not by_ids and profile.answers.prompt_ids is False:
            parts.append(
                f"unproven, because {profile.name} does not tell how it read that message's tokens"
            )
    lost = sum(not completion.whole for completion in single)
    sentence = f"lists along the answers come from {', and '.join(parts)}"
    if lost:
        sentence += (
            f"; {lost} are left out: not whole, or read after other tokens than the answer's"
        )
    return sentence


def _apart(completion: Completion, size: int) -> list[Completion]:
    """The first ``size`` positions of a completion as completions of one token. Positions that the
    completion lacks become empty completions.
    """
    names = ("token_ids", "logprobs", "top_ids", "top_logprobs")
    bounded = completion.bounded
    if bounded is None:
        bounded = np.zeros(len(completion.token_ids), np.bool_)
    return [
        replace(
            completion,
            bounded=bounded[t : t + 1],
            **{name: getattr(completion, name)[t : t + 1] for name in names},
        )
        for t in range(size)
    ]


async def _after_ids(
    session: Session, draw: Draw, prompt: Prompt, prefix: tuple[int, ...]
) -> Completion:
    """The prompt and the prefix as token ids."""
    return (await session.complete_many([*await session.prompt_ids(prompt), *prefix], draw))[0]


async def scored_along(
    session: Session, draw: Draw, prompt: Prompt, prefix: tuple[int, ...]
) -> Completion:
    """The same with the lists of the prompt: a completion of as many tokens as the prefix, the
    first of which is its second.
    """
    ids = [*await session.prompt_ids(prompt), *prefix]
    where = draw.endpoint or session.endpoint

    def read(answer: Any) -> Completion:
        after = session.completions_in(answer, draw)[0]
        return with_prompt(
            session.profile, where, answer, draw.sampling, after, ids, len(prefix) - 1
        )

    completion: Completion = await session.answer(ids, draw, read=read)
    return completion


async def _after_text(
    texts: dict[tuple[int, ...], str],
    session: Session,
    draw: Draw,
    prompt: Prompt,
    prefix: tuple[int, ...],
) -> Completion:
    """The prefix as the text of a trailing assistant message; not whole where the server says that
    it read it as other tokens.

    texts: of the prefixes so far.
    """
    if prefix not in texts:
        texts[prefix] = await session.decode(prefix)
    begun = replace(prompt, messages=(*prompt.messages, Message("assistant", texts[prefix])))

    def read(answer: Any) -> Completion:
        after = session.completions_in(answer, draw)[0]
        name = session.profile.answers.prompt_ids
        if name is False:
            return after
        for part in (answer, answer["choices"][0]):
            ids = part.get(name)
            if isinstance(ids, list) and tuple(ids[-len(prefix) :]) == prefix:
                return after
        return replace(after, whole=False)

    completion: Completion = await session.answer(begun, draw, read=read)
    return completion


async def _stored(
    trials: Trials, title: str, beginnings: Sequence[Begun], draw: Draw, ask: Ask
) -> list[Completion]:
    """What ``ask`` receives after each beginning; asked unless it is stored."""
    if not beginnings:
        return []
    session = trials.session
    store = trials.store
    shared = {**settings_of(session, trials.tokenizer, draw), "prompt": session.endpoint}
    settings = [{**shared, "prefix": list(prefix)} for _, prefix in beginnings]
    hashes = [request_hash(setting) for setting in settings]
    keys = [
        rollout_key(name, prompt_hash(prompt), 0)
        for name, (prompt, _) in zip(hashes, beginnings, strict=True)
    ]
    stored = set[str]().union(*(store.keys(name) for name in set(hashes)))
    missing = [place for place, key in enumerate(keys) if key not in stored]
    with trials.report.stage(title, len(beginnings)) as watch, Writer(store) as writer:

        async def receive(place: int) -> None:
            try:
                completion = await ask(session, draw, *beginnings[place])
            except ContentFiltered:
                completion = Completion.empty("content_filter", session.model)
            await writer.add_answer(settings[place], beginnings[place][0], {0: completion})
            watch(completion)

        at_once = trials.concurrency or session.profile.connection.concurrency
        await run_all(missing, receive, at_once, trials.budget)
    trials.used.update(keys)
    return list(store.completions(keys))
