"""An exact model behind HTTP that writes down what became of each answer: on its way, sent whole,
taken whole by the client.

Linux ends a connection with a reset where its process died with bytes of it unread, and with an
orderly end where all were read. So the server knows, after a SIGKILL, which of its last answers the
dead process had taken out of the socket.
"""

from __future__ import annotations

import http.client
import json
import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

from tests.support.exact import ExactModel, ExactServer
from tests.support.exact.llamacpp_answers import COMPLETIONS, RefusedRequest

__all__ = ["Exchange", "LoggedServer"]

PATIENCE = 30.0
"""Seconds after which a connection that stays open is an error of the bench."""


@dataclass(slots=True)
class Exchange:
    """One request for a completion. ``seed``: the one it was sent with, which says which sample it
    asks for.
    """

    seed: int
    sent: bool = False
    taken: bool = False


class LoggedServer:
    """A context manager. ``strangers``: requests that came without ``key``, or without a seed.

    The answer depends on nothing but the request: whoever sends it again gets the same one.
    """

    def __init__(self, model: ExactModel, key: str) -> None:
        self._exact, self._key = ExactServer(model), key
        self._change = threading.Condition()
        self._log: list[Exchange] = []
        self._open = 0
        self.strangers = 0
        self._http = _Server(self)

    def __enter__(self) -> LoggedServer:
        threading.Thread(
            target=self._http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        ).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._http.shutdown()
        self._http.server_close()

    @property
    def base_url(self) -> str:
        """With ``/v1``."""
        return f"http://127.0.0.1:{self._http.server_address[1]}/v1"

    def wait_for(self, answers: int, seconds: float) -> bool:
        """Until so many answers were sent since the last ``settled``; False where that took
        longer.
        """
        with self._change:
            return self._change.wait_for(
                lambda: sum(each.sent for each in self._log) >= answers, seconds
            )

    def settled(self) -> list[Exchange]:
        """What was asked for since the last call, once every connection of the client has ended.
        The client must be gone.

        Connections are accepted in the order of their arrival: when this one has its answer, those
        of the client are known.
        """
        marker = http.client.HTTPConnection(
            "127.0.0.1", self._http.server_address[1], timeout=PATIENCE
        )
        marker.request("GET", "/health")
        marker.getresponse().read()
        marker.close()
        with self._change:
            if not self._change.wait_for(lambda: self._open == 0, PATIENCE):
                raise RuntimeError(
                    f"{self._open} connections are open after {PATIENCE:g} s; is the client still"
                    " alive?"
                )
            log, self._log = self._log, []
        return log

    def opened(self, by: int) -> None:
        """A connection came (1) or went (-1)."""
        with self._change:
            self._open += by
            self._change.notify_all()

    def sent(self, exchange: Exchange) -> None:
        """The kernel has the whole answer."""
        with self._change:
            exchange.sent = True
            self._change.notify_all()

    def answer(
        self, handler: BaseHTTPRequestHandler, raw: bytes
    ) -> tuple[int, Any, Exchange | None]:
        """Status, body and log entry of one request."""
        try:
            if handler.command == "GET":
                return 200, self._exact.get(handler.path), None
            body = json.loads(raw)
            exchange = self._noted(handler, body) if handler.path in COMPLETIONS else None
            return 200, self._exact.post(handler.path, body), exchange
        except RefusedRequest as error:
            return error.status, {"error": {"code": error.status, "message": str(error)}}, None

    def _noted(self, handler: BaseHTTPRequestHandler, body: dict[str, Any]) -> Exchange:
        exchange = Exchange(int(body.get("seed", -1)))
        with self._change:
            self._log.append(exchange)
            self.strangers += (
                handler.headers.get("authorization") != f"Bearer {self._key}" or exchange.seed < 0
            )
        return exchange


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, owner: LoggedServer) -> None:
        self.owner = owner
        super().__init__(("127.0.0.1", 0), _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        self.owner.opened(1)
        super().process_request(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1
    disable_nagle_algorithm = True
    server: _Server

    def setup(self) -> None:
        super().setup()
        self._last: Exchange | None = None

    def handle(self) -> None:
        try:
            super().handle()
            self._taken()
        except ConnectionError:
            pass  # reset: what was sent last lay unread in the socket of a dead process
        finally:
            self.server.owner.opened(-1)

    def _taken(self) -> None:
        """An orderly end or another request: the client has read all that was sent."""
        if self._last is not None:
            self._last.taken = self._last.sent

    def do_GET(self) -> None:
        self._answer(b"")

    def do_POST(self) -> None:
        length = int(self.headers.get("content-length") or 0)
        raw = self.rfile.read(length)
        if len(raw) < length:  # the client died while it asked
            self.close_connection = True
            return
        self._answer(raw)

    def _answer(self, raw: bytes) -> None:
        self._taken()
        status, body, self._last = self.server.owner.answer(self, raw)
        payload = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json; charset=utf-8")
        self.send_header("Content-Length", str(len(payload)))
        self.end_headers()
        self.wfile.write(payload)
        self.wfile.flush()
        if self._last is not None:
            self.server.owner.sent(self._last)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing is printed."""
