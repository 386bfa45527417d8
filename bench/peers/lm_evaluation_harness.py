# /// script
# requires-python = ">=3.11"
# dependencies = ["lm-eval[api]==0.4.13"]
# ///
"""lm-evaluation-harness' API model (``local-chat-completions``, ``generate_until``), which asks for
logprobs and returns the text.

Its chat model returns nothing else: generation arguments such as ``logprobs`` are sent, and what
comes back of them is parsed as JSON and dropped (``parse_generations``). It has no way to keep
them.
"""

from __future__ import annotations

import asyncio
import os

from lm_eval.api.instance import Instance
from lm_eval.models.openai_completions import LocalChatCompletion

from bench.peers.timed import PATH, Job, arguments, timed

KEEPS = "the texts, in memory; it drops the logprobs"


async def main(job: Job) -> None:
    """Lists of requests, as its tasks hand them over; it runs an event loop of its own for each
    list.
    """
    model = LocalChatCompletion(
        model=job.model,
        base_url=job.base_url + PATH,
        num_concurrent=job.concurrency,
        max_gen_toks=job.tokens,
    )
    wanted = {"until": [], "logprobs": True, "top_logprobs": job.top, "temperature": 1.0}

    async def collect(completions: int) -> None:
        prompts = [
            model.apply_chat_template(
                [{"role": "user", "content": f"Write on the number {number}."}]
            )
            for number in range(completions)
        ]
        requests = [
            Instance(request_type="generate_until", doc={}, arguments=(prompt, dict(wanted)), idx=0)
            for prompt in prompts
        ]
        texts = await asyncio.to_thread(model.generate_until, requests, disable_tqdm=True)
        if len(texts) != completions or not all(texts):
            raise RuntimeError(
                f"{len(texts)} texts came where {completions} were asked for, or an empty one"
            )

    await timed(job, collect, KEEPS)


if __name__ == "__main__":
    os.environ.setdefault("OPENAI_API_KEY", "bench")
    asyncio.run(main(arguments()))
