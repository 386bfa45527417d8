"""The texts of a model's tokens, from the metadata of its .gguf file.

https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. The file has no rule by which a text is
split into words before any pair is joined, only the name of one: to encode, a ``tokenizer.json`` or
the server is needed.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from blackbox_lb.errors import InputError
from blackbox_lb.safety.untrusted import open_regular
from blackbox_lb.vocabulary.tokenizer_files import BYTE_PIECE, SPACE, bytes_of_piece

NUMBERS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
"""struct's letter of each GGUF value type; 8 is a string and 9 an array."""
STRING = 8
ARRAY = 9
NORMAL = 1
USER_DEFINED = 4
BYTE = 6
"""Values of ``tokenizer.ggml.token_type`` of tokens that stand for text. A user-defined token is
matched as it is written.
"""


@lru_cache(maxsize=4)
def token_texts(path: Path) -> Mapping[int, bytes]:
    """Token id -> bytes of every token that stands for text, of a GGUF file with a byte-level BPE
    or a SentencePiece BPE tokenizer. The weights of the model are never touched.

    Raises:
        InputError: a damaged or big-endian file, no tokenizer in it, or one of another kind.
    """
    metadata = read_metadata(path)
    model = metadata.get("tokenizer.ggml.model", "none")
    if model not in ("gpt2", "llama"):
        raise InputError(
            f"{path} has a tokenizer of kind {model!r}; gpt2 and llama can be read from a .gguf"
            " file: give the model's tokenizer.json instead"
        )
    try:
        pieces = metadata["tokenizer.ggml.tokens"]
        kinds = metadata.get("tokenizer.ggml.token_type", [NORMAL] * len(pieces))
        texts = {}
        for token, (piece, kind) in enumerate(zip(pieces, kinds, strict=True)):
            raw = _text(model, piece, kind)
            if raw is not None:
                texts[token] = raw
        return texts
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise InputError(
            f"the tokenizer in {path} is incomplete: {error!r}; convert the model anew"
        ) from error


def _text(model: str, piece: str, kind: int) -> bytes | None:
    """The bytes of a piece; None for one that is no text."""
    if kind == BYTE:
        match = BYTE_PIECE.fullmatch(piece)
        if match is None:
            raise ValueError(f"the byte token {piece!r} is not written as <0x0A>")
        return bytes([int(match[1], 16)])
    if kind == NORMAL and model == "gpt2":
        return bytes_of_piece(piece)
    if kind not in (NORMAL, USER_DEFINED):
        return None
    if model == "llama":
        piece = piece.replace(SPACE, " ")
    return piece.encode("utf-8", "surrogateescape")


def read_metadata(path: Path) -> dict[str, Any]:
    """All key-value pairs of a GGUF file; bytes that are no UTF-8 become surrogate escapes.

    Raises:
        InputError: the file is damaged, big-endian, or of a version before 2.
    """
    try:
        with (
            open_regular(path) as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
        ):
            return _Reader(path, data).metadata()
    except InputError:
        raise
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error
    except (
        struct.error,
        KeyError,
        ValueError,
        RecursionError,
        OverflowError,
        MemoryError,
    ) as error:
        raise InputError(
            f"{path} is damaged: its metadata ends or breaks off; copy or download it again"
        ) from error


class _Reader:
    """Reads little-endian values one after the other."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self._path = path
        self._data = data
        self._at = 4  # after the magic

    def metadata(self) -> dict[str, Any]:
        version = self._number("I")
        if version not in (2, 3):
            raise InputError(
                f"{self._path} is GGUF version {version}; versions 2 and 3, little-endian, can be"
                " read: convert the model anew"
            )
        _tensors = self._number("Q")
        pairs = self._number("Q")
        return {self._string(): self._value(self._number("I")) for _ in range(pairs)}

    def _number(self, letter: str) -> Any:
        return self._numbers(letter, 1)[0]

    def _numbers(self, letter: str, count: int) -> tuple[Any, ...]:
        form = f"<{count}{letter}"
        start = self._at
        self._at += struct.calcsize(form)
        return struct.unpack_from(form, self._data, start)

    def _string(self) -> str:
        length = self._number("Q")
        start = self._at
        self._at += length
        if self._at > len(self._data):
            raise ValueError(f"a string of {length} bytes passes the end")
        return self._data[start : self._at].decode("utf-8", "surrogateescape")

    def _value(self, kind: int) -> Any:
        if kind == STRING:
            return self._string()
        if kind != ARRAY:
            return self._number(NUMBERS[kind])
        inner = self._number("I")
        count = self._number("Q")
        if inner in NUMBERS:
            return self._numbers(NUMBERS[inner], count)
        return [self._value(inner) for _ in range(count)]
