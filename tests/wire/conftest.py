"""A profile whose rows a test chooses, a vocabulary small enough to read, and answers in each
dialect.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from blackbox_lb.api.wire import parse_response
from blackbox_lb.providers.profile import Profile
from blackbox_lb.types import Completion, Sampling
from blackbox_lb.vocabulary import Vocabulary
from tests.support.entries import entry

ROWS: dict[str, Any] = {
    "name": "acme",
    "title": "Acme",
    "homepage": "https://acme.example",
    "connection": {"base_url": "http://127.0.0.1:1/v1", "api_key_required": False},
    "endpoints": {
        "chat": {
            "path": "/chat",
            "dialect": "content",
            "ask_logprobs": "flag",
            "sampled_in_list": "no",
        },
        "completions": {
            "path": "/completions",
            "dialect": "legacy",
            "ask_logprobs": "count",
            "sampled_in_list": "no",
            "id": "text",
        },
        "responses": {
            "path": "/responses",
            "dialect": "responses",
            "ask_logprobs": "include",
            "sampled_in_list": "no",
            "bias": False,
            "max_tokens": "max_output_tokens",
        },
    },
    "logprobs": {
        "limit": 20,
        "meaning": "before bias",
        "censored": -9999.0,
        "end_token_listed": False,
    },
    "tokens": {"id": "bytes", "bytes_exact": True},
    "tokenizer": {"source": "model name"},
    "bias": {"format": "object", "low": -100.0, "high": 100.0, "fractions": False},
    "sampling": {"n": 8},
    "neutral": {"top_p": 1},
}
"""A provider with OpenAI's manners: no ids, a number for logprobs that it does not give, no end
token in its lists.
"""

ProfileWith = Callable[..., Profile]
Read = Callable[..., list[Completion]]


def laid_over(rows: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """``rows`` with ``changes``, table by table."""
    both = {
        key: laid_over(rows[key], changes[key])
        for key in changes
        if isinstance(changes[key], dict) and key in rows
    }
    return {**rows, **changes, **both}


@pytest.fixture
def profile_with() -> ProfileWith:
    """``profile_with(logprobs={"limit": 5})`` is the profile with that row changed."""
    return lambda **changes: Profile.model_validate(laid_over(ROWS, changes))


@pytest.fixture
def vocabulary() -> Vocabulary:
    """Letters, words, the bytes of an emoji, and two special tokens of which one has bytes like any
    text.
    """
    texts = [
        b" the",
        b" a",
        b" cat",
        b"\xf0\x9f",
        b"\xa6\x9c",
        "\u00e9".encode(),
        b"\xe9",
        b"\xef\xbf\xbd",
    ]
    return Vocabulary(
        "toy",
        dict(enumerate(texts)),
        {"<|end|>": 8, "<|pad|>": 9},
        10,
        lambda text: list(text.encode()),
    )


def choice(n: int = 1, finish: object = "stop", name: str = " cat", **more: Any) -> dict[str, Any]:
    """A choice of ``n`` equal tokens, as chat gives it."""
    return {
        "message": {"role": "assistant", "content": name * n},
        "finish_reason": finish,
        "logprobs": {"content": [entry(name, -1.0)] * n},
        **more,
    }


@pytest.fixture
def read(profile_with: ProfileWith, vocabulary: Vocabulary) -> Read:
    """``read(*choices, total=3, rows={"logprobs": ...}, stop=("x",))``: the completions of an answer
    of chat that counts so many tokens, under a profile with these rows.
    """

    def completions(
        *choices: Any, total: int | None = None, rows: Any = None, **sampling: Any
    ) -> list[Completion]:
        usage = None if total is None else {"completion_tokens": total, "prompt_tokens": 11}
        answer = {"choices": list(choices), "usage": usage}
        profile = profile_with(**(rows or {}))
        return parse_response(profile, "chat", answer, Sampling(**sampling), vocabulary)

    return completions
