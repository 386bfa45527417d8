"""Bounded groups of workers, with an orderly end: requests in flight are received, waiting ones are
dropped.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from blackbox_lb.api.limits.budget import SpendLimit

T = TypeVar("T")


async def run_all(
    items: Sequence[T],
    receive: Callable[[T], Awaitable[None]],
    concurrency: int | Callable[[], int],
    budget: SpendLimit,
    drop_waiting: Callable[[], None] = lambda: None,
) -> None:
    """Run ``receive`` over all ``items``, in order, at most ``concurrency`` at a time: a number, or
    a function that returns it.

    On the first failure, and once ``budget`` is closed, no new ones start, ``drop_waiting`` cancels
    those not sent yet, the others end, and then the failure is raised.
    """
    queue = deque(items)
    failures = list[Exception]()
    workers = 0

    def most() -> int:
        return concurrency if isinstance(concurrency, int) else concurrency()

    def fill() -> None:
        nonlocal workers
        for _ in range(min(most() - workers, len(queue))):
            workers += 1
            group.create_task(worker())

    async def worker() -> None:
        nonlocal workers
        try:
            while queue and workers <= most() and not failures and not budget.closed:
                await receive(queue.popleft())
                fill()
        except asyncio.CancelledError:
            if not failures and not budget.closed:
                raise
        except Exception as error:  # noqa: BLE001  (raised below, once the others are stored)
            failures.append(error)
            budget.drop_waiting()
            drop_waiting()
        finally:
            workers -= 1

    async with asyncio.TaskGroup() as group:
        fill()
    if failures:
        raise failures[0]
    budget.check()
