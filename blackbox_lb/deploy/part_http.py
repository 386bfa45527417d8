"""Sends a request in parts and joins what comes, over any HTTP client: the proxy's, and those of
the SDK, asynchronous or not.

A synchronous client runs the same coroutines with ``run_now``, because each function that they
await returns at once there.
"""

from __future__ import annotations

from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Iterator,
    Mapping,
)
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from blackbox_lb.deploy.part_requests import PartRequest

OK = 200
BAD_GATEWAY = 502

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
    pieces: Callable[[], AsyncGenerator[bytes, None]]
    close: Callable[[], Awaitable[object]]


class JoinedAnswer(NamedTuple):
    """The answer for the client: the last response, with the joined body in JSON as ``content``;
    None where that response is no success or no completion, and the client's as it is.
    """

    response: Any
    status: int
    content: bytes | None


@dataclass(frozen=True, slots=True)
class PartSending:
    """A request in parts over one HTTP client.

    send: sends the body of a part. failures: what it raises where there is no answer.
    sleep: waits some seconds.
    """

    parts: PartRequest
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
            if answer.status != OK:
                try:
                    yield self.parts.failed(await answer.read())
                finally:
                    await answer.close()
                return
            async with aclosing(self._read(answer)) as pieces:
                async for piece in pieces:
                    yield piece
            if not self.parts.more:
                return
            answer = await self.next()

    async def _read(self, answer: PartAnswer) -> AsyncGenerator[bytes, None]:
        """What the client gets of one part that comes as a stream."""
        try:
            async with aclosing(answer.pieces()) as pieces:
                async for piece in pieces:
                    yield self.parts.feed(piece)
                    if self.parts.is_cut:
                        break
            yield self.parts.end()
        finally:
            await answer.close()

    async def joined(self, answer: PartAnswer) -> JoinedAnswer:
        """The whole answer, from the first part on."""
        while answer.status == OK:
            try:
                if self.parts.reads_streams:
                    async for _ in self._read(answer):
                        pass
                else:
                    self.parts.take(await answer.read())
            except (ValueError, TypeError, KeyError, AttributeError):
                break
            if self.parts.fault is not None:
                return JoinedAnswer(answer.response, BAD_GATEWAY, self.parts.fault)
            if not self.parts.more:
                return JoinedAnswer(answer.response, OK, self.parts.answer)
            answer = await self.next()
        return JoinedAnswer(answer.response, answer.status, None)


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
