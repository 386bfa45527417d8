"""``python -m bench.proxy_overhead``: what ``blb proxy`` adds to a request, direct against through
the proxy, in turns, to one loopback server.

Server, proxy and client are three processes; both ways keep their connection. The direct request
carries the same 300 entries, so that the server receives the same bytes. By words: through the
proxy with a bias whose 300 values depend on 50 words. Streams: an event every 10 ms, stamped with
the monotonic clock when it is sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import multiprocessing
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import click
import numpy as np
import numpy.typing as npt

from bench.biases import by_words, fixed, text_of
from bench.measuring import OUT, ratio, row, write

__all__ = ["main"]

Seconds = npt.NDArray[np.float64]
BIAS = fixed(300)
EVENTS = 200
EVERY = 0.010
"""Seconds between two events of a stream."""
ANSWER = json.dumps(
    {"id": "x", "object": "chat.completion", "created": 0, "model": "m", "choices": []}
).encode()
PATIENCE = 30.0
"""Seconds without a byte after which something is broken."""
WARM_UP = 20
"""Requests that are not counted."""
GOAL = 1e-3
"""Seconds that the proxy may add at the median."""


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            await reader.readexactly(length)
            if head.startswith(b"POST /v1/chat/completions"):
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n")
                writer.write(b"Content-Length: %d\r\n\r\n%s" % (len(ANSWER), ANSWER))
            else:
                await _stream(writer)
            await writer.drain()
    writer.close()


async def _stream(writer: asyncio.StreamWriter) -> None:
    writer.write(
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    start = time.monotonic()
    for number in range(EVENTS):
        await asyncio.sleep(max(0.0, start + number * EVERY - time.monotonic()))
        event = b'data: {"number": %d, "sent": %.9f}\n\n' % (number, time.monotonic())
        writer.write(b"%x\r\n%s\r\n" % (len(event), event))
    writer.write(b"0\r\n\r\n")


def _serve(port: Connection) -> None:
    async def run() -> None:
        server = await asyncio.start_server(_answer, "127.0.0.1", 0, limit=2**20)
        port.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(run())


@contextmanager
def _servers() -> Iterator[tuple[int, int]]:
    """The server and the real command before it: their ports."""
    mine, theirs = multiprocessing.get_context("spawn").Pipe()
    server = multiprocessing.get_context("spawn").Process(
        target=_serve, args=(theirs,), daemon=True
    )
    server.start()
    origin = mine.recv()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "bias.json")
        BIAS.save(path)
        by_words(BIAS, [text_of(1000)]).save(Path(folder, "words.json"))
        command = [sys.executable, "-m", "blackbox_lb", "proxy", "--bias", str(path), "--port", "0"]
        command += ["--bias", f"words={Path(folder, 'words.json')}"]
        command += ["--upstream", f"http://127.0.0.1:{origin}/v1"]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as proxy:
            assert proxy.stdout is not None
            found = re.search(r"127\.0\.0\.1:(\d+)/v1 ->", proxy.stdout.readline())
            assert found
            try:
                yield origin, int(found[1])
            finally:
                proxy.terminate()
                server.terminate()


class _Client:
    """One kept connection; plain sockets, so that the client's own time is small."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __enter__(self) -> _Client:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def _send(self, path: str, body: bytes) -> None:
        head = (
            f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer k\r\nContent-Type:"
            " application/json\r\n"
        )
        self._socket.sendall(head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body)

    def seconds(self, body: bytes) -> float:
        """The round trip of one completion."""
        start = time.perf_counter()
        self._send("/v1/chat/completions", body)
        received = b""
        while not received.endswith(ANSWER):
            if not (some := self._socket.recv(65_536)) or not (received + some).startswith(
                b"HTTP/1.1 200"
            ):
                raise RuntimeError(f"an answer was cut off or refused: {(received + some)[:500]!r}")
            received += some
        return time.perf_counter() - start

    def events(self, body: bytes) -> tuple[Seconds, Seconds, bytes]:
        """A stream's times of arrival, delays since each event was sent, and its bytes without the
        times in them.
        """
        self._send("/v1/completions", body)
        arrivals: list[float] = []
        received = b""
        while not received.endswith(b"\r\n0\r\n\r\n"):
            received += self._socket.recv(65_536)
            now = time.monotonic()
            arrivals += [now] * (received.count(b"data: ") - len(arrivals))
        body = received.partition(b"\r\n\r\n")[2]
        sent = [float(found) for found in re.findall(rb'"sent": ([\d.]+)', body)]
        times = np.array(arrivals)
        return times, times - np.array(sent), re.sub(rb'"sent": [\d.]+', b"", body)


