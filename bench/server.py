"""``python -m bench.server``: a loopback server that answers at once, with prepared completions and
token logprobs.

It stands for an API of unlimited speed, so that only the client is measured. Answers have the shape
and the size of OpenAI's, tokens of o200k_base told by their bytes; of vLLM's (``token_id:N``) they
are prepared alone. It prints its port, answers ``POST /tiny`` with one byte and
``GET /cpu`` with its own processor seconds, and streams an event every 10 ms from ``POST
/v1/completions``, each stamped with the monotonic clock.
"""

from __future__ import annotations

import asyncio
import base64
import gzip
import hashlib
import importlib.util
import itertools
import json
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal, TypeAlias

import click
import numpy as np
import numpy.typing as npt

__all__ = ["MODEL", "answers", "main", "serving", "with_ranks"]

Dialect: TypeAlias = Literal["openai", "vllm"]
MODEL = "gpt-4o-mini"
VOCABULARY = 50_000
"""Ids that answers are drawn from, by a Zipf law: completions of a real model repeat their common
tokens as much.
"""
EVENTS = 200
EVERY = 0.010
"""Seconds between two events of a stream."""
ASKED = re.compile(rb'"n":\s*(\d+)')
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
)
RANKS = "https://openaipublic.blob.core.windows.net/encodings/o200k_base.tiktoken"


def rank_file() -> bytes:
    """OpenAI's rank file of o200k_base, from the package bpe-openai (a development dependency),
    which carries it.
    """
    spec = importlib.util.find_spec("bpe_openai")
    if spec is None or not spec.submodule_search_locations:
        raise click.ClickException(
            "the token texts come from bpe-openai: install the dependency group test"
        )
    folder = Path(spec.submodule_search_locations[0], "data")
    return gzip.decompress((folder / "o200k_base.tiktoken.gz").read_bytes())


def with_ranks(folder: str) -> None:
    """Let tiktoken find o200k_base in ``folder`` without the internet."""
    name = hashlib.sha1(RANKS.encode(), usedforsecurity=False).hexdigest()
    Path(folder, name).write_bytes(rank_file())


def _texts() -> dict[int, str]:
    """Id -> text of the first tokens that are printable ASCII, as those of English are."""
    texts = {}
    for line in rank_file().splitlines()[:VOCABULARY]:
        raw, rank = line.split()
        token = base64.b64decode(raw)
        if token.isascii() and token.decode().isprintable():
            texts[int(rank)] = token.decode()
    return texts


def answers(tokens: int, top: int, count: int, dialect: Dialect = "openai") -> list[bytes]:
    """``count`` different chat completions as JSON: ``tokens`` positions, each with its ``top``
    likeliest alternatives.
    """
    texts = _texts()
    rng = np.random.default_rng(0)
    ids = np.array(list(texts))  # short texts come first there: they are the commonest, too
    return [_answer(rng, ids, texts, tokens, top, dialect) for _ in range(count)]


def _answer(
    rng: np.random.Generator,
    ids: npt.NDArray[np.int64],
    texts: dict[int, str],
    tokens: int,
    top: int,
    dialect: Dialect,
) -> bytes:
    sampled_ids = ids[(rng.zipf(1.1, (tokens, 8 * (top + 1))) - 1) % len(ids)]
    content = []
    written = []
    for nearby in sampled_ids.tolist():
        candidates = list(dict.fromkeys([*nearby, *ids[: top + 1].tolist()]))[: top + 1]
        logprobs = _logprobs(rng, top + 1)
        shares = np.exp(logprobs)
        sampled = int(rng.choice(top + 1, p=shares / shares.sum()))
        entries = [
            _entry(token, texts[token], value, dialect)
            for token, value in zip(candidates, logprobs.tolist(), strict=True)
        ]
        content.append({**entries[sampled], "top_logprobs": entries[:top]})
        if dialect == "vllm":  # of the sampled token it gives the text's own bytes
            content[-1]["bytes"] = list(texts[candidates[sampled]].encode())
        written.append(texts[candidates[sampled]])
    return _json(_completion("".join(written), content, tokens))


def _logprobs(rng: np.random.Generator, n: int) -> npt.NDArray[np.float64]:
    """Sorted from the likeliest, about .95 of the probability together, with the eight digits of a
    float32 as APIs print them.
    """
    weights = np.sort(np.arange(1.0, n + 1) ** -1.3 * rng.uniform(0.5, 1.5, n))[::-1]
    values = np.log(0.95 * weights / weights.sum()).astype(np.float32)
    return np.array([float(f"{value:.8g}") for value in values])


def _entry(token: int, text: str, logprob: float, dialect: Dialect) -> dict[str, Any]:
    name = text if dialect == "openai" else f"token_id:{token}"
    return {"token": name, "logprob": logprob, "bytes": list(name.encode())}


