"""Waits for a service that a person would ask about: said to a listener, and known while they
last.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime, timedelta

NOTICEABLE = 10.0
"""Seconds of a wait that is said. A person asks why nothing moves after about as long."""
SAME_WAIT = 300.0
"""Seconds behind the end of a wait that was said, within which another one of its kind may end
without a word: many requests wait at the same time, and a limit of a minute is met every minute.
"""

log = logging.getLogger(__name__)


def _log(sentence: str) -> None:
    log.warning("%s", sentence)


LISTENER: ContextVar[Callable[[str], object]] = ContextVar("LISTENER", default=_log)
"""Called with the sentence on a long wait; ``heard_by`` sets it."""
_under_way: dict[object, tuple[datetime, str]] = {}
"""The long waits of this process: a ticket -> its end and its sentence."""


@contextmanager
def heard_by(listener: Callable[[str], object]) -> Iterator[None]:
    """Call ``listener`` with a sentence on each long wait inside the block, in place of the log."""
    token = LISTENER.set(listener)
    try:
        yield
    finally:
        LISTENER.reset(token)


def current_wait() -> str:
    """The sentence on the wait that lasts longest now; "" where there is none."""
    return max(_under_way.values(), default=(datetime.min, ""))[1]


def clock_time(moment: datetime) -> str:
    """A local time for display, with its date where that is not today's."""
    form = "%H:%M:%S"
    if moment.date() != datetime.now().date():
        form = "%Y-%m-%d %H:%M"
    return moment.strftime(form)


def time_in(seconds: float) -> datetime:
    """The local time after ``seconds``, at most the last one that can be written."""
    try:
        return datetime.now() + timedelta(seconds=seconds)
    except OverflowError:
        return datetime.max


class Waits:
    """The waits for one service."""

    def __init__(self) -> None:
        self._said_until: dict[str, datetime] = {}

    async def wait(self, seconds: float, reason: str, kind: str) -> None:
        """Sleep. A wait above ``NOTICEABLE`` is said with its reason and its end, unless another
        one of its ``kind`` was said that ends about then.
        """
        if seconds <= NOTICEABLE:
            await asyncio.sleep(seconds)
            return
        end = time_in(seconds)
        sentence = f"{reason.rstrip(' .;')}; waiting until {clock_time(end)}"
        last = self._said_until.get(kind)
        if last is None or (end - last).total_seconds() > SAME_WAIT:
            self._said_until[kind] = end
            LISTENER.get()(sentence)
        ticket = object()
        _under_way[ticket] = (end, sentence)
        try:
            await asyncio.sleep(seconds)
        finally:
            del _under_way[ticket]
