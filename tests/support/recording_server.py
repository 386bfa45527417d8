"""A loopback server that records what arrives and answers like a chat API. It needs the standard
library alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from tests.support.exact.listener import Listener, Reply, Request

__all__ = ["Server", "completion", "recording"]


@dataclass
class Server:
    """A loopback server that records requests and answers like a chat API."""

    url: str
    seen: list[Request] = field(default_factory=list)
    failures: list[int] = field(default_factory=list)
    redirects: dict[str, str] = field(default_factory=dict)
    connections: int = 0

    @property
    def last(self) -> Request:
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


@contextmanager
def recording() -> Iterator[Server]:
    """A fresh server on a free loopback port."""

    def answer(request: Request) -> Reply:
        path = request.path.partition("?")[0]
        server.seen.append(replace(request, line=f"{request.method} {path} HTTP/1.1"))
        server.connections = listener.accepted
        if server.failures:
            return Reply(server.failures.pop(0), {}, {"Retry-After-Ms": "1"})
        if path in server.redirects:
            return Reply(307, b"", {"Location": server.redirects[path]})
        try:
            body = json.loads(request.body)
        except ValueError:
            body = {}
        body = body if isinstance(body, dict) else {}
        if body.get("stream"):
            return Reply(200, _events(path, body), {"Content-Type": "text/event-stream"})
        return Reply(200, completion(path, body))

    listener = Listener(answer)
    server = Server(f"{listener.url}/v1")
    with listener:
        yield server
