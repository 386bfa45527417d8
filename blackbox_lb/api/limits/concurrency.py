"""Requests in flight: AdaptiveConcurrency finds the number up to which a server gets faster while
it works, and interrupts end the work in an orderly way.

The first Ctrl-C or SIGTERM lets requests in flight arrive, the second ends at once. A computation
ends at the first where nothing is in flight.
"""

import asyncio
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from types import FrameType
from typing import Any, NamedTuple, TypeVar

from blackbox_lb.api.limits.budget import SpendLimit
from blackbox_lb.errors import Interrupted

MOST_IN_FLIGHT = 512
"""Most requests in flight: half of the open files that a process may have on most systems."""
LEAST_GAIN = 1.05
"""Twice the requests must bring this many times the tokens a second, or they only lengthen the
server's queue.
"""
DECISIVE_CHANGE = 1.3
"""A gain or loss that is decided at once."""
LEAST_KEPT = 0.95
"""Share of the rate with fewer requests below which more of them slow the server down."""
LEAST_MEASURED = 16
"""Least requests for measuring a rate; the lengths of completions vary by about their mean."""
REQUESTS_PER_SLOT = 2
"""Measure a rate for comparison over this many requests per request in flight."""
REQUESTS_BEFORE_PROBE = 16
"""Try more requests after this many per request in flight; twice as many after each failure."""
MOST_REFUSED = 0.05
"""Share of requests refused for load above which a server gets fewer."""
EASING_FACTOR = 0.7
LONGEST_REQUEST = 150.0
"""Longest request, in seconds, at which more are tried: twice as long in a queue is still far from
the timeout.
"""


class _End(NamedTuple):
    """A request that ended: its tokens, refusals for load so far, seconds on some clock, and
    whether it begins a stage.
    """

    tokens: int
    refusals: int
    now: float
    begins: bool


class AdaptiveConcurrency:
    """How many requests to keep in flight to one server; ``level`` is the number now.

    From ``least`` on the number doubles as long as that makes completions come faster, measured in
    tokens a second. Then it stays, and the last doubling is kept as a queue unless the server
    slowed down. Later it tries again, ever more rarely, since servers are shared and change.
    Refusals for load lower it, down to its start.

    It has no clock and no task of its own: the caller reports each request to ``ended``.
    """

    def __init__(self) -> None:
        self.level = self._least = self._most = 0
        self._left = 0
        self._begins = True
        self._takes = 0.0
        self._course = self._probe()
        next(self._course)

    def begin(self, requests: int, least: int, most: int = MOST_IN_FLIGHT) -> None:
        """Begin a stage of so many requests, ``least`` to ``most`` of them in flight; the pause
        before it does not count.
        """
        self._left = requests
        self._begins = True
        self._least = least
        self._most = max(least, most)
        self.level = min(max(self.level, self._least), self._most)

    def ended(self, tokens: int, refusals: int, now: float) -> None:
        """Take in a request that ended with ``tokens`` completion tokens; ``refusals``: for load,
        so far; ``now``: seconds.

        The last ones of a stage, without any to take their place, do not count.
        """
        self._left -= 1
        if self._left >= self.level:
            self._course.send(_End(tokens, refusals, now, self._begins))
            self._begins = False

    def _probe(self) -> Generator[None, _End, None]:
        """Measure, try more, keep the better; again and again."""
        times = REQUESTS_PER_SLOT
        while True:
            while not (best_rate := (yield from self._rate(times))):
                self.level = max(self._least, int(EASING_FACTOR * self.level))
            settled = times > REQUESTS_PER_SLOT
            times = 2 * times if settled else REQUESTS_BEFORE_PROBE
            while self.level < self._most and self._takes < LONGEST_REQUEST:
                before = self.level
                self.level = min(2 * self.level, self._most)
                rate = yield from self._rate(REQUESTS_PER_SLOT, best_rate)
                if rate > LEAST_GAIN * best_rate:
                    best_rate = rate
                    times = REQUESTS_BEFORE_PROBE
                    continue
                if settled or rate < LEAST_KEPT * best_rate:
                    self.level = before
                break

    def _rate(self, times: int, first_rate: float | None = None) -> Generator[None, _End, float]:
        """Tokens a second at this level, over ``times`` as many requests; 0.0 where the server
        refused too many for load.

        Requests in flight at a change of level, or at the start of a stage, do not count. A rate
        far from ``first_rate`` is accepted sooner.
        """
        waiting = self.level
        least = max(LEAST_MEASURED, self.level)
        count = 0
        tokens = 0
        start = 0.0
        refused = 0
        while True:
            end = yield
            if end.begins:
                waiting = self.level
                least = max(LEAST_MEASURED, self.level)
                count = 0
                tokens = 0
            if waiting:
                waiting -= 1
                start = end.now
                refused = end.refusals
                continue
            count = count + 1
            tokens = tokens + max(1, end.tokens)
            if end.refusals - refused > max(1.0, MOST_REFUSED * max(least, count)):
                return 0.0
            rate = tokens / max(end.now - start, 1e-9)
            clear = (
                first_rate is not None
                and not first_rate / DECISIVE_CHANGE <= rate <= first_rate * DECISIVE_CHANGE
            )
            if count >= times * least or (clear and count >= least):
                self._takes = self.level * (end.now - start) / count  # Little's law
                return rate


T = TypeVar("T")


async def run_all(
    items: Sequence[T],
    receive: Callable[[T], Awaitable[None]],
    concurrency: int | Callable[[], int],
    budget: SpendLimit,
) -> None:
    """Run ``receive`` over all ``items``, in order, at most ``concurrency`` at a time: a number, or
    a function that returns it.

    On the first failure, and once ``budget`` is closed, no new ones start, those not sent yet are
    cancelled, the others end, and then the failure is raised.
    """
    queue = deque(items)
    failures = list[Exception]()
    workers = 0

    def most() -> int:
        if isinstance(concurrency, int):
            return concurrency
        return concurrency()

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
        finally:
            workers -= 1

    async with asyncio.TaskGroup() as group:
        fill()
    if failures:
        raise failures[0]
    budget.check()


Answer = TypeVar("Answer")
ORDERLY = ((signal.SIGINT, signal.default_int_handler), (signal.SIGTERM, signal.SIG_DFL))
"""The signals, each with its handler's installer: a program that ignores one, as under nohup, goes
on ignoring it.
"""
NOTICE = b"\nStopping: what is in flight is received and kept; Ctrl-C again stops now.\n"


_RUNNING: ContextVar["_Stop | None"] = ContextVar("_RUNNING", default=None)


def run_interruptible(main: Coroutine[Any, Any, Answer], budget: SpendLimit) -> Answer:
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

    async def watched(self, main: Coroutine[Any, Any, Answer]) -> Answer:
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
