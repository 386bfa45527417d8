"""``python -m bench.collector_server``: a loopback server that answers at once, with prepared
completions and token logprobs.

It stands for an API of unlimited speed, so that only the client is measured. Answers have the shape
and the size of OpenAI's (``--dialect openai``: tokens of o200k_base told by their bytes) or of
vLLM's (``vllm``: ``token_id:N``). It prints its port, answers ``POST /tiny`` with one byte, and
tells its own processor time at ``GET /cpu``, so that its share can be told.
"""

from __future__ import annotations

import asyncio
import base64
import gzip
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

__all__ = ["DIALECTS", "MODEL", "answers", "main", "rank_file", "serving"]

Dialect: TypeAlias = Literal["openai", "vllm"]
DIALECTS: tuple[Dialect, ...] = ("openai", "vllm")
MODEL = "gpt-4o-mini"
VOCABULARY = 50_000
"""Ids that answers are drawn from, by a Zipf law: completions of a real model repeat their common
tokens as much.
"""
ASKED = re.compile(rb'"n":\s*(\d+)')
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"


def rank_file(encoding: str = "o200k_base") -> bytes:
    """OpenAI's rank file of an encoding, from the package bpe-openai (a development dependency),
    which carries it.
    """
    spec = importlib.util.find_spec("bpe_openai")
    if spec is None or not spec.submodule_search_locations:
        raise click.ClickException(
            "the token texts come from bpe-openai: install the dependency group test"
        )
    return gzip.decompress(
        Path(spec.submodule_search_locations[0], "data", f"{encoding}.tiktoken.gz").read_bytes()
    )


def _texts() -> dict[int, str]:
    """Id -> text of the first tokens that are printable ASCII, as those of English are."""
    lines = (line.split() for line in rank_file().splitlines()[:VOCABULARY])
    decoded = {int(rank): base64.b64decode(raw) for raw, rank in lines}
    return {
        rank: raw.decode()
        for rank, raw in decoded.items()
        if raw.isascii() and raw.decode().isprintable()
    }


def answers(
    tokens: int, top: int, count: int, dialect: Dialect = "openai", seed: int = 0
) -> list[bytes]:
    """``count`` different chat completions as JSON: ``tokens`` positions, each with its ``top``
    likeliest alternatives.
    """
    texts, rng = _texts(), np.random.default_rng(seed)
    ids = np.array(list(texts))  # short texts come first there: they are the commonest, too
    return [_answer(rng, ids, texts, tokens, top, dialect) for _ in range(count)]


def _answer(
    rng: np.random.Generator,
    ids: Any,
    texts: dict[int, str],
    tokens: int,
    top: int,
    dialect: Dialect,
) -> bytes:
    drawn = ids[(rng.zipf(1.1, (tokens, 8 * (top + 1))) - 1) % len(ids)]
    content, said = [], []
    for some in drawn.tolist():
        candidates = list(dict.fromkeys([*some, *ids[: top + 1].tolist()]))[: top + 1]
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
        said.append(texts[candidates[sampled]])
    return json.dumps(
        _completion("".join(said), content, tokens), separators=(",", ":"), ensure_ascii=False
    ).encode()


def _logprobs(rng: np.random.Generator, n: int) -> Any:
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
    return {
        "id": "chatcmpl-bench",
        "object": "chat.completion",
        "created": 1_790_000_000,
        "model": MODEL,
        "choices": [
            {"index": 0, "message": message, "logprobs": logprobs, "finish_reason": "length"}
        ],
        "usage": {"prompt_tokens": 12, "completion_tokens": tokens, "total_tokens": tokens + 12},
    }


