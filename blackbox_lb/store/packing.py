"""Token arrays of one completion as compact bytes, column by column and deflated.

They are ids, logprobs and the listed alternatives.
"""

import struct
import zlib
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from blackbox_lb.errors import StoreCorrupt, StoreError
from blackbox_lb.types import BoolArray, FloatArray, IntArray

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
    size = 4 * int(np.prod(shape))
    planes = np.frombuffer(data[:size], dtype=np.uint8).reshape(4, -1)
    return np.ascontiguousarray(planes.T).view(kind).reshape(shape)
