"""Requests on a port of 127.0.0.1, each handed over with its socket, on which anything may be
written; all are ended at once.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

__all__ = ["Connections", "Exchange", "Hangup"]


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request and the socket that its answer goes to; names in ``headers`` are in lower
    case.
    """

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    connection: socket.socket


class Hangup(Exception):
    """The connection is closed now."""


class Connections:
    """Hands every request on a port of 127.0.0.1 (0: any that is free) to ``serve``, one thread a
    connection.
    """

    def __init__(self, serve: Callable[[Exchange], None], port: int = 0) -> None:
        self._http = _Server(serve, port)

    @property
    def port(self) -> int:
        """The one that is listened on."""
        return int(self._http.server_address[1])

    def start(self) -> None:
        """Serve from now on."""
        threading.Thread(
            target=self._http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        ).start()

    def stop(self) -> None:
        """Close the port, and reset whatever is open on it."""
        self._http.shutdown()
        self._http.server_close()
        self._http.hang_up()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, serve: Callable[[Exchange], None], port: int) -> None:
        self.serve = serve
        self._open: set[socket.socket] = set()
        super().__init__(("127.0.0.1", port), _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._open.discard(request)
        self.close_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no error of the server."""

    def hang_up(self) -> None:
        """End what is open."""
        for connection in list(self._open):
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue  # it has ended by itself


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def do_GET(self) -> None:
        self._hand_over(b"")

    def do_CONNECT(self) -> None:
        self._hand_over(b"")

    def do_POST(self) -> None:
        self._hand_over(self.rfile.read(int(self.headers.get("content-length") or 0)))

    def _hand_over(self, body: bytes) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        try:
            self.server.serve(Exchange(self.command, self.path, headers, body, self.connection))
        except (Hangup, OSError):
            self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing is printed."""
