"""Parts of characters that a server leaves out of its lists, asked for one by one.

llama.cpp lists no token that leaves a character of the text incomplete, so that most answers in
Korean, and many with an emoji, miss some. The text tells which tokens they are. The list at the
place of each comes from a request of one token behind the tokens before it, whose own token is
forced to be a whole character; the logprobs are those of the model without a bias in any case.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from blackbox_lb.api.draw import Draw
from blackbox_lb.api.session import Session
from blackbox_lb.bias.request_bias import RequestBias
from blackbox_lb.errors import CorruptResponse, NoLogprobs, RequestRejected
from blackbox_lb.providers.profile import Profile
from blackbox_lb.types import NO_TOKEN, Completion, Prompt, Sampling

WIDE = 1_000
"""Alternatives that are asked for at a place, so that the drawn token is hardly ever outside."""
FILLED = "had parts of characters left out of their lists, which were asked for one by one"
"""The note on such a completion."""
WHOLE_CHARACTER = "a"
FORCING = 100.0
"""Nats, the most that a request may add: beside it, no other token is drawn."""


async def with_fragments(
    session: Session, prompt: Prompt, draw: Draw, completion: Completion
) -> Completion:
    """``completion`` with every token and its list, one more request for each that was left out.

    It stays as it is where nothing was left out, where its lists are not read (at another
    temperature than 1), where the server refuses to be asked so, and where the tokens of its text
    are not certain to be those that were drawn: they are as many as the server counted, and hold
    the listed ones in one way.

    Raises ProviderError: the API failed. BudgetExhausted, Interrupted: the budget allows no more.
    """
    if not _may_lack_fragments(session.profile, draw, completion):
        return completion
    try:
        return await _filled(session, prompt, completion) or completion
    except (NoLogprobs, RequestRejected, CorruptResponse):
        return completion


async def _filled(session: Session, prompt: Prompt, completion: Completion) -> Completion | None:
    """See ``with_fragments``; None where the tokens that were drawn are not certain, or the server
    is not known to take a prompt of ids.
    """
    rules = session.profile.reference
    if rules is None:
        return None
    listed = completion.token_ids.tolist()
    ids = await session.encode(completion.text)
    if completion.finish_reason == "stop":
        ids = [*ids, listed[-1]]  # the token that ended it
    places = places_of(listed, ids)
    if len(ids) != completion.generated or places is None:
        return None
    filled = with_all_tokens(completion, ids, places)
    token_bytes = dict(completion.token_bytes)
    [forced] = (await session.encode(WHOLE_CHARACTER))[:1]
    one = Draw(Sampling(1.0, 1, WIDE), RequestBias({forced: FORCING}), rules.endpoint)
    begin = await session.prompt_ids(prompt)
    for place in sorted(set(range(len(ids))) - set(places)):
        [answer] = await session.complete_many([*begin, *ids[:place]], one)
        if not answer.whole or answer.prompt_tokens != completion.prompt_tokens + place:
            return None
        token_bytes |= answer.token_bytes
        _put(filled, place, answer)
    return replace(filled, token_bytes=token_bytes, whole=True, note=FILLED)


def _may_lack_fragments(profile: Profile, draw: Draw, completion: Completion) -> bool:
    sampling = draw.sampling
    rules = profile.logprobs
    are_read = sampling.temperature == 1 and sampling.top_logprobs > 0 and not sampling.stop
    return (
        rules.drops_fragments
        and rules.meaning == "before bias"
        and are_read
        and not completion.whole
        and completion.readable
        and completion.propensities is None
        and draw.bias.phrases is None  # which are read part by part
        and not completion.text.isascii()
        and len(completion.token_ids) > 0
    )


def places_of(listed: Sequence[int], ids: Sequence[int]) -> list[int] | None:
    """Where the tokens ``listed`` stand among ``ids``, in their order; None where they do not, or
    in more than one way.
    """
    from_begin = _first_places(listed, ids)
    from_end = _first_places(listed[::-1], ids[::-1])
    if from_begin is None or from_end is None:
        return None
    if from_begin != [len(ids) - 1 - place for place in reversed(from_end)]:
        return None
    return from_begin


def _first_places(listed: Sequence[int], ids: Sequence[int]) -> list[int] | None:
    places = []
    at = 0
    for token in listed:
        while at < len(ids) and ids[at] != token:
            at += 1
        if at == len(ids):
            return None
        places.append(at)
        at += 1
    return places


def with_all_tokens(
    completion: Completion, ids: Sequence[int], places: Sequence[int] | None
) -> Completion:
    """A completion with room for the tokens that it lacks: these have no list, and no logprob but
    the bound of 0 nats.

    ids: (t,) all its tokens. places: where the listed ones stand; None where that is not certain.
    """
    size = len(ids)
    width = max(completion.top_ids.shape[1], 1)
    logprobs = np.zeros(size, np.float32)
    top_ids = np.full((size, width), NO_TOKEN, np.int32)
    top_logprobs = np.full((size, width), -np.inf, np.float32)
    bounded = np.ones(size, np.bool_)
    if places:
        logprobs[places] = completion.logprobs
        top_ids[places] = completion.top_ids
        top_logprobs[places] = completion.top_logprobs
        bounded[places] = False
        if completion.bounded is not None:
            bounded[places] = completion.bounded
    return replace(
        completion,
        token_ids=np.array(ids, np.int32),
        logprobs=logprobs,
        top_ids=top_ids,
        top_logprobs=top_logprobs,
        propensities=None,
        bounded=bounded,
    )


def _put(filled: Completion, place: int, answer: Completion) -> None:
    """The list of a token that was left out: ``answer`` is a completion of one token there."""
    assert filled.bounded is not None
    top_ids = answer.top_ids[0]
    top_logprobs = answer.top_logprobs[0]
    at = np.flatnonzero(top_ids == filled.token_ids[place])
    filled.bounded[place] = at.size == 0
    filled.logprobs[place] = top_logprobs[at[0]] if at.size else top_logprobs[-1]
    width = min(filled.top_ids.shape[1], len(top_ids))
    filled.top_ids[place, :width] = top_ids[:width]
    filled.top_logprobs[place, :width] = top_logprobs[:width]
