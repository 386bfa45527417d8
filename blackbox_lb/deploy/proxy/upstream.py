"""The API behind the proxy: its address, and one HTTP session for all clients. Headers and bytes
stay unchanged, and nothing is kept.

An intermediary passes on all header fields but those of a single connection (RFC 9110, section
7.6). No cookie is stored, no redirect followed, no body decompressed.
"""

import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from typing import Any
from urllib.parse import unquote, urlsplit
from weakref import WeakSet
from wsgiref.util import is_hop_by_hop

import aiohttp
from aiohttp import web
from aiohttp.connector import Connection
from aiohttp.http_exceptions import ContentEncodingError
from aiohttp.tracing import Trace
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from blackbox_lb.deploy.proxy.error_answers import ErrorAnswer
from blackbox_lb.deploy.proxy.limits import PREFIX, TIMEOUT
from blackbox_lb.errors import InputError
from blackbox_lb.safety.http.clients import new_session
from blackbox_lb.safety.network import (
    HTTP,
    PORTS,
    proxy_server,
    read_address,
    speaks_plain_http,
    verification,
)
from blackbox_lb.safety.printable import causes

LONGEST = 31_536_000
"""Seconds of the longest wait that can be asked for."""
_CONNECT = 10.0
"""Seconds for a connection to the upstream."""
_IDLE = 4.0
"""Seconds that an idle connection to the upstream is kept: uvicorn (vLLM), llama.cpp and Node close
theirs after 5 s."""
REWRITTEN = frozenset(
    (
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
    )
)
"""Headers of an answer that describe its very body, and are wrong of another one."""
_NOT_SENT = frozenset(("host", "content-length", "expect", "proxy-connection"))
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
"""Characters that no header or reason may hold (RFC 9110, section 5.5), and that aiohttp reads and
does not write."""
_SURROGATE = re.compile("[\udc80-\udcff]")
_ENDED = (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError, ConnectionError)
_NO_HTTP = "what it sent is no HTTP/1.1"
_NOT_ADDED = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")


_is_reused: ContextVar[bool] = ContextVar("is_reused", default=False)
"""Whether the last connection of this task had carried a request before."""


