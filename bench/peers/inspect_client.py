# /// script
# requires-python = ">=3.11"
# dependencies = ["inspect-ai==0.3.285", "openai>=2.48"]
# ///
"""inspect_ai's client (``openai-api``, its provider for servers that are compatible with OpenAI's)
with logprobs switched on.

Only ``Model.generate`` is called, not an evaluation, which would write a log as well.
"""

from __future__ import annotations

import asyncio
import itertools

from inspect_ai.model import GenerateConfig, get_model

from bench.peers.timed import Job, arguments, timed

KEEPS = "nothing: an object for every token is dropped"


async def main(job: Job) -> None:
    """Workers that share one model; ``max_connections`` is theirs, too."""
    config = GenerateConfig(
        logprobs=True,
        top_logprobs=job.top,
        max_tokens=job.tokens,
        temperature=1.0,
        max_connections=job.concurrency,
    )
    model = get_model(
        f"openai-api/bench/{job.model}",
        base_url=f"{job.base_url}/v1",
        api_key="bench",
        config=config,
    )

    async def work(numbers: itertools.count[int], until: int) -> None:
        while (number := next(numbers)) < until:
            output = await model.generate(f"Write on the number {number}.")
            logprobs = output.choices[0].logprobs
            if logprobs is None or len(logprobs.content) != job.tokens:
                raise RuntimeError(
                    f"inspect_ai returned {logprobs and len(logprobs.content)} logprobs of"
                    f" {job.tokens}"
                )

    async def collect(completions: int) -> None:
        numbers = itertools.count()
        await asyncio.gather(*(work(numbers, completions) for _ in range(job.concurrency)))

    await timed(job, collect, KEEPS)


if __name__ == "__main__":
    asyncio.run(main(arguments()))
