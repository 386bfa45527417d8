"""Request bodies that a client sent compressed, decoded within the limit for bodies."""

from __future__ import annotations

import importlib
import zlib
from collections.abc import Callable
from typing import Any

from blackbox_lb.deploy.injection import quoted
from blackbox_lb.deploy.proxy.error_answers import ErrorAnswer

_MODULES = ("compression.zstd", "backports.zstd")
"""Zstandard in Python 3.14 and its backport for earlier versions."""
_WINDOWS = {"gzip": 16 + zlib.MAX_WBITS, "x-gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}
"""What zlib needs to know of a format."""


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
    decoder = _decoder(coding)
    unpacked = bytearray()
    while content:  # each frame of it
        decompressor = decoder()
        try:
            unpacked += decompressor.decompress(content, most + 1 - len(unpacked))
        except Exception as error:  # zlib and zstd have errors of their own
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


def _decoder(coding: str) -> Callable[[], Any]:
    """What makes a decompressor with ``decompress(data, max_length)``, ``eof`` and
    ``unused_data``. Raises ErrorAnswer (415): there is none of this coding.
    """
    if coding in _WINDOWS:
        return lambda: zlib.decompressobj(_WINDOWS[coding])
    if coding == "zstd":
        for name in _MODULES:
            try:
                return importlib.import_module(name).ZstdDecompressor  # type: ignore[no-any-return]
            except ImportError:
                continue
    raise ErrorAnswer(
        415,
        f"a body with Content-Encoding {quoted(coding)} is not read; send it uncompressed, or"
        " with gzip, deflate or zstd",
        code="compressed_body",
    )


def _broken(coding: str) -> ErrorAnswer:
    return ErrorAnswer(
        400,
        f"the request body is not whole, or not {coding}, which its Content-Encoding says; send it"
        " as it says",
        code="bad_body",
    )
