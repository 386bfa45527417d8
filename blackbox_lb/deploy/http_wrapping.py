"""An HTTP client that builds and sends requests with another one and changes only the request body.

The SDK builds every request, each retry included, with ``build_request`` of its HTTP client and
sends it with ``send``. Both reach the caller's HTTP client, so connection pool, proxies, mounts,
event hooks, auth, cookies and redirects are its own, and auth flows and hooks see the final body.
openai 2 is built on httpx, openai 3 on httpx2, and both take a client of either: the wrapper is a
subclass of its library's ``Client`` or ``AsyncClient``.
"""

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from types import ModuleType
from typing import Any, Literal

from blackbox_lb.deploy.batch_files import check_announcement, check_upload
from blackbox_lb.deploy.phase_requests import PhasedRequest
from blackbox_lb.deploy.request_policy import RequestPolicy, UrlPurpose, endpoint
from blackbox_lb.errors import InputError

Kind = Literal["Client", "AsyncClient"]

OK = 200
ENCODED = ("content-encoding", "content-length", "transfer-encoding")
"""The status of an answer, and the headers of a body as it came over the wire."""


def kind_of(client: object) -> tuple[ModuleType, Kind] | None:
    """The library of an HTTP client, httpx2 or httpx, and whether the client is synchronous or
    asynchronous; None: neither.
    """
    kinds: tuple[Kind, ...] = ("Client", "AsyncClient")
    for name in ("httpx2", "httpx"):
        library = sys.modules.get(name)
        for kind in kinds if library else ():
            if isinstance(client, getattr(library, kind)):
                return sys.modules[name], kind
    return None


def policies_of(client: object) -> tuple[RequestPolicy, ...]:
    """The policies that an HTTP client already applies to the bodies that it builds."""
    policies: tuple[RequestPolicy, ...] = getattr(client, "_policies", ())
    return policies


def wrapped(inner: Any, policy: RequestPolicy, *, owned: bool) -> Any:
    """Return an HTTP client of the library and kind of ``inner``; closing it closes ``inner`` where
    that is ``owned``.

    Raises InputError: ``inner`` is of another library.
    """
    library_and_kind = kind_of(inner)
    if library_and_kind is None:
        raise InputError(
            f"the client's HTTP client is a {type(inner).__module__}.{type(inner).__name__},"
            " neither httpx2's nor httpx's; leave http_client out, or pass one of those (for an"
            " asynchronous client their AsyncClient)"
        )
    client, transport = _classes(*library_and_kind)
    library = library_and_kind[0]
    outer = client(transport=transport(inner, library, owned), timeout=inner.timeout)
    outer._inner = inner
    outer._root = getattr(inner, "_root", inner)
    outer._library = library
    outer._policies = (*policies_of(inner), policy)
    return outer


def with_policies(inner: Any, policies: Iterable[RequestPolicy]) -> Any:
    """``inner``, wrapped in each policy that it does not apply yet; closing the result closes
    ``inner``.

    Raises InputError: ``inner`` is of another library.
    """
    for policy in policies:
        if not any(applied is policy for applied in policies_of(inner)):
            inner = wrapped(inner, policy, owned=True)
    return inner


@cache
def _classes(library: ModuleType, kind: Kind) -> tuple[type, type]:
    if kind == "Client":
        return type("BiasedClient", (_Sync, library.Client), {}), type(
            "Through", (_Through, library.BaseTransport), {}
        )
    return (
        type("BiasedAsyncClient", (_Async, library.AsyncClient), {}),
        type("AsyncThrough", (_AsyncThrough, library.AsyncBaseTransport), {}),
    )


