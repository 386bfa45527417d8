"""litellm against ``blb proxy``: one JSON object in the environment variable REQUEST, one on
stdout.
"""

from __future__ import annotations

import asyncio
import json
import os
from typing import Any

import litellm  # type: ignore[import-not-found]  # in an environment of its own

REQUEST = json.loads(os.environ["REQUEST"])
MESSAGES = [{"role": "user", "content": REQUEST["question"]}]
OPTIONS: dict[str, Any] = {
    "max_tokens": REQUEST["max_tokens"],
    "temperature": 0,
    "api_base": REQUEST["base_url"],
    "api_key": "none",
    "num_retries": 0,
}


async def pieces(model: str) -> list[str]:
    """The text of each streamed chunk."""
    stream = await litellm.acompletion(f"openai/{model}", MESSAGES, stream=True, **OPTIONS)
    return [
        chunk.choices[0].delta.content async for chunk in stream if chunk.choices[0].delta.content
    ]


def ask(model: str) -> dict[str, Any]:
    """Every way to ask this model."""
    choice = litellm.completion(f"openai/{model}", MESSAGES, **OPTIONS).choices[0]
    legacy = litellm.text_completion(
        model=f"text-completion-openai/{model}", prompt=REQUEST["prompt"], **OPTIONS
    )
    return {
        "chat": choice.message.content,
        "finish_reason": choice.finish_reason,
        "streamed": asyncio.run(pieces(model)),
        "completions": legacy.choices[0].text,
    }


def unknown() -> dict[str, Any]:
    """What asking for a bias that is not there raises."""
    try:
        litellm.completion(f"openai/{REQUEST['model']}@unknown", MESSAGES, **OPTIONS)
    except litellm.NotFoundError as error:
        return {"status": error.status_code, "message": str(error)}
    raise SystemExit("an unknown alias was answered")


litellm.suppress_debug_info = True
answer = {suffix: ask(REQUEST["model"] + suffix) for suffix in REQUEST["suffixes"]}
print(json.dumps({**answer, "unknown": unknown()}))
