"""Rows of a store: their keys, which are hashes of contents, the checks of stored rows, and their
token arrays as compact bytes.

A row is intact if its key follows from its contents, its checksum fits, and its packed arrays
unpack. The arrays are ids, logprobs and the listed alternatives.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import astuple
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from blackbox_lb.errors import StoreCorrupt, StoreError
from blackbox_lb.store.database import KEY_COLUMNS
from blackbox_lb.types import (
    POSITIVE_TOLERANCE,
    UNNAMED,
    BoolArray,
    Completion,
    FloatArray,
    IntArray,
    Message,
    Prompt,
    ending_of,
)

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


def check_row(table: str, row: Row) -> object:
    """What is read from the row.

    Raises:
        StoreCorrupt: the row is damaged, or holds a value that cannot be, such as a logprob above
            0; the message describes it.
        StoreError: it is of a newer format.
    """
    try:
        return _CHECKS[table](row)
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
    # Older versions stored what a filter or the host ended as whole.
    ended = ending_of(row["finish_reason"]) in ("whole", "cut")
    return Completion(
        text=row["text"],
        finish_reason=row["finish_reason"],
        prompt_tokens=row["prompt_tokens"],
        model=row["model"],
        whole=bool(row["whole"]) and ended,
        generated=row["generated"],
        fingerprint=row["fingerprint"],
        **arrays._asdict(),
    )


def answer_of(row: Row) -> str:
    """The answer in a row of ``rewards``. Raises StoreCorrupt where it is damaged."""
    return str(_checked(row)["answer"])


def token_of(row: Row) -> tuple[int, bytes]:
    """Id and bytes in a row of ``token_bytes``. Raises StoreCorrupt where it is damaged."""
    return _checked(row)["id"], row["bytes"]


def _possible_completion(row: Row) -> Completion:
    completion = completion_of(row)
    for name in ("sample", "prompt_tokens", "generated"):
        if row[name] is not None and row[name] < 0:
            raise StoreCorrupt(f"its {name} is {row[name]}; a count is at least 0")
    _check_ids(completion.token_ids, (completion.token_ids < 0) & (completion.token_ids != UNNAMED))
    _check_ids(completion.top_ids, completion.top_ids < UNNAMED)
    for name in ("logprobs", "propensities", "top_logprobs"):
        logprobs = getattr(completion, name)
        if logprobs is not None:
            _check_logprobs(name, logprobs)
    return completion


def _possible_token(row: Row) -> tuple[int, bytes]:
    token, raw = token_of(row)
    ids = np.array([token])
    _check_ids(ids, ids < UNNAMED)
    return token, raw


def _check_ids(ids: npt.NDArray[Any], is_impossible: BoolArray) -> None:
    if is_impossible.any():
        bad = ids[is_impossible][0]
        raise StoreCorrupt(f"its token id {bad} is impossible; an id is at least 0")


def _check_logprobs(name: str, logprobs: FloatArray) -> None:
    impossible = logprobs[~(logprobs <= POSITIVE_TOLERANCE)]  # NaN is not, either
    if impossible.size:
        raise StoreCorrupt(
            f"{impossible.size:,} of its {logprobs.size:,} {name} are impossible, such as"
            f" {impossible[0]:g}; a logprob is at most 0"
        )


_CHECKS: dict[str, Callable[[Row], object]] = {
    "prompts": prompt_of,
    "requests": settings_of_row,
    "completions": _possible_completion,
    "token_bytes": _possible_token,
    "rewards": answer_of,
}

CONTRADICTION = 1.0
"""Nats between a sampled token's logprob and its own entry in its list that are no rounding, and no
second computation of the same model.
"""


def is_contradictory(completion: Completion) -> bool:
    """Whether the logprob of a sampled token is another one than its list of alternatives has."""
    is_own = completion.top_ids == completion.token_ids[:, None]
    is_own &= completion.token_ids[:, None] >= 0
    positions, _ = np.nonzero(is_own)
    listed = completion.top_logprobs[is_own].astype(np.float64)
    return bool((np.abs(listed - completion.logprobs[positions]) > CONTRADICTION).any())


HEADER = struct.Struct("<BIIB")
"""Format, t, k, and flags of the optional columns."""
PLAIN = 2
"""Format of a single position, whose logprobs may be those of a whole vocabulary in any order."""
DIFFERENCES = 3
"""Format of lists. From the second alternative of a list on, the bits of its logprob (float32, read
as a whole number) less those of the alternative before it are stored. Lists descend, so these
differences are small, and run lengths suffice to deflate them. On real top-20 lists that is a tenth
smaller than ``PLAIN`` and packed several times faster.
"""
PROPENSITIES = 1
BOUNDED = 2
"""Flags of the optional columns."""
LEVEL = 6
"""Effort of the deflation in ``PLAIN``."""
SMALL = 4096
"""Bytes of a body for which allocating the usual memory of a deflation, a quarter of a megabyte,
takes longer than the deflation.
"""
MOST = 1 << 30
"""Most bytes of arrays in one blob, a million tokens with 100 alternatives. A few bytes of a
stranger cannot ask for more memory.
"""


class Arrays(NamedTuple):
    """The arrays of a ``Completion``.

    token_ids, logprobs: (t,).
    top_ids, top_logprobs: (t, k).
    propensities, bounded: (t,), or None.
    """

    token_ids: IntArray
    logprobs: FloatArray
    top_ids: IntArray
    top_logprobs: FloatArray
    propensities: FloatArray | None = None
    bounded: BoolArray | None = None


def pack(arrays: Arrays) -> bytes:
    """Pack the arrays into one blob; ``unpack`` gives them back bit for bit.

    The bytes of all numbers of a column are laid out by significance, which deflates much better
    than number by number.

    Raises:
        StoreError: the arrays are not of one length.
    """
    lengths = [len(column) for column in arrays if column is not None]
    if len(set(lengths)) > 1 or arrays.top_ids.shape != arrays.top_logprobs.shape:
        raise StoreError(
            f"a completion has columns of {lengths} tokens; it cannot be stored: this is a bug,"
            " please report it"
        )
    version = DIFFERENCES
    if len(arrays.token_ids) == 1:
        version = PLAIN
    top_logprobs = arrays.top_logprobs.T.astype("<f4")
    if version == DIFFERENCES:
        top_logprobs = _differences(top_logprobs)
    columns = [
        arrays.token_ids.astype("<i4"),
        arrays.logprobs.astype("<f4"),
        arrays.top_ids.T.astype("<i4"),
        top_logprobs,
    ]
    flags = 0
    if arrays.propensities is not None:
        flags |= PROPENSITIES
        columns.append(arrays.propensities.astype("<f4"))
    body = b"".join(
        np.ascontiguousarray(column).view(np.uint8).reshape(-1, 4).T.tobytes() for column in columns
    )
    if arrays.bounded is not None:
        flags |= BOUNDED
        body += np.packbits(arrays.bounded).tobytes()
    head = HEADER.pack(version, *arrays.top_ids.shape, flags)
    return head + _deflated(body, version)


def _deflated(body: bytes, version: int) -> bytes:
    level = LEVEL
    strategy = zlib.Z_DEFAULT_STRATEGY
    if version == DIFFERENCES:
        level = 1
        strategy = zlib.Z_RLE
    window = zlib.MAX_WBITS
    memory = zlib.DEF_MEM_LEVEL
    if len(body) < SMALL:
        window = 12
        memory = 6
    deflate = zlib.compressobj(level, zlib.DEFLATED, window, memory, strategy)
    return deflate.compress(body) + deflate.flush()


def unpack(blob: bytes) -> Arrays:
    """The arrays given to ``pack``.

    Raises:
        StoreCorrupt: the blob is damaged.
        StoreError: it is of a newer format.
    """
    t, k, flags, body = _read(blob)
    listed = 4 * t * k  # bytes of a column of alternatives
    ids = _column(body, "<i4", t)
    logprobs = _column(body[4 * t :], "<f4", t)
    body = body[8 * t :]
    top_ids = _column(body, "<i4", k, t)
    top_logprobs = _column(body[listed:], "<f4", k, t)
    if blob[0] == DIFFERENCES:
        top_logprobs = np.cumsum(top_logprobs.view("<u4"), axis=0, dtype="<u4").view("<f4")
    body = body[2 * listed :]
    propensities = None
    if flags & PROPENSITIES:
        propensities = _column(body, "<f4", t)
        body = body[4 * t :]
    bounded = None
    if flags & BOUNDED:
        bits = np.frombuffer(body, dtype=np.uint8)
        bounded = np.unpackbits(bits, count=t).astype(np.bool_)
    return Arrays(
        ids,
        logprobs,
        np.ascontiguousarray(top_ids.T),
        np.ascontiguousarray(top_logprobs.T),
        propensities,
        bounded,
    )


def _read(blob: bytes) -> tuple[int, int, int, bytes]:
    """t, k, the flags of the optional columns, and the inflated columns."""
    version = 0
    if blob:
        version = blob[0]
    if version > DIFFERENCES:
        raise StoreError(
            f"a stored completion has format {version}, this version reads {DIFFERENCES}; upgrade"
            " blackbox_lb"
        )
    if version < PLAIN:
        raise _damaged(f"format {version}")
    try:
        _, t, k, flags = HEADER.unpack_from(blob)
        size = 4 * t * (2 + 2 * k)
        if flags & PROPENSITIES:
            size += 4 * t
        if flags & BOUNDED:
            size += -(-t // 8)  # a bit a token, rounded up to bytes
        if flags > PROPENSITIES | BOUNDED or max(size, k) > MOST:
            raise _damaged(
                f"{t:,} x {k:,} values in columns {flags}, at most {MOST:,} bytes can be read"
            )
        return t, k, flags, _inflated(blob[HEADER.size :], size)
    except (struct.error, zlib.error) as error:
        raise _damaged(str(error)) from error


def _inflated(deflated: bytes, size: int) -> bytes:
    """Exactly ``size`` bytes; zlib's checksum must fit, and nothing may follow them."""
    stream = zlib.decompressobj()
    body = stream.decompress(deflated, size + 1)
    if len(body) == size and not stream.eof:
        body += stream.flush()
    if len(body) != size or not stream.eof or stream.unused_data:
        raise _damaged(f"{len(body):,} bytes where {size:,} are announced")
    return body


def _damaged(reason: str) -> StoreCorrupt:
    return StoreCorrupt(
        f"a stored completion is damaged, or of a newer version ({reason}): upgrade blackbox_lb, or"
        " delete it from the store and collect again"
    )


def _differences(rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Rows (k, t) of float32 as differences of their bits from row to row, modulo 2^32.

    The first row stays as it is.
    """
    bits = np.ascontiguousarray(rows).view("<u4")
    return np.concatenate([bits[:1], bits[1:] - bits[:-1]])


def _column(data: bytes, kind: str, *shape: int) -> npt.NDArray[Any]:
    """The column of this shape at the beginning of ``data``."""
    planes = np.frombuffer(data, dtype=np.uint8, count=4 * math.prod(shape)).reshape(4, -1)
    return np.ascontiguousarray(planes.T).view(kind).reshape(shape)
