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
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
)
from contextlib import suppress
from functools import cache
from types import ModuleType
from typing import Any, Literal, TypeAlias

from blackbox_lb.deploy.batch_files import check_announcement, check_upload
from blackbox_lb.deploy.decision_policy import DecisionPolicy
from blackbox_lb.deploy.part_http import (
    OK,
    PartAnswer,
    PartSending,
    iterate_now,
    returned,
    run_now,
)
from blackbox_lb.deploy.request_policy import RequestPolicy, UrlPurpose, endpoint
from blackbox_lb.errors import InputError

Kind = Literal["Client", "AsyncClient"]
Policy: TypeAlias = RequestPolicy | DecisionPolicy
"""What happens to requests, or to the answers of decision endpoints."""

ENCODED = ("content-encoding", "content-length", "transfer-encoding")
"""The headers of a body as it came over the wire."""


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


def policies_of(client: object) -> tuple[Policy, ...]:
    """The policies that an HTTP client already applies."""
    policies: tuple[Policy, ...] = getattr(client, "_policies", ())
    return policies


def wrapped(inner: Any, policy: Policy, *, owned: bool) -> Any:
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


def with_policies(inner: Any, policies: Iterable[Policy]) -> Any:
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
    transports = (_Through, library.BaseTransport, library.AsyncBaseTransport)
    sending = _Sync if kind == "Client" else _Async
    return (
        type(f"Biased{kind}", (sending, getattr(library, kind)), {}),
        type("Through", transports, {}),
    )


class _Building:
    """Builds requests with the innermost client, the caller's own, and sends them with the one that
    is wrapped. A subclass says how its kind of client waits.
    """

    _inner: Any
    _root: Any
    _library: Any
    _policies: tuple[Policy, ...]
    _stopped = False
    _is_async = False
    """Then a text is embedded as its request is sent, which would block the event loop for
    milliseconds."""
    _sleep: Callable[[float], Awaitable[object]]
    _pass_on: Callable[..., Awaitable[Any]]
    _read: Callable[[Any], Awaitable[object]]
    _part_answer: Callable[[Any], PartAnswer]

    def build_request(self, method: str, url: Any, **options: Any) -> Any:
        place = endpoint(str(url))
        concerned = place.generates or place.uploads or place.announces
        if concerned and method.upper() == "POST":
            for policy in self._policies:
                if isinstance(policy, DecisionPolicy):
                    continue
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
            content = self._content(method, url, options)
        if place.announces:
            check_announcement(content)
        elif content:
            parts = policy.in_parts(place, content)
            if parts is not None:
                # what is wrong with it is an error here: one from send() would be repeated by the
                # SDK
                parts.body()
            elif not (self._is_async and policy.injection.embeds):
                content = policy.rewritten(place, content)
            options["content"] = content
            options.pop("json", None)

    def _content(self, method: str, url: Any, options: Mapping[str, Any]) -> bytes:
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

    async def _sent(self, request: Any, stream: bool, options: Mapping[str, Any]) -> Any:
        """The response to a request; a synchronous client never waits in here."""
        if self._stopped:
            raise RuntimeError("Cannot send a request, as the client has been closed.")
        policy = self._policies[-1]
        place = endpoint(str(request.url))
        if not place.generates or request.method != "POST":
            return await self._pass_on(request, stream=stream, **options)
        if isinstance(policy, DecisionPolicy):
            if place.api != "Decisions":
                return await self._pass_on(request, stream=stream, **options)
            answer = await self._pass_on(request, stream=False, **options)
            return _mended(policy, request, answer)
        parts = policy.in_parts(place, request.content)
        if parts is None:
            if self._is_async and policy.injection.embeds:
                content = await asyncio.to_thread(policy.rewritten, place, request.content)
                request = _with_body(request, content)
            return await self._pass_on(request, stream=stream, **options)

        async def send_part(body: bytes) -> PartAnswer:
            answer = await self._pass_on(_with_body(request, body), stream=True, **options)
            return self._part_answer(answer)

        failures = (self._library.TransportError,)
        answer = await self._joined(PartSending(parts, send_part, failures, self._sleep))
        if not stream:
            await self._read(answer)
        return answer

    async def _joined(self, sending: PartSending) -> Any:
        """The response to a request in parts; where it is a stream, its parts are asked for as it
        is read.
        """
        first = await sending.next()
        if sending.parts.streams and first.status == OK:
            pieces = _stream(self._library)(sending.stream(first), first.response)
            return _replaced(first.response, stream=pieces)
        joined = await sending.joined(first)
        if joined.content is None:
            return joined.response
        return _replaced(
            joined.response,
            status=joined.status,
            kind="application/json",
            content=joined.content,
        )

    @property
    def is_closed(self) -> bool:
        return self._stopped or bool(self._inner.is_closed)


