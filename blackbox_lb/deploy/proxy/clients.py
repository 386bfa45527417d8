"""Connections of clients: how long one may stay without a request, how many there are, and the
client that ends its sending side.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from aiohttp import HttpVersion11, web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http_parser import RawRequestMessage
from aiohttp.streams import StreamReader

_FIRST_PROBE = 0.1
"""Seconds until a client that ended its sending side is first looked at; each pause is twice the
one before."""
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_RESERVED = 32
"""Descriptors that are left to everything but connections."""
_UNLIMITED = 65_536
_REPORTED = 60.0
"""Seconds between two lines of the log on the same."""
_RETRIED = 2.0
"""Seconds within which asyncio, which waits 1, tries again to accept after it could not."""

log = logging.getLogger(__name__)


def most_connections() -> int:
    """The connections of clients that this process's descriptors suffice for: each may need one to
    the upstream, too.
    """
    try:
        import resource
    except ImportError:  # Windows, which has no such limit
        return _UNLIMITED
    descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if descriptors == resource.RLIM_INFINITY:
        descriptors = _UNLIMITED
    return max(1, (descriptors - _RESERVED) // 2)


class ClientConnection(web.RequestHandler):
    """A connection of a client.

    request: the one under way, from its whole head to the end of its answer; else None.
    waiting_since: the loop's time since when it has none, in seconds.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.request: web.BaseRequest | None = None
        self.waiting_since = self._loop.time()
        self._has_ended = False

    @property
    def is_waiting(self) -> bool:
        """Whether no whole request is under way: its head or its body has not come."""
        return self.request is None or not self.request.content.is_eof()

    def begin(self, request: web.BaseRequest) -> None:
        """Take up a request, whose head has come."""
        self.request = request
        if self._has_ended:
            self._loop.call_later(_FIRST_PROBE, self._probe, request, _FIRST_PROBE)

    def eof_received(self) -> bool:  # type: ignore[override]
        """Return whether the connection stays open for the answer: a client that sent its whole
        request may end its sending side (RFC 9112, section 9.6).

        It looks like one that left. Bytes to a client that left are refused, so it gets interim
        answers, which every client of HTTP/1.1 passes over (RFC 9110, section 15.2). Once the
        answer has begun, its own bytes would tell, and the client counts as one that left.
        """
        request = self.request
        if request is None or self.is_waiting or request.version < HttpVersion11:
            return False
        if request.writer.output_size > 0:
            return False
        self._has_ended = True
        self._loop.call_later(_FIRST_PROBE, self._probe, request, _FIRST_PROBE)
        return True

    def _probe(self, request: web.BaseRequest, pause: float) -> None:
        has_begun = request.writer.output_size > 0
        if self.transport is None or self.request is not request or has_begun:
            return
        self.transport.write(_CONTINUE)
        self._loop.call_later(2 * pause, self._probe, request, 2 * pause)

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        try:
            return await super().finish_response(request, resp, start_time)
        finally:
            self.request = None
            self.waiting_since = self._loop.time()
            if self._has_ended and not self._messages:
                self.close()


class ConnectionLimit(web.Server):
    """At most ``most`` connections. For a new one beyond them the one closes that has waited
    longest for a request; the new one, where all are at work.
    """

    def __init__(self, *arguments: Any, most: int, **options: Any) -> None:
        super().__init__(*arguments, request_factory=_request, **options)
        self._most = most
        self._reports: Counter[str] = Counter()
        self._reported_at: dict[str, float] = {}

    def __call__(self) -> ClientConnection:
        return ClientConnection(self, loop=self._loop, **self._kwargs)

    def connection_made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        if len(self._connections) <= self._most:
            return
        connections = [
            connection
            for connection in self._connections
            if isinstance(connection, ClientConnection) and connection.transport is not None
        ]
        if len(connections) > self._most:
            waiting = [connection for connection in connections if connection.is_waiting]
            min(waiting, key=lambda connection: connection.waiting_since).force_close()
            self._report(
                f"a connection without a request was closed for a new one: at most {self._most}"
                " are open at a time, by the limit of open files (ulimit -n)"
            )

    @contextmanager
    def accepting(self) -> Iterator[None]:
        """Inside the block, connections that cannot be accepted are counted in the log, instead of
        a traceback each. What asyncio still tries after it is left out of the log, too.
        """
        loop = asyncio.get_running_loop()
        before = loop.get_exception_handler()

        def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
            if "_start_serving" in context["message"]:
                return  # asyncio tries again although the server has closed
            if "accept()" in context["message"] and isinstance(context.get("exception"), OSError):
                self._report(f"a connection was not accepted: {context['exception'].strerror}")
            elif before is None:
                loop.default_exception_handler(context)
            else:
                before(loop, context)

        def restore() -> None:
            if loop.get_exception_handler() is handle:
                loop.set_exception_handler(before)

        loop.set_exception_handler(handle)
        try:
            yield
        finally:
            loop.call_later(_RETRIED, restore)

    def _report(self, event: str) -> None:
        """Log the event with how often it happened, at most once a minute."""
        self._reports[event] += 1
        now = time.monotonic()
        if now - self._reported_at.get(event, -_REPORTED) < _REPORTED:
            return
        self._reported_at[event] = now
        log.warning("%s (%d so far)", event, self._reports[event])


def _request(
    message: RawRequestMessage,
    payload: StreamReader,
    protocol: web.RequestHandler,
    writer: AbstractStreamWriter,
    task: "asyncio.Task[None]",
) -> web.BaseRequest:
    """A request whose head has come."""
    loop = asyncio.get_running_loop()
    request = web.BaseRequest(message, payload, protocol, writer, task, loop)
    if isinstance(protocol, ClientConnection):
        protocol.begin(request)
    return request
