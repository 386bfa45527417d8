"""The openai SDK as it comes: typed objects with ``asyncio.gather``, or its raw response, which
parses nothing.
"""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import openai

from bench.peers.timed import Job, arguments, body, timed

KEEPS = {
    "raw": "nothing: the bytes are dropped unread",
    "typed": "nothing: an object for every token is dropped",
}


async def main(job: Job) -> None:
    """Workers that share one client and one count."""
    async with openai.AsyncOpenAI(base_url=f"{job.base_url}/v1", api_key="bench") as client:
        create: Any = client.chat.completions.create
        if job.name == "raw":
            create = client.chat.completions.with_raw_response.create

        async def work(numbers: itertools.count[int], until: int) -> None:
            while (number := next(numbers)) < until:
                await create(**body(job, number))

        async def collect(completions: int) -> None:
            numbers = itertools.count()
            await asyncio.gather(*(work(numbers, completions) for _ in range(job.concurrency)))

        await timed(job, collect, KEEPS[job.name])


if __name__ == "__main__":
    asyncio.run(main(arguments()))
