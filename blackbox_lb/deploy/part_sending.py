"""Sends a request in parts and joins what comes, over any HTTP client: the proxy's, and those of
the SDK, asynchronous or not.

A synchronous client runs the same coroutines with ``run_now``, because each function that they
await returns at once there.
"""

from __future__ import annotations

from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterator,
    Mapping,
)
from dataclasses import dataclass
from typing import Any, TypeVar

from blackbox_lb.deploy.phase_requests import PhasedRequest

OK = 200

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PartAnswer:
    """The answer to one part, its body unread.

    response: the HTTP client's. read: its whole body. pieces: the body as it comes.
    """

    response: Any
    status: int
    headers: Mapping[str, str]
    read: Callable[[], Awaitable[bytes]]
    pieces: Callable[[], AsyncIterator[bytes]]
    close: Callable[[], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class PartSending:
    """A request in parts over one HTTP client.

    send: sends the body of a part. failures: what it raises where there is no answer.
    sleep: waits some seconds.
    """

    parts: PhasedRequest
    send: Callable[[bytes], Awaitable[PartAnswer]]
    failures: tuple[type[Exception], ...]
    sleep: Callable[[float], Awaitable[object]]

    async def next(self) -> PartAnswer:
        """The answer to the next part; one that fails is asked for again."""
        body = self.parts.body()
        while True:
            try:
                answer = await self.send(body)
            except self.failures:
                pause = self.parts.pause()
                if pause is None:
                    raise
            else:
                pause = self.parts.pause(answer.status, answer.headers)
                if pause is None:
                    return answer
                await answer.close()
            await self.sleep(pause)

    async def stream(self, answer: PartAnswer) -> AsyncGenerator[bytes, None]:
        """The pieces of one stream for the client, from the first answer on."""
        while True:
            try:
                if answer.status != OK:
                    yield self.parts.failed(await answer.read())
                    return
                async for piece in answer.pieces():
                    yield self.parts.feed(piece)
                yield self.parts.end()
            finally:
                await answer.close()
            if not self.parts.more:
                return
            answer = await self.next()

    async def joined(self, answer: PartAnswer) -> tuple[Any, bytes | None]:
        """The last response, from the first answer on, and the joined body; None where that
        response is no success or no completion, and the client's as it is.
        """
        while answer.status == OK:
            content = await answer.read()
            try:
                self.parts.take(content)
            except (ValueError, TypeError, KeyError, AttributeError):
                break
            if not self.parts.more:
                return answer.response, self.parts.answer
            answer = await self.next()
        return answer.response, None


def run_now(coroutine: Awaitable[T]) -> T:
    """The result of a coroutine that never waits."""
    try:
        next(coroutine.__await__())
    except StopIteration as end:
        result: T = end.value
        return result
    raise RuntimeError("the coroutine waits; run it in an event loop")


def iterate_now(pieces: AsyncGenerator[T, None]) -> Iterator[T]:
    """The items of an asynchronous generator that never waits."""
    while True:
        try:
            piece = run_now(anext(pieces))
        except StopAsyncIteration:
            return
        yield piece


def returned(function: Callable[..., T]) -> Callable[..., Awaitable[T]]:
    """A function as one that is awaited, and never waits."""

    async def call(*arguments: Any) -> T:
        return function(*arguments)

    return call
