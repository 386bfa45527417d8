"""``python -m bench.proxy_overhead``: what ``blb proxy`` adds to a request, direct against through
the proxy, in turns, to the instant loopback server.

Server, proxy and client are three processes; both ways keep their connection. The direct request
carries the same 300 entries, so that the server receives the same bytes. By words: through the
proxy with a bias whose 300 values depend on 50 words. Streams: an event every 10 ms, stamped with
the monotonic clock when it is sent.
"""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
import numpy.typing as npt

from bench.biases import by_words, fixed, text_of
from bench.measuring import OUT, alternately, ratio, write
from bench.server import serving

__all__ = ["main"]

Seconds = npt.NDArray[np.float64]
BIAS = fixed(300)
PATIENCE = 30.0
"""Seconds without a byte after which something is broken."""
WARM_UP = 20
"""Requests that are not counted."""


@contextmanager
def _servers() -> Iterator[tuple[int, int]]:
    """The server and the real command before it: their ports."""
    with serving(1, 1, count=1) as origin, tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "bias.json")
        words = Path(folder, "words.json")
        BIAS.save(path)
        by_words(BIAS, [text_of(1000)]).save(words)
        command = [sys.executable, "-m", "blackbox_lb", "proxy", "--bias", str(path), "--port", "0"]
        command += ["--bias", f"words={words}", "--upstream", f"{origin}/v1"]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as proxy:
            assert proxy.stdout is not None
            port = re.search(r"127\.0\.0\.1:(\d+)/v1 ->", proxy.stdout.readline())
            assert port
            try:
                yield int(origin.rpartition(":")[2]), int(port[1])
            finally:
                proxy.terminate()


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
            f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer k\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        self._socket.sendall(head.encode() + body)

    def seconds(self, body: bytes) -> float:
        """The round trip of one completion."""
        start = time.perf_counter()
        self._send("/v1/chat/completions", body)
        received = b""
        while not received.endswith(b"}}"):  # of usage, where a completion ends
            chunk = self._socket.recv(65_536)
            received += chunk
            if not chunk or not received.startswith(b"HTTP/1.1 200"):
                raise RuntimeError(f"an answer was cut off or refused: {received[:500]!r}")
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
        sent = [float(stamp) for stamp in re.findall(rb'"sent": ([\d.]+)', body)]
        times = np.array(arrivals)
        return times, times - np.array(sent), re.sub(rb'"sent": [\d.]+', b"", body)


def _overhead(origin: int, proxy: int, size: int, requests: int) -> float:
    """The ratio of a round trip through the proxy to a direct one; prints both, and what a bias by
    words adds.
    """
    body: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": text_of(size)}]}
    values = {str(token): value for token, value in BIAS.logit_bias.items()}
    plain = json.dumps(body).encode()
    named = json.dumps(body | {"model": "m@words"}).encode()
    biased = json.dumps(body | {"logit_bias": values}).encode()
    with _Client(origin) as direct, _Client(proxy) as through:
        ways = {
            "direct": partial(direct.seconds, biased),
            "through": partial(through.seconds, plain),
            "by words": partial(through.seconds, named),
        }
        taken = alternately(ways, requests, WARM_UP)
    counted = np.array(list(taken.values()))
    milliseconds = np.median(counted, axis=1) * 1e3
    last = np.quantile(counted, 0.99, axis=1) * 1e3
    click.echo(
        f"{len(plain):>7,} bytes   direct {milliseconds[0]:.3f} ms   through"
        f" {milliseconds[1]:.3f} ms   added: median {milliseconds[1] - milliseconds[0]:+.3f} ms,"
        f" p99 {last[1] - last[0]:+.3f} ms; by words {milliseconds[2] - milliseconds[1]:+.3f} ms"
        " more"
    )
    return ratio(milliseconds[1], milliseconds[0])


def _cadence(origin: int, proxy: int, streams: int) -> bool:
    """Whether the bytes of a stream are the same direct and through the proxy."""
    bodies = set()
    for name, port in (("direct", origin), ("through", proxy)):
        gaps = []
        delays = []
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
    """What blb proxy adds to a request; exit code 1 where it changes the bytes of a stream."""
    ratios = {}
    with _servers() as (origin, proxy):
        for size in (100, 100_000):
            overhead = _overhead(origin, proxy, size, requests)
            ratios[f"proxy/through over direct, {size:,} bytes"] = overhead
        is_equal = _cadence(origin, proxy, streams)
    write(out, ratios)
    sys.exit(not is_equal)


if __name__ == "__main__":
    main()
