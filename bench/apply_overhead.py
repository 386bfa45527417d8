"""``python -m bench.apply_overhead``: what ``apply`` adds to a request's round trip, as the ratio
to the plain client's.

A server in a process of its own reads each request whole and answers at once, so next to nothing
but the client is measured, on a real connection. The clients take turns, in a new random order each
round, so all meet the same machine. A turn is some requests, of which the last counts: right after
another client's, a request finds the processor's caches full of that one's memory.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import click
import numpy as np
import openai
from numpy.typing import NDArray

from bench.measuring import OUT, markdown, row, write
from blackbox_lb import Bias, apply
from blackbox_lb.bias.features import FeatureVector, Words, bucket_of, grams
from blackbox_lb.bias.records import Entry
from blackbox_lb.bias.request_bias import SentRange

__all__ = ["by_words", "compare", "ratio", "words_of"]

GOAL = 1.02
"""The most that a biased round trip may take, as a ratio to a plain one."""
WARM_UP = 10
"""Rounds that are not counted."""
TURN = 5
"""Requests of a client in a row, the last of which is counted."""
ANSWER = json.dumps(
    {
        "id": "x",
        "object": "chat.completion",
        "created": 0,
        "model": "m",
        "choices": [
            {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "ok"}}
        ],
    }
).encode()


class _Server(asyncio.Protocol):
    """HTTP/1.1 as far as this client speaks it: a header with Content-Length, a body, one fixed
    answer.
    """

    reply = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (
        len(ANSWER),
        ANSWER,
    )

    def __init__(self) -> None:
        self._parts, self._missing = bytearray(), 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport

    def data_received(self, data: bytes) -> None:
        if self._missing:
            self._missing -= len(data)
        else:
            self._parts += data
            head, found, body = self._parts.partition(b"\r\n\r\n")
            if not found:
                return
            length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
            self._missing, self._parts = length - len(body), bytearray()
        if not self._missing:
            self._transport.write(self.reply)


def _serve(pipe: Connection) -> None:
    async def forever() -> None:
        server = await asyncio.get_running_loop().create_server(_Server, "127.0.0.1", 0)
        pipe.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(forever())


@contextmanager
def _server() -> Iterator[str]:
    ours, theirs = get_context("spawn").Pipe()
    process = get_context("spawn").Process(target=_serve, args=(theirs,), daemon=True)
    process.start()
    yield f"http://127.0.0.1:{ours.recv()}/v1"
    process.terminate()
    process.join()


WORDS = 50
"""Features of the prompt that a bias by words knows, in the arm ``by words``."""


def _bias(entries: int) -> Bias:
    rng = np.random.default_rng(0)
    ids = rng.choice(200_000, entries, replace=False)
    rows = tuple(Entry(id=int(token), bias=float(rng.normal())) for token in ids)
    return Bias(
        provider="local", model="m", tokenizer="t", reward="r", estimator="projection", entries=rows
    )


def words_of(size: int) -> str:
    """A text of ``size`` bytes whose words differ."""
    return " ".join(f"{word} of times" for word in range(size // 12 + 1))[:size]


def by_words(bias: Bias, text: str) -> Bias:
    """The same entries with vectors for words of ``text``, ``WORDS`` of them where it has so
    many.
    """
    rng = np.random.default_rng(3)
    buckets = list(dict.fromkeys(map(bucket_of, grams(text))))[:WORDS]
    vectors = tuple(
        FeatureVector(
            name=str(bucket),
            bucket=bucket,
            values=tuple(rng.normal(size=len(bias.entries)).round(4).tolist()),
        )
        for bucket in buckets
    )
    sent = SentRange(low=-100.0, high=100.0)
    return bias.replacing(features=(Words(vectors=vectors),), sent=sent)


def compare(url: str, entries: int, prompt: int, rounds: int) -> dict[str, NDArray[np.float64]]:
    """Seconds of each counted round trip with a prompt of ``prompt`` bytes, by arm.

    plain; applied; by words (a bias that depends on the prompt); by hand (the plain client with
    ``logit_bias=`` in every call, which is what ``apply`` spares the caller).
    """
    bias = _bias(entries)
    text = words_of(prompt)
    by_hand: Any = {str(token): value for token, value in bias.logit_bias.items()}
    with openai.OpenAI(api_key="k", base_url=url) as client:
        biased, depending = apply(client, bias), apply(client, by_words(bias, text))
        messages: Any = [{"role": "user", "content": text}]
        arms: dict[str, Callable[[], object]] = {
            "plain": lambda: client.chat.completions.create(
                model="m", messages=messages, temperature=1
            ),
            "applied": lambda: biased.chat.completions.create(
                model="m", messages=messages, temperature=1
            ),
            "by words": lambda: depending.chat.completions.create(
                model="m", messages=messages, temperature=1
            ),
            "by hand": lambda: client.chat.completions.create(
                model="m", messages=messages, temperature=1, logit_bias=by_hand
            ),
        }
        rng, taken = np.random.default_rng(1), {name: np.empty(rounds) for name in arms}
        for turn in range(-WARM_UP, rounds):
            for name in rng.permutation(list(arms)):
                for _ in range(TURN - 1):
                    arms[name]()
                start = time.perf_counter()
                arms[name]()
                if turn >= 0:
                    taken[name][turn] = time.perf_counter() - start
    return taken


def ratio(
    arm: NDArray[np.float64], plain: NDArray[np.float64], draws: int = 1000
) -> tuple[float, float, float]:
    """Ratio of medians, and the 2.5 and 97.5 % quantiles of it when rounds are drawn anew with
    replacement.
    """
    rng = np.random.default_rng(2)
    rows = rng.integers(0, len(plain), (draws, len(plain)))
    drawn = np.median(arm[rows], axis=1) / np.median(plain[rows], axis=1)
    low, high = np.quantile(drawn, [0.025, 0.975])
    return float(np.median(arm) / np.median(plain)), float(low), float(high)


@click.command()
@click.option("--entries", default=300, show_default=True, help="Entries of the bias.")
@click.option(
    "--rounds", default=500, show_default=True, help="Counted requests of each arm and size."
)
@click.option(
    "--prompt",
    "prompts",
    multiple=True,
    default=(100, 10_000, 100_000),
    show_default=True,
    help="Bytes.",
)
@OUT
def main(entries: int, rounds: int, prompts: tuple[int, ...], out: Path | None) -> None:
    """Ratios of round trips at ENTRIES entries, per size of the prompt."""
    rows, met, ratios, kept = [], True, {}, []
    with _server() as url:
        for prompt in prompts:
            taken = compare(url, entries, prompt, rounds)
            shown = {
                name: ratio(arm, taken["plain"]) for name, arm in taken.items() if name != "plain"
            }
            met &= shown["applied"][0] <= GOAL
            ratios[f"apply/round trip over plain, {prompt:,} bytes"] = round(shown["applied"][0], 4)
            kept += [
                row(f"{name}, {prompt:,} bytes", float(np.median(arm)), "s")
                for name, arm in taken.items()
            ]
            cells = [
                f"{point:.3f} ({low:.3f} to {high:.3f})" for point, low, high in shown.values()
            ]
            more = (np.median(taken["by words"]) - np.median(taken["applied"])) * 1e6
            rows.append(
                [f"{prompt:,}", f"{np.median(taken['plain']) * 1e3:.3f}", *cells, f"{more:.0f}"]
            )
    click.echo(
        f"openai {openai.__version__}, {entries} entries, {rounds:,} counted requests an arm; ratio"
        " of medians (95 %)\n"
    )
    click.echo(
        markdown(
            [
                "prompt, bytes",
                "plain, ms",
                "applied / plain",
                "by words / plain",
                "by hand / plain",
                "by words - applied, us",
            ],
            rows,
        )
    )
    click.echo(f"\napplied at most {GOAL}: {'MET' if met else 'NOT MET'}")
    write(out, kept, ratios)


if __name__ == "__main__":
    main()
