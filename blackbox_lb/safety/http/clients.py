"""The HTTP client of everything that is sent: it bounds the size and duration of every answer."""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from multidict import CIMultiDict
from yarl import URL

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
"""Most bytes of a status line or a header; the longest keys (signed tokens) take some thousands."""
KEPT_OPEN = 5.0
"""Seconds that a connection without a request is kept open."""
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


@dataclass(slots=True)
class HttpRequest:
    """One request. content: its body, empty for a request without one."""

    method: str
    url: URL
    headers: CIMultiDict[str]
    content: bytes = b""

    @property
    def place(self) -> str:
        """The address in messages, without a password and a query."""
        return f"{self.url.origin()}{self.url.raw_path}"


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """A complete answer.

    place: see ``HttpRequest.place``. content: its body, unpacked.
    """

    status: int
    headers: Mapping[str, str]
    content: bytes
    place: str

    @property
    def text(self) -> str:
        """The body as a text."""
        return self.content.decode("utf-8", "replace")


class NoAnswer(Exception):
    """No answer came, for the reason in ``__cause__``. never_sent: nor was the request sent."""

    never_sent = False


class Transport(Protocol):
    """Sends requests: the network, or what stands in for it."""

    async def send(self, request: HttpRequest) -> HttpAnswer:
        """The answer. Raises NoAnswer: none came."""
        ...

    async def close(self) -> None:
        """Close what is kept open."""
        ...


class Network:
    """Sends requests from one event loop; every answer is read, unpacked and bounded.

    It follows no redirect, and it keeps no cookies.

    Args:
        verify: the trusted certificates.
        timeout: seconds to make a connection, and seconds of silence.
        connections: most at once, all kept open for a while.
        proxy: the address of a proxy server.
    """

    def __init__(
        self, verify: ssl.SSLContext, timeout: float, connections: int, proxy: str | None = None
    ) -> None:
        self._verify = verify
        self._timeout = timeout
        self._connections = connections
        self._proxy = proxy
        self._session: aiohttp.ClientSession | None = None

    async def send(self, request: HttpRequest) -> HttpAnswer:
        """The answer, with its body.

        Raises:
            NoAnswer: none came.
            CorruptResponse: more bytes, packed or unpacked, than ``at_most``, or an encoding that
                the request does not accept.
            ConnectionFailed: the answer is not complete after ``DEADLINE``.
        """
        import aiohttp  # takes a quarter of a second

        try:
            async with asyncio.timeout(DEADLINE) as deadline:
                return await self._answer(request)
        except aiohttp.ClientResponseError as error:
            # aiohttp refuses an answer that it cannot unpack before it hands the answer out.
            if coding := UNREADABLE.search(error.message):
                _check_encodings(200, coding[1], request)
            raise _no_answer(error) from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            if isinstance(error, TimeoutError) and deadline.expired():
                raise ConnectionFailed(
                    f"the answer of {request.place} is not whole after {DEADLINE:,.0f} seconds; is"
                    " the server overloaded? A smaller ``concurrency``, ``max_tokens`` or"
                    " ``top_logprobs`` makes answers that come sooner"
                ) from error
            failure = _no_answer(error)
            connecting = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)
            failure.never_sent = isinstance(error, connecting)
            raise failure from error

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()

    async def _answer(self, request: HttpRequest) -> HttpAnswer:
        if self._session is None:
            self._session = self._open_session()
        limit = LIMIT.get()
        content = bytearray()
        async with self._session.request(
            request.method,
            request.url,
            data=request.content or None,
            headers=request.headers,
            allow_redirects=False,
            proxy=self._proxy,
        ) as answer:
            encodings = answer.headers.get("Content-Encoding", "")
            _check_encodings(answer.status, encodings, request)
            while part := await answer.content.readany():
                content += part
                if len(content) > limit:
                    raise CorruptResponse(
                        f"{request.place} answered with more than {limit:,} bytes, several times"
                        " what was asked for can need; is this an inference API? It is read no"
                        " further"
                    )
            return HttpAnswer(answer.status, answer.headers, bytes(content), request.place)

    def _open_session(self) -> aiohttp.ClientSession:
        import aiohttp

        connector = aiohttp.TCPConnector(
            limit=self._connections, keepalive_timeout=KEPT_OPEN, ssl=self._verify
        )
        return new_session(connector, self._timeout, self._timeout)


def new_session(
    connector: aiohttp.BaseConnector, connect: float, silence: float, **options: Any
) -> aiohttp.ClientSession:
    """A session that keeps no cookies; ``connect``, ``silence``: longest waits in seconds, for a
    connection and for a byte.
    """
    import aiohttp

    return aiohttp.ClientSession(
        connector=connector,
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=connect, sock_read=silence),
        cookie_jar=aiohttp.DummyCookieJar(),
        max_line_size=LONGEST_LINE,
        max_field_size=LONGEST_LINE,
        **options,
    )


def _no_answer(error: Exception) -> NoAnswer:
    return NoAnswer(" ".join(str(error).split()))


def _check_encodings(status: int, encodings: str, request: HttpRequest) -> None:
    """Raise CorruptResponse for an answer in an encoding that ``request`` does not accept.

    Args:
        status: the HTTP status of the answer.
        encodings: its header ``content-encoding``.
        request: the request that it answers.
    """
    accepted = request.headers.get("Accept-Encoding", "")
    readable = {coding.partition(";")[0].strip() for coding in accepted.lower().split(",")}
    readable |= {"identity", ""}
    for part in encodings.lower().split(","):
        coding = part.strip()
        if coding not in readable:
            raise CorruptResponse(
                f"{request.place} answered {status} in the encoding {coding[:20]!r}, and"
                f" {accepted or 'none'} was asked for; turn the compression off at the server or"
                " the gateway before it"
            )
