"""Calls for people without an event loop: a coroutine function as a plain one."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, ParamSpec, TypeVar

from blackbox_lb.api.limits.budget import SpendLimit
from blackbox_lb.api.limits.interrupts import run_interruptible

P = ParamSpec("P")
T = TypeVar("T")
_BUDGET: ContextVar[SpendLimit | None] = ContextVar("_BUDGET", default=None)
"""The account of the running call, which Ctrl-C closes."""


def running_budget() -> SpendLimit:
    """The account of the running call; a new one in a coroutine that the caller awaits."""
    return _BUDGET.get() or SpendLimit()


def blocking(function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    """``function`` for callers without an event loop, and for notebooks, whose loop runs already.

    Ctrl-C lets requests in flight arrive, which are paid for, and then raises Interrupted.
    """

    @functools.wraps(function)
    def called(*arguments: P.args, **options: P.kwargs) -> T:
        budget = SpendLimit()
        with _account(budget):
            main = function(*arguments, **options)
            if not _loop_runs():
                return run_interruptible(main, budget)
            return _run_beside(main, budget)

    return called


@contextmanager
def _account(budget: SpendLimit) -> Iterator[None]:
    token = _BUDGET.set(budget)
    try:
        yield
    finally:
        _BUDGET.reset(token)


def _loop_runs() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _run_beside(main: Coroutine[Any, Any, T], budget: SpendLimit) -> T:
    """Run ``main`` in a loop of a thread of its own, since this thread's loop is busy."""
    loops: list[asyncio.AbstractEventLoop] = []

    async def watched() -> T:
        loops.append(asyncio.get_running_loop())
        _BUDGET.set(budget)
        return await main

    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(asyncio.run, watched())
        try:
            return future.result()
        except KeyboardInterrupt:
            for loop in loops:
                loop.call_soon_threadsafe(budget.close)
            return future.result()
