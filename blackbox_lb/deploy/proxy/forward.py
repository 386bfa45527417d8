"""The connection to the upstream: one HTTP session for all clients, headers and bytes unchanged,
nothing kept.

An intermediary passes on all header fields but those of a single connection (RFC 9110, section
7.6). No cookie is stored, no redirect followed, no body decompressed.
"""

import logging
import re
import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import aiohttp
from aiohttp import web
from aiohttp.http_exceptions import ContentEncodingError
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from blackbox_lb.deploy.proxy.connections import Attempt, KeptConnections, current_attempt
from blackbox_lb.deploy.proxy.error_answers import ErrorAnswer
from blackbox_lb.deploy.proxy.requests import Upstream
from blackbox_lb.safety.network import HTTP, certificates, proxy_server, speaks_plain_http
from blackbox_lb.safety.printable import causes

MAX_HEADER = 65_536
"""Longest header line that is passed on, in bytes; the longest keys (signed tokens) take some
thousands.
"""
_CONNECT = 10.0
"""Seconds for a connection to the upstream."""
_IDLE = 4.0
"""Longest time in seconds that an idle connection to the upstream is kept, where it promises no
shorter one: uvicorn (vLLM) and llama.cpp close theirs after 5 s."""
HOP_BY_HOP = frozenset(
    (
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
    )
) | {"transfer-encoding", "upgrade"}
REWRITTEN = HOP_BY_HOP | {
    "content-type",
    "content-length",
    "content-encoding",
    "content-md5",
    "content-digest",
    "repr-digest",
    "digest",
    "etag",
    "last-modified",
    "accept-ranges",
}
"""Headers of an answer that describe its very body, and are wrong of another one."""
_NOT_SENT = HOP_BY_HOP | {"host", "content-length", "expect"}
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
"""Characters that no header or reason may hold (RFC 9110, section 5.5), and that aiohttp reads and
does not write."""
_SURROGATE = re.compile("[\udc80-\udcff]")
_ENDED = (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError, ConnectionError)
_NO_HTTP = "what it sent is no HTTP/1.1"
_NOT_ADDED = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")

log = logging.getLogger(__name__)


