"""Bare httpx2, as fast as Python fetches: without a look at the answer, with ``json.loads``, or for
one byte each.
"""

from __future__ import annotations

import asyncio
import itertools
import json

import httpx2

from bench.peers.timed import PATH, Job, arguments, body, timed

KEEPS = {
    "bare": "nothing: the bytes are dropped unread",
    "json": "nothing: the parsed JSON is dropped",
    "tiny": "nothing: one byte is all that comes",
}


async def main(job: Job) -> None:
    """Workers that share one client and one count."""
    path = "/tiny" if job.name == "tiny" else PATH
    limits = httpx2.Limits(max_connections=job.concurrency)
    async with httpx2.AsyncClient(
        base_url=job.base_url, limits=limits, timeout=600, trust_env=False
    ) as client:

        async def work(numbers: itertools.count[int], until: int) -> None:
            while (number := next(numbers)) < until:
                content = (await client.post(path, json=body(job, number))).content
                if job.name == "json":
                    json.loads(content)

        async def collect(completions: int) -> None:
            numbers = itertools.count()
            await asyncio.gather(*(work(numbers, completions) for _ in range(job.concurrency)))

        await timed(job, collect, KEEPS[job.name])


if __name__ == "__main__":
    asyncio.run(main(arguments()))
