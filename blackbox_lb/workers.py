"""Many at a time, and an orderly end: what is in flight is received, what has not been sent is dropped."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeVar

from blackbox_lb.budget import Budget

__all__ = ["run_all"]

T = TypeVar("T")


async def run_all(
    items: Sequence[T],
    receive: Callable[[T], Awaitable[None]],
    concurrency: int,
    budget: Budget,
    drop_waiting: Callable[[], None] = lambda: None,
) -> None:
    """Run ``receive`` over all ``items``, in their order, at most ``concurrency`` at a time.

    On the first failure, and once ``budget`` is closed, no new ones start, ``drop_waiting`` cancels those that were not sent yet,
    the others end, and then it is raised.
    """
    queue: Iterable[T] = iter(items)
    failures: list[Exception] = []

    async def worker() -> None:
        for item in queue:
            if failures or budget.closed:
                return
            try:
                await receive(item)
            except asyncio.CancelledError:
                if not failures and not budget.closed:
                    raise
                return
            except Exception as error:  # noqa: BLE001  (raised again below, once the others have been stored)
                failures.append(error)
                budget.drop_waiting()
                drop_waiting()
                return

    await asyncio.gather(*(worker() for _ in range(min(concurrency, len(items)))))
    if failures:
        raise failures[0]
    budget.check()