def _completion(text: str, content: list[dict[str, Any]], tokens: int) -> dict[str, Any]:
    message = {"role": "assistant", "content": text, "refusal": None}
    logprobs = {"content": content, "refusal": None}
    choice = {"index": 0, "message": message, "logprobs": logprobs, "finish_reason": "length"}
    return {
        "id": "chatcmpl-bench",
        "object": "chat.completion",
        "created": 1_790_000_000,
        "model": MODEL,
        "choices": [choice],
        "usage": {"prompt_tokens": 12, "completion_tokens": tokens, "total_tokens": tokens + 12},
    }


def _json(document: dict[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()


class _Server:
    """HTTP/1.1 as far as kept connections with Content-Length need it; every answer is one buffer,
    made beforehand.
    """

    def __init__(self, prepared: list[bytes]) -> None:
        self._prepared = prepared
        self._several: dict[int, Iterator[bytes]] = {}
        model = {"id": MODEL, "object": "model", "owned_by": "bench"}
        self._models = _json({"object": "list", "data": [model]})

    async def listen(self, listening: socket.socket) -> None:
        """Serve every connection until cancelled."""
        loop = asyncio.get_running_loop()
        tasks = set()
        while True:
            connection, _ = await loop.sock_accept(listening)
            connection.setblocking(False)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            task = loop.create_task(self._serve(connection))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    async def _serve(self, connection: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        received = b""
        with connection, suppress(ConnectionError):
            while True:
                while (size := _size(received)) is None or len(received) < size:
                    chunk = await loop.sock_recv(connection, 2**16)
                    if not chunk:
                        return
                    received += chunk
                request = received[:size]
                received = received[size:]
                if request.startswith(b"POST /v1/completions"):
                    await _stream(connection)
                else:
                    body = self._answer(request)
                    await loop.sock_sendall(connection, HEAD % len(body) + body)

    def _answer(self, request: bytes) -> bytes:
        if request.startswith(b"POST /tiny"):
            return b"1"
        if request.startswith(b"GET /cpu"):
            return b"%.6f" % time.process_time()
        if request.startswith(b"GET"):
            return self._models
        asked = ASKED.search(request)
        choices = int(asked[1]) if asked else 1
        if choices not in self._several:
            bodies = self._prepared if choices == 1 else _joined(self._prepared, choices)
            self._several[choices] = itertools.cycle(bodies)
        return next(self._several[choices])


async def _stream(connection: socket.socket) -> None:
    """Send ``EVENTS`` events, a chunk each, at their times."""
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(connection, STREAM_HEAD)
    start = time.monotonic()
    for number in range(EVENTS):
        await asyncio.sleep(max(0.0, start + number * EVERY - time.monotonic()))
        event = b'data: {"number": %d, "sent": %.9f}\n\n' % (number, time.monotonic())
        await loop.sock_sendall(connection, b"%x\r\n%s\r\n" % (len(event), event))
    await loop.sock_sendall(connection, b"0\r\n\r\n")


def _joined(bodies: list[bytes], choices: int) -> list[bytes]:
    """As many answers of so many choices each."""
    parts = [json.loads(body) for body in bodies]
    joined = []
    for first in range(len(parts)):
        chosen = [parts[(first + number) % len(parts)] for number in range(choices)]
        tokens = sum(part["usage"]["completion_tokens"] for part in chosen)
        answer = {
            **chosen[0],
            "choices": [
                {**part["choices"][0], "index": index} for index, part in enumerate(chosen)
            ],
            "usage": {**chosen[0]["usage"], "completion_tokens": tokens},
        }
        joined.append(_json(answer))
    return joined


def _size(received: bytes) -> int | None:
    """Bytes of the first request, once its head is there."""
    end = received.find(b"\r\n\r\n")
    if end < 0:
        return None
    _, has_length, rest = received[:end].lower().partition(b"content-length:")
    return end + 4 + (int(rest.split(b"\r\n", 1)[0]) if has_length else 0)


@contextmanager
def serving(tokens: int, top: int, count: int = 8) -> Iterator[str]:
    """Such a server in a process of its own: its address, without ``/v1``."""
    options = {"--tokens": tokens, "--top": top, "--answers": count}
    command = [sys.executable, "-m", "bench.server"]
    for name, value in options.items():
        command += [name, str(value)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            if not line:
                raise RuntimeError(
                    f"the server ended with exit code {process.wait()} before it listened"
                )
            yield f"http://127.0.0.1:{int(line)}"
        finally:
            process.terminate()


@click.command()
@click.option("--tokens", default=1024, type=click.IntRange(1), help="Of each completion.")
@click.option("--top", default=20, type=click.IntRange(0), help="Alternatives at each position.")
@click.option("--answers", "count", default=8, type=click.IntRange(1), help="In turns.")
def main(tokens: int, top: int, count: int) -> None:
    """Serve until terminated; the first line printed is the port."""
    prepared = answers(tokens, top, count)
    listening = socket.create_server(("127.0.0.1", 0), backlog=1024)
    listening.setblocking(False)
    click.echo(listening.getsockname()[1])
    sys.stdout.flush()
    with suppress(KeyboardInterrupt):
        asyncio.run(_Server(prepared).listen(listening))


if __name__ == "__main__":
    main()
