"""Connections of clients: how many there are, and the body that one sends."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Container
from typing import Any

from aiohttp import web

from blackbox_lb.deploy.proxy.error_answers import ErrorAnswer

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_REPORTED = 60.0
"""Seconds between two lines of the log on the limit."""
_ACCEPTED = 8
"""Connections that are accepted at a time: asyncio tries this often before it looks at the limit,
and logs each try that fails."""
_QUEUED = 1024
"""Connections that wait in the system to be accepted."""

log = logging.getLogger(__name__)


class ClientServer(web.Server):
    """At most ``most`` connections. For a new one beyond them the oldest closes that is none of
    ``at_work``, which have a whole request under way; the new one, where all have.
    """

    def __init__(
        self,
        handler: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]],
        *,
        most: int,
        at_work: Container[web.RequestHandler],
        **options: Any,
    ) -> None:
        super().__init__(handler, **options)
        self._most = most
        self._at_work = at_work
        self._reported_at = -_REPORTED

    async def listen(self, host: str, port: int) -> asyncio.Server:
        """Accept connections. Raises OSError, OverflowError: the address cannot be used."""
        listener = await self._loop.create_server(self, host, port, backlog=_ACCEPTED)
        for listening in listener.sockets:
            with listening.dup() as duplicate:
                duplicate.listen(_QUEUED)
        return listener

    def connection_made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        open_ones = [
            connection for connection in self.connections if connection.transport is not None
        ]
        if len(open_ones) <= self._most:
            return
        waiting = [connection for connection in open_ones if connection not in self._at_work]
        waiting[0].force_close()
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