class _Building:
    """Builds requests with the innermost client, the caller's own."""

    _inner: Any
    _root: Any
    _library: Any
    _policies: tuple[RequestPolicy, ...]
    _stopped = False

    def build_request(self, method: str, url: Any, **options: Any) -> Any:
        place = endpoint(str(url))
        concerned = place.generates or place.uploads or place.announces
        if concerned and method.upper() == "POST":
            for policy in self._policies:
                self._edit(policy, place, method, url, options)
        return self._root.build_request(method, url, **options)

    def _edit(
        self,
        policy: RequestPolicy,
        place: UrlPurpose,
        method: str,
        url: Any,
        options: dict[str, Any],
    ) -> None:
        if place.uploads:
            check_upload(policy, options.get("files"), options.get("data"))
            return
        content = options.get("content")
        if not isinstance(content, bytes) or not content.startswith(b"{"):
            content = self._read(method, url, options)
        if place.announces:
            check_announcement(content)
        elif content:
            if (parts := policy.in_parts(place, content)) is not None:
                # what is wrong with it is an error here: one from send() would be repeated by the
                # SDK
                parts.body()
            if not self._later(policy):
                content = policy.rewritten(place, content)
            options["content"] = content
            options.pop("json", None)

    def _later(self, policy: RequestPolicy) -> bool:
        """Whether the bias enters the body when the request is sent."""
        return policy.phased is not None

    def _in_parts(self, request: Any) -> PhasedRequest | None:
        """The request in parts, None where this client's bias has no phases or does not concern
        it.
        """
        place = endpoint(str(request.url))
        policy = self._policies[-1]
        if policy.phased is None or not place.generates or request.method != "POST":
            return None
        return policy.in_parts(place, request.content)

    def _read(self, method: str, url: Any, options: Mapping[str, Any]) -> bytes:
        """The JSON body, empty where there is none. Raises InputError: reading it would use it
        up.
        """
        content = options.get("content")
        if content is None and options.get("json") is None:
            return b""
        request = self._root.build_request(method, url, **options)
        if "json" not in request.headers.get("content-type", ""):
            return b""
        if content is not None and not isinstance(content, bytes | str):
            raise InputError(
                "cannot add a bias to a body that is streamed; pass the whole body at once"
            )
        if "content-encoding" in request.headers:
            raise InputError(
                "cannot add a bias to a compressed body; send it without Content-Encoding"
            )
        return bytes(request.content)

    @property
    def is_closed(self) -> bool:
        return self._stopped or bool(self._inner.is_closed)

    def _check_open(self) -> None:
        if self._stopped:
            raise RuntimeError("Cannot send a request, as the client has been closed.")


class _Sync(_Building):
    def send(self, request: Any, *, stream: bool = False, **options: Any) -> Any:
        self._check_open()
        parts = self._in_parts(request)
        if parts is None:
            return self._inner.send(request, stream=stream, **options)
        answer = self._part(parts, request, options)
        if parts.streams and answer.status_code == OK:
            answer = _replaced(
                answer,
                stream=_stream(self._library)(
                    self._streamed(parts, answer, request, options), answer
                ),
            )
        while not parts.streams and answer.status_code == OK and _taken(parts, answer.read()):
            if not parts.more:
                return _replaced(answer, content=parts.answer)
            answer = self._part(parts, request, options)
        if not stream:
            answer.read()
        return answer

    def _part(self, parts: PhasedRequest, request: Any, options: Mapping[str, Any]) -> Any:
        """The answer to the next part, unread; one that fails is asked for again."""
        sent = _with_body(request, parts.body())
        while True:
            try:
                answer = self._inner.send(sent, stream=True, **options)
                pause = parts.pause(answer.status_code, answer.headers)
            except self._library.TransportError:
                pause = parts.pause()
                if pause is None:
                    raise
            else:
                if pause is None:
                    return answer
                answer.close()
            time.sleep(pause)

    def _streamed(
        self, parts: PhasedRequest, answer: Any, request: Any, options: Mapping[str, Any]
    ) -> Iterator[bytes]:
        while True:
            try:
                if answer.status_code != OK:
                    yield parts.failed(answer.read())
                    return
                for piece in answer.iter_bytes():
                    yield parts.feed(piece)
                yield parts.end()
            finally:
                answer.close()
            if not parts.more:
                return
            answer = self._part(parts, request, options)

    def close(self) -> None:
        self._stopped = True
        super().close()  # type: ignore[misc]  # the library's client is the other base


