"""HTTP on a port of 127.0.0.1, one thread a connection, behind every server of the tests. It needs
the standard library alone.
"""

from __future__ import annotations

import json
import socket
import ssl
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal, TypeAlias

__all__ = ["Connections", "Hangup", "Listener", "Reply", "Request"]


@dataclass(frozen=True)
class Request:
    """A received request. line: the request line. fields: the header lines, in order. connection:
    on which anything may be written.
    """

    line: str
    fields: Sequence[tuple[str, str]]
    body: bytes
    connection: socket.socket

    @property
    def method(self) -> str:
        return self.line.partition(" ")[0]

    @property
    def path(self) -> str:
        """With its query."""
        return self.line.split(" ")[1]

    @cached_property
    def headers(self) -> dict[str, str]:
        """By name in lower case; the last of each."""
        return {name.lower(): value for name, value in self.fields}

    @property
    def json(self) -> Any:
        """The JSON body; a repeated key fails."""

        def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
            names = {name for name, _ in pairs}
            assert len(names) == len(pairs), f"repeated key in {self.body[:200]!r}"
            return dict(pairs)

        return json.loads(self.body, object_pairs_hook=unique)


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer; ``body`` becomes JSON, unless it is bytes, which are sent unchanged."""

    status: int
    body: object = b""
    headers: Mapping[str, str] = field(default_factory=dict)


class Hangup(Exception):
    """The connection is closed now."""


Answering: TypeAlias = Callable[[Request], Reply | Literal["drop"]]
"""One request to its reply, or to "drop": close the connection without an answer. Called from many
threads at once.
"""


class Connections:
    """Hands every request on a port (0: any that is free) to ``serve`` from ``start`` to ``stop``;
    after that the port is free and all connections are closed. tls: whose certificate it shows.
    """

    def __init__(
        self, serve: Callable[[Request], None], port: int = 0, tls: ssl.SSLContext | None = None
    ) -> None:
        self._http = _Server(serve, port)
        if tls is not None:
            self._http.socket = tls.wrap_socket(self._http.socket, server_side=True)

    @property
    def port(self) -> int:
        """The one that is listened on."""
        return int(self._http.server_address[1])

    @property
    def url(self) -> str:
        """``http://127.0.0.1:PORT``."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def connections(self) -> int:
        """How many are open."""
        return len(self._http.open)

    @property
    def accepted(self) -> int:
        """How many there were."""
        return self._http.accepted

    def __enter__(self) -> str:
        self.start()
        return self.url

    def __exit__(self, *raised: object) -> None:
        self.stop()

    def start(self) -> None:
        """Serve from now on."""
        threading.Thread(
            target=self._http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        ).start()

    def stop(self) -> None:
        """Close the port, and whatever is open on it."""
        self._http.shutdown()
        self._http.server_close()
        for connection in list(self._http.open):
            _shut(connection)


class Listener(Connections):
    """Replies to every request."""

    def __init__(self, answering: Answering, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(self._reply, tls=tls)
        self._answering = answering

    def _reply(self, request: Request) -> None:
        reply = self._answering(request)
        if not isinstance(reply, Reply):
            _shut(request.connection)
            raise Hangup
        kind = "application/json; charset=utf-8"
        body = reply.body
        if isinstance(body, bytes):
            kind = "application/octet-stream"
        else:
            body = json.dumps(body).encode()
        fields = {"Content-Type": kind, "Content-Length": str(len(body)), **reply.headers}
        lines = [f"HTTP/1.1 {reply.status} -", *(f"{name}: {fields[name]}" for name in fields)]
        head = "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n"
        request.connection.sendall(head if request.method == "HEAD" else head + body)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, serve: Callable[[Request], None], port: int) -> None:
        self.serve = serve
        self.open: set[socket.socket] = set()
        self.accepted = 0
        super().__init__(("127.0.0.1", port), _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        self.open.add(request)
        self.accepted += 1
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self.open.discard(request)
        self.close_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no error of the server."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def handle_one(self) -> None:
        """Hand a request over, with its body."""
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        fields = [(name, value.strip()) for name, value in self.headers.items()]
        try:
            self.server.serve(Request(self.requestline, fields, body, self.connection))
        except (Hangup, OSError):
            self.close_connection = True

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = do_OPTIONS = do_CONNECT = handle_one  # noqa: N815

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing."""


def _shut(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # the client was faster
