"""An HTTP client with bounds on the size and duration of every answer, streamed or not."""

import asyncio
from collections.abc import AsyncIterable, Awaitable, Iterable, Iterator, Mapping
from contextlib import aclosing, contextmanager
from contextvars import ContextVar
from typing import Any

import httpx2
from httpx2 import USE_CLIENT_DEFAULT

from blackbox_lb.errors import ConnectionFailed, CorruptResponse

BASE = 16 * 2**20
"""Bytes allowed for any answer: text, envelope, a long list of models, the ids of a long prompt."""
ENTRY = 512
"""Bytes allowed for a listed token; one of chat takes about 100, one of SGLang with both lists 160,
one of 64 blanks 400.
"""
WHOLE = 300_000
"""Tokens of the largest vocabularies, for a request that asks for all of them."""
DEADLINE = 1_200.0
"""Seconds from the request to the last byte of its answer. Gateways send a blank now and then while
they wait for the model, so an answer may take as long as a place in a queue
(``channel.REQUEST_TIMEOUT``), but not for ever."""

FRAMING = frozenset({"content-encoding", "content-length", "transfer-encoding"})
"""Headers of a body as it was sent."""

LIMIT: ContextVar[int] = ContextVar("LIMIT", default=BASE)


def ceiling(body: Mapping[str, Any], generated: int) -> int:
    """Several times the bytes needed for the answer to ``body``; ``generated``: most tokens that it
    may generate in all.
    """
    asked = body.get("top_logprobs", body.get("logprobs"))
    listed = asked if isinstance(asked, int) and not isinstance(asked, bool) else 0
    return BASE + ENTRY * generated * (1 + (WHOLE if listed < 0 else listed))


@contextmanager
def at_most(size: int) -> Iterator[None]:
    """Limit the answers to requests inside the block to ``size`` bytes."""
    token = LIMIT.set(size)
    try:
        yield
    finally:
        LIMIT.reset(token)


class BoundedClient(httpx2.AsyncClient):
    """``httpx2.AsyncClient`` with responses that are already read and decoded, streamed or not.

    Raises CorruptResponse: more bytes, packed or unpacked, than ``at_most``, or an encoding that
    the request does not accept. ConnectionFailed: not whole after ``DEADLINE``.
    """

    async def send(
        self,
        request: httpx2.Request,
        *,
        stream: bool = False,
        auth: Any = USE_CLIENT_DEFAULT,
        follow_redirects: Any = USE_CLIENT_DEFAULT,
    ) -> httpx2.Response:
        """The response to ``request``, with its body."""

        async def whole() -> httpx2.Response:
            response = await sending
            try:
                check_encodings(
                    response.status_code, response.headers.get("content-encoding", ""), request
                )
                # A refused response is closed here, and not by a task of the garbage collector's.
                async with aclosing(response.aiter_bytes()) as received:
                    content = await joined(received, request)
            finally:
                await response.aclose()
            made = decoded(response.status_code, response.headers.multi_items(), content, request)
            made.extensions = response.extensions
            made.history = response.history
            return made

        sending = super().send(request, stream=True, auth=auth, follow_redirects=follow_redirects)
        return await in_time(whole(), request)


async def in_time(answer: Awaitable[httpx2.Response], request: httpx2.Request) -> httpx2.Response:
    """The answer to ``request``. Raises ConnectionFailed: it took longer than ``DEADLINE``."""
    try:
        async with asyncio.timeout(DEADLINE):
            return await answer
    except TimeoutError as error:
        raise ConnectionFailed(
            f"the answer of {_where(request)} is not whole after {DEADLINE:,.0f} seconds; is the"
            " server overloaded? A smaller ``concurrency``, ``max_tokens`` or ``top_logprobs``"
            " makes answers that come sooner"
        ) from error


async def joined(received: AsyncIterable[bytes], request: httpx2.Request) -> bytes:
    """The bytes of an answer. Raises CorruptResponse: more than ``at_most``."""
    limit = LIMIT.get()
    parts = list[bytes]()
    size = 0
    async for part in received:
        size += len(part)
        if size > limit:
            raise CorruptResponse(
                f"{_where(request)} answered with more than {limit:,} bytes, several times what was"
                " asked for can need; is this an inference API? It is read no further"
            )
        parts.append(part)
    return b"".join(parts)


def decoded(
    status: int, headers: Iterable[tuple[str, str]], content: bytes, request: httpx2.Request
) -> httpx2.Response:
    """The response with a body that is whole and unpacked."""
    own = [(name, value) for name, value in headers if name.lower() not in FRAMING]
    return httpx2.Response(status, headers=own, content=content, request=request)


def check_encodings(status: int, named: str, request: httpx2.Request) -> None:
    """Raise CorruptResponse for an answer in an encoding that ``request`` does not accept: what
    looks like a body is no text then.
    """
    accepted = request.headers.get("accept-encoding", "")
    asked = {coding.partition(";")[0].strip() for coding in accepted.lower().split(",")}
    for coding in named.lower().split(","):
        if (coding := coding.strip()) not in {*asked, "identity", ""}:
            raise CorruptResponse(
                f"{_where(request)} answered {status} in the encoding {coding[:20]!r}, and"
                f" {accepted or 'none'} was asked for; turn the compression off at the server or"
                " the gateway before it"
            )


def _where(request: httpx2.Request) -> str:
    return f"{request.url.scheme}://{request.url.netloc.decode()}{request.url.path}"
