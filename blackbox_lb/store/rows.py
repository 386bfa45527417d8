"""Rows of a store: their keys, which are hashes of contents, and the checks of stored rows.

A row is intact if its key follows from its contents, its checksum fits, and its packed arrays
unpack.
"""

import hashlib
import json
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple
from typing import Any

import numpy as np

from blackbox_lb.errors import StoreCorrupt
from blackbox_lb.store.database import KEY_COLUMNS
from blackbox_lb.store.packing import Arrays, unpack
from blackbox_lb.types import Completion, FloatArray, Message, Prompt

# --- Keys


def canonical(value: Any) -> str:
    """``value`` as JSON with one spelling: sorted keys, no spaces, UTF-8."""
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )


def tagged_hash(tag: str, text: str) -> str:
    """SHA-256 of ``tag`` and ``text`` in hex; with the tag no two kinds of rows share a hash."""
    return hashlib.sha256(f"blackbox-lb/{tag}\n{text}".encode()).hexdigest()


TOOLS = "tools"
"""The role under which the tools of a prompt are stored, as a last message."""


def stored_messages(prompt: Prompt) -> list[dict[str, str]]:
    """The messages of a prompt as they are stored, its tools as one more at the end."""
    messages = [message.fields for message in prompt.messages]
    if prompt.tools:
        messages.append({"role": TOOLS, "content": prompt.tools})
    return messages


def messages_of(prompt: Prompt) -> str:
    """What is stored of a prompt as canonical JSON: [{"content", "role"}], with the calls and
    results of tools where a message has them.
    """
    return canonical(stored_messages(prompt))


def prompt_hash(prompt: Prompt) -> str:
    """The content hash of a prompt's messages and tools."""
    return tagged_hash("prompt", messages_of(prompt))


def request_hash(settings: Mapping[str, Any]) -> str:
    """The content hash of a request's settings; the prompt is none of them."""
    return tagged_hash("request", canonical(settings))


def next_token_key(settings: Mapping[str, Any], prompt: str, prefix: Sequence[int]) -> str:
    """The key of one next-token distribution.

    prompt: its hash.
    prefix: token ids of the completion so far.
    """
    return tagged_hash("next token", canonical([settings, prompt, list(prefix)]))


def rollout_key(request: str, prompt: str, sample: int) -> str:
    """The key of one completion.

    request, prompt: their hashes.
    sample: the number of the completion among those of the prompt, from 0.
    """
    return tagged_hash("rollout", f"{request}\n{prompt}\n{sample}")


def checksum(values: Iterable[bytes | str | float | None]) -> int:
    """CRC-32 of a row's values, each with its type and length, which finds any one damaged byte."""
    parts: list[bytes] = []
    for value in values:
        raw = value
        if not isinstance(raw, bytes):
            raw = str(raw).encode("utf-8", "surrogatepass")
        parts += (f"{type(value).__name__} {len(raw)} ".encode(), raw)
    return zlib.crc32(b"".join(parts))


# --- Checks

Row = Mapping[str, Any]
"""Column -> value, with all columns of ``database.TABLES``."""
TYPES: dict[str, tuple[type, ...]] = {
    "answer": (str,),
    "bounded": (int,),
    "bytes": (bytes,),
    "checksum": (int,),
    "fingerprint": (str,),
    "finish_reason": (str,),
    "generated": (int, type(None)),
    "hash": (str,),
    "id": (int,),
    "key": (str,),
    "messages": (str,),
    "model": (str,),
    "n_tokens": (int,),
    "outside": (int,),
    "prompt_hash": (str,),
    "prompt_tokens": (int,),
    "received": (float, int),
    "request_hash": (str,),
    "sample": (int,),
    "settings": (str,),
    "text": (str,),
    "tokenizer": (str,),
    "tokens": (bytes,),
    "whole": (int,),
}
"""The types that the values of a column may have."""


def name_of(table: str, row: Row) -> str:
    """A row's name in messages: the table and the beginning of its key."""
    first, *more = list(row.values())[: KEY_COLUMNS[table]]
    return ", ".join([f"{table} {str(first)[:12]}...", *map(str, more)])


def sum_of(row: Row) -> int:
    """The checksum of a row, over its other columns, in their order."""
    values = []
    for name, value in row.items():
        if name == "checksum":
            continue
        if name == "received":
            value = float(value)
        elif isinstance(value, bool):
            value = int(value)
        values.append(value)
    return checksum(values)


def outside_of(arrays: Arrays) -> int:
    """The number of sampled tokens missing from their list of alternatives."""
    is_listed = (arrays.top_ids == arrays.token_ids[:, None]).any(axis=1)
    return int((~is_listed).sum())