class Forwarder:
    """Sends requests to the upstream. ``timeout``: seconds of silence before an answer is
    abandoned.

    Raises InputError: the environment names a proxy server that does not speak HTTP.
    """

    def __init__(self, upstream: Upstream, *, timeout: float) -> None:
        self.upstream = upstream
        self.timeout = timeout
        self._way = _proxy_server(upstream)
        self._session: aiohttp.ClientSession | None = None

    async def open(self) -> None:
        """Create the session, in the event loop that uses it."""
        self._session = aiohttp.ClientSession(
            connector=KeptConnections(
                limit=0, keepalive_timeout=_IDLE, ssl=_certificates(self.upstream)
            ),
            timeout=aiohttp.ClientTimeout(
                total=None, sock_connect=_CONNECT, sock_read=self.timeout
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            skip_auto_headers=_NOT_ADDED,
            max_line_size=MAX_HEADER,
            max_field_size=MAX_HEADER,
        )

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def ask(
        self,
        request: web.BaseRequest,
        target: str,
        content: bytes | None,
        extra: Mapping[str, str] | None = None,
        *,
        decoded: bool = False,
    ) -> aiohttp.ClientResponse:
        """Return the upstream's answer with its body unread; the caller closes it.

        A request that meets the end of a kept connection, so that no byte of an answer comes, is
        sent once more over a new one.

        target: path and query. content: the body, None for a request without one. extra: headers
        that replace the client's. decoded: the body is read without its gzip or deflate.

        Raises ErrorAnswer: 400 for a bad target, 502 or 504 for no answer.
        """
        session = self._session
        if session is None:
            raise RuntimeError("the forwarder is not open")
        url = URL(self.upstream.url(target), encoded=True)
        headers = _end_to_end(request.headers, _NOT_SENT)
        headers.update(extra or {})

        async def send(attempt: Attempt) -> aiohttp.ClientResponse:
            current_attempt.set(attempt)
            answer = await session.request(
                request.method,
                url,
                headers=headers,
                data=content,
                allow_redirects=False,
                auto_decompress=decoded,
                proxy=self._way,
            )
            attempt.answered(answer.headers)
            return answer

        with self.faults():
            attempt = Attempt()
            try:
                return await send(attempt)
            except _ENDED as error:
                if not attempt.is_reused or _has_begun(error):
                    raise
            return await send(Attempt(needs_new=True))

    async def stream(
        self,
        request: web.BaseRequest,
        answer: aiohttp.ClientResponse,
        extra: Mapping[str, str] | None = None,
        dropped: frozenset[str] = HOP_BY_HOP,
    ) -> web.StreamResponse:
        """Send the answer on, piece by piece; ``extra``: headers to add. ``dropped``: those that
        are left out. A broken answer stays visibly broken.
        """
        out = await self.begin(request, answer, extra, dropped)
        await self.copy(request, answer, out, bytes)
        return out

    async def copy(
        self,
        request: web.BaseRequest,
        answer: aiohttp.ClientResponse,
        out: web.StreamResponse,
        edit: Callable[[bytes], bytes],
    ) -> bool:
        """Send the body on through ``edit``; whether it came whole."""
        try:
            # Not iter_chunks(): on the second empty body of a process it never ends (aiohttp 3.14).
            while not answer.content.at_eof():
                piece, _ = await answer.content.readchunk()
                await out.write(edit(piece))
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            # The status is sent already, so only a body without its end can show the failure.
            if request.transport is not None and not request.transport.is_closing():
                log.warning(
                    "the answer to a %s broke off (%s)", request.method, type(error).__name__
                )
                request.transport.close()
            return False
        return True

    async def begin(
        self,
        request: web.BaseRequest,
        answer: aiohttp.ClientResponse,
        extra: Mapping[str, str] | None,
        dropped: frozenset[str],
    ) -> web.StreamResponse:
        """An answer with the status and the headers of the upstream's but those ``dropped``."""
        headers = self.headers_of(answer, dropped)
        headers.update(extra or {})
        out = web.StreamResponse(status=answer.status, reason=answer.reason, headers=headers)
        await out.prepare(request)
        return out

    def headers_of(
        self, answer: aiohttp.ClientResponse, dropped: frozenset[str]
    ) -> CIMultiDict[str]:
        """The headers of the upstream's answer but those ``dropped``.

        Raises ErrorAnswer (502): the answer is one that HTTP/1.1 does not have, with a control
        character in its head, or a 101 that nobody asked for.
        """
        texts = "\t".join([answer.reason or "", *answer.headers.values()])
        if answer.status < 200 or _CONTROL.search(texts):
            raise self._no_answer(_NO_HTTP)
        return _end_to_end(answer.headers, dropped)

    def _no_answer(self, reason: str) -> ErrorAnswer:
        return ErrorAnswer(
            502,
            f"no answer from {self.upstream.base} ({reason}); see whether it runs and --upstream is"
            " its address",
            code="upstream_unreachable",
        )

    @contextmanager
    def faults(self) -> Iterator[None]:
        """Turn failures of the upstream into answers to the client."""
        try:
            yield
        except TimeoutError as error:
            reason = "no answer"
            if isinstance(error, aiohttp.ConnectionTimeoutError):
                reason = "no connection"
            limit = _CONNECT
            if reason != "no connection":
                limit = self.timeout
            raise ErrorAnswer(
                504,
                f"{reason} from {self.upstream.base} within {limit:g} s; see whether it runs, or"
                " raise --timeout",
                code="upstream_timeout",
            ) from error
        except (aiohttp.ClientError, OSError) as error:
            raise self._no_answer(_reason(error)) from error


def _has_begun(error: Exception) -> bool:
    """Whether a part of an answer came before the connection ended: aiohttp then hands it on."""
    return isinstance(error, aiohttp.ServerDisconnectedError) and not isinstance(error.message, str)


def _end_to_end(headers: CIMultiDictProxy[str], dropped: frozenset[str]) -> CIMultiDict[str]:
    """The headers that are passed on, repeated ones included; a value not in UTF-8 is Latin-1 (RFC
    9110, section 5.5).
    """
    named = headers.getall("Connection", ())
    if named:
        dropped = dropped | {name.strip().lower() for value in named for name in value.split(",")}
    return CIMultiDict(
        (name, _text(value)) for name, value in headers.items() if name.lower() not in dropped
    )


def _text(value: str) -> str:
    # aiohttp reads bytes that are no UTF-8 as surrogates, and would drop them silently on writing.
    if _SURROGATE.search(value):
        return value.encode(errors="surrogateescape").decode("latin-1")
    return value


def _reason(error: Exception) -> str:
    """The kind of failure, without the data sent or received."""
    if speaks_plain_http(error):
        return "it does not speak https; an address of http begins with http://"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if any(isinstance(cause, ContentEncodingError) for cause in causes(error)):
        return "it is compressed in a way that is not read here, although it was asked not to be"
    if isinstance(error, aiohttp.ClientResponseError):
        return _NO_HTTP
    return type(error).__name__


def _certificates(upstream: Upstream) -> ssl.SSLContext | bool:
    """The trusted certificates: the system's store, or SSL_CERT_FILE, as for every other request of
    this package.
    """
    if upstream.scheme != "https":
        return True
    return certificates()


def _proxy_server(upstream: Upstream) -> URL | None:
    """The environment's proxy server for the upstream (HTTPS_PROXY, NO_PROXY), none for this
    machine itself.
    """
    server = proxy_server(upstream.base, HTTP)
    if server is None:
        return None
    return URL(server.address)
