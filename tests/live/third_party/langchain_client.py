"""langchain-openai against ``blb proxy``: one JSON object in the environment variable REQUEST, one
on stdout.
"""

from __future__ import annotations

import json
import os
from typing import Any

from langchain_openai import ChatOpenAI, OpenAI  # type: ignore[import-not-found]  # in an environment of its own
from openai import NotFoundError

REQUEST = json.loads(os.environ["REQUEST"])
OPTIONS: dict[str, Any] = {
    "max_tokens": REQUEST["max_tokens"],
    "temperature": 0,
    "base_url": REQUEST["base_url"],
    "api_key": "none",
    "max_retries": 0,
}


def ask(model: str) -> dict[str, Any]:
    """Every way to ask this model."""
    chat = ChatOpenAI(model=model, **OPTIONS)
    message = chat.invoke(REQUEST["question"])
    return {
        "chat": message.content,
        "finish_reason": message.response_metadata["finish_reason"],
        "streamed": [chunk.content for chunk in chat.stream(REQUEST["question"]) if chunk.content],
        "completions": OpenAI(model=model, **OPTIONS).invoke(REQUEST["prompt"]),
    }


def unknown() -> dict[str, Any]:
    """What asking for a bias that is not there raises."""
    try:
        ChatOpenAI(model=f"{REQUEST['model']}@unknown", **OPTIONS).invoke("")
    except NotFoundError as error:
        return {"status": error.status_code, "message": str(error)}
    raise SystemExit("an unknown alias was answered")


answer = {suffix: ask(REQUEST["model"] + suffix) for suffix in REQUEST["suffixes"]}
print(json.dumps({**answer, "unknown": unknown()}))
