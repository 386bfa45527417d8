"""What the proxy's tests stand on: an upstream that answers exact bytes, a proxy in a thread, and a
raw client.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from blackbox_lb.bias.document import Bias
from blackbox_lb.bias.records import Entry
from blackbox_lb.bias.request_bias import RequestBias
from blackbox_lb.deploy.proxy.bodies import ServedBiases
from blackbox_lb.deploy.proxy.limits import TIMEOUT
from blackbox_lb.deploy.proxy.served import ServedBias
from blackbox_lb.deploy.proxy.server import Proxy
from blackbox_lb.deploy.proxy.upstream import Upstream
from tests.support.exact.listener import Connections, Request

VALUES = {2: -100.0, 7: 1.25, 199998: -3.0000000000000004}
SENT = {"2": -100, "7": 1.25, "199998": -3.0000000000000004}
ANSWER = b'{"id":"x","object":"chat.completion","created":0,"model":"m","choices":[]}'


def bias(model: str = "m", values: dict[int, float] | None = None) -> Bias:
    """A bias of exact values for a model."""
    entries = tuple(
        Entry(id=token, bias=value)
        for token, value in (VALUES if values is None else values).items()
    )
    return Bias(
        provider="vllm",
        model=model,
        tokenizer="t",
        reward="length",
        estimator="ips",
        entries=entries,
    )


Answering = Callable[[Request, socket.socket], None]


def plain(status: str = "200 OK", body: bytes = ANSWER, *fields: str) -> Answering:
    """Answers the same bytes every time."""
    head = "\r\n".join(
        [
            f"HTTP/1.1 {status}",
            "Content-Type: application/json",
            *fields,
            f"Content-Length: {len(body)}",
        ]
    )

    def answer(arrived: Request, connection: socket.socket) -> None:
        connection.sendall(head.encode("latin-1") + b"\r\n\r\n" + body)

    return answer


class Origin:
    """A server of exact bytes; keeps the requests that ``arrived``."""

    def __init__(self, answer: Answering) -> None:
        self.arrived: list[Request] = []
        self._answer = answer
        self._http = Connections(self._serve)
        self.address = self._http.url

    @contextmanager
    def running(self) -> Iterator[Origin]:
        """Serve inside the block."""
        with self._http:
            yield self

    @property
    def connections(self) -> int:
        """How many there were."""
        return self._http.accepted

    def _serve(self, request: Request) -> None:
        self.arrived.append(request)
        self._answer(request, request.connection)


def proxy_for(
    upstream: str,
    *served: ServedBias | Bias | tuple[str, Bias],
    others: Any = "pass",
    timeout: float = TIMEOUT,
    **options: Any,
) -> Proxy:
    """A proxy with these biases; (alias, bias) for one with an alias."""
    from blackbox_lb.deploy.injection import Injection

    rows = []
    for row in served or (bias(),):
        if isinstance(row, ServedBias):
            rows.append(row)
            continue
        alias, each = row if isinstance(row, tuple) else (None, row)
        rows.append(ServedBias(each.model, alias, each, Injection(RequestBias(each.logit_bias))))
    return Proxy(
        ServedBiases(rows, others), Upstream(upstream, timeout), **{"grace": 2.0, **options}
    )


@contextmanager
def running(proxy: Proxy) -> Iterator[int]:
    """The proxy in a thread of its own; gives its port. What the event loop complains about fails
    the test.
    """
    ready, complaints = threading.Event(), []
    state: dict[str, Any] = {}

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda loop, context: complaints.append(context))
        state["stop"], state["loop"] = asyncio.Event(), loop
        async with proxy.listening() as address:
            state["port"] = int(address.removesuffix("/v1").rpartition(":")[2])
            ready.set()
            await state["stop"].wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    assert ready.wait(60)
    yield state["port"]
    state["loop"].call_soon_threadsafe(state["stop"].set)
    thread.join(60)
    assert not thread.is_alive()
    assert not complaints


@contextmanager
def proxied(
    answer: Answering, *served: Bias | tuple[str, Bias], base: str = "/v1", **options: Any
) -> Iterator[Any]:
    """An origin with a proxy before it: (origin, port of the proxy, the proxy)."""
    with Origin(answer).running() as origin:
        proxy = proxy_for(origin.address + base, *served, **options)
        with running(proxy) as port:
            yield origin, port, proxy


def connect(port: int) -> socket.socket:
    """A connection to the proxy; nothing is waited for longer than 10 s."""
    connection = socket.create_connection(("127.0.0.1", port), timeout=60)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def request(
    target: str = "/v1/chat/completions",
    body: bytes | None = b'{"model":"m"}',
    *fields: str,
    method: str = "POST",
) -> bytes:
    """The bytes of a request, with a Content-Length where it has a body."""
    lines = [f"{method} {target} HTTP/1.1", "Host: localhost", *fields]
    if body is not None:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + (body or b"")


def exchange(port: int, sent: bytes) -> tuple[str, list[tuple[str, str]], bytes]:
    """Send the bytes and read one answer to its end: status line, header lines, the body as framed
    (chunks undone).
    """
    with connect(port) as connection:
        connection.sendall(sent)
        with connection.makefile("rb") as reader:
            return answer_of(reader, head=sent.startswith(b"HEAD"))


def answer_of(reader: Any, *, head: bool = False) -> tuple[str, list[tuple[str, str]], bytes]:
    """One answer from a connection, as ``exchange`` gives it; EOFError where it ends early."""
    status = reader.readline().decode().strip()
    fields = []
    while line := reader.readline().strip():
        name, _, value = line.decode("latin-1").partition(":")
        fields.append((name, value.strip()))
    headers = {name.lower(): value for name, value in fields}
    if head:
        return status, fields, b""
    if headers.get("transfer-encoding") == "chunked":
        return status, fields, b"".join(chunks(reader))
    body = reader.read(int(headers.get("content-length", "0")))
    if len(body) < int(headers.get("content-length", "0")):
        raise EOFError
    return status, fields, body


def chunks(reader: Any) -> Iterator[bytes]:
    """The chunks of a chunked body, one by one; EOFError where it ends without the last one."""
    while True:
        line = reader.readline()
        if not line:
            raise EOFError
        size = int(line, 16)
        piece = reader.read(size)
        if len(piece) < size or len(reader.readline()) < 2:
            raise EOFError
        if not size:
            return
        yield piece
