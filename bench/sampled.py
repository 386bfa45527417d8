"""The sampled tokens alone of stored completions: a reading of the store that inflates nothing
else.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from blackbox_lb.errors import StoreCorrupt
from blackbox_lb.store import RolloutStore
from blackbox_lb.store.rows import (
    BOUNDED,
    DIFFERENCES,
    HEADER,
    MOST,
    PLAIN,
    PROPENSITIES,
    Arrays,
    sum_of,
    unpack,
)
from blackbox_lb.types import BoolArray, FloatArray, IntArray


class Sampled(NamedTuple):
    """The sampled tokens' part of a blob, shapes (t,): logprobs under the policy that sampled;
    bounded may be None.
    """

    token_ids: IntArray
    logprobs: FloatArray
    bounded: BoolArray | None = None


def sampled(store: RolloutStore, keys: Sequence[str]) -> Iterator[Sampled]:
    """The sampled tokens of the completions with these keys, in this order. StoreCorrupt: one is
    not there, or damaged.
    """
    for key in keys:
        row = store.row("completions", (key,))
        if row is None or row["checksum"] != sum_of(row):
            raise StoreCorrupt(f"{store.path} has no intact completion {key[:12]}...")
        yield unpack_sampled(row["tokens"], bounded=bool(row["bounded"]))


def unpack_sampled(blob: bytes, *, bounded: bool = True) -> Sampled:
    """Return the sampled columns alone, which come first: only their 8 t bytes are inflated, unless
    optional columns follow.

    bounded: whether to return the positions with only a bound. The rest is not checked: the caller
    makes sure that a checksum of the whole blob fits.

    Raises StoreCorrupt: the blob is damaged. StoreError: it is of a newer format.
    """
    if len(blob) < HEADER.size or blob[0] not in (PLAIN, DIFFERENCES):
        return _sampled(unpack(blob))
    _, t, _, flags = HEADER.unpack_from(blob)
    wanted = PROPENSITIES | BOUNDED if bounded else PROPENSITIES
    if t == 0 or 8 * t > MOST or flags & wanted:
        return _sampled(unpack(blob))
    try:
        body = zlib.decompressobj().decompress(memoryview(blob)[HEADER.size :], 8 * t)
    except zlib.error as error:
        raise StoreCorrupt(str(error)) from error
    if len(body) != 8 * t:
        raise StoreCorrupt(f"{len(body):,} bytes of sampled tokens where {8 * t:,} are announced")
    planes = np.frombuffer(body, dtype=np.uint8).reshape(2, 4, t)
    columns = np.ascontiguousarray(planes.transpose(0, 2, 1))
    return Sampled(columns[0].view("<i4").reshape(t), columns[1].view("<f4").reshape(t))


def _sampled(arrays: Arrays) -> Sampled:
    logprobs = arrays.logprobs if arrays.propensities is None else arrays.propensities
    return Sampled(arrays.token_ids, logprobs, arrays.bounded)
