"""This package's collector: fetched, checked, parsed into arrays, and durable in a store on disk
before a worker asks again.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import tempfile
from pathlib import Path

from bench.collector_server import rank_file
from bench.peers.timed import Job, arguments, timed
from blackbox_lb import Prompt, RolloutStore, Sampling, connect
from blackbox_lb.api.draw import Draw
from blackbox_lb.rollouts.collect import collect

KEEPS = "every token, logprob and alternative, durable in a store"
RANKS = "https://openaipublic.blob.core.windows.net/encodings/o200k_base.tiktoken"


async def main(job: Job) -> None:
    """One session and one store; every prompt is asked for once."""
    store = Path(job.folder, "rollouts.db")
    store.unlink(missing_ok=True)
    provider, sampling = job.dialect, Sampling(max_tokens=job.tokens, top_logprobs=job.top)
    asked = 0
    async with connect(
        provider, model=job.model, base_url=f"{job.base_url}/v1", endpoint="chat"
    ) as session:
        from blackbox_lb.vocabulary.tokenizer import Tokenizer

        tokenizer = Tokenizer("bench", None)
        with RolloutStore(store) as kept:

            async def fetch(completions: int) -> None:
                nonlocal asked
                prompts = [
                    Prompt.user(f"Write on the number {asked + each}.")
                    for each in range(completions)
                ]
                asked += completions
                await collect(
                    session,
                    kept,
                    tokenizer,
                    prompts,
                    Draw(sampling),
                    samples=1,
                    concurrency=job.concurrency,
                )

            await timed(job, fetch, KEEPS)


def with_ranks() -> None:
    """Let tiktoken find o200k_base without the internet."""
    folder = os.environ["TIKTOKEN_CACHE_DIR"] = tempfile.mkdtemp()
    Path(folder, hashlib.sha1(RANKS.encode(), usedforsecurity=False).hexdigest()).write_bytes(
        rank_file()
    )


if __name__ == "__main__":
    os.environ.setdefault("OPENAI_API_KEY", "bench")
    with_ranks()
    asyncio.run(main(arguments()))
