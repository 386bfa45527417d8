"""Fetching remote rewards: completions go out in batches, many at a time, and every answer is
stored before the next is awaited.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from blackbox_lb.api.limits.budget import SpendLimit, prompt_bound
from blackbox_lb.api.limits.concurrency import run_all
from blackbox_lb.errors import CorruptResponse
from blackbox_lb.rollouts.progress import Reporter
from blackbox_lb.safety.http.error_answers import masked
from blackbox_lb.safety.http.service import HttpService, Moment, ServiceWording
from blackbox_lb.store import RolloutStore
from blackbox_lb.tasks import Reward
from blackbox_lb.tasks.rewards.endpoint import Judge, Remote
from blackbox_lb.types import Completion, Example

KEPT = "the rewards that came are kept, the same command goes on from there"

Items: TypeAlias = list[tuple[str, "_Wanted"]]


@dataclass(frozen=True, slots=True)
class _Wanted:
    """One completion to ask about: the message sent, the id of its example, its tokens and its
    text.
    """

    item: dict[str, Any]
    example: str
    tokens: int
    text: str


async def fetch_rewards(
    store: RolloutStore,
    reward: Reward,
    pairs: Iterable[tuple[Example, Completion]],
    report: Reporter,
    title: str,
    budget: SpendLimit | None = None,
) -> int:
    """Make sure that ``reward.score`` knows the remote reward of every completion; return the
    number asked for.

    Answers in ``store`` are read from there, and completions without a text are left out. A reward
    that is not remote needs nothing. When one request fails for good, no new ones start, those in
    flight are still stored, and the failure is raised. Requests to a judge, which has tokens, count
    in ``budget``.

    Raises ProviderError: one of its subclasses: the failure that retries did not cure, or an answer
    that is no reward.
    """
    remote = reward.remote
    if remote is None:
        return 0
    items = _wanted(remote, pairs)
    stored = store.rewards(items)
    unread = sum(_learn(remote, key, answer, items[key].example) for key, answer in stored.items())
    missing = [(key, request) for key, request in items.items() if key not in stored]
    if missing:
        unread += await _fetch(store, remote, missing, report, title, budget or SpendLimit())
        report.notice(
            f"{title}: rewards from {remote.name}: {len(missing)} came, {len(stored)} were stored"
        )
    if unread:
        report.notice(
            f"{title}: {unread} of {len(items)} answers of {remote.name} hold no number and count"
            f" as {remote.otherwise:g}"
        )
    if isinstance(remote, Judge):
        lost = sum(remote.lost_quotes(key, item.text) for key, item in items.items())
        if lost:
            report.notice(
                f"{title}: {lost} passages that {remote.name} quotes do not stand in their"
                " completions; the passages that do share the reward, else the end of the text"
                " has it"
            )
    return len(missing)


def _wanted(remote: Remote, pairs: Iterable[tuple[Example, Completion]]) -> dict[str, _Wanted]:
    """The unknown rewards, by key."""
    items: dict[str, _Wanted] = {}
    for example, completion in pairs:
        ended = not (completion.filtered or completion.broken_off)
        if completion.readable or (completion.text and ended):
            item = remote.item(example, completion)
            if (key := remote.key_of(item)) not in remote.known:
                items[key] = _Wanted(item, example.id, completion.n_tokens, completion.text)
    return items


def _learn(remote: Remote, key: str, answer: str, example: str) -> bool:
    """Take in an answer; return whether it held no number."""
    number = remote.number(answer)
    value = number
    if number is None:
        value = remote.otherwise
    if value is None:
        reply = masked(answer, remote.secrets())
        raise CorruptResponse(
            f"{remote.name} said {reply[:200]!r} of a completion of example {example!r}, where the"
            " pattern finds no number; correct pattern or prompt, or say with otherwise what such"
            f" an answer is worth ({KEPT})"
        )
    remote.learn(key, answer, value)
    return number is None


async def _fetch(
    store: RolloutStore,
    remote: Remote,
    missing: Items,
    report: Reporter,
    title: str,
    budget: SpendLimit,
) -> int:
    """Ask, store and take in; return the number of answers without a number."""
    batches = [
        missing[start : start + remote.batch] for start in range(0, len(missing), remote.batch)
    ]
    unread = 0
    with report.stage(f"{title}: rewards", len(missing)) as watch:
        async with service_of(remote) as service:

            async def receive(batch: Items) -> None:
                nonlocal unread
                answers = await _ask(
                    service, remote, [request.item for _, request in batch], budget
                )
                texts = {
                    key: answer
                    for (key, _), answer in zip(batch, answers, strict=True)
                    if isinstance(answer, str)
                }
                store.add_rewards(texts)
                for (key, request), answer in zip(batch, answers, strict=True):
                    if isinstance(answer, CorruptResponse):
                        raise answer
                    unread += _learn(remote, key, answer, request.example)
                    watch(replace(Completion.empty("stop"), generated=request.tokens))

            await run_all(batches, receive, remote.concurrency, budget)
    return unread


def service_of(remote: Remote) -> HttpService:
    """The service that gives a reward."""
    advice: dict[Moment, str] = {
        "no answer": f"is it running? {KEPT}",
        "authentication": f"check the credentials of {remote.name}",
        "not found": f"{remote.url} was asked for",
        "quota": KEPT,
        "rate limit": KEPT,
        "overloaded": KEPT,
        "server": KEPT,
        "timeout": KEPT,
        "conflict": KEPT,
        "context full": KEPT,
    }
    place = ""
    if remote.name != remote.url:
        place = f"{remote.name} at {remote.url}"
    wording = ServiceWording(remote.name, place, advice)
    return HttpService(remote.url, wording, secrets=remote.secrets)


async def _ask(
    service: HttpService, remote: Remote, items: Sequence[dict[str, Any]], budget: SpendLimit
) -> list[str | CorruptResponse]:
    """The answers to one batch, after as many tries as the fault deserves."""
    content = json.dumps(remote.body(items)).encode()

    async def reply() -> Any:
        request = service.request("POST", remote.url, content, headers=remote.headers())
        response = await service.send(request)
        with service.reading(response) as body:
            return json.loads(body)

    async def once() -> list[str | CorruptResponse]:
        if not isinstance(remote, Judge):
            return remote.answers(await reply(), items)
        prompt_tokens = prompt_bound([content.decode()])
        metered = await budget.metered(
            reply, prompt_tokens, remote.file.max_tokens, budget.judge_prices
        )
        return remote.answers(metered, items)

    return await service.tried(once)