class _Connector(aiohttp.TCPConnector):
    """A connector that notes in ``_is_reused`` whether its connection is a kept one. aiohttp's
    tracing would tell it, too, and take a tenth of the time of a request.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._used: WeakSet[object] = WeakSet()

    async def connect(
        self, req: aiohttp.ClientRequest, traces: list[Trace], timeout: aiohttp.ClientTimeout
    ) -> Connection:
        _is_reused.set(False)
        connection = await super().connect(req, traces, timeout)
        _is_reused.set(connection.protocol in self._used)
        self._used.add(connection.protocol)
        return connection


class Upstream:
    """The API that requests go to.

    Args:
        address: with its ``/v1``; one of a host alone gets it.
        timeout: seconds of silence before an answer is abandoned.

    Attributes:
        base: the address, without a slash at the end.
        root: the same without a last ``/v1``.

    Raises InputError: the address is not http(s), or holds a key, a query or a fragment; the
    timeout is no number of seconds; or the environment names a proxy server that does not speak
    HTTP.
    """

    def __init__(self, address: str, timeout: float = TIMEOUT) -> None:
        base = read_address(
            address,
            "``upstream``",
            "give one as http://127.0.0.1:8000/v1",
            "leave it out, clients send their own key and query",
        )
        parts = urlsplit(base)
        if not re.fullmatch(r"[!-~]+", base):
            raise InputError(
                "``upstream`` has a blank or a letter beyond ASCII in it; percent-encode its path,"
                " and write its host in punycode (xn--...)"
            )
        check_seconds("timeout", timeout)
        if not parts.path:
            base += PREFIX
        self.base = base
        self.root = base.removesuffix(PREFIX)
        self.host = parts.hostname or ""
        self.port = parts.port or PORTS[parts.scheme]
        self._timeout = timeout
        server = proxy_server(base, HTTP)
        self._proxy = None if server is None else server.address

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[None]:
        """Inside the block requests can be sent, from the event loop that runs it."""
        async with (
            self._session(keepalive_timeout=_IDLE) as self._kept,
            self._session(force_close=True) as self._fresh,
        ):
            yield

    def _session(self, **options: Any) -> aiohttp.ClientSession:
        return new_session(
            _Connector(limit=0, ssl=verification(self.base, self._proxy), **options),
            _CONNECT,
            self._timeout,
            auto_decompress=False,
            skip_auto_headers=_NOT_ADDED,
        )

    def url(self, target: str) -> str:
        """The address for a request target (path and query as they came).

        ``/v1`` and all below is the base URL; any other path lies beside it, under ``root``.

        Raises ErrorAnswer (400): an absolute address, ``..`` in the path, or characters that no
        target may hold.
        """
        path, mark, query = target.partition("?")
        if not path.startswith("/") or not re.fullmatch(r"[!-~]+", target) or "#" in target:
            raise ErrorAnswer(
                400,
                "the request target is not a path of printable ASCII; percent-encode it, and send a"
                " path, not an address",
                code="bad_path",
            )
        # Decoded twice: some servers do.
        if {".", ".."} & set(re.split(r"[/\\]", unquote(unquote(path)))):
            raise ErrorAnswer(
                400,
                "the path has a '.' or '..' segment; send the path that is meant",
                code="bad_path",
            )
        if path == PREFIX or path.startswith(f"{PREFIX}/"):
            return self.base + path.removeprefix(PREFIX) + mark + query
        return self.root + target

    async def ask(
        self,
        request: web.BaseRequest,
        target: str,
        content: bytes | None,
        *,
        is_plain: bool = False,
        dropped: frozenset[str] = frozenset(),
    ) -> aiohttp.ClientResponse:
        """Return the upstream's answer with its body unread; the caller closes it.

        A request that meets the end of a kept connection (RFC 9112, section 9.3.1), so that no byte
        of an answer comes, is sent once more over a new one.

        Args:
            target: path and query.
            content: the body, None for a request without one.
            is_plain: the body is to be read here: it is asked for uncompressed, and where it is
                compressed all the same, it is decoded as it is read.
            dropped: headers of the request, in small letters, that are not sent on.

        Raises ErrorAnswer: 400 for a bad target, 502 or 504 for no answer.
        """
        headers = _end_to_end(request.headers, _NOT_SENT | dropped)
        if is_plain:
            headers["Accept-Encoding"] = "identity"
        arguments: dict[str, Any] = {
            "method": request.method,
            "url": URL(self.url(target), encoded=True),
            "headers": headers,
            "data": content,
            "allow_redirects": False,
            "auto_decompress": is_plain,
            "proxy": self._proxy,
        }
        with self.faults():
            try:
                return await self._kept.request(**arguments)
            except _ENDED as error:
                if not _is_reused.get() or _has_begun(error):
                    raise
            return await self._fresh.request(**arguments)

    async def get(self, address: str) -> aiohttp.ClientResponse:
        """The answer to a request of the proxy's own, without a key; the caller closes it and waits
        no longer than it wants.
        """
        return await self._fresh.get(
            URL(address, encoded=True),
            allow_redirects=False,
            auto_decompress=True,
            proxy=self._proxy,
        )

    def headers_of(
        self, answer: aiohttp.ClientResponse, dropped: frozenset[str] = frozenset()
    ) -> CIMultiDict[str]:
        """The headers of the upstream's answer but those ``dropped``.

        Raises ErrorAnswer (502): the answer is one that HTTP/1.1 does not have, with a control
        character in its head, or a 101 that nobody asked for.
        """
        texts = "\t".join([answer.reason or "", *answer.headers.values()])
        if answer.status < 200 or _CONTROL.search(texts):
            raise self._no_answer(_NO_HTTP)
        return _end_to_end(answer.headers, dropped)

    @contextmanager
    def faults(self) -> Iterator[None]:
        """Turn failures of the upstream into answers to the client."""
        try:
            yield
        except TimeoutError as error:
            reason = "no answer"
            limit = self._timeout
            if isinstance(error, aiohttp.ConnectionTimeoutError):
                reason = "no connection"
                limit = _CONNECT
            raise ErrorAnswer(
                504,
                f"{reason} from {self.base} within {limit:g} s; see whether it runs, or raise"
                " --timeout",
                code="upstream_timeout",
            ) from error
        except (aiohttp.ClientError, OSError) as error:
            raise self._no_answer(_reason(error)) from error

    def _no_answer(self, reason: str) -> ErrorAnswer:
        return ErrorAnswer(
            502,
            f"no answer from {self.base} ({reason}); see whether it runs and --upstream is its"
            " address",
            code="upstream_unreachable",
        )


def check_no_redirect(answer: aiohttp.ClientResponse) -> None:
    """Raise ErrorAnswer 502 where the upstream sends a request elsewhere that must come back to
    this proxy."""
    if 300 <= answer.status < 400:
        answer.close()
        raise ErrorAnswer(
            502,
            f"the upstream answers {answer.status}, go elsewhere, where the request would arrive"
            " without its bias; give blb proxy the final address as --upstream",
            code="upstream_redirect",
        )


def check_seconds(name: str, seconds: float) -> None:
    """Raise InputError where a time is no number of seconds, or an endless one."""
    if not 0 <= seconds <= LONGEST:
        raise InputError(f"``{name}`` is {seconds}; give seconds, from 0 to {LONGEST:,} (a year)")


def _has_begun(error: Exception) -> bool:
    """Whether a part of an answer came before the connection ended: aiohttp then hands it on."""
    return isinstance(error, aiohttp.ServerDisconnectedError) and not isinstance(error.message, str)


def _end_to_end(headers: CIMultiDictProxy[str], dropped: frozenset[str]) -> CIMultiDict[str]:
    """The headers that are passed on, repeated ones included; a value not in UTF-8 is Latin-1 (RFC
    9110, section 5.5).
    """
    for value in headers.getall("Connection", ()):
        dropped = dropped.union(name.strip().lower() for name in value.split(","))
    return CIMultiDict(
        (name, _text(value))
        for name, value in headers.items()
        if not is_hop_by_hop(name) and name.lower() not in dropped
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
