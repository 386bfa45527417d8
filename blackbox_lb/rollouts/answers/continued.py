"""The model's lists along given answers, asked for in the ways that the rows of a profile allow;
nothing is asked for twice.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from blackbox_lb.api.limits.concurrency import run_all
from blackbox_lb.api.session import Session
from blackbox_lb.api.wire import with_prompt
from blackbox_lb.errors import ContentFiltered, CorruptResponse, RequestRejected
from blackbox_lb.providers.profile import Profile
from blackbox_lb.rollouts.collect import settings_of
from blackbox_lb.rollouts.judging.trials import Trials
from blackbox_lb.rollouts.judging.verdict import SAMPLED
from blackbox_lb.store import Writer, prompt_hash, request_hash, rollout_key
from blackbox_lb.types import Completion, Draw, Message, Prompt

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
    request less."""
    return (len(prompt.text) / CHARACTERS + tokens) * listed * ENTRY <= SAVED * (tokens - 1)


async def lists_along(
    trials: Trials, title: str, answers: Sequence[Begun]
) -> list[list[Completion]] | None:
    """For each prompt with its answer, the list after its first token, its second ... its last, as
    a completion of one token each: the answer's next, or another where that is not whole or the
    answer ends. None where the profile allows no way.

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
    field = rules.prompt_logprobs if by_ids else False
    at_once = [field is not False and worth_it(prompt, len(ids), listed) for prompt, ids in answers]
    where = profile.reference.endpoint if by_ids and profile.reference else None
    draw = replace(trials.draw(SAMPLED, max_tokens=1), endpoint=where)
    scored: list[Completion] = []
    if any(at_once):
        whole = [answer for answer, one in zip(answers, at_once, strict=True) if one]
        try:
            scored = await _stored(
                trials, title, whole, replace(draw, fields={str(field): listed}), scored_along
            )
        except (CorruptResponse, RequestRejected) as error:
            trials.report.notice(f"prompt logprobs cannot be had: {error}")
            at_once = [False] * len(answers)
    parts = [
        (prompt, ids[: size + 1])
        for (prompt, ids), one in zip(answers, at_once, strict=True)
        for size in range(0 if one else len(ids))
    ]
    ask = _after_ids if by_ids else partial(_after_text, {})
    single = await _stored(
        trials,
        title,
        parts,
        replace(draw, fields={} if by_ids else dict(rules.continues or {})),
        ask,
    )
    trials.report.notice(_sentence(profile, by_ids, len(scored), single))
    together = iter(scored)
    one_by_one = iter(single)
    return [
        _apart(next(together), len(ids)) if one else [next(one_by_one) for _ in ids]
        for (_, ids), one in zip(answers, at_once, strict=True)
    ]


def _sentence(profile: Profile, by_ids: bool, scored: int, single: Sequence[Completion]) -> str:
    """Which ways were taken, and what is not proven of them."""
    parts = [f"prompt logprobs, one request each of {scored} answers"] if scored else []
    if single:
        way = "prompts of token ids" if by_ids else "a trailing assistant message that is continued"
        parts.append(f"{way}, {len(single)} requests")
        if not by_ids and profile.answers.prompt_ids is False:
            parts.append(
                f"unproven, because {profile.name} does not tell how it read that message's tokens"
            )
    lost = sum(not each.whole for each in single)
    left = (
        f"; {lost} are left out: not whole, or read after other tokens than the answer's"
        if lost
        else ""
    )
    return f"lists along the answers come from {', and '.join(parts)}{left}"


def _apart(completion: Completion, size: int) -> list[Completion]:
    """Each of the first ``size`` positions as a completion of its own; one that has fewer leaves
    the others empty.
    """
    names = ("token_ids", "logprobs", "top_ids", "top_logprobs")
    bounded = (
        np.zeros(len(completion.token_ids), np.bool_)
        if completion.bounded is None
        else completion.bounded
    )
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

    found: Completion = await session.answer(ids, draw, read=read)
    return found


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
        told = (
            [each.get(name) for each in (answer, answer["choices"][0])]
            if name is not False
            else [list(prefix)]
        )
        right = any(isinstance(ids, list) and tuple(ids[-len(prefix) :]) == prefix for ids in told)
        return after if right else replace(after, whole=False)

    found: Completion = await session.answer(begun, draw, read=read)
    return found


async def _stored(
    trials: Trials, title: str, wanted: Sequence[Begun], draw: Draw, ask: Ask
) -> list[Completion]:
    """What ``ask`` receives after each beginning; asked unless it is stored."""
    if not wanted:
        return []
    session = trials.session
    store = trials.store
    shared = {**settings_of(session, trials.tokenizer, draw), "prompt": session.endpoint}
    settings = [{**shared, "prefix": list(prefix)} for _, prefix in wanted]
    hashes = [request_hash(setting) for setting in settings]
    keys = [
        rollout_key(name, prompt_hash(prompt), 0)
        for name, (prompt, _) in zip(hashes, wanted, strict=True)
    ]
    stored = set[str]().union(*(store.keys(name) for name in set(hashes)))
    missing = [place for place, key in enumerate(keys) if key not in stored]
    with trials.report.stage(title, len(wanted)) as watch, Writer(store) as writer:

        async def receive(place: int) -> None:
            try:
                completion = await ask(session, draw, *wanted[place])
            except ContentFiltered:
                completion = Completion.empty("content_filter", session.model)
            await writer.add_answer(settings[place], wanted[place][0], {0: completion})
            watch(completion)

        at_once = trials.concurrency or session.profile.connection.concurrency
        await run_all(missing, receive, at_once, trials.budget, session.drop_waiting)
    trials.used.update(keys)
    return list(store.completions(keys))
