"""Listener: HTTP on a free port of 127.0.0.1, one thread a connection, behind every server of this
package.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal, TypeAlias


@dataclass(frozen=True, slots=True)
class Request:
    """A received request. ``path`` is with its query; the names in ``headers`` are in lower
    case.
    """

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer; ``body`` becomes JSON, unless it is bytes, which are sent unchanged."""

    status: int
    body: object
    headers: Mapping[str, str] = field(default_factory=dict)


Answering: TypeAlias = Callable[[Request], Reply | Literal["drop"]]
"""One request to its reply, or to "drop": close the connection without an answer. Called from many
threads at once.
"""


class Listener:
    """Serves from ``start`` to ``stop``; after that the port is free and idle connections are
    closed.
    """

    def __init__(self, answering: Answering) -> None:
        self._http = _Server(answering)

    def start(self) -> None:
        """Begin to answer requests."""
        threading.Thread(
            target=self._http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        ).start()

    def stop(self) -> None:
        """Stop answering."""
        self._http.shutdown()
        self._http.hang_up()
        self._http.server_close()

    @property
    def connections(self) -> int:
        """How many are open."""
        return len(self._http._open)

    @property
    def url(self) -> str:
        """``http://127.0.0.1:PORT``."""
        return f"http://127.0.0.1:{self._http.server_address[1]}"


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, answering: Answering) -> None:
        self.answering = answering
        self._open: set[socket.socket] = set()
        super().__init__(("127.0.0.1", 0), _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._open.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a client that went away: it is no error of the server."""

    def hang_up(self) -> None:
        """End idle keep-alive connections, so that their threads end."""
        for connection in list(self._open):
            _shut(connection)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Headers and body in one segment: in two, Nagle waits 40 ms for the acknowledgement of the
    # first.
    wbufsize = -1
    disable_nagle_algorithm = True
    server: _Server

    def do_GET(self) -> None:
        self._answer(b"")

    def do_POST(self) -> None:
        self._answer(self.rfile.read(int(self.headers.get("content-length") or 0)))

    def _answer(self, body: bytes) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        reply = self.server.answering(Request(self.command, self.path, headers, body))
        if isinstance(reply, Reply):
            return self._send(reply)
        self.close_connection = True
        return _shut(self.connection)

    def _send(self, reply: Reply) -> None:
        raw = isinstance(reply.body, bytes)
        payload = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
        self.send_response(reply.status)
        self.send_header(
            "Content-Type", "application/octet-stream" if raw else "application/json; charset=utf-8"
        )
        self.send_header("Content-Length", str(len(payload)))
        for name, value in reply.headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(payload)

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing."""


def _shut(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # the client was faster
