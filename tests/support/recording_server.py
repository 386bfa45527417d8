"""A loopback server that records what arrives and answers like a chat API. It needs the standard
library alone.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

__all__ = ["LoopbackServer", "Seen", "Server", "completion", "recording"]


@dataclass
class Seen:
    """One request as it arrived."""

    path: str
    headers: dict[str, str]
    raw: bytes

    @property
    def body(self) -> Any:
        """The JSON body; a repeated key fails."""

        def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
            assert len({key for key, _ in pairs}) == len(pairs), (
                f"repeated key in {self.raw[:200]!r}"
            )
            return dict(pairs)

        return json.loads(self.raw, object_pairs_hook=unique)


@dataclass
class Server:
    """A loopback server that records requests and answers like a chat API."""

    url: str
    seen: list[Seen] = field(default_factory=list)
    failures: list[int] = field(default_factory=list)
    redirects: dict[str, str] = field(default_factory=dict)
    connections: set[Any] = field(default_factory=set)

    @property
    def last(self) -> Seen:
        """The latest request."""
        return self.seen[-1]


def completion(path: str, body: Any) -> dict[str, Any]:
    common = {"id": "x", "created": 0, "model": body.get("model", ""), "usage": None}
    if path.endswith("/chat/completions"):
        message = {"role": "assistant", "content": '{"text": "ok"}'}
        return {
            **common,
            "object": "chat.completion",
            "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
        }
    choice = {"index": 0, "finish_reason": "stop", "text": "ok", "logprobs": None}
    return {**common, "object": "text_completion", "choices": [choice]}


def _events(path: str, body: Any) -> bytes:
    chat = path.endswith("/chat/completions")
    common = {"id": "x", "created": 0, "model": body["model"]}

    def chunk(text: str, finish: str | None) -> bytes:
        part = (
            {"delta": {"role": "assistant", "content": text}}
            if chat
            else {"text": text, "logprobs": None}
        )
        choice = {"index": 0, "finish_reason": finish, **part}
        kind = "chat.completion.chunk" if chat else "text_completion"
        return (
            b"data: "
            + json.dumps({**common, "object": kind, "choices": [choice]}).encode()
            + b"\n\n"
        )

    return chunk('{"text":', None) + chunk('"ok"}', "stop") + b"data: [DONE]\n\n"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = (
        True  # else each answer waits 40 ms for the acknowledgement of its headers
    )
    record: Server

    def log_message(self, format: str, *args: Any) -> None:
        """Keep the test output clean."""

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers["Content-Length"]))
        path = self.path.partition("?")[0]
        self.record.seen.append(
            Seen(path, {name.lower(): value for name, value in self.headers.items()}, raw)
        )
        self.record.connections.add(self.client_address)
        if self.record.failures:
            return self._answer(
                self.record.failures.pop(0), "application/json", b"{}", {"retry-after-ms": "1"}
            )
        if path in self.record.redirects:
            return self._answer(307, "text/plain", b"", {"location": self.record.redirects[path]})
        try:
            body = json.loads(raw)
        except ValueError:
            body = {}
        if isinstance(body, dict) and body.get("stream"):
            return self._answer(200, "text/event-stream", _events(path, body), {})
        body = body if isinstance(body, dict) else {}
        return self._answer(
            200, "application/json", json.dumps(completion(path, body)).encode(), {}
        )

    def _answer(self, status: int, kind: str, content: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {
            "content-type": kind,
            "content-length": str(len(content)),
            **headers,
        }.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)


class LoopbackServer(ThreadingHTTPServer):
    """A server that says nothing of a client that went away. The thread of such a connection may
    outlive its test, and what it prints then goes to a file that is closed.
    """

    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Report other errors alone."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


@contextmanager
def recording() -> Iterator[Server]:
    """A fresh server on a free loopback port."""

    class Handler(_Handler):
        pass

    http = LoopbackServer(("127.0.0.1", 0), Handler)
    Handler.record = Server(f"http://127.0.0.1:{http.server_address[1]}/v1")
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield Handler.record
    http.shutdown()
    thread.join()
    http.server_close()
