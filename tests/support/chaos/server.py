"""ChaosServer: a server on 127.0.0.1 that passes requests on to another one and disturbs a share of
the answers.

For trying what a client does when a provider breaks its promises. A mode disturbs the connection
(``broken_connections``), what the answer says (``broken_answers``), or the server as a whole ("dies
and comes back").
"""

from __future__ import annotations

import http.client
import random
import threading
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Protocol
from urllib.parse import urlsplit

from tests.support.chaos.broken_answers import CHANGES, TOKENIZER
from tests.support.chaos.broken_connections import MANNERS, Given, honest
from tests.support.exact.listener import Connections, Hangup, Request

__all__ = ["MODES", "ChaosServer"]

DIES = "dies and comes back"
MODES: tuple[str, ...] = tuple(sorted({*CHANGES, *MANNERS, DIES}))
"""Every fault. What each does its row or the first line of its function says; "dies and comes back" closes the
port with everything that is open on it, and opens it again after ``pause`` seconds."""
GENERATING = ("/completions", "/responses")
"""How the path of a request ends that asks for completions: only these are disturbed, but for
"other tokenizer".
"""
KEPT = ("authorization", "api-key", "content-type")


class Addressed(Protocol):
    """Anything with an address, such as ExactServer or RulesGateway."""

    @property
    def base_url(self) -> str:
        """Where an OpenAI client finds it."""
        ...


class ChaosServer:
    """``with ChaosServer(inner, "half body", rate=0.1) as server: client =
    OpenAI(base_url=server.base_url, ...)``.

    inner: the server that answers, or its base URL. mode: one of ``MODES``, or several, of which
    each disturbed request meets one. rate: share of the requests for completions that are
    disturbed, from 0 to 1. seed: which ones. The same request again, as a client retries it, is
    drawn anew; how often it came and ``seed`` fix the draw, whatever the order of arrival. pause:
    seconds of a delay, of a death, between two bytes of a slow stream, and until a broken length
    ends in a closed connection.

    hits: how often each mode struck. answers: requests for completions that arrived, disturbed or
    not. failures: what went wrong in this server itself, which answers 500 then.
    """

    def __init__(
        self,
        inner: Addressed | str,
        mode: str | Sequence[str],
        *,
        rate: float = 1.0,
        seed: int = 0,
        pause: float = 0.2,
    ) -> None:
        self.modes = (mode,) if isinstance(mode, str) else tuple(mode)
        assert set(self.modes) <= set(MODES)
        self.rate, self.seed, self.pause = rate, seed, pause
        self.hits: Counter[str] = Counter()
        self.answers = 0
        self.failures: list[Exception] = []
        self._inner = urlsplit(inner if isinstance(inner, str) else inner.base_url)
        self._seen: Counter[int] = Counter()
        self._lock = threading.Lock()
        self._connections: Connections | None = None
        self._reviving: threading.Timer | None = None
        self._port = 0

    def __enter__(self) -> ChaosServer:
        self._open()
        return self

    def __exit__(self, *raised: object) -> None:
        with self._lock:
            timer, self._reviving = self._reviving, None
        if timer is not None:
            timer.cancel()
            timer.join()
        connections, self._connections = self._connections, None
        if connections is not None:
            connections.stop()

    @property
    def url(self) -> str:
        """``http://127.0.0.1:PORT``, the same before and after a death."""
        return f"http://127.0.0.1:{self._port}"

    @property
    def base_url(self) -> str:
        """``url`` with the path of the inner server's base URL."""
        return self.url + self._inner.path

    def _open(self) -> None:
        self._connections = Connections(self._serve, self._port)
        self._port = self._connections.port
        self._connections.start()

    def _serve(self, exchange: Request) -> None:
        """One request; called from many threads."""
        try:
            self._answer(exchange)
        except (Hangup, OSError):
            raise
        except Exception as error:  # noqa: BLE001  (a closed connection would look like one of the modes)
            self.failures.append(error)
            honest(exchange, Given(500, {}, f"the chaos server itself failed: {error!r}".encode()))

    def _answer(self, exchange: Request) -> None:
        mode, rng = self._struck(exchange)
        if mode == DIES:
            return self._die()
        given = self._forward(exchange)
        if mode in CHANGES:
            return honest(exchange, given.changed(CHANGES[mode], rng))
        if mode in MANNERS:
            return MANNERS[mode](exchange, given, self.pause, rng)
        return honest(exchange, given)

    def _struck(self, exchange: Request) -> tuple[str, random.Random]:
        """The mode that this request meets, "" for none, and what its details are drawn from."""
        path = exchange.path.partition("?")[0]
        generates = exchange.method == "POST" and path.endswith(GENERATING)
        known = zlib.crc32(exchange.body, zlib.crc32(path.encode()))
        with self._lock:
            self.answers += generates
            number, self._seen[known] = self._seen[known], self._seen[known] + 1
            rng = random.Random(f"{self.seed}/{known}/{number}")
            fitting = [
                mode for mode in self.modes if path.endswith("/tokenize") if mode == TOKENIZER
            ] or [mode for mode in self.modes if generates and mode != TOKENIZER]
            if not fitting or rng.random() >= self.rate:
                return "", rng
            mode = rng.choice(fitting)
            self.hits[mode] += 1
        return mode, rng

    def _forward(self, exchange: Request) -> Given:
        """What the inner server answers."""
        connection = http.client.HTTPConnection(
            self._inner.hostname or "", self._inner.port, timeout=600
        )
        headers = {name: value for name, value in exchange.headers.items() if name in KEPT}
        try:
            connection.request(exchange.method, exchange.path, exchange.body or None, headers)
            answer = connection.getresponse()
            return Given(answer.status, _passed_on(dict(answer.headers)), answer.read())
        finally:
            connection.close()

    def _die(self) -> None:
        """Nothing listens on the port from now on, for ``pause`` seconds; the request that kills
        gets no answer.
        """
        with self._lock:
            connections = self._connections
            if connections is None or self._reviving is not None:
                return
            self._reviving = threading.Timer(self.pause, self._revive)
            self._reviving.daemon = True
        connections.stop()
        self._reviving.start()

    def _revive(self) -> None:
        with self._lock:
            if self._reviving is None:
                return
            self._open()
            self._reviving = None


def _passed_on(headers: Mapping[str, str]) -> dict[str, str]:
    """Without what the framing of this server's own answer decides."""
    framing = {"content-length", "transfer-encoding", "connection", "date", "server"}
    return {name.lower(): value for name, value in headers.items() if name.lower() not in framing}
