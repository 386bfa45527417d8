"""The clients that ``bench.collector`` compares: each is a process of its own, which times itself
and prints one line of JSON. One short run warms up, then one lasts about as long as asked.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.measuring import peak_memory

__all__ = ["CLIENTS", "Job", "command"]

PATH = "/v1/chat/completions"
WARM_UP = 8
"""Completions before the clock runs: connections, caches and whatever a client loads when it is
first used.
"""

Collect = Callable[[int], Awaitable[None]]
"""Fetches so many completions, and does with them what the client does."""


@dataclass(frozen=True, slots=True)
class Job:
    """What a client is to do.

    Attributes:
        client: one of ``CLIENTS``.
        base_url: without /v1.
        model, tokens, top, concurrency: of the requests.
        seconds: how long, about.
        folder: where it may store.
    """

    client: str
    base_url: str
    model: str
    tokens: int
    top: int
    concurrency: int
    seconds: float
    folder: str

    def body(self, number: int) -> dict[str, Any]:
        """The request for completion ``number``; every prompt is another one."""
        return {
            "model": self.model,
            "messages": [{"role": "user", "content": f"Write on the number {number}."}],
            "max_tokens": self.tokens,
            "temperature": 1.0,
            "logprobs": True,
            "top_logprobs": self.top,
        }


def command(job: Job) -> list[str]:
    """What Python runs for a job."""
    return ["-m", "bench.collector_clients", json.dumps(asdict(job))]


def _workers(job: Job, send: Callable[[int], Awaitable[object]]) -> Collect:
    """Workers that share one count."""

    async def work(numbers: itertools.count[int], until: int) -> None:
        while (number := next(numbers)) < until:
            await send(number)

    async def collect(completions: int) -> None:
        numbers = itertools.count()
        await asyncio.gather(*(work(numbers, completions) for _ in range(job.concurrency)))

    return collect


@asynccontextmanager
async def httpx(job: Job) -> AsyncIterator[Collect]:
    """Bare httpx2, as fast as Python fetches: without a look at the answer, with ``json.loads``, or
    for one byte each.
    """
    import httpx2

    path = "/tiny" if job.client == "tiny" else PATH
    limits = httpx2.Limits(max_connections=job.concurrency)
    async with httpx2.AsyncClient(
        base_url=job.base_url, limits=limits, timeout=600, trust_env=False
    ) as client:

        async def send(number: int) -> None:
            content = (await client.post(path, json=job.body(number))).content
            if job.client == "json":
                json.loads(content)

        yield _workers(job, send)


@asynccontextmanager
async def sdk(job: Job) -> AsyncIterator[Collect]:
    """The openai SDK as it comes: typed objects, or its raw response, which parses nothing."""
    import openai

    async with openai.AsyncOpenAI(base_url=f"{job.base_url}/v1", api_key="bench") as client:
        completions: Any = client.chat.completions
        if job.client == "raw":
            completions = completions.with_raw_response
        yield _workers(job, lambda number: completions.create(**job.body(number)))


@asynccontextmanager
async def blb(job: Job) -> AsyncIterator[Collect]:
    """This package's collector: fetched, checked, parsed into arrays, and durable in a store on
    disk before a worker asks again. Every prompt is asked for once.
    """
    from bench.server import with_ranks
    from blackbox_lb import Prompt, RolloutStore, Sampling, connect

    # The collector alone is measured, without a task and its reward.
    from blackbox_lb.api.draw import Draw
    from blackbox_lb.rollouts.collect import Series, collect_all
    from blackbox_lb.vocabulary.tokenizer import Tokenizer

    path = Path(job.folder, "rollouts.db")
    path.unlink(missing_ok=True)
    os.environ.setdefault("OPENAI_API_KEY", "bench")
    os.environ["TIKTOKEN_CACHE_DIR"] = tempfile.mkdtemp(dir=job.folder)
    with_ranks(os.environ["TIKTOKEN_CACHE_DIR"])
    draw = Draw(Sampling(max_tokens=job.tokens, top_logprobs=job.top))
    numbers = itertools.count()
    async with connect(
        "openai", model=job.model, base_url=f"{job.base_url}/v1", endpoint="chat"
    ) as session:
        with RolloutStore(path) as store:

            async def fetch(completions: int) -> None:
                asked = itertools.islice(numbers, completions)
                prompts = [Prompt.user(f"Write on the number {number}.") for number in asked]
                tokenizer = Tokenizer("bench", None)
                await collect_all(
                    session,
                    store,
                    tokenizer,
                    [Series(prompts, draw, samples=1)],
                    concurrency=job.concurrency,
                )

            yield fetch


CLIENTS = {
    "bare": (httpx, "nothing: the bytes are dropped unread"),
    "json": (httpx, "nothing: the parsed JSON is dropped"),
    "raw": (sdk, "nothing: the bytes are dropped unread"),
    "typed": (sdk, "nothing: an object for every token is dropped"),
    "blb": (blb, "every token, logprob and alternative, durable in a store"),
    "tiny": (httpx, "nothing: one byte is all that comes"),
}
"""Client -> how it collects, and what it keeps."""


async def timed(job: Job) -> dict[str, Any]:
    """Completions, wall-clock and processor seconds, peak memory in bytes, and what is kept.

    The clients run again with more completions where that took less than half of the seconds that
    were asked for; the last run counts.
    """
    client, keeps = CLIENTS[job.client]
    async with client(job) as collect:

        async def spent(completions: int) -> tuple[float, float]:
            start = time.perf_counter()
            before = time.process_time()
            await collect(completions)
            return time.perf_counter() - start, time.process_time() - before

        number = WARM_UP
        seconds, _ = await spent(number)
        cpu = 0.0
        while not cpu or seconds < job.seconds / 2:
            number = max(job.concurrency, round(number / seconds * job.seconds))
            seconds, cpu = await spent(number)
    measured = {"completions": number, "seconds": seconds, "cpu": cpu}
    return {**measured, "peak": peak_memory(), "keeps": keeps}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(timed(Job(**json.loads(sys.argv[1]))))), flush=True)
