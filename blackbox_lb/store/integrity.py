"""Checks of stored rows: keys follow from contents, checksums fit, packed arrays unpack."""

import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from blackbox_lb.errors import StoreCorrupt
from blackbox_lb.store.keys import TOOLS, checksum, rollout_key, tagged_hash
from blackbox_lb.store.packing import Arrays, unpack
from blackbox_lb.store.schema import KEY_COLUMNS
from blackbox_lb.types import Completion, FloatArray, Message, Prompt

Row = Mapping[str, Any]
"""Column -> value, with all columns of ``database.TABLES``."""
TYPES: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(
        (
            "hash",
            "messages",
            "settings",
            "key",
            "request_hash",
            "prompt_hash",
            "text",
            "finish_reason",
        ),
        (str,),
    ),
    **dict.fromkeys(("model", "fingerprint", "tokenizer", "answer"), (str,)),
    **dict.fromkeys(
        ("sample", "prompt_tokens", "n_tokens", "whole", "bounded", "outside", "id", "checksum"),
        (int,),
    ),
    "generated": (int, type(None)),
    **dict.fromkeys(("tokens", "bytes"), (bytes,)),
    "received": (float, int),
}


def name_of(table: str, row: Row) -> str:
    """A row's name in messages: the table and the beginning of its key."""
    first, *more = list(row.values())[: KEY_COLUMNS[table]]
    return ", ".join([f"{table} {str(first)[:12]}...", *map(str, more)])


def sum_of(row: Row) -> int:
    """The checksum of a row, over its other columns, in their order."""
    return checksum(
        float(value) if name == "received" else int(value) if isinstance(value, bool) else value
        for name, value in row.items()
        if name != "checksum"
    )


def outside_of(arrays: Arrays) -> int:
    """The number of sampled tokens missing from their list of alternatives."""
    return int((~(arrays.top_ids == arrays.token_ids[:, None]).any(axis=1)).sum())


def check_row(table: str, row: Row) -> None:
    """Raise StoreCorrupt with the damage of the row in words."""
    try:
        _CHECKS[table](row)
    except UnicodeError as error:
        raise StoreCorrupt("it holds a text that is no UTF-8") from error


def _checked(row: Row) -> Row:
    """The row, if each value has its column's type and the checksum, where the table has one,
    fits.
    """
    for name, value in row.items():
        if not isinstance(value, TYPES[name]):
            raise StoreCorrupt(f"its {name} is of the kind {type(value).__name__}")
    if "checksum" in row and row["checksum"] != sum_of(row):
        raise StoreCorrupt("its checksum does not fit its contents")
    return row


def prompt_of(row: Row) -> Prompt:
    """The prompt in a row of ``prompts``. Raises StoreCorrupt: its hash is not that of its
    messages, or these are none.
    """
    text = _hashed(row, "prompt", "messages")
    try:
        messages = tuple(Message(**load) for load in json.loads(text))
    except (ValueError, TypeError, RecursionError) as error:
        raise StoreCorrupt("its messages are no list of roles and contents") from error
    if not all(
        isinstance(value, str) for message in messages for value in (message.role, message.content)
    ):
        raise StoreCorrupt("its messages are no texts")
    if messages and messages[-1].role == TOOLS:
        return Prompt(messages[:-1], tools=messages[-1].content)
    return Prompt(messages)


def settings_of_row(row: Row) -> dict[str, Any]:
    """The settings in a row of ``requests``. Raises StoreCorrupt: its hash is not theirs, or they
    are no object.
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
    text: str = _checked(row)[column]
    try:
        right = tagged_hash(tag, text) == row["hash"]
    except UnicodeError:
        right = False
    if not right:
        raise StoreCorrupt(f"its hash is not that of its {column}")
    return text


def completion_of(row: Row) -> Completion:
    """The completion in a row of ``completions``. StoreCorrupt: the damage in words; StoreError: it
    is of a newer format.
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
    """The logprobs (v,) in a row of ``next_tokens``. Raises StoreCorrupt with the damage in
    words.
    """
    arrays = unpack(_checked(row)["tokens"])
    if arrays.top_ids.shape[0] != 1 or not np.array_equal(
        arrays.top_ids[0], np.arange(arrays.top_ids.shape[1])
    ):
        raise StoreCorrupt(
            f"it has the shape {arrays.top_ids.shape} and is not one vocabulary in order"
        )
    logprobs: FloatArray = arrays.top_logprobs[0]
    return logprobs


def answer_of(row: Row) -> str:
    """The answer in a row of ``rewards``. Raises StoreCorrupt with the damage in words."""
    return str(_checked(row)["answer"])


def token_of(row: Row) -> tuple[int, bytes]:
    """Id and bytes in a row of ``token_bytes``. Raises StoreCorrupt with the damage in words."""
    return _checked(row)["id"], row["bytes"]


_CHECKS: dict[str, Callable[[Row], object]] = {
    "prompts": prompt_of,
    "requests": settings_of_row,
    "completions": completion_of,
    "token_bytes": token_of,
    "next_tokens": distribution_of,
    "rewards": answer_of,
}
