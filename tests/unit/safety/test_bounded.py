"""Answers are read whole or refused, and what is refused half-way leaves nothing behind."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator

import httpx2

from blackbox_lb.errors import CorruptResponse
from blackbox_lb.safety.http.clients import BoundedClient, at_most
from tests.support.errors import raises_naming


class Endless(httpx2.AsyncByteStream):
    """A body without an end, which notes how far it was read and that its generator was closed."""

    def __init__(self) -> None:
        self.sent, self.ended = 0, False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """A kilobyte at a time."""
        try:
            while True:
                self.sent += 1024
                yield bytes(1024)
        finally:
            self.ended = True


def test_a_refused_body_is_closed_when_the_refusal_arrives() -> None:
    """An endless body is read to its limit; its generators have ended by then, without a task of
    the garbage collector's.
    """
    body = Endless()

    async def go() -> int:
        async with BoundedClient(
            transport=httpx2.MockTransport(lambda _: httpx2.Response(200, stream=body))
        ) as client:
            gc.disable()
            try:
                with (
                    at_most(10_000),
                    raises_naming(CorruptResponse, "10,000"),
                ):
                    await client.get("http://127.0.0.1/v1/models")
                assert body.ended
                return len(asyncio.all_tasks())
            finally:
                gc.enable()

    assert asyncio.run(go()) == 1
    assert 10_000 < body.sent < 12_000