class _Async(_Building):
    def _later(self, policy: RequestPolicy) -> bool:
        """Also where a text is embedded, which would block the event loop for milliseconds."""
        return policy.injection.embeds or super()._later(policy)

    async def send(self, request: Any, *, stream: bool = False, **options: Any) -> Any:
        self._check_open()
        place = endpoint(str(request.url))
        policy = self._policies[-1]
        if place.generates and request.method == "POST" and policy.injection.embeds:
            request = _with_body(
                request, await asyncio.to_thread(policy.rewritten, place, request.content)
            )
        parts = self._in_parts(request)
        if parts is None:
            return await self._inner.send(request, stream=stream, **options)
        answer = await self._part(parts, request, options)
        if parts.streams and answer.status_code == OK:
            answer = _replaced(
                answer,
                stream=_stream(self._library)(
                    self._streamed(parts, answer, request, options), answer
                ),
            )
        while (
            not parts.streams and answer.status_code == OK and _taken(parts, await answer.aread())
        ):
            if not parts.more:
                return _replaced(answer, content=parts.answer)
            answer = await self._part(parts, request, options)
        if not stream:
            await answer.aread()
        return answer

    async def _part(self, parts: PhasedRequest, request: Any, options: Mapping[str, Any]) -> Any:
        """The answer to the next part, unread; one that fails is asked for again."""
        sent = _with_body(request, parts.body())
        while True:
            try:
                answer = await self._inner.send(sent, stream=True, **options)
                pause = parts.pause(answer.status_code, answer.headers)
            except self._library.TransportError:
                pause = parts.pause()
                if pause is None:
                    raise
            else:
                if pause is None:
                    return answer
                await answer.aclose()
            await asyncio.sleep(pause)

    async def _streamed(
        self, parts: PhasedRequest, answer: Any, request: Any, options: Mapping[str, Any]
    ) -> AsyncIterator[bytes]:
        while True:
            try:
                if answer.status_code != OK:
                    yield parts.failed(await answer.aread())
                    return
                async for piece in answer.aiter_bytes():
                    yield parts.feed(piece)
                yield parts.end()
            finally:
                await answer.aclose()
            if not parts.more:
                return
            answer = await self._part(parts, request, options)

    async def aclose(self) -> None:
        self._stopped = True
        await super().aclose()  # type: ignore[misc]  # as above


def _with_body(request: Any, content: bytes) -> Any:
    headers = {**request.headers, "content-length": str(len(content))}
    return type(request)(
        request.method, request.url, headers=headers, content=content, extensions=request.extensions
    )


def _replaced(answer: Any, **body: Any) -> Any:
    """An answer with another body. Its headers are decoded already, so that none tells an encoding
    or a length.
    """
    headers = [
        (name, value) for name, value in answer.headers.multi_items() if name.lower() not in ENCODED
    ]
    replacement = type(answer)(
        answer.status_code,
        headers=headers,
        request=answer.request,
        extensions=answer.extensions,
        **body,
    )
    with suppress(RuntimeError):  # not read yet
        replacement.elapsed = answer.elapsed
    return replacement


def _taken(parts: PhasedRequest, content: bytes) -> bool:
    """Take in a part; False where the content is no answer and the caller gets it unchanged."""
    try:
        parts.take(content)
    except (ValueError, TypeError, KeyError, AttributeError):
        return False
    return True


@cache
def _stream(library: ModuleType) -> Any:
    """A stream made of an iterator, synchronous or not, of the HTTP library."""

    class Pieces(library.SyncByteStream, library.AsyncByteStream):  # type: ignore[misc, name-defined]
        def __init__(self, pieces: Any, first: Any) -> None:
            self._pieces = pieces
            self._first = first

        def __iter__(self) -> Iterator[bytes]:
            return iter(self._pieces)

        def __aiter__(self) -> AsyncIterator[bytes]:
            return aiter(self._pieces)

        def close(self) -> None:
            self._pieces.close()
            self._first.close()  # of pieces that nobody began to read

        async def aclose(self) -> None:
            await self._pieces.aclose()
            await self._first.aclose()

    return Pieces


class _Borrowed:
    """The caller's client less its auth and redirects, for SDK code that takes an HTTP client's
    transport (X.509 identity).
    """

    def __init__(self, inner: Any, library: ModuleType, owned: bool) -> None:
        self._inner = inner
        self._auth = library.Auth
        self._owned = owned


class _Through(_Borrowed):
    def handle_request(self, request: Any) -> Any:
        return self._inner.send(request, stream=True, auth=self._auth(), follow_redirects=False)

    def close(self) -> None:
        if self._owned:
            self._inner.close()


class _AsyncThrough(_Borrowed):
    async def handle_async_request(self, request: Any) -> Any:
        return await self._inner.send(
            request, stream=True, auth=self._auth(), follow_redirects=False
        )

    async def aclose(self) -> None:
        if self._owned:
            await self._inner.aclose()
