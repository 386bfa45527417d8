"""Fetching remote rewards: completions go out in batches, many at a time, and every answer is
stored before the next is awaited.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import httpx2
from tenacity import AsyncRetrying, retry_if_exception, stop_after_attempt

from blackbox_lb.api.limits.budget import SpendLimit, prompt_bound
from blackbox_lb.api.limits.workers import run_all
from blackbox_lb.api.transport.bounded_client import BoundedClient
from blackbox_lb.api.transport.error_answers import classify, masked
from blackbox_lb.api.transport.retries import ATTEMPTS, is_passing, retry_pause
from blackbox_lb.errors import (
    AuthenticationFailed,
    ConnectionFailed,
    CorruptResponse,
    ProviderError,
    QuotaExhausted,
    RateLimited,
    RequestRejected,
    ServerFailed,
)
from blackbox_lb.rollouts.progress import Reporter
from blackbox_lb.safety.network import (
    client_options,
    explain_certificate,
    untrusted_certificate,
)
from blackbox_lb.safety.printable import with_remedy
from blackbox_lb.safety.secrets import Redactor
from blackbox_lb.store import RolloutStore
from blackbox_lb.tasks import Reward
from blackbox_lb.tasks.rewards.endpoint import Remote
from blackbox_lb.tasks.rewards.judge import Judge
from blackbox_lb.types import Completion, Example

TIMEOUT = 600.0
"""Seconds for one answer: a batch on a slow judge is normal, silence for ten minutes is not."""
KEPT = "the rewards that came are kept, the same command goes on from there"
MOST_QUOTED = 10_000
"""Characters of an answer in which secrets are masked before its beginning is quoted."""

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
    wanted = _wanted(remote, pairs)
    stored = store.rewards(wanted)
    unread = sum(_learn(remote, key, answer, wanted[key].example) for key, answer in stored.items())
    missing = [(key, each) for key, each in wanted.items() if key not in stored]
    if missing:
        unread += await _fetch(store, remote, missing, report, title, budget or SpendLimit())
        report.notice(
            f"{title}: rewards from {remote.name}: {len(missing)} came, {len(stored)} were stored"
        )
    if unread:
        report.notice(
            f"{title}: {unread} of {len(wanted)} answers of {remote.name} hold no number and count"
            f" as {remote.otherwise:g}"
        )
    if isinstance(remote, Judge):
        lost = sum(remote.lost_quotes(key, asked.text) for key, asked in wanted.items())
        if lost:
            report.notice(
                f"{title}: {lost} passages that {remote.name} quotes do not stand in their"
                " completions; the passages that do share the reward, else the end of the text"
                " has it"
            )
    return len(missing)


def _wanted(remote: Remote, pairs: Iterable[tuple[Example, Completion]]) -> dict[str, _Wanted]:
    """The unknown rewards, by key."""
    wanted: dict[str, _Wanted] = {}
    for example, completion in pairs:
        if completion.readable or (completion.text and not completion.filtered):
            item = remote.item(example, completion)
            if (key := remote.key_of(item)) not in remote.known:
                wanted[key] = _Wanted(item, example.id, completion.n_tokens, completion.text)
    return wanted


def _learn(remote: Remote, key: str, answer: str, example: str) -> bool:
    """Take in an answer; return whether it held no number."""
    number = remote.number(answer)
    value = remote.otherwise if number is None else number
    if value is None:
        said = masked(answer, remote.secrets())
        raise CorruptResponse(
            f"{remote.name} said {said[:200]!r} of a completion of example {example!r}, where the"
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
        async with BoundedClient(
            headers={**remote.headers(), "Content-Type": "application/json"},
            timeout=TIMEOUT,
            # A redirect would take the credentials to any host that it names.
            follow_redirects=False,
            **client_options(remote.url),
        ) as client:

            async def receive(batch: Items) -> None:
                nonlocal unread
                answers = await _ask(client, remote, [each.item for _, each in batch], budget)
                told = {
                    key: answer
                    for (key, _), answer in zip(batch, answers, strict=True)
                    if isinstance(answer, str)
                }
                store.add_rewards(told)
                for (key, each), answer in zip(batch, answers, strict=True):
                    if isinstance(answer, CorruptResponse):
                        raise answer
                    unread += _learn(remote, key, answer, each.example)
                    watch(replace(Completion.empty("stop"), generated=each.tokens))

            await run_all(batches, receive, remote.concurrency, budget)
    return unread


async def _ask(
    client: httpx2.AsyncClient, remote: Remote, items: Sequence[dict[str, Any]], budget: SpendLimit
) -> list[str | CorruptResponse]:
    """The answers to one batch, after as many tries as the fault deserves."""
    content = json.dumps(remote.body(items)).encode()

    async def once() -> list[str | CorruptResponse]:
        if not isinstance(remote, Judge):
            return remote.answers(await _once(client, remote, content), items)
        most = prompt_bound([content.decode()]), remote.file.max_tokens
        reply = await budget.metered(
            lambda: _once(client, remote, content), *most, budget.judge_prices
        )
        return remote.answers(reply, items)

    again, enough = retry_if_exception(is_passing), stop_after_attempt(ATTEMPTS)
    return await AsyncRetrying(retry=again, wait=retry_pause, stop=enough, reraise=True)(once)


async def _once(client: httpx2.AsyncClient, remote: Remote, content: bytes) -> Any:
    try:
        response = await client.post(remote.url, content=content)
    except httpx2.HTTPError as error:
        Redactor(remote.secrets).clean(error)
        if untrusted := untrusted_certificate(error):
            reason, remedy = explain_certificate(untrusted)
            raise ConnectionFailed(
                f"the certificate of {remote.name} at {remote.url} is not accepted ({reason});"
                f" {remedy}; {KEPT}"
            ) from error
        reason = masked(str(error) or type(error).__name__, remote.secrets())
        said = f"{remote.name} does not answer at {remote.url}: {reason}"
        raise ConnectionFailed(with_remedy(said, f"is it running? {KEPT}")) from error
    if not response.is_success:
        fault = httpx2.HTTPStatusError("refused", request=response.request, response=response)
        raise _refused(remote, response) from fault
    try:
        return json.loads(Redactor(remote.secrets).answer(response.content))
    except (ValueError, RecursionError) as error:
        said = masked(response.text[:MOST_QUOTED], remote.secrets())[:100]
        raise CorruptResponse(
            f"{remote.name} answered with something that is not JSON: {said!r}"
        ) from error


def _refused(remote: Remote, response: httpx2.Response) -> ProviderError:
    """The refusal as one of this package's errors, in the words of the other side."""
    if response.status_code < 400:
        to = masked(response.headers.get("location", "no address"), remote.secrets())
        return RequestRejected(
            f"{remote.name} answered {response.status_code}: it has moved to {to}; give that"
            " address"
        )
    fault = classify(response.status_code, response.text, remote.name, secrets=remote.secrets())
    match fault.kind:
        case "authentication":
            return AuthenticationFailed(
                with_remedy(fault, f"check the credentials of {remote.name}")
            )
        case "quota":
            return QuotaExhausted(with_remedy(fault, KEPT))
        case "rate limit":
            return RateLimited(with_remedy(fault, f"it was tried {ATTEMPTS} times, {KEPT}"))
        case "overloaded" | "server" | "timeout" | "conflict" | "context full":
            return ServerFailed(with_remedy(fault, f"it was tried {ATTEMPTS} times, {KEPT}"))
        case "not found":
            return RequestRejected(with_remedy(fault, f"{remote.url} was asked for"))
        case _:
            return RequestRejected(str(fault))