def check_row(table: str, row: Row) -> None:
    """Raise StoreCorrupt where the row is damaged; the message describes the damage.

    A StoreError is raised for a row of a newer format.
    """
    try:
        _CHECKS[table](row)
    except UnicodeError as error:
        raise StoreCorrupt("it holds a text that is no UTF-8") from error


def _checked(row: Row) -> Row:
    """The row, after a check of the types of its values and of its checksum, if it has one."""
    for name, value in row.items():
        if not isinstance(value, TYPES[name]):
            raise StoreCorrupt(f"its {name} is of the kind {type(value).__name__}")
    if "checksum" in row and row["checksum"] != sum_of(row):
        raise StoreCorrupt("its checksum does not fit its contents")
    return row


def prompt_of(row: Row) -> Prompt:
    """The prompt in a row of ``prompts``.

    Raises:
        StoreCorrupt: its hash is not that of its messages, or these are none.
    """
    text = _hashed(row, "prompt", "messages")
    try:
        messages = tuple(Message(**fields) for fields in json.loads(text))
    except (ValueError, TypeError, RecursionError) as error:
        raise StoreCorrupt("its messages are no list of roles and contents") from error
    for message in messages:
        values: Iterable[object] = astuple(message)
        if not all(isinstance(value, str) for value in values):
            raise StoreCorrupt("its messages are no texts")
    if messages and messages[-1].role == TOOLS:
        return Prompt(messages[:-1], tools=messages[-1].content)
    return Prompt(messages)


def settings_of_row(row: Row) -> dict[str, Any]:
    """The settings in a row of ``requests``.

    Raises:
        StoreCorrupt: its hash is not that of its settings, or these are no object.
    """
    text = _hashed(row, "request", "settings")
    try:
        loaded = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise StoreCorrupt("its settings are no JSON") from error
    if not isinstance(loaded, dict):
        raise StoreCorrupt("its settings are no JSON object")
    return loaded


def _hashed(row: Row, tag: str, column: str) -> str:
    """The text in a column, after a check that the hash of the row is that of the text."""
    text: str = _checked(row)[column]
    try:
        fits = tagged_hash(tag, text) == row["hash"]
    except UnicodeError:
        fits = False
    if not fits:
        raise StoreCorrupt(f"its hash is not that of its {column}")
    return text


def completion_of(row: Row) -> Completion:
    """The completion in a row of ``completions``.

    Raises:
        StoreCorrupt: it is damaged.
        StoreError: it is of a newer format.
    """
    if _checked(row)["key"] != rollout_key(row["request_hash"], row["prompt_hash"], row["sample"]):
        raise StoreCorrupt("its key does not follow from its request, prompt and sample")
    arrays = unpack(row["tokens"])
    if len(arrays.token_ids) != row["n_tokens"]:
        raise StoreCorrupt(
            f"it has {len(arrays.token_ids)} tokens where {row['n_tokens']} were stored"
        )
    return Completion(
        text=row["text"],
        finish_reason=row["finish_reason"],
        prompt_tokens=row["prompt_tokens"],
        model=row["model"],
        whole=bool(row["whole"]),
        generated=row["generated"],
        fingerprint=row["fingerprint"],
        **arrays._asdict(),
    )


def distribution_of(row: Row) -> FloatArray:
    """The logprobs (v,) in a row of ``next_tokens``.

    Raises:
        StoreCorrupt: it is damaged.
    """
    arrays = unpack(_checked(row)["tokens"])
    positions, size = arrays.top_ids.shape
    if positions != 1 or not np.array_equal(arrays.top_ids[0], np.arange(size)):
        raise StoreCorrupt(
            f"it has the shape {arrays.top_ids.shape} and is not one vocabulary in order"
        )
    logprobs: FloatArray = arrays.top_logprobs[0]
    return logprobs


def answer_of(row: Row) -> str:
    """The answer in a row of ``rewards``. Raises StoreCorrupt where it is damaged."""
    return str(_checked(row)["answer"])


def token_of(row: Row) -> tuple[int, bytes]:
    """Id and bytes in a row of ``token_bytes``. Raises StoreCorrupt where it is damaged."""
    return _checked(row)["id"], row["bytes"]


_CHECKS: dict[str, Callable[[Row], object]] = {
    "prompts": prompt_of,
    "requests": settings_of_row,
    "completions": completion_of,
    "token_bytes": token_of,
    "next_tokens": distribution_of,
    "rewards": answer_of,
}
