"""Token arrays as compact bytes: ids, logprobs and the listed alternatives of one completion, column by column, deflated."""

from __future__ import annotations

import struct
import zlib
from typing import Any

import numpy as np
import numpy.typing as npt

from blackbox_lb.errors import StoreError
from blackbox_lb.types import FloatArray, IntArray

__all__ = ["pack", "unpack"]

HEADER = struct.Struct("<BII")
FORMAT = 1
LEVEL = 6


def pack(token_ids: IntArray, logprobs: FloatArray, top_ids: IntArray, top_logprobs: FloatArray) -> bytes:
    """The arrays of a ``Completion``, shapes (t,), (t,), (t, k), (t, k), as one blob; ``unpack`` gives them back bit for bit.

    The bytes of all numbers of a column are laid out by significance, which deflates much better than number by number.
    """
    columns = (token_ids.astype("<i4"), logprobs.astype("<f4"), top_ids.T.astype("<i4"), top_logprobs.T.astype("<f4"))
    body = b"".join(_planes(column) for column in columns)
    return HEADER.pack(FORMAT, *top_ids.shape) + zlib.compress(body, LEVEL)


def unpack(blob: bytes) -> tuple[IntArray, FloatArray, IntArray, FloatArray]:
    """The four arrays that ``pack`` was given.

    Raises:
        StoreError: the blob is damaged or of a newer format.
    """
    try:
        version, t, k = HEADER.unpack_from(blob)
        body = zlib.decompress(blob[HEADER.size :])
    except (struct.error, zlib.error) as error:
        raise StoreError(
            f"a stored completion is damaged ({error}); delete it from the store and collect again"
        ) from error
    if version != FORMAT or len(body) != 8 * t * (k + 1):
        raise StoreError(
            f"a stored completion has format {version} and {len(body)} bytes for {t} x {k}; upgrade blackbox_lb"
        )
    shapes: list[tuple[int, ...]] = [(t,), (t,), (k, t), (k, t)]
    columns = []
    for shape, kind in zip(shapes, ("<i4", "<f4") * 2, strict=True):
        size = 4 * int(np.prod(shape))
        columns.append(_numbers(body[:size], kind).reshape(shape))
        body = body[size:]
    ids, logprobs, top_ids, top_logprobs = columns
    return ids, logprobs, np.ascontiguousarray(top_ids.T), np.ascontiguousarray(top_logprobs.T)


def _planes(column: npt.NDArray[Any]) -> bytes:
    return np.ascontiguousarray(column).view(np.uint8).reshape(-1, 4).T.tobytes()


def _numbers(data: bytes, kind: str) -> npt.NDArray[Any]:
    planes = np.frombuffer(data, dtype=np.uint8).reshape(4, -1)
    return np.ascontiguousarray(planes.T).view(kind).reshape(-1)
