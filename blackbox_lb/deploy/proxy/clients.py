"""Connections of clients: how many there are, the client that ends its sending side, and the body
that one sends.
"""

import asyncio
import logging
from typing import Any

from aiohttp import HttpVersion11, web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http_parser import RawRequestMessage
from aiohttp.streams import StreamReader

from blackbox_lb.deploy.proxy.error_answers import ErrorAnswer

_FIRST_PROBE = 0.1
"""Seconds until a client that ended its sending side is first looked at; each pause is twice the
one before."""
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_REPORTED = 60.0
"""Seconds between two lines of the log on the limit."""
_ACCEPTED = 8
"""Connections that are accepted at a time: asyncio tries this often before it looks at the limit,
and logs each try that fails."""
_QUEUED = 1024
"""Connections that wait in the system to be accepted."""

log = logging.getLogger(__name__)


class ClientConnection(web.RequestHandler):
    """A connection of a client.

    request: the one under way, from its whole head to the end of its answer; else None.
    waiting_since: the loop's time since when it has none, in seconds.
    has_ended: whether the client sends no more.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.request: web.BaseRequest | None = None
        self.waiting_since = self._loop.time()
        self.has_ended = False

    @property
    def is_waiting(self) -> bool:
        """Whether no whole request is under way: its head or its body has not come."""
        return self.request is None or not self.request.content.is_eof()

    def begin(self, request: web.BaseRequest) -> None:
        """Take up a request, whose head has come."""
        self.request = request
        if self.has_ended:
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
        self.has_ended = True
        self.begin(request)
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
            if self.has_ended and not self._messages:
                self.close()


class ClientServer(web.Server):
    """At most ``most`` connections. For a new one beyond them the one closes that has waited
    longest for a request; the new one, where all are at work.
    """

    def __init__(self, *arguments: Any, most: int, **options: Any) -> None:
        super().__init__(*arguments, request_factory=_request, **options)
        self._most = most
        self._reported_at = -_REPORTED

    def __call__(self) -> ClientConnection:
        return ClientConnection(self, loop=self._loop, **self._kwargs)

    async def listen(self, host: str, port: int) -> asyncio.Server:
        """Accept connections. Raises OSError, OverflowError: the address cannot be used."""
        listener = await self._loop.create_server(self, host, port, backlog=_ACCEPTED)
        for listening in listener.sockets:
            with listening.dup() as duplicate:
                duplicate.listen(_QUEUED)
        return listener

    def connection_made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        if len(self._connections) <= self._most:
            return
        connections = [
            connection
            for connection in self._connections
            if isinstance(connection, ClientConnection) and connection.transport is not None
        ]
        if len(connections) <= self._most:
            return
        waiting = [connection for connection in connections if connection.is_waiting]
        min(waiting, key=lambda connection: connection.waiting_since).force_close()
        if self._loop.time() - self._reported_at >= _REPORTED:
            self._reported_at = self._loop.time()
            log.warning(
                "a connection without a request was closed for a new one: at most %d are open at a"
                " time, by the limit of open files (ulimit -n)",
                self._most,
            )


async def read_body(request: web.BaseRequest, most: int, silence: float) -> bytes | None:
    """The body of a request, None where there is none; at most ``most`` bytes are ever held.

    Raises ErrorAnswer: 413 for a larger one, 408 after ``silence`` seconds without a byte.
    """
    if not request.body_exists:
        if "Content-Length" in request.headers:
            return b""
        return None
    _check_size(request.content_length or 0, most)
    if request.headers.get("Expect", "").lower() == "100-continue":
        await request.writer.write(_CONTINUE)
        request.writer.output_size = 0
    content = bytearray()
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(silence) as limit:
            async for piece in request.content.iter_any():
                limit.reschedule(loop.time() + silence)
                content += piece
                _check_size(len(content), most)
    except TimeoutError:
        raise ErrorAnswer(
            408,
            f"no byte of the request body came within {silence:g} s; send it whole",
            code="request_timeout",
        ) from None
    return bytes(content)


def _check_size(size: int, most: int) -> None:
    if size > most:
        raise ErrorAnswer(
            413,
            f"the request body is larger than {most:,} bytes, the limit; start blb proxy with a"
            " larger --max-body",
            code="request_too_large",
        )


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
