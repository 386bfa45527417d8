"""The network of completion requests: aiohttp, whose parser is C. A short request costs a third of
the time of httpx2's own.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import httpx2

from blackbox_lb.safety.http.bounded_client import check_encodings, decoded, in_time, joined

if TYPE_CHECKING:
    import aiohttp

UNREADABLE = re.compile(r"content-encoding: .*\((\w+)\)")
"""aiohttp's words where a package that unpacks an encoding is not installed."""
LONGEST_LINE = 2**16
"""Most bytes of a status line or a header."""


class AiohttpClient:
    """Sends requests of httpx2 from one event loop: no proxy server, no cookie, no redirect.
    Otherwise like ``BoundedClient``.

    verify: the certificates. timeout: seconds of a connection's making and of silence. limits: of
    the connections kept open.
    """

    def __init__(self, verify: ssl.SSLContext, timeout: float, limits: httpx2.Limits) -> None:
        self._verify = verify
        self._timeout = timeout
        self._limits = limits
        self._session: aiohttp.ClientSession | None = None

    async def send(self, request: httpx2.Request) -> httpx2.Response:
        """The response, read and decoded.

        Raises the errors of ``httpx2``: ConnectError and ConnectTimeout where nothing was sent.
        CorruptResponse, ConnectionFailed: see ``BoundedClient``.
        """
        return await in_time(self._whole(request), request)

    async def aclose(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def _whole(self, request: httpx2.Request) -> httpx2.Response:
        from yarl import URL

        session = self._session = self._session or self._opened()
        with _as_httpx2(request):
            url = URL(str(request.url), encoded=True)
            headers = list(request.headers.items())
            async with session.request(
                request.method,
                url,
                data=request.content or None,
                headers=headers,
                allow_redirects=False,
            ) as answer:
                check_encodings(answer.status, answer.headers.get("Content-Encoding", ""), request)
                content = await joined(_parts(answer), request)
                return decoded(answer.status, answer.headers.items(), content, request)

    def _opened(self) -> aiohttp.ClientSession:
        import aiohttp  # it takes a quarter of a second

        most = self._limits.max_connections or 0
        kept = self._limits.keepalive_expiry
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=most, keepalive_timeout=kept, ssl=self._verify),
            timeout=aiohttp.ClientTimeout(
                total=None, sock_connect=self._timeout, sock_read=self._timeout
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=("Content-Type",),
            max_line_size=LONGEST_LINE,
            max_field_size=LONGEST_LINE,
        )


async def _parts(answer: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    while part := await answer.content.readany():
        yield part


@contextmanager
def _as_httpx2(request: httpx2.Request) -> Iterator[None]:
    """Inside, aiohttp's errors become those of httpx2."""
    import aiohttp

    try:
        yield
    except aiohttp.ClientResponseError as error:
        # aiohttp refuses what it cannot unpack before it shows the answer.
        if coding := UNREADABLE.search(error.message):
            check_encodings(200, coding[1], request)
        raise httpx2.RemoteProtocolError(" ".join(str(error).split()), request=request) from error
    except (aiohttp.ClientError, OSError, ValueError) as error:
        kinds: tuple[tuple[type[Exception], type[httpx2.TransportError]], ...] = (
            (aiohttp.ConnectionTimeoutError, httpx2.ConnectTimeout),
            (TimeoutError, httpx2.ReadTimeout),
            (aiohttp.ClientConnectorError, httpx2.ConnectError),
            (aiohttp.ClientOSError, httpx2.ReadError),
            (aiohttp.ClientError, httpx2.RemoteProtocolError),
            (OSError, httpx2.ReadError),
            (ValueError, httpx2.LocalProtocolError),
        )
        kind = next(ours for theirs, ours in kinds if isinstance(error, theirs))
        raise kind(" ".join(str(error).split()), request=request) from error
