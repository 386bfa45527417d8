"""Content hashes: the names of prompts, requests, completions and distributions in a store."""

import hashlib
import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from blackbox_lb.types import Prompt


def canonical(value: Any) -> str:
    """``value`` as JSON with one spelling: sorted keys, no spaces, UTF-8."""
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )


def tagged_hash(tag: str, text: str) -> str:
    """SHA-256 in hex of ``text`` as a ``tag``, so that no two kinds of things share a hash."""
    return hashlib.sha256(f"blackbox-lb/{tag}\n{text}".encode()).hexdigest()


TOOLS = "tools"
"""The role under which the tools of a prompt are stored, as a last message."""


def stored_messages(prompt: Prompt) -> list[dict[str, str]]:
    """The messages of a prompt as they are stored, its tools as one more at the end."""
    messages = [{"role": message.role, "content": message.content} for message in prompt.messages]
    if prompt.tools:
        messages.append({"role": TOOLS, "content": prompt.tools})
    return messages


def messages_of(prompt: Prompt) -> str:
    """What is stored of a prompt as canonical JSON: [{"content", "role"}]."""
    return canonical(stored_messages(prompt))


def prompt_hash(prompt: Prompt) -> str:
    return tagged_hash("prompt", messages_of(prompt))


def request_hash(settings: Mapping[str, Any]) -> str:
    """The content hash of a request's settings, the prompt aside."""
    return tagged_hash("request", canonical(settings))


def next_token_key(settings: Mapping[str, Any], prompt: str, prefix: Sequence[int]) -> str:
    """The key of one next-token distribution: ``prompt`` is a hash, ``prefix`` the token ids of the
    completion so far.
    """
    return tagged_hash("next token", canonical([settings, prompt, list(prefix)]))


def rollout_key(request: str, prompt: str, sample: int) -> str:
    """The key of one completion: ``request`` and ``prompt`` are hashes, ``sample`` counts from
    0.
    """
    return tagged_hash("rollout", f"{request}\n{prompt}\n{sample}")


def checksum(values: Iterable[bytes | str | float | None]) -> int:
    """CRC-32 of a row's values, each with its length, so that none runs into the next: finds any
    one damaged byte.
    """
    parts: list[bytes] = []
    for value in values:
        raw = value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogatepass")
        parts += (f"{type(value).__name__} {len(raw)} ".encode(), raw)
    return zlib.crc32(b"".join(parts))