class _Sync(_Building):
    _sleep = staticmethod(returned(time.sleep))

    def send(self, request: Any, *, stream: bool = False, **options: Any) -> Any:
        return run_now(self._sent(request, stream, options))

    async def _pass_on(self, request: Any, **options: Any) -> Any:
        return self._inner.send(request, **options)

    async def _read(self, answer: Any) -> None:
        answer.read()

    def _part_answer(self, answer: Any) -> PartAnswer:
        async def pieces() -> AsyncGenerator[bytes, None]:
            for piece in answer.iter_bytes():
                yield piece

        read = returned(answer.read)
        close = returned(answer.close)
        return PartAnswer(answer, answer.status_code, answer.headers, read, pieces, close)

    def close(self) -> None:
        self._stopped = True
        super().close()  # type: ignore[misc]  # the library's client is the other base


class _Async(_Building):
    _is_async = True
    _sleep = staticmethod(asyncio.sleep)

    async def send(self, request: Any, *, stream: bool = False, **options: Any) -> Any:
        return await self._sent(request, stream, options)

    async def _pass_on(self, request: Any, **options: Any) -> Any:
        return await self._inner.send(request, **options)

    async def _read(self, answer: Any) -> None:
        await answer.aread()

    def _part_answer(self, answer: Any) -> PartAnswer:
        return PartAnswer(
            answer,
            answer.status_code,
            answer.headers,
            answer.aread,
            answer.aiter_bytes,
            answer.aclose,
        )

    async def aclose(self) -> None:
        self._stopped = True
        await super().aclose()  # type: ignore[misc]  # as above


def _mended(policy: DecisionPolicy, request: Any, answer: Any) -> Any:
    """The answer of a decision endpoint, mended where it is a 200."""
    if answer.status_code != OK:
        return answer
    return _replaced(
        answer, content=policy.mended(str(request.url), request.content, answer.content)
    )


def _with_body(request: Any, content: bytes) -> Any:
    headers = {**request.headers, "content-length": str(len(content))}
    return type(request)(
        request.method, request.url, headers=headers, content=content, extensions=request.extensions
    )


def _replaced(
    answer: Any, *, status: int | None = None, kind: str | None = None, **body: Any
) -> Any:
    """An answer with another body. Its headers are decoded already, so that none tells an encoding
    or a length. status, kind: another status, another content type.
    """
    dropped = ENCODED if kind is None else (*ENCODED, "content-type")
    headers = [
        (name, value) for name, value in answer.headers.multi_items() if name.lower() not in dropped
    ]
    if kind is not None:
        headers.append(("content-type", kind))
    replacement = type(answer)(
        answer.status_code if status is None else status,
        headers=headers,
        request=answer.request,
        extensions=answer.extensions,
        **body,
    )
    with suppress(RuntimeError):  # not read yet
        replacement.elapsed = answer.elapsed
    return replacement


@cache
def _stream(library: ModuleType) -> Any:
    """A stream of the HTTP library, synchronous or not, made of an asynchronous generator."""

    class Pieces(library.SyncByteStream, library.AsyncByteStream):  # type: ignore[misc, name-defined]
        def __init__(self, pieces: Any, first: Any) -> None:
            self._pieces = pieces
            self._first = first

        def __iter__(self) -> Iterator[bytes]:
            return iterate_now(self._pieces)

        def __aiter__(self) -> AsyncIterator[bytes]:
            return aiter(self._pieces)

        def close(self) -> None:
            run_now(self._pieces.aclose())
            self._first.close()  # of pieces that nobody began to read

        async def aclose(self) -> None:
            await self._pieces.aclose()
            await self._first.aclose()

    return Pieces


class _Through:
    """The caller's client less its auth and redirects, for SDK code that takes an HTTP client's
    transport (X.509 identity).
    """

    def __init__(self, inner: Any, library: ModuleType, owned: bool) -> None:
        self._inner = inner
        self._auth = library.Auth
        self._owned = owned

    def handle_request(self, request: Any) -> Any:
        return self._inner.send(request, stream=True, auth=self._auth(), follow_redirects=False)

    async def handle_async_request(self, request: Any) -> Any:
        return await self.handle_request(request)

    def close(self) -> None:
        if self._owned:
            self._inner.close()

    async def aclose(self) -> None:
        if self._owned:
            await self._inner.aclose()
