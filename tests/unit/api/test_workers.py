"""How many requests in flight keep a server busy: simulated servers with a known saturation point,
in simulated time.
"""

from __future__ import annotations

import asyncio
import random
import selectors
from typing import Any

import pytest

from blackbox_lb.api.limits.budget import SpendLimit
from blackbox_lb.api.limits.concurrency import AdaptiveConcurrency, run_all


class _Skipping(selectors.DefaultSelector):
    """Waits for nothing: the time that a wait would have taken is added to the clock."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        self.now += timeout or 0.0
        return super().select(0)


def simulated(main: Any) -> float:
    """Seconds of simulated time that ``main()`` takes."""
    selector = _Skipping()
    loop = asyncio.SelectorEventLoop(selector)
    loop.time = lambda: selector.now  # type: ignore[method-assign]
    try:
        loop.run_until_complete(main())
    finally:
        loop.close()
    return selector.now


def rate(slots: int, concurrency: int, noise: float, latency: float, requests: int = 4000) -> float:
    """Requests a second from a server that works on ``slots`` at a time, a second each, and queues
    the others.

    ``noise``: the relative spread of a request's work; ``latency``: seconds on the way. Only the
    middle of the run counts.
    """
    rng, ended = random.Random(0), list[float]()

    async def main() -> None:
        free = asyncio.Semaphore(slots)

        async def receive(_: int) -> None:
            await asyncio.sleep(latency)
            async with free:
                await asyncio.sleep(rng.uniform(1 - noise, 1 + noise))
            ended.append(asyncio.get_running_loop().time())

        await run_all(range(requests), receive, concurrency, SpendLimit())

    simulated(main)
    first, last = requests // 10, requests * 9 // 10
    return (last - first) / (ended[last] - ended[first])


@pytest.mark.parametrize("noise", [0.0, 0.9])
@pytest.mark.parametrize("slots", [4, 16, 48])
def test_a_fixed_number_above_saturation_keeps_a_server_busy(slots: int, noise: float) -> None:
    """64 requests in flight reach .98 of what a server of fewer slots can do, however many: a
    longer queue costs nothing.
    """
    assert rate(slots, 64, noise, latency=0.2) >= 0.98 * slots


def test_too_few_in_flight_leave_slots_idle() -> None:
    """Below saturation the rate is that of the requests in flight, so the simulation can tell."""
    assert rate(48, 16, 0.0, latency=0.2) == pytest.approx(16 / 1.2, rel=0.02)


def test_the_number_may_change_meanwhile() -> None:
    """As many as are wanted at the time are in flight, more and fewer, and each item is received
    once, in order.
    """
    level, now, most, seen = 3, 0, 0, list[int]()

    async def main() -> None:
        async def receive(item: int) -> None:
            nonlocal level, now, most
            now += 1
            most = max(most, now)
            seen.append(item)
            await asyncio.sleep(1)
            if item == 50:
                level = 10
            if item == 200:
                level, most = 2, 0
            now -= 1

        await run_all(range(400), receive, lambda: level, SpendLimit())

    took = simulated(main)
    assert seen == list(range(400))
    assert most <= 10
    assert took == pytest.approx(50 / 3 + 150 / 10 + 200 / 2, rel=0.1)


def test_a_pace_keeps_a_server_busy() -> None:
    """Found while it works, from 8 on: .95 of what a server of 48 slots can do, the search
    included.
    """
    rng, pace, ended = random.Random(0), AdaptiveConcurrency(), list[float]()

    async def main() -> None:
        free = asyncio.Semaphore(48)

        async def receive(_: int) -> None:
            async with free:
                await asyncio.sleep(rng.uniform(0.5, 1.5))
            ended.append(asyncio.get_running_loop().time())
            pace.ended(100, 0, ended[-1])

        pace.begin(4000, 8)
        await run_all(range(4000), receive, lambda: pace.level, SpendLimit())

    simulated(main)
    assert 3600 / (ended[3799] - ended[199]) >= 0.95 * 48
