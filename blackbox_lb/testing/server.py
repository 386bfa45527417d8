"""ExactServer: an ExactModel behind HTTP on 127.0.0.1, speaking the llama.cpp server's dialect, with faults on request."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Literal, TypeAlias

from blackbox_lb.testing.dialect import COMPLETIONS, JSON, Dialect, Refused
from blackbox_lb.testing.model import ExactModel

__all__ = ["Answer", "ExactServer", "Fault"]

Answer: TypeAlias = JSON | int | Literal["drop"]
"""A response body, an HTTP status with an error body, or "drop": close the connection without an answer."""
Fault: TypeAlias = Callable[[int, JSON], Answer]
"""(number of this completion request, from 0; the honest response) -> what to answer instead."""


class ExactServer:
    """A context manager: ``with ExactServer(model) as server: client = OpenAI(base_url=server.base_url, ...)``.

    requests: the JSON body of every POST so far, in order of arrival; calls: the same as (path, body). delay: seconds
    before each completion. prompt_of maps the text of a request to a prompt number of the model; the default hashes it.
    Every token has a text of its own in ``texts`` (" a", " b", ...); the end token has text "" and no bytes.
    """

    def __init__(
        self,
        model: ExactModel,
        *,
        name: str = "exact",
        faults: Fault | None = None,
        delay: float = 0.0,
        prompt_of: Callable[[str], int] | None = None,
        seed: int = 0,
    ) -> None:
        self.model, self.name, self.faults, self.delay = model, name, faults, delay
        self.requests: list[JSON] = []
        self.calls: list[tuple[str, JSON]] = []
        self._dialect = Dialect(model, name, prompt_of, seed)
        self._completions, self._lock = 0, threading.Lock()
        self._http: _Listener | None = None

    def __enter__(self) -> ExactServer:
        self._http = _Listener(self)
        threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._http is not None:
            self._http.shutdown()
            self._http.hang_up()
            self._http.server_close()
            self._http = None

    @property
    def url(self) -> str:
        """``http://127.0.0.1:PORT``; the port is free again after the ``with`` block."""
        if self._http is None:
            raise RuntimeError("the server is not running; use it in a with block")
        return f"http://127.0.0.1:{self._http.server_address[1]}"

    @property
    def base_url(self) -> str:
        """``url`` with /v1, as an OpenAI client wants it."""
        return f"{self.url}/v1"

    @property
    def texts(self) -> list[str]:
        """(v) the text of each token."""
        return self._dialect.texts

    def tokenize(self, text: str) -> list[int]:
        """What POST /tokenize answers."""
        return self._dialect.tokenize(text)

    def get(self, path: str) -> Answer:
        """The answer to GET ``path``."""
        return self._dialect.get(path)

    def post(self, path: str, body: JSON) -> Answer:
        """The answer to POST ``path``, faults included; the request is recorded before it is looked at."""
        generates = path in COMPLETIONS
        with self._lock:
            self.requests.append(body)
            self.calls.append((path, body))
            number, self._completions = self._completions, self._completions + generates
        if generates:
            time.sleep(self.delay)
        answer = self._dialect.post(path, body, number)
        return self.faults(number, answer) if generates and self.faults is not None else answer


class _Listener(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, served: ExactServer) -> None:
        self.served = served
        self._open: set[socket.socket] = set()
        super().__init__(("127.0.0.1", 0), _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._open.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no error of the server."""

    def hang_up(self) -> None:
        """End idle keep-alive connections, so that their threads end."""
        for connection in list(self._open):
            _shut(connection)


def _shut(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # the client was faster


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Headers and body in one segment: in two, Nagle waits 40 ms for the acknowledgement of the first.
    wbufsize = -1
    disable_nagle_algorithm = True
    server: _Listener

    def do_GET(self) -> None:
        self._answer(lambda: self.server.served.get(self.path))

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers.get("content-length") or 0))
        self._answer(lambda: self.server.served.post(self.path, _parsed(raw)))

    def _answer(self, make: Callable[[], Answer]) -> None:
        try:
            answer = make()
        except Refused as error:
            return self._send(error.status, _error(error.status, str(error)))
        except (TypeError, ValueError) as error:
            return self._send(400, _error(400, f"bad value in the request: {error}"))
        if answer == "drop":
            self.close_connection = True
            return _shut(self.connection)
        if isinstance(answer, int):
            return self._send(answer, _error(answer, "planted fault"))
        return self._send(200, answer)

    def _send(self, status: int, body: object) -> None:
        payload = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json; charset=utf-8")
        self.send_header("Content-Length", str(len(payload)))
        self.end_headers()
        self.wfile.write(payload)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing is printed."""


def _parsed(raw: bytes) -> JSON:
    body = json.loads(raw)
    if not isinstance(body, dict):
        raise Refused(400, "the request body must be a JSON object")
    return body


def _error(status: int, message: str) -> JSON:
    kind = {400: "invalid_request_error", 404: "not_found_error", 429: "rate_limit_exceeded"}.get(
        status, "server_error"
    )
    return {"error": {"code": status, "message": message, "type": kind}}
