"""What goes wrong on the connection: late, broken, mislabelled, endless and refused answers, as
bytes on a socket.
"""

from __future__ import annotations

import gzip
import json
import random
import socket
import struct
import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain, repeat
from typing import Any, TypeAlias

from tests.support.exact.listener import Hangup, Request

__all__ = ["MANNERS", "Given", "Manner", "honest"]

HUGE = 1 << 40
"""Bytes that a huge body claims to have, or goes on for; nobody waits for them."""
CHUNK = 1 << 16
ABORT = struct.pack("ii", 1, 0)
"""SO_LINGER: closing sends a reset instead of an orderly end."""
PAGE = (
    b"<!DOCTYPE html><html><head><title>%d</title></head><body><h1>%d</h1><p>cloud"
    b" edge</p></body></html>"
)
OVERLOADED = (500, 502, 503, 504, 529)
SERVER_ERROR = {"message": "The server had an error", "type": "server_error"}


@dataclass(frozen=True, slots=True)
class Given:
    """What the inner server answered."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def changed(self, change: Callable[[Any, random.Random], Any], rng: random.Random) -> Given:
        """The same with a JSON body that ``change`` was at; what is no answer but a refusal stays
        as it is.
        """
        if self.status != 200:
            return self
        found = change(json.loads(self.body), rng)
        return replace(self, body=json.dumps(found).encode())


Manner: TypeAlias = Callable[[Request, Given, float, random.Random], None]
"""Answers an exchange; the connection is kept where the function returns, and closed where it
raises ``Hangup``.
"""


def head(status: int, fields: Mapping[str, str], length: int | None) -> bytes:
    """Status line and header fields."""
    lines = [f"HTTP/1.1 {status} -", *(f"{name}: {value}" for name, value in fields.items())]
    lines += [] if length is None else [f"content-length: {length}"]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def honest(exchange: Request, given: Given) -> None:
    """The answer as it is."""
    exchange.connection.sendall(head(given.status, given.headers, len(given.body)) + given.body)


def _late(exchange: Request, given: Given, pause: float, rng: random.Random) -> None:
    """Nothing for ``pause`` seconds, then the answer."""
    time.sleep(pause)
    honest(exchange, given)


def ended(*, headers: bool = True, share: float, reset: bool) -> Manner:
    """Sends the header fields and this share of the body, and ends the connection: by a reset, or
    in an orderly way.
    """

    def answer(exchange: Request, given: Given, pause: float, rng: random.Random) -> None:
        if headers:
            begun = given.body[: int(share * len(given.body))]
            exchange.connection.sendall(head(given.status, given.headers, len(given.body)) + begun)
        if reset:
            exchange.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, ABORT)
        raise Hangup

    return answer


def _half(given: Given) -> bytes:
    return given.body[: len(given.body) // 2]


def _half_without_length(exchange: Request, given: Given, pause: float, rng: random.Random) -> None:
    """Half of the body and an orderly end, with nothing that says how long it was to be."""
    exchange.connection.sendall(
        head(given.status, {**given.headers, "connection": "close"}, None) + _half(given)
    )
    raise Hangup


def _length_too_long(exchange: Request, given: Given, pause: float, rng: random.Random) -> None:
    """A content-length of 100 bytes more than there are; after ``pause`` seconds the connection
    ends.
    """
    exchange.connection.sendall(
        head(given.status, given.headers, len(given.body) + 100) + given.body
    )
    time.sleep(pause)
    raise Hangup


def _length_too_short(exchange: Request, given: Given, pause: float, rng: random.Random) -> None:
    """A content-length of half the bytes that there are; the connection stays open, with the rest
    on it.
    """
    exchange.connection.sendall(
        head(given.status, given.headers, len(given.body) // 2) + given.body
    )


def _gzip_garbage(exchange: Request, given: Given, pause: float, rng: random.Random) -> None:
    """Said to be gzip, and random bytes."""
    _send(
        exchange, 200, {**given.headers, "content-encoding": "gzip"}, rng.randbytes(len(given.body))
    )


def _gzip_cut(exchange: Request, given: Given, pause: float, rng: random.Random) -> None:
    """The first half of a gzip stream, with the right content-length of that half."""
    packed = gzip.compress(given.body)
    _send(exchange, 200, {**given.headers, "content-encoding": "gzip"}, packed[: len(packed) // 2])


def _gzip_bomb(exchange: Request, given: Given, pause: float, rng: random.Random) -> None:
    """Half a megabyte of gzip that is 128 megabytes of blanks and then the answer."""
    blanks, packing = _blanks()
    packing = packing.copy()
    packed = blanks + packing.compress(given.body) + packing.flush()
    _send(exchange, 200, {**given.headers, "content-encoding": "gzip"}, packed)


@lru_cache
def _blanks() -> tuple[bytes, Any]:
    """A beginning of a gzip stream, and what goes on with it."""
    packing = zlib.compressobj(1, wbits=31)
    return b"".join(packing.compress(b" " * (1 << 20)) for _ in range(128)), packing


def _huge_length(exchange: Request, given: Given, pause: float, rng: random.Random) -> None:
    """A content-length of a terabyte, the answer, and blanks for as long as anybody reads."""
    exchange.connection.sendall(head(given.status, given.headers, HUGE) + given.body)
    for _ in range(HUGE // CHUNK):
        exchange.connection.sendall(b" " * CHUNK)


def _endless_body(exchange: Request, given: Given, pause: float, rng: random.Random) -> None:
    """The answer in chunks, and then chunks of blanks for as long as anybody reads."""
    exchange.connection.sendall(
        head(given.status, {**given.headers, "transfer-encoding": "chunked"}, None)
    )
    for part in chain((given.body,), repeat(b" " * CHUNK, HUGE // CHUNK)):
        exchange.connection.sendall(b"%x\r\n%s\r\n" % (len(part), part))


def _slow_loris(exchange: Request, given: Given, pause: float, rng: random.Random) -> None:
    """The body byte by byte, ``pause`` seconds apart, so that no single read is ever late."""
    exchange.connection.sendall(head(given.status, given.headers, len(given.body)))
    for byte in given.body:
        time.sleep(pause)
        exchange.connection.sendall(bytes([byte]))


def _storm(exchange: Request, given: Given, pause: float, rng: random.Random) -> None:
    """429 with a retry-after of ``pause`` seconds."""
    error = {"message": "Rate limit reached", "type": "requests", "code": "rate_limit_exceeded"}
    fields = {"content-type": "application/json", "retry-after-ms": f"{1000 * pause:.0f}"}
    _send(exchange, 429, fields, json.dumps({"error": error}).encode())


def _server_errors(exchange: Request, given: Given, pause: float, rng: random.Random) -> None:
    """500, 502, 503, 504 or 529."""
    says(rng.choice(OVERLOADED), error=SERVER_ERROR)(exchange, given, pause, rng)


def _error_page(exchange: Request, given: Given, pause: float, rng: random.Random) -> None:
    """A web page with status 502 or 503."""
    status = rng.choice((502, 503))
    says(status, page=status)(exchange, given, pause, rng)


def says(
    status: int = 200, body: bytes = b"", *, page: int | None = None, error: Any = None
) -> Manner:
    """Answers every request alike: with these bytes, a web page of this number, or an error."""
    if page is not None:
        body = PAGE % (page, page)
    if error is not None:
        body = json.dumps({"error": error}).encode()
    kind = "application/json" if page is None else "text/html"
    return lambda exchange, given, pause, rng: _send(exchange, status, {"content-type": kind}, body)


def _send(exchange: Request, status: int, fields: Mapping[str, str], body: bytes) -> None:
    exchange.connection.sendall(head(status, fields, len(body)) + body)


MANNERS: dict[str, Manner] = {
    "429 storm": _storm,
    "429 storm without headers": says(429),  # neither why nor for how long
    "5xx burst": _server_errors,
    "HTML error page": _error_page,
    "HTML with 200": says(page=200),  # as a captive portal or a login answers
    "body cut, length unknown": _half_without_length,
    "content-length too long": _length_too_long,
    "content-length too short": _length_too_short,
    "deep JSON": says(body=b"[" * 100_000 + b"]" * 100_000),  # valid JSON
    "delay": _late,
    "empty body": says(),
    "endless body": _endless_body,
    "error with 200": says(error={**SERVER_ERROR, "code": None}),
    "gzip bomb": _gzip_bomb,
    "gzip cut": _gzip_cut,
    "gzip garbage": _gzip_garbage,
    "half body": ended(share=0.5, reset=False),
    "huge body": _huge_length,
    "reset after body": ended(share=1, reset=True),  # although the connection was to be kept
    "reset before body": ended(share=0, reset=True),
    "reset before headers": ended(headers=False, share=0, reset=True),
    "reset in body": ended(share=0.5, reset=True),
    "slow loris": _slow_loris,
}
