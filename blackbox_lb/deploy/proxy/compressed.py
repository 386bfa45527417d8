"""Request bodies that a client sent compressed, decoded within the limit for bodies."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable
from functools import partial
from typing import Any

from blackbox_lb.deploy.injection import quoted
from blackbox_lb.deploy.proxy.error_answers import ErrorAnswer

if sys.version_info >= (3, 14):
    from compression.zstd import ZstdDecompressor, ZstdError
else:
    from backports.zstd import ZstdDecompressor, ZstdError

_DECOMPRESSORS: dict[str, Callable[[], Any]] = {
    "gzip": partial(zlib.decompressobj, 16 + zlib.MAX_WBITS),
    "x-gzip": partial(zlib.decompressobj, 16 + zlib.MAX_WBITS),
    "deflate": zlib.decompressobj,
    "zstd": ZstdDecompressor,
}
"""What makes a decompressor, by the name of a coding."""


def decoded(content: bytes, encoding: str, most: int) -> bytes:
    """The body under its coding, at most ``most`` bytes of which are ever held.

    Args:
        content: as it came.
        encoding: the value of ``Content-Encoding``: gzip, deflate or zstd.
        most: largest size in bytes.

    Raises:
        ErrorAnswer: 415 for another coding, 400 for a body that is not in it, 413 for a larger one.
    """
    coding = encoding.strip().lower()
    if coding in ("", "identity"):
        return content
    if coding not in _DECOMPRESSORS:
        raise ErrorAnswer(
            415,
            f"a body with Content-Encoding {quoted(coding)} is not read; send it uncompressed, or"
            " with gzip, deflate or zstd",
            code="compressed_body",
        )
    unpacked = bytearray()
    while content:  # each frame of it
        decompressor = _DECOMPRESSORS[coding]()
        try:
            unpacked += decompressor.decompress(content, most + 1 - len(unpacked))
        except (zlib.error, ZstdError) as error:
            raise _broken(coding) from error
        if len(unpacked) > most:
            raise ErrorAnswer(
                413,
                f"the request body is larger than {most:,} bytes when it is decompressed, the"
                " limit; start blb proxy with a larger --max-body",
                code="request_too_large",
            )
        if not decompressor.eof:
            raise _broken(coding)
        content = decompressor.unused_data
    return bytes(unpacked)


def _broken(coding: str) -> ErrorAnswer:
    return ErrorAnswer(
        400,
        f"the request body is not whole, or not {coding}, which its Content-Encoding says; send it"
        " as it says",
        code="bad_body",
    )