class _Server:
    """HTTP/1.1 as far as kept connections with Content-Length need it; every answer is one buffer,
    made beforehand.
    """

    def __init__(self, prepared: list[bytes]) -> None:
        self._prepared = prepared
        self._several: dict[int, Iterator[bytes]] = {}
        models = json.dumps(
            {"object": "list", "data": [{"id": MODEL, "object": "model", "owned_by": "bench"}]}
        ).encode()
        self._models = HEAD % len(models) + models

    async def listen(self, listening: socket.socket) -> None:
        """Serve every connection until cancelled."""
        loop, tasks = asyncio.get_running_loop(), set()
        while True:
            connection, _ = await loop.sock_accept(listening)
            connection.setblocking(False)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            task = loop.create_task(self._serve(connection))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    async def _serve(self, connection: socket.socket) -> None:
        loop, received = asyncio.get_running_loop(), b""
        with connection, suppress(ConnectionError):
            while True:
                while (end := received.find(b"\r\n\r\n")) < 0 or len(received) < end + 4 + _length(
                    received[:end]
                ):
                    some = await loop.sock_recv(connection, 2**16)
                    if not some:
                        return
                    received += some
                line, asked = received[: received.find(b"\r\n")], ASKED.search(received, end)
                received = received[end + 4 + _length(received[:end]) :]
                answer = self._answered(line, int(asked[1]) if asked else 1)
                await loop.sock_sendall(connection, answer)

    def _answered(self, line: bytes, n: int) -> bytes:
        if line.startswith(b"POST /tiny"):
            return HEAD % 1 + b"1"
        if line.startswith(b"GET /cpu"):
            spent = b"%.6f" % time.process_time()
            return HEAD % len(spent) + spent
        if line.startswith(b"GET"):
            return self._models
        if n not in self._several:
            bodies = self._prepared if n == 1 else _joined(self._prepared, n)
            self._several[n] = itertools.cycle([HEAD % len(body) + body for body in bodies])
        return next(self._several[n])


def _joined(bodies: list[bytes], n: int) -> list[bytes]:
    """As many answers of ``n`` choices each."""
    parts, found = [json.loads(body) for body in bodies], []
    for first in range(len(parts)):
        some = [parts[(first + each) % len(parts)] for each in range(n)]
        choices = [{**part["choices"][0], "index": index} for index, part in enumerate(some)]
        usage = {
            **some[0]["usage"],
            "completion_tokens": sum(part["usage"]["completion_tokens"] for part in some),
        }
        answer = {**some[0], "choices": choices, "usage": usage}
        found.append(json.dumps(answer, separators=(",", ":"), ensure_ascii=False).encode())
    return found


def _length(head: bytes) -> int:
    _, found, rest = head.lower().partition(b"content-length:")
    return int(rest.split(b"\r\n", 1)[0]) if found else 0


@contextmanager
def serving(tokens: int, top: int, dialect: Dialect = "openai", count: int = 8) -> Iterator[str]:
    """Such a server in a process of its own: its address, without ``/v1``."""
    options = {"--tokens": tokens, "--top": top, "--dialect": dialect, "--answers": count}
    command = [sys.executable, "-m", "bench.collector_server"]
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
            yield f"http://127.0.0.1:{int(line.split()[0])}"
        finally:
            process.terminate()


@click.command()
@click.option(
    "--tokens", default=1024, show_default=True, type=click.IntRange(1), help="Of each completion."
)
@click.option(
    "--top",
    default=20,
    show_default=True,
    type=click.IntRange(0),
    help="Alternatives at each position.",
)
@click.option("--dialect", default=DIALECTS[0], show_default=True, type=click.Choice(DIALECTS))
@click.option(
    "--answers",
    "count",
    default=8,
    show_default=True,
    type=click.IntRange(1),
    help="Different ones, in turns.",
)
@click.option(
    "--port", default=0, type=click.IntRange(0, 65_535), help="[default: one that is free]"
)
def main(tokens: int, top: int, dialect: Dialect, count: int, port: int) -> None:
    """Serve until terminated; the first line printed is the port and the size of an answer in
    bytes.
    """
    prepared = answers(tokens, top, count, dialect)
    listening = socket.create_server(("127.0.0.1", port), backlog=1024)
    listening.setblocking(False)
    click.echo(f"{listening.getsockname()[1]} {sum(map(len, prepared)) // count}")
    sys.stdout.flush()
    with suppress(KeyboardInterrupt):
        asyncio.run(_Server(prepared).listen(listening))


if __name__ == "__main__":
    main()