def _overhead(origin: int, proxy: int, size: int, requests: int) -> tuple[float, float, float]:
    """Median seconds of a round trip direct, through the proxy, and through it by words."""
    body: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": text_of(size)}]}
    plain = json.dumps(body).encode()
    named = json.dumps(body | {"model": "m@words"}).encode()
    values = {str(token): value for token, value in BIAS.logit_bias.items()}
    biased = json.dumps(body | {"logit_bias": values}).encode()
    with _Client(origin) as direct, _Client(proxy) as through:
        turns = [
            (direct.seconds(biased), through.seconds(plain), through.seconds(named))
            for _ in range(requests + WARM_UP)
        ]
    counted = np.array(turns[WARM_UP:]) * 1e3
    middle = np.median(counted, axis=0)
    last = np.quantile(counted, 0.99, axis=0)
    click.echo(
        f"{len(plain):>7,} bytes   direct {middle[0]:.3f} ms   through {middle[1]:.3f} ms   added:"
        f" median {middle[1] - middle[0]:+.3f} ms, p99 {last[1] - last[0]:+.3f} ms; by words"
        f" {middle[2] - middle[1]:+.3f} ms more"
    )
    return middle[0] / 1e3, middle[1] / 1e3, middle[2] / 1e3


def _cadence(origin: int, proxy: int, streams: int) -> bool:
    """Whether the bytes of a stream are the same direct and through the proxy."""
    bodies = set()
    for name, port in (("direct", origin), ("through", proxy)):
        gaps, delays = [], []
        for _ in range(streams):
            with _Client(port) as client:
                times, delay, body = client.events(b'{"model":"m","stream":true}')
            gaps.append(np.diff(times) * 1e3)
            delays.append(delay * 1e3)
            bodies.add(body)
        low, middle, high = np.quantile(np.concatenate(gaps), (0.01, 0.5, 0.99))
        late, latest = np.quantile(np.concatenate(delays), (0.5, 0.99))
        click.echo(
            f"{name:>8}: ms between events p1 {low:.2f}, median {middle:.2f}, p99 {high:.2f}; "
            f"delay median {late:.2f}, p99 {latest:.2f}"
        )
    click.echo(f"bytes, chunk borders included: {'equal' if len(bodies) == 1 else 'DIFFERENT'}")
    return len(bodies) == 1


@click.command()
@click.option(
    "--requests", default=1000, show_default=True, type=click.IntRange(1), help="A size and way."
)
@click.option(
    "--streams", default=4, show_default=True, type=click.IntRange(1), help="A way, of 2 s each."
)
@OUT
def main(requests: int, streams: int, out: Path | None) -> None:
    """What blb proxy adds to a request; exit code 1 where the goal is missed."""
    with _servers() as (origin, proxy):
        found = {size: _overhead(origin, proxy, size, requests) for size in (100, 100_000)}
        met = [through - direct <= GOAL for direct, through, _ in found.values()]
        met.append(_cadence(origin, proxy, streams))
    click.echo(
        f"goal, at most {GOAL * 1e3:g} ms at the median and equal bytes:"
        f" {'MET' if all(met) else 'NOT MET'}"
    )
    rows = [
        row(f"added, {size:,} bytes", through - direct, "s")
        for size, (direct, through, _) in found.items()
    ]
    rows += [
        row(f"more by words, {size:,} bytes", words - through, "s")
        for size, (_, through, words) in found.items()
    ]
    ratios = {
        f"proxy/through over direct, {size:,} bytes": ratio(through, direct)
        for size, (direct, through, _) in found.items()
    }
    write(out, rows, ratios)
    sys.exit(not all(met))


if __name__ == "__main__":
    main()
