"""Fetching remote rewards: completions go out in batches, many at a time, and every answer is
stored before the next is awaited.

The answers of a judge are read by the rules of the wire, as those of the model are.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from blackbox_lb.api.limits.budget import SpendLimit, prompt_bound
from blackbox_lb.api.limits.concurrency import run_all
from blackbox_lb.api.wire import loads
from blackbox_lb.api.wire.envelope import fault_of_end, quoted, reason_of, text_of
from blackbox_lb.errors import CorruptResponse
from blackbox_lb.rollouts.progress import Reporter
from blackbox_lb.safety.http.error_answers import masked
from blackbox_lb.safety.http.retries import (
    MalformedResponseTolerance,
    asked_again,
    is_passing,
)
from blackbox_lb.safety.http.service import HttpService, Moment
from blackbox_lb.safety.http.waits import heard_by
from blackbox_lb.store import RolloutStore
from blackbox_lb.tasks import Reward
from blackbox_lb.tasks.rewards.remote import KEPT, Remote
from blackbox_lb.types import Completion, Example

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
    if not isinstance(reward, Remote):
        return 0
    remote = reward
    items = _wanted(remote, pairs)
    stored = store.rewards(items)
    unread = sum(
        not remote.learn(key, answer, items[key].example) for key, answer in stored.items()
    )
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
    lost = sum(remote.lost_quotes(key, item.text) for key, item in items.items())
    if lost:
        report.notice(
            f"{title}: {lost} passages that {remote.name} quotes do not stand in their completions;"
            " the passages that do share the reward, else the end of the text has it"
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
    malformed = MalformedResponseTolerance()
    with heard_by(report.notice), report.stage(f"{title}: rewards", len(missing)) as watch:
        async with service_of(remote) as service:

            async def receive(batch: Items) -> None:
                nonlocal unread
                answers = await _ask(
                    service, remote, [request.item for _, request in batch], budget, malformed
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
                    unread += not remote.learn(key, answer, request.example)
                    watch(replace(Completion.empty("stop"), generated=request.tokens))

            budget.droppers.append(service.drop_waiting)
            try:
                await run_all(batches, receive, remote.concurrency, budget)
            finally:
                budget.droppers.remove(service.drop_waiting)
    if malformed.faults:
        report.notice(f"{title}: rewards: {asked_again(malformed.faults)}")
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
    return HttpService(remote.url, remote.name, place=place, advice=advice, secrets=remote.secrets)


async def _ask(
    service: HttpService,
    remote: Remote,
    items: Sequence[dict[str, Any]],
    budget: SpendLimit,
    malformed: MalformedResponseTolerance,
) -> list[str | CorruptResponse]:
    """The answers to one batch, after as many tries as the fault deserves."""
    content = json.dumps(remote.body(items)).encode()

    async def reply() -> Any:
        response = await service.send("POST", remote.url, content, headers=remote.headers())
        with service.reading(response) as body:
            answer = loads(body)
        service.check_answer(answer, remote.answer_field)
        return answer

    async def once() -> list[str | CorruptResponse]:
        judge = remote.judge
        if judge is None:
            answer = await reply()
        else:
            answer = await budget.metered(
                reply, prompt_bound([content.decode()]), judge.most_tokens, budget.judge_prices
            )
            answer = _words_of(judge, answer)
        answers = remote.answers(answer, items)
        malformed.good += 1
        return answers

    return await service.tried(once, lambda error: is_passing(error) or malformed.passing(error))


def _words_of(judge: Remote, answer: Any) -> tuple[str, str]:
    """The words of a judge's answer, and its finish reason.

    Raises CorruptResponse: no chat completion, or one that its host broke off or that is in its
    thoughts alone.
    """
    try:
        # Small servers leave the field out; a null, which says that there is no end, is none.
        choice = {"finish_reason": "stop", **answer["choices"][0]}
        fault = fault_of_end(choice)
        words = text_of(choice)
        reason = reason_of(choice)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise CorruptResponse(
            f"{judge.name} answered {quoted(answer)}, which is no chat completion"
            f" ({type(error).__name__}: {str(error)[:100]})"
        ) from error
    if fault is not None:
        raise CorruptResponse(f"{judge.name} {masked(fault, judge.secrets())}")
    return words, reason
