"""The HTTP client of everything that is sent: it bounds the size and duration of every answer.

The parser of aiohttp is C, and a short request takes a third of the time that httpx2 needs.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import httpx2

from blackbox_lb.errors import ConnectionFailed, CorruptResponse

if TYPE_CHECKING:
    import aiohttp


BASE = 16 * 2**20
"""Bytes allowed for any answer: text, envelope, a long list of models, the ids of a long prompt."""
ENTRY = 512
"""Bytes allowed for a listed token. One of chat takes about 100, one of SGLang with both lists 160,
one of 64 blanks 400.
"""
LARGEST_VOCABULARY = 300_000
"""Tokens, for a request that asks for all of them."""
DEADLINE = 1_200.0
"""Seconds from the request to the last byte of its answer. A gateway sends a blank now and then
while it waits for the model, and such an answer may take as long as a place in a queue, but not for
ever.
"""
LONGEST_LINE = 2**16
"""Most bytes of a status line or a header."""

FRAMING = frozenset({"content-encoding", "content-length", "transfer-encoding"})
"""Headers that describe a body as it was sent and not as it was unpacked."""
UNREADABLE = re.compile(r"content-encoding: .*\((\w+)\)")
"""aiohttp's words where a package that unpacks an encoding is not installed."""

LIMIT: ContextVar[int] = ContextVar("LIMIT", default=BASE)
"""Most bytes of an answer; ``at_most`` sets it."""


def ceiling(body: Mapping[str, Any], generated: int) -> int:
    """Bytes allowed for the answer to a request, several times what it needs.

    Args:
        body: the fields of the request.
        generated: most tokens that the answer may have in all.
    """
    alternatives = body.get("top_logprobs", body.get("logprobs"))
    if not isinstance(alternatives, int) or isinstance(alternatives, bool):
        alternatives = 0
    if alternatives < 0:
        alternatives = LARGEST_VOCABULARY
    return BASE + ENTRY * generated * (1 + alternatives)


@contextmanager
def at_most(size: int) -> Iterator[None]:
    """Limit the answers to requests inside the block to ``size`` bytes."""
    token = LIMIT.set(size)
    try:
        yield
    finally:
        LIMIT.reset(token)


def decoded(
    status: int, headers: Iterable[tuple[str, str]], content: bytes, request: httpx2.Request
) -> httpx2.Response:
    """The response with a complete and unpacked body."""
    fields = [(name, value) for name, value in headers if name.lower() not in FRAMING]
    return httpx2.Response(status, headers=fields, content=content, request=request)


def check_encodings(status: int, encodings: str, request: httpx2.Request) -> None:
    """Raise CorruptResponse for an answer in an encoding that ``request`` does not accept.

    Args:
        status: the HTTP status of the answer.
        encodings: its header ``content-encoding``.
        request: the request that it answers.
    """
    accepted = request.headers.get("accept-encoding", "")
    readable = {coding.partition(";")[0].strip() for coding in accepted.lower().split(",")}
    readable |= {"identity", ""}
    for part in encodings.lower().split(","):
        coding = part.strip()
        if coding not in readable:
            raise CorruptResponse(
                f"{_where(request)} answered {status} in the encoding {coding[:20]!r}, and"
                f" {accepted or 'none'} was asked for; turn the compression off at the server or"
                " the gateway before it"
            )


def _where(request: httpx2.Request) -> str:
    return f"{request.url.scheme}://{request.url.netloc.decode()}{request.url.path}"


class AiohttpTransport(httpx2.AsyncBaseTransport):
    """Sends requests of httpx2 from one event loop; every response is read, decoded and bounded.

    It follows no redirect, and it keeps no cookies.

    Args:
        verify: the trusted certificates.
        timeout: seconds to make a connection, and seconds of silence.
        limits: the connections kept open.
        proxy: the address of a proxy server.
    """

    def __init__(
        self,
        verify: ssl.SSLContext,
        timeout: float,
        limits: httpx2.Limits,
        proxy: str | None = None,
    ) -> None:
        self._verify = verify
        self._timeout = timeout
        self._limits = limits
        self._proxy = proxy
        self._session: aiohttp.ClientSession | None = None

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """The response, with its body.

        Raises:
            httpx2.HTTPError: ConnectError and ConnectTimeout where nothing was sent.
            CorruptResponse: more bytes, packed or unpacked, than ``at_most``, or an encoding that
                the request does not accept.
            ConnectionFailed: the answer is not complete after ``DEADLINE``.
        """
        from yarl import URL

        if self._session is None:
            self._session = self._open_session()
        limit = LIMIT.get()
        parts = list[bytes]()
        size = 0
        try:
            with _as_httpx2(request):
                async with (
                    asyncio.timeout(DEADLINE) as deadline,
                    self._session.request(
                        request.method,
                        URL(str(request.url), encoded=True),
                        data=request.content or None,
                        headers=list(request.headers.items()),
                        allow_redirects=False,
                        proxy=self._proxy,
                    ) as answer,
                ):
                    encodings = answer.headers.get("Content-Encoding", "")
                    check_encodings(answer.status, encodings, request)
                    while part := await answer.content.readany():
                        size += len(part)
                        if size > limit:
                            raise CorruptResponse(
                                f"{_where(request)} answered with more than {limit:,} bytes,"
                                " several times what was asked for can need; is this an inference"
                                " API? It is read no further"
                            )
                        parts.append(part)
                    headers = answer.headers.items()
                    return decoded(answer.status, headers, b"".join(parts), request)
        except httpx2.ReadTimeout as error:
            if not deadline.expired():
                raise
            raise ConnectionFailed(
                f"the answer of {_where(request)} is not whole after {DEADLINE:,.0f} seconds; is"
                " the server overloaded? A smaller ``concurrency``, ``max_tokens`` or"
                " ``top_logprobs`` makes answers that come sooner"
            ) from error.__cause__

    async def aclose(self) -> None:
        if self._session is not None:
            await self._session.close()

    def _open_session(self) -> aiohttp.ClientSession:
        import aiohttp  # takes a quarter of a second

        connector = aiohttp.TCPConnector(
            limit=self._limits.max_connections or 0,
            keepalive_timeout=self._limits.keepalive_expiry,
            ssl=self._verify,
        )
        return aiohttp.ClientSession(
            connector=connector,
            timeout=aiohttp.ClientTimeout(
                total=None, sock_connect=self._timeout, sock_read=self._timeout
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=("Content-Type",),
            max_line_size=LONGEST_LINE,
            max_field_size=LONGEST_LINE,
        )


@contextmanager
def _as_httpx2(request: httpx2.Request) -> Iterator[None]:
    """Turn errors of aiohttp inside the block into those of httpx2."""
    import aiohttp

    try:
        yield
    except aiohttp.ClientResponseError as error:
        # aiohttp refuses an answer that it cannot unpack before it hands the answer out.
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
        kind = next(kind for source, kind in kinds if isinstance(error, source))
        raise kind(" ".join(str(error).split()), request=request) from error
