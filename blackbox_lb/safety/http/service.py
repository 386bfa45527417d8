"""One HTTP service: its requests, the errors of its faults, and the tries of each request.

Inference APIs, remote rewards, judges and embeddings all go through here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import copy_context
from functools import lru_cache
from threading import Thread
from types import MappingProxyType, TracebackType
from typing import Any, Literal, Self, TypeAlias, TypeVar

from multidict import CIMultiDict
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception
from yarl import URL

from blackbox_lb._version import __version__
from blackbox_lb.errors import (
    AuthenticationFailed,
    ConnectionFailed,
    ContentFiltered,
    CorruptResponse,
    ProviderError,
    QuotaExhausted,
    RateLimited,
    RequestRejected,
    ServerFailed,
)
from blackbox_lb.safety.files import has_too_many, most_connections, remedy_for_too_many
from blackbox_lb.safety.http import retries
from blackbox_lb.safety.http.clients import HttpAnswer, HttpRequest, Network, NoAnswer, Transport
from blackbox_lb.safety.http.error_answers import Fault, FaultKind, classify, masked
from blackbox_lb.safety.http.header_values import retry_after
from blackbox_lb.safety.http.retries import ATTEMPTS, failure_of, is_enough, is_passing, is_timeout
from blackbox_lb.safety.http.waits import NOTICEABLE, Waits, clock_time, time_in
from blackbox_lb.safety.network import (
    HTTP,
    check_key_log,
    explain_certificate,
    proxy_server,
    speaks_plain_http,
    untrusted_certificate,
    verification,
)
from blackbox_lb.safety.printable import first_line, with_remedy
from blackbox_lb.safety.secrets import mask_error, masked_answer

T = TypeVar("T")

TIMEOUT = 600.0
"""Seconds of silence before an answer. A full queue in front of a slow server is normal, silence
for ten minutes is not.
"""
HEADERS = {
    "Accept": "application/json",
    "Accept-Encoding": "gzip, deflate",
    "Content-Type": "application/json",
    "User-Agent": f"blackbox_lb/{__version__}",
}
MOST_CONNECTIONS = 1_000
"""The limit of the openai SDK's own client."""
MOST_QUOTED = 10_000
"""Characters of an answer that are masked before it is cut for a quote. If it were cut first, a
part of a secret could be left.
"""

ERRORS: Mapping[FaultKind, type[ProviderError]] = {
    "authentication": AuthenticationFailed,
    "quota": QuotaExhausted,
    "rate limit": RateLimited,
    "content filter": ContentFiltered,
    "context full": ServerFailed,
    "overloaded": ServerFailed,
    "server": ServerFailed,
    "timeout": ServerFailed,
    "conflict": ServerFailed,
}
"""The error of each kind of fault; RequestRejected for all others."""
OF_LOAD = frozenset({"rate limit", "overloaded", "timeout", "context full"})
"""Refusals that fewer requests at a time would have avoided."""

Moment: TypeAlias = FaultKind | Literal["no answer", "moved"]
"""What a message may give advice on: a kind of fault, no answer at all, or a redirect."""

log = logging.getLogger(__name__)


