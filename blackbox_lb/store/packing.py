"""Token arrays as compact bytes: ids, logprobs and the listed alternatives of one completion,
column by column, deflated.
"""

import struct
import zlib
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from blackbox_lb.errors import StoreCorrupt, StoreError
from blackbox_lb.types import BoolArray, FloatArray, IntArray

HEADER = struct.Struct("<BIIB")
"""The number of the format, t, k, and the optional columns present."""
PLAIN = 2
DIFFERENCES = 3
"""The formats. In 3, each alternative's logprob is the difference of its bits' distance from zero
to that of the one before it: lists go down, so the differences are small, and only run lengths are
left to find. On real top-20 lists that is a tenth smaller than 2 and packed several times faster.
The single row of a whole vocabulary is unordered and stays with 2.
"""
PROPENSITIES = 1
BOUNDED = 2
LEVEL = 6
SMALL = 4096
"""Bytes of a body below which a quarter of a megabyte of memory for its deflation costs more than
the deflation.
"""
MOST = 1 << 30
"""Most bytes of arrays in one blob: a million tokens with 100 alternatives. A stranger's few bytes
cannot ask for more.
"""


class Arrays(NamedTuple):
    """The arrays of a ``Completion``, shapes (t,), (t,), (t, k), (t, k), (t,), (t,); the last two
    may be None.
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

    Raises StoreError: the arrays are not of one length.
    """
    lengths = [len(column) for column in arrays if column is not None]
    if len(set(lengths)) > 1 or arrays.top_ids.shape != arrays.top_logprobs.shape:
        raise StoreError(
            f"a completion has columns of {lengths} tokens; it cannot be stored: this is a bug,"
            " please report it"
        )
    flags = (arrays.propensities is not None) * PROPENSITIES | (
        arrays.bounded is not None
    ) * BOUNDED
    columns = [arrays.token_ids.astype("<i4"), arrays.logprobs.astype("<f4")]
    version = PLAIN if len(arrays.token_ids) == 1 else DIFFERENCES
    top_logprobs = arrays.top_logprobs.T.astype("<f4")
    columns += [
        arrays.top_ids.T.astype("<i4"),
        _differences(top_logprobs) if version == DIFFERENCES else top_logprobs,
    ]
    if arrays.propensities is not None:
        columns.append(arrays.propensities.astype("<f4"))
    body = b"".join(
        np.ascontiguousarray(column).view(np.uint8).reshape(-1, 4).T.tobytes() for column in columns
    )
    if arrays.bounded is not None:
        body += np.packbits(arrays.bounded).tobytes()
    how, strategy = (LEVEL, zlib.Z_DEFAULT_STRATEGY) if version == PLAIN else (1, zlib.Z_RLE)
    window, memory = (12, 6) if len(body) < SMALL else (zlib.MAX_WBITS, zlib.DEF_MEM_LEVEL)
    deflate = zlib.compressobj(how, zlib.DEFLATED, window, memory, strategy)
    head = HEADER.pack(version, *arrays.top_ids.shape, flags)
    return head + deflate.compress(body) + deflate.flush()


def unpack(blob: bytes) -> Arrays:
    """Return the arrays given to ``pack``. Raises StoreCorrupt: the blob is damaged. StoreError: it
    is of a newer format.
    """
    t, k, flags, body = _opened(blob)
    ids = _column(body, "<i4", t)
    logprobs = _column(body[4 * t :], "<f4", t)
    body = body[8 * t :]
    top_ids, top_logprobs = (
        _column(body[4 * t * k * n :], kind, k, t) for n, kind in enumerate(("<i4", "<f4"))
    )
    if blob[0] == DIFFERENCES:
        top_logprobs = np.cumsum(top_logprobs.view("<u4"), axis=0, dtype="<u4").view("<f4")
    rest = body[8 * t * k :]
    bits = np.frombuffer(rest[len(rest) - _bytes_of_bits(t, flags) :], dtype=np.uint8)
    return Arrays(
        ids,
        logprobs,
        np.ascontiguousarray(top_ids.T),
        np.ascontiguousarray(top_logprobs.T),
        _column(rest, "<f4", t) if flags & PROPENSITIES else None,
        np.unpackbits(bits, count=t).astype(np.bool_) if flags & BOUNDED else None,
    )


def _opened(blob: bytes) -> tuple[int, int, int, bytes]:
    """t, k, the optional columns present, and the inflated columns, of the length that these
    need.
    """
    version = blob[0] if blob else 0
    if version > DIFFERENCES:
        raise StoreError(
            f"a stored completion has format {version}, this version reads {DIFFERENCES}; upgrade"
            " blackbox_lb"
        )
    if version < PLAIN:
        raise _damaged(f"format {version}")
    try:
        _, t, k, flags = HEADER.unpack_from(blob)
        size = 4 * t * (2 + 2 * k + bool(flags & PROPENSITIES)) + _bytes_of_bits(t, flags)
        if flags > PROPENSITIES | BOUNDED or max(size, k) > MOST:
            raise _damaged(
                f"{t:,} x {k:,} values in columns {flags}, at most {MOST:,} bytes can be read"
            )
        return t, k, flags, _inflated(blob[HEADER.size :], size)
    except (struct.error, zlib.error) as error:
        raise _damaged(str(error)) from error


def _inflated(deflated: bytes, size: int) -> bytes:
    """Exactly ``size`` bytes, with zlib's own checksum right and nothing behind them."""
    stream = zlib.decompressobj()
    body = stream.decompress(deflated, size + 1)
    if len(body) == size and not stream.eof:
        body += stream.flush()
    if len(body) != size or not stream.eof or stream.unused_data:
        raise _damaged(f"{len(body):,} bytes where {size:,} are announced")
    return body


def _damaged(how: str) -> StoreCorrupt:
    return StoreCorrupt(
        f"a stored completion is damaged, or of a newer version ({how}): upgrade blackbox_lb, or"
        " delete it from the store and collect again"
    )


def _bytes_of_bits(t: int, flags: int) -> int:
    return -(-t // 8) if flags & BOUNDED else 0


def _differences(rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Rows (k, t) of float32 as the differences of their bits, modulo 2^32, from row to row; the
    first as it is.
    """
    bits = np.ascontiguousarray(rows).view("<u4")
    return np.concatenate([bits[:1], bits[1:] - bits[:-1]])


def _column(data: bytes, kind: str, *shape: int) -> npt.NDArray[Any]:
    """The column of this shape at the beginning of ``data``."""
    size = 4 * int(np.prod(shape))
    planes = np.frombuffer(data[:size], dtype=np.uint8).reshape(4, -1)
    return np.ascontiguousarray(planes.T).view(kind).reshape(shape)
