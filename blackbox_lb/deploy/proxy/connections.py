"""Kept connections to the upstream. One is taken again only while it is open and the upstream has
promised to keep it.

An upstream may close a kept connection at any moment, also while a request is on its way to it (RFC
9112, section 9.3.1). A request that was sent over such a connection is told from one that failed on
a new connection by its ``Attempt``.
"""

import math
import re
import select
import time
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import aiohttp
from aiohttp.connector import Connection
from aiohttp.tracing import Trace

_PROMISE = re.compile(r"(?:^|[,\s])timeout\s*=\s*\"?(\d{1,9})", re.IGNORECASE)
_MARGIN = 1.0
"""Seconds before the promised end from which a connection is not taken again: the upstream's clock
started earlier than ours."""


@dataclass(slots=True)
class _Kept:
    """A connection that is kept: the seconds that it may be idle, and since when it is."""

    idle_limit: float = math.inf
    idle_since: float = 0.0

    def released(self) -> None:
        self.idle_since = time.monotonic()


@dataclass(slots=True)
class Attempt:
    """One sending of a request.

    needs_new: a kept connection may not be taken.
    is_reused: the connection had carried a request before.
    kept: the connection, None before it was taken.
    """

    needs_new: bool = False
    is_reused: bool = False
    kept: _Kept | None = None

    def answered(self, headers: Mapping[str, str]) -> None:
        """Note how long the upstream promises to keep it, as in ``Keep-Alive: timeout=5``."""
        promise = _PROMISE.search(headers.get("Keep-Alive", ""))
        if promise is not None and self.kept is not None:
            seconds = float(promise[1])
            self.kept.idle_limit = seconds - min(_MARGIN, seconds / 2)


current_attempt: ContextVar[Attempt] = ContextVar("current_attempt")
"""The attempt that this task makes; it is set before a request is sent."""


class KeptConnections(aiohttp.TCPConnector):
    """The pool of connections. It gives out no connection that is closed or about to be."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._kept: WeakKeyDictionary[object, _Kept] = WeakKeyDictionary()

    async def connect(
        self, req: aiohttp.ClientRequest, traces: list[Trace], timeout: aiohttp.ClientTimeout
    ) -> Connection:
        """A kept connection that can carry the request, else a new one."""
        attempt = current_attempt.get()
        while True:
            connection = await super().connect(req, traces, timeout)
            state = self._kept.get(connection.protocol)
            if state is None or (not attempt.needs_new and _is_usable(connection, state)):
                break
            connection.close()
        attempt.is_reused = state is not None
        if state is None:
            state = _Kept()
            self._kept[connection.protocol] = state
        attempt.kept = state
        connection.add_callback(state.released)
        return connection


def _is_usable(connection: Connection, pooled: _Kept) -> bool:
    """Whether an idle connection is within its promised time and has nothing to read. Data before
    a request means that the connection ended, or an answer to no request.
    """
    if time.monotonic() - pooled.idle_since > pooled.idle_limit:
        return False
    transport = connection.transport
    if transport is None or transport.is_closing():
        return False
    descriptor = transport.get_extra_info("socket").fileno()
    if not hasattr(select, "poll"):  # Windows, whose select() takes any number
        return not select.select([descriptor], [], [], 0)[0]
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return not poll.poll(0)
