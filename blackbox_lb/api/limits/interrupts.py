"""An orderly end: the first Ctrl-C or SIGTERM lets requests in flight arrive, the second ends at
once. A computation ends at the first where nothing is in flight.
"""

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import FrameType
from typing import Any, TypeVar

from blackbox_lb.api.limits.budget import SpendLimit
from blackbox_lb.errors import Interrupted

T = TypeVar("T")
ORDERLY = ((signal.SIGINT, signal.default_int_handler), (signal.SIGTERM, signal.SIG_DFL))
"""The signals, each with its handler's installer: a program that ignores one, as under nohup, goes
on ignoring it.
"""
NOTICE = b"\nStopping: what is in flight is received and kept; Ctrl-C again stops now.\n"


_RUNNING: ContextVar["_Stop | None"] = ContextVar("_RUNNING", default=None)


def run_interruptible(main: Coroutine[Any, Any, T], budget: SpendLimit) -> T:
    """Like ``asyncio.run``, but the first signal closes ``budget`` and the second raises
    KeyboardInterrupt.

    Handlers of ``signal`` and not of the loop: they run while the loop computes, too, and on
    Windows.

    Raises Interrupted: after the first signal, once nothing is in flight.
    """
    stop = _Stop(budget)
    with stop.installed():
        return asyncio.run(stop.watched(main))


@contextmanager
def computing() -> Iterator[None]:
    """Inside, the first signal ends what is computed, at once where nothing is in flight.

    The loop cannot do so: it waits for the computation. A block must not await. KeyboardInterrupt,
    which no ``except Exception`` of a user's function catches, ends it.

    Raises Interrupted: a signal ended the computation.
    """
    stop = _RUNNING.get()
    if stop is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    stop.computations += 1
    try:
        yield
    except KeyboardInterrupt:
        if not stop.ended_computation:
            raise
        raise Interrupted("Interrupted") from None
    finally:
        stop.computations -= 1


class _Stop:
    """The received signals, and the loop to inform.

    computations: the number of entered ``computing`` blocks.
    ended_computation: whether a signal has ended one.
    """

    def __init__(self, budget: SpendLimit) -> None:
        self.computations = 0
        self.ended_computation = False
        self._budget = budget
        self._signals = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Any] | None = None

    @contextmanager
    def installed(self) -> Iterator[None]:
        """The handlers, inside; signals reach only the main thread."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {
            number: expected for number, expected in ORDERLY if signal.getsignal(number) is expected
        }
        for number in before:
            signal.signal(number, self._on_signal)
        token = _RUNNING.set(self)
        try:
            yield
        finally:
            _RUNNING.reset(token)
            for number, handler in before.items():
                signal.signal(number, handler)

    async def watched(self, main: Coroutine[Any, Any, T]) -> T:
        """Run ``main``; turn its cancellation by a signal into Interrupted."""
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        try:
            return await main
        except asyncio.CancelledError:
            self._budget.check()
            raise

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        self._signals += 1
        if self._signals == 1 and self.computations and not self._budget.in_flight:
            self.ended_computation = True
            self._budget.close()
            raise KeyboardInterrupt
        if self._signals > 1 or self._loop is None:
            if self._loop is not None:
                self._loop.set_exception_handler(
                    lambda loop, context: None
                )  # cut-off tasks need no report
            raise KeyboardInterrupt
        if sys.stderr.isatty():
            os.write(2, NOTICE)  # a handler may interrupt a print, which cannot be entered twice
        self._loop.call_soon_threadsafe(self._close)

    def _close(self) -> None:
        self._budget.close()
        # Received answers are stored in the same step of their task, so nothing is lost where
        # nothing is in flight.
        if not self._budget.in_flight and self._task is not None:
            self._task.cancel()


@contextmanager
def asking() -> Iterator[None]:
    """Inside, Ctrl-C is a KeyboardInterrupt at once: a question waits for an answer, and nothing is
    in flight.
    """
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