class HttpService:
    """Requests to one service; use as an asynchronous context manager, or call ``close``.

    ``refusals`` counts the answers that blame the server's load, and the requests that timed out.

    Args:
        url: the address, as ``read_address`` gives it.
        name: of the service in messages, as in "NAME answered 429".
        place: of the service in messages, as in "no answer from PLACE"; by default its address.
        advice: the remedies behind the service's own words.
        secrets: returns the keys in use, which no message and no stored answer may hold.
        timeout: seconds to make a connection, and seconds of silence.
        attempts: tries of a request, rate limits aside.
        transport: stands in for the network.

    Raises:
        InputError: the environment names certificates or a proxy server that cannot be used.
    """

    def __init__(
        self,
        url: str,
        name: str,
        *,
        place: str = "",
        advice: Mapping[Moment, str] = MappingProxyType({}),
        secrets: Callable[[], Iterable[str]] = tuple,
        timeout: float = TIMEOUT,
        attempts: int = ATTEMPTS,
        transport: Transport | None = None,
    ) -> None:
        self.name = name
        self.url = url
        self.refusals = 0
        self._secrets = secrets
        self._advice = advice
        self._place = place or url
        self._attempts = attempts
        self._has_repeated_a_key = False
        self._waits = Waits()
        self._waiting: set[asyncio.Task[Any]] = set()
        check_key_log()  # aiohttp reads the variable when it is imported
        self._proxy_server = None
        if transport is None:
            self._proxy_server = proxy_server(url, HTTP)
            transport = self._network(timeout)
        self._transport = transport

    def _network(self, timeout: float) -> Network:
        proxy = None
        if self._proxy_server is not None:
            proxy = self._proxy_server.address
        verify = verification(self.url, proxy)
        return Network(verify, timeout, most_connections(MOST_CONNECTIONS), proxy)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._transport.close()

    async def authorize(self, request: HttpRequest) -> None:
        """Add the credentials to a request; by default none but those in its headers."""

    async def send(
        self,
        method: str,
        url: str,
        content: bytes = b"",
        *,
        headers: Mapping[str, str] | None = None,
        query: Mapping[str, str] | None = None,
        model: str | None = None,
    ) -> HttpAnswer:
        """The complete answer to one try of a request for JSON.

        Args:
            content: the body of the request.
            headers: beside those of this package.
            query: parameters of the address.
            model: the model that is asked, for the advice.

        Raises:
            ProviderError: no answer, or a refusal.
            CorruptResponse: more bytes than ``clients.at_most``.
        """
        address = _parsed_url(url).update_query(query or {})
        request = HttpRequest(method, address, CIMultiDict(HEADERS), content)
        request.headers.update(headers or {})
        await self.authorize(request)
        try:
            answer = await self._transport.send(request)
        except NoAnswer as error:
            raise self.unanswered(error) from error
        if not 200 <= answer.status < 300:
            raise self.refused(answer, model)
        return answer

    async def tried(
        self,
        once: Callable[[], Awaitable[T]],
        passing: Callable[[BaseException], bool] = is_passing,
    ) -> T:
        """Run ``once`` as many times as its faults deserve, and return its result.

        Args:
            once: one try.
            passing: whether the same request may succeed after this error.

        Raises:
            ProviderError: the error of the last try.
        """
        try:
            return await once()
        except ProviderError as error:
            failed = [error]

        async def again() -> T:  # the first try was made above, and most requests need no more
            if failed:
                raise failed.pop()
            return await once()

        retrying = AsyncRetrying(
            retry=retry_if_exception(passing),
            wait=retries.retry_pause,
            stop=lambda state: is_enough(state, self._attempts),
            before_sleep=self._wait_to_retry,
            sleep=lambda seconds: asyncio.sleep(0),
            reraise=True,
        )
        return await retrying(again)

    async def _wait_to_retry(self, state: RetryCallState) -> None:
        """Wait before the next try. tenacity's own sleep does not know what it waits for."""
        error = failure_of(state)
        reason = getattr(error, "reason", "") or str(error)
        with self._droppable():
            await self._waits.wait(state.upcoming_sleep, reason, type(error).__name__)

    @contextmanager
    def _droppable(self) -> Iterator[None]:
        """Inside, the task waits, and may be dropped without loss."""
        task = asyncio.current_task()
        if task is not None:
            self._waiting.add(task)
        try:
            yield
        finally:
            self._waiting.discard(task)

    def drop_waiting(self) -> None:
        """Cancel the requests that wait for their turn or for another try: none of them has been
        sent.
        """
        for task in self._waiting:
            task.cancel()

    @contextmanager
    def reading(self, answer: HttpAnswer) -> Iterator[bytes]:
        """The body of an answer, with the keys in use masked.

        Raises:
            CorruptResponse: the block raises ValueError or RecursionError, as parsers do.
        """
        content = masked_answer(answer.content, self._secrets())
        if content != answer.content and not self._has_repeated_a_key:
            self._has_repeated_a_key = True
            log.warning(
                "%s repeats a key in its answers; [masked] stands for it in what is kept", self.url
            )
        try:
            yield content
        except (ValueError, RecursionError) as error:
            text = self.masked(answer.text[:MOST_QUOTED])[:100]
            raise CorruptResponse(
                f"{self._place} answered {URL(answer.place).path} with something that is not"
                f" JSON ({first_line(error)[:100]}): {text!r}"
            ) from error

    def check_answer(self, answer: Any, field: str, model: str | None = None) -> None:
        """Raise the refusal inside an answer of status 200.

        Gateways answer so with another server's refusal, and Azure for some filtered prompts.

        Args:
            answer: its JSON.
            field: what every answer has that is none.
            model: the model that was asked, for the advice.

        Raises:
            ProviderError: it holds an ``error`` and nothing in ``field``.
        """
        if isinstance(answer, dict) and answer.get("error") and not answer.get(field):
            raise self.refusal(None, answer, model)

    def masked(self, text: str) -> str:
        """``text`` with all that looks like a secret masked; every quote of the service is."""
        return masked(text, self._secrets())

    def unanswered(self, error: BaseException) -> ProviderError:
        """The error where no answer came."""
        mask_error(error, self._secrets())
        reason = "connection error"
        if is_timeout(error):
            reason = "the request timed out"
            self.refusals += 1
        if untrusted := untrusted_certificate(error):
            fault, remedy = explain_certificate(untrusted)
            return ConnectionFailed(
                f"the certificate of {self._place} is not accepted ({fault}); {remedy}"
            )
        if speaks_plain_http(error):
            return ConnectionFailed(
                f"{self._place} does not speak https; does it speak http? Try"
                f" http://{self.url.partition('://')[2]}"
            )
        if has_too_many(error):
            return ConnectionFailed(f"no connection to {self._place}: {remedy_for_too_many()}")
        place = self._place
        remedy = self._advice.get("no answer", "is it running?")
        if self._proxy_server is not None:
            place = f"{place} through {self._proxy_server}"
            remedy = "do both run? Hosts to be reached without a proxy server go in NO_PROXY"
        if str(error):
            reason = f"{reason} ({error})"
        return ConnectionFailed(
            with_remedy(f"no answer from {place}: {self.masked(reason)}", remedy)
        )

    def refused(self, answer: HttpAnswer, model: str | None = None) -> ProviderError:
        """The error for an answer that is no success, in the service's own words."""
        error: ProviderError
        if answer.status < 400:
            target = self.masked(answer.headers.get("Location", "no address"))
            remedy = self._advice.get("moved", "give the new address")
            error = RequestRejected(
                f"{self.name} answered {answer.status}: {self.url} has moved to {target};"
                f" keys are not sent along: {remedy}"
            )
        else:
            pause = retry_after(answer.headers) or 0.0
            place = self.masked(answer.place)
            error = self.refusal(answer.status, answer.text, model, place, pause)
        error.status = answer.status
        error.headers = answer.headers
        return error

    def refusal(
        self,
        status: int | None,
        body: Any,
        model: str | None = None,
        url: str | None = None,
        pause: float = 0.0,
    ) -> ProviderError:
        """The error for an error answer.

        Args:
            status: its HTTP status; None for an error inside a stream.
            body: its body, parsed or not.
            model: the model that was asked, for the advice.
            url: the address that was asked; None where it is not known.
            pause: seconds that it asks to wait; 0 for none.
        """
        fault = classify(status, body, self.name, secrets=self._secrets())
        if fault.kind in OF_LOAD:
            self.refusals += 1
        error = self.error_of(fault, model, url)
        if fault.kind == "other scheme":
            error = type(error)(with_remedy(fault, f"try https://{self.url.partition('://')[2]}"))
        if pause > NOTICEABLE and is_passing(error):
            error = type(error)(with_remedy(fault, when_to_go_on(pause)))
        error.reason = str(fault)
        error.pause = pause
        return error

    def error_of(
        self, fault: Fault, model: str | None = None, url: str | None = None
    ) -> ProviderError:
        """The error of a fault: the service's words, then the advice."""
        kind = ERRORS.get(fault.kind, RequestRejected)
        advice = self.advice(fault, model, url)
        if not advice:
            return kind(str(fault))
        return kind(with_remedy(fault, advice))

    def advice(self, fault: Fault, model: str | None, url: str | None) -> str | None:
        """The remedy at a fault; None where there is none."""
        return self._advice.get(fault.kind)


def when_to_go_on(seconds: float) -> str:
    """The remedy where no request is allowed for so many seconds."""
    return (
        f"no request is allowed before {clock_time(time_in(seconds))}; what was received is kept,"
        " and the same command goes on then"
    )


_parsed_url = lru_cache(URL)


def run_apart(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in a thread and an event loop of its own, and wait for it.

    For synchronous callers that may themselves be called from an event loop. It has the caller's
    context.
    """
    outcome: Future[T] = Future()
    context = copy_context()

    def work() -> None:
        try:
            outcome.set_result(asyncio.run(main))
        except BaseException as error:  # noqa: BLE001 - raised again where it is waited for
            outcome.set_exception(error)

    Thread(target=context.run, args=(work,), name="blackbox_lb service", daemon=True).start()
    return outcome.result()
