"""How every client is timed, in its own process: one short run to warm up, then one that lasts
about as long as asked.

It imports nothing but the standard library, since some clients live in environments of their own.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass

__all__ = ["PATH", "Job", "arguments", "body", "options", "timed"]

PATH = "/v1/chat/completions"
WARM_UP = 8
"""Completions before the clock runs: connections, caches and whatever a client loads when it is
first used.
"""


@dataclass(frozen=True, slots=True)
class Job:
    """What a client is to do: ask ``base_url`` (without /v1) for completions, ``concurrency`` at a
    time, for some seconds. ``folder``: where it may store. ``dialect``: whose answers these are."""

    name: str
    base_url: str
    model: str
    tokens: int
    top: int
    concurrency: int
    seconds: float
    folder: str
    dialect: str


Collect = Callable[[int], Awaitable[None]]
"""Fetches so many completions, and does with them what the client does."""


def arguments() -> Job:
    """The job, from the command line."""
    parser = argparse.ArgumentParser()
    for name, kind in Job.__annotations__.items():
        parser.add_argument(
            f"--{name.replace('_', '-')}",
            required=True,
            type={"int": int, "float": float}.get(kind, str),
        )
    return Job(**vars(parser.parse_args()))


def options(job: Job) -> list[str]:
    """What ``arguments`` reads the job from."""
    return [
        word
        for name, value in asdict(job).items()
        for word in (f"--{name.replace('_', '-')}", str(value))
    ]


def body(job: Job, number: int) -> dict[str, object]:
    """The request for completion ``number``; every prompt is another one."""
    return {
        "model": job.model,
        "messages": [{"role": "user", "content": f"Write on the number {number}."}],
        "max_tokens": job.tokens,
        "temperature": 1.0,
        "logprobs": True,
        "top_logprobs": job.top,
    }


async def _spent(collect: Collect, completions: int) -> tuple[float, float]:
    """Wall-clock and processor seconds."""
    start, before = time.perf_counter(), time.process_time()
    await collect(completions)
    return time.perf_counter() - start, time.process_time() - before


async def timed(job: Job, collect: Collect, keeps: str) -> None:
    """Time ``collect`` and print: completions, wall-clock and processor seconds, peak memory in
    bytes, what ``keeps`` says.

    It is run again with more completions where it took less than half of the seconds that were
    asked for; the last run counts.
    """
    number, seconds, cpu = WARM_UP, (await _spent(collect, WARM_UP))[0], 0.0
    while not cpu or seconds < job.seconds / 2:
        number = max(job.concurrency, round(number / seconds * job.seconds))
        seconds, cpu = await _spent(collect, number)
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (
        1 if sys.platform == "darwin" else 1024
    )
    found = {"completions": number, "seconds": seconds, "cpu": cpu, "peak": most, "keeps": keeps}
    print(json.dumps({**asdict(job), **found}), flush=True)
