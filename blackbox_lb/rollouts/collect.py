"""Collection: prompts go through a session into the store, many at a time, and nothing stored is
asked for again.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from blackbox_lb.api.draw import Draw
from blackbox_lb.api.drift import DriftWatch
from blackbox_lb.api.limits.budget import SpendLimit
from blackbox_lb.api.limits.concurrency import MOST_IN_FLIGHT, AdaptiveConcurrency, run_all
from blackbox_lb.api.session import Session
from blackbox_lb.api.wire import most_completions
from blackbox_lb.errors import CorruptResponse
from blackbox_lb.literals import Endpoint
from blackbox_lb.providers.profile import Profile
from blackbox_lb.rollouts.fragments import with_fragments
from blackbox_lb.rollouts.progress import Watcher
from blackbox_lb.rollouts.stepped import complete_in_parts
from blackbox_lb.store import RolloutStore, Writer, prompt_hash, request_hash, rollout_key
from blackbox_lb.types import Completion, Prompt, Sampling
from blackbox_lb.vocabulary.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Collection:
    """The result of ``collect``, all in the store.

    keys: ``keys[p][s]`` is prompt p, sample s.
    received: completions asked for this time.
    notes: note -> how many of these have it (``Completion.note``).
    """

    keys: tuple[tuple[str, ...], ...]
    received: int
    notes: Counter[str]


MOST_TOKENS = 8192
"""Most completion tokens of one request: an answer that is lost or cut off costs no more than that.
"""


@dataclass(frozen=True, slots=True)
class Series:
    """Completions of these prompts that are drawn alike, ``samples`` of each."""

    prompts: Sequence[Prompt]
    draw: Draw
    samples: int


@dataclass(frozen=True, slots=True)
class MissingRequest:
    """Samples of one prompt in one request, numbered one after the other, with their keys."""

    prompt: Prompt
    samples: tuple[int, ...]
    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Asked:
    """A series under way.

    settings: of its request hash.
    keys: as in ``Collection``.
    stored: keys of all completions with these settings that the store had.
    notes: of the completions received so far.
    """

    series: Series
    settings: Mapping[str, Any]
    keys: tuple[tuple[str, ...], ...]
    stored: set[str]
    notes: Counter[str] = field(default_factory=Counter)


def settings_of(session: Session, tokenizer: Tokenizer, draw: Draw) -> dict[str, Any]:
    """Everything but prompt and sample number that determines a completion; its hash is the request
    hash of the store.
    """
    return request_settings(
        session.profile, session.model, tokenizer.fingerprint, session.endpoint, draw
    )


def request_settings(
    profile: Profile, model: str, tokenizer: str, endpoint: Endpoint, draw: Draw
) -> dict[str, Any]:
    """See ``settings_of``. tokenizer: its fingerprint. endpoint: of draws that name none."""
    sampling = asdict(draw.sampling)
    if not draw.sampling.stop:
        del sampling["stop"]  # stores from before there were stop texts keep their hashes
    settings: dict[str, Any] = {
        "provider": profile.name,
        "model": model,
        "tokenizer": tokenizer,
        "endpoint": draw.endpoint or endpoint,
        "fields": {**profile.neutral, **profile.request, **draw.fields},
        "sampling": sampling,
        "bias": draw.bias.store_key,
    }
    if draw.questions:  # the fingerprint tells the order of options, which JSON's keys do not
        settings["questions"] = [
            {"id": question.id, "fingerprint": question.fingerprint, **question.as_json()}
            for question in draw.questions
        ]
    return settings


async def collect_all(
    session: Session,
    store: RolloutStore,
    tokenizer: Tokenizer,
    series: Sequence[Series],
    *,
    concurrency: int | None = None,
    watch: Watcher | None = None,
    budget: SpendLimit | None = None,
    drift: DriftWatch | None = None,
    pace: AdaptiveConcurrency | None = None,
    only_stored: bool = False,
) -> list[Collection]:
    """Make sure that the store holds the completions of all series; ask only for those that are
    missing, those of the first series first.

    ``only_stored``: ask for none, and leave the missing ones out of ``keys``.

    Where the samples of one request share the price of its prompt, it asks for several.
    ``concurrency`` requests are in flight, of whichever series (default: as many as make the server
    faster, see ``AdaptiveConcurrency``). When one fails for good, no new ones start, those in
    flight are still received and stored, and the failure is raised. An answer of another model or
    system than before is stored under a key of its own, and never counted as the requested one.

    Raises ProviderError: the first failure that retries did not cure. BudgetExhausted, Interrupted:
    the budget allows no more. Drifted: another model or system answers.
    """
    all_asked: list[_Asked] = []
    missing: list[tuple[_Asked, MissingRequest]] = []
    covered = set[str]()
    for part in series:
        asked = _asked(session, store, tokenizer, part, only_stored=only_stored)
        requests = missing_requests(
            session.profile, session.endpoint, covered | asked.stored, part, asked.keys
        )
        covered.update(*asked.keys)
        if part.draw.bias.vectors is not None and requests:
            prompts = [request.prompt for request in requests]
            await asyncio.to_thread(part.draw.bias.prepare, prompts)
        all_asked.append(asked)
        missing += [(asked, request) for request in requests]
    budget = budget or SpendLimit()
    drift = drift or DriftWatch()
    pace = pace or AdaptiveConcurrency()

    async def receive(work: tuple[_Asked, MissingRequest]) -> None:
        asked, request = work
        n = len(request.samples)
        draw = draw_of(asked.series.draw, request)
        if draw.bias.is_in_parts:
            completions = [await complete_in_parts(session, request.prompt, draw)]
        else:
            completions = await session.complete_many(request.prompt, draw, n)
        drifted = drift.seen(completions, session.profile.models.fleet)
        settings = asked.settings
        if drifted is not None:
            settings = {**settings, **of_another(session.model, completions[0])}
        try:
            completions = [
                await with_fragments(session, request.prompt, draw, completion)
                for completion in completions
            ]
        finally:  # what was received is stored, also where a fragment cannot be had
            await writer.add_answer(
                settings, request.prompt, dict(zip(request.samples, completions, strict=False))
            )
        asked.notes.update(completion.note for completion in completions if completion.note)
        token_count = sum(len(completion.token_ids) for completion in completions)
        if draw.questions:
            token_count = len(draw.questions)  # of each answer: no tokens are listed
        pace.ended(token_count, session.refusals, time.monotonic())
        if drifted is not None:
            raise drifted
        if watch is not None:
            for completion in completions[:n]:
                watch(completion)
        if len(completions) != n:
            raise CorruptResponse(
                f"{session.profile.name} answered with {len(completions)} completions where n = {n}"
                " were asked for; set sampling.n = 1 in its profile"
            )

    connection = session.profile.connection
    least = concurrency or connection.concurrency
    most = MOST_IN_FLIGHT
    if concurrency or connection.embedded:
        most = least
    pace.begin(len(missing), least, most)
    with Writer(store) as writer:
        await run_all(missing, receive, lambda: pace.level, budget)
    collections: list[Collection] = []
    for asked in all_asked:
        received = sum(len(request.samples) for of, request in missing if of is asked)
        collections.append(Collection(asked.keys, received, asked.notes))
    return collections


def of_another(model: str, completion: Completion) -> dict[str, str]:
    """Settings that separate completions of another model or system from the requested ones."""
    return {
        "model": f"{completion.model} ({completion.fingerprint or 'system not told'})",
        "asked": model,
    }


def batch_of(profile: Profile, endpoint: Endpoint, sampling: Sampling) -> int:
    """The number of samples of a prompt in one request. A seed belongs to one sample, so then it is
    one.

    It is one, too, where an answer does not list the tokens of each choice, or may leave out those
    of the stop text that ended it: one sum for all would give no number for any.
    """
    rules = profile.sampling
    cut = bool(sampling.stop) and not profile.logprobs.stop_text_listed
    if not rules.shares_prompt or cut or sampling.seed is not None:
        return 1
    return max(
        1,
        min(
            most_completions(profile, endpoint, sampling.top_logprobs),
            MOST_TOKENS // sampling.max_tokens,
        ),
    )


def _asked(
    session: Session,
    store: RolloutStore,
    tokenizer: Tokenizer,
    series: Series,
    *,
    only_stored: bool,
) -> _Asked:
    """The keys of a series, without those that are missing where ``only_stored``."""
    settings = settings_of(session, tokenizer, series.draw)
    request = request_hash(settings)
    keys = keys_of(request, series)
    stored = store.keys(request)
    if stored:
        prompts = {prompt_hash(prompt): prompt for prompt in series.prompts}
        store.restore_references(settings, prompts)
    if only_stored:
        keys = tuple(tuple(key for key in row if key in stored) for row in keys)
    return _Asked(series, settings, keys, stored)


def keys_of(request: str, series: Series) -> tuple[tuple[str, ...], ...]:
    """``keys[p][s]`` of a series whose settings have the hash ``request``."""
    hashes = map(prompt_hash, series.prompts)
    samples = range(series.samples)
    return tuple(tuple(rollout_key(request, name, s) for s in samples) for name in hashes)


def missing_requests(
    profile: Profile,
    endpoint: Endpoint,
    covered: set[str],
    series: Series,
    keys: Sequence[Sequence[str]],
) -> list[MissingRequest]:
    """Requests to send for what is not ``covered``, prompt by prompt, so that a server's prefix
    cache serves the samples of one prompt. The keys of all of them are covered afterwards, so that
    equal prompts are asked once.

    endpoint: of draws that name none. keys: ``keys[p][s]`` of the series.
    """
    draw = series.draw
    batch = 1
    if not draw.bias.is_in_parts:
        batch = batch_of(profile, draw.endpoint or endpoint, draw.sampling)
    requests: list[MissingRequest] = []
    for prompt, row in zip(series.prompts, keys, strict=True):
        absent = [sample for sample, key in enumerate(row) if key not in covered]
        covered.update(row)
        run: list[int] = []
        for place, sample in enumerate(absent):
            run.append(sample)
            goes_on = absent[place + 1 : place + 2] == [sample + 1]
            if len(run) == batch or not goes_on:
                samples = tuple(run)
                requests.append(MissingRequest(prompt, samples, tuple(row[n] for n in samples)))
                run = []
    return requests


def draw_of(draw: Draw, request: MissingRequest) -> Draw:
    """``draw`` for one request: with a seed of its own for every sample, the same in every run, of
    31 bits, which every server takes.
    """
    return replace(draw, sampling=draw.seeded(int(request.keys[0][:8], 16)))
