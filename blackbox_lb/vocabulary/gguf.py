"""The vocabulary inside a GGUF file, read from its metadata alone; the model's weights are never
touched.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
"""

import mmap
import re
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from blackbox_lb.errors import InputError
from blackbox_lb.vocabulary.bpe import (
    SPACE,
    byte_level_encoder,
    bytes_of_piece,
    sentencepiece_encoder,
)
from blackbox_lb.vocabulary.table import Vocabulary

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
UNKNOWN = 2
CONTROL = 3
USER_DEFINED = 4
UNUSED = 5
BYTE = 6
"""Values of ``tokenizer.ggml.token_type``. A user-defined token stands for its text as it is
written.
"""
BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class Token(NamedTuple):
    """One row of the file's token table."""

    id: int
    piece: str
    kind: int


def read_gguf(path: Path) -> Vocabulary:
    """The vocabulary of a GGUF file with a byte-level BPE or a SentencePiece BPE tokenizer.

    Raises InputError: a damaged or big-endian file, no tokenizer in it, or one of another kind.
    """
    metadata = read_metadata(path)
    kind = metadata.get("tokenizer.ggml.model", "none")
    if kind not in ("gpt2", "llama"):
        raise InputError(
            f"{path} has a tokenizer of kind {kind!r}; gpt2 and llama can be read from a .gguf"
            " file: give the model's tokenizer.json instead"
        )
    try:
        build = _byte_level if kind == "gpt2" else _sentencepiece
        return build(str(path), _tokens(metadata), metadata)
    except InputError:
        raise
    except (KeyError, IndexError, ValueError, TypeError, AttributeError) as error:
        raise InputError(
            f"the tokenizer in {path} is incomplete: {error!r}; convert the model anew"
        ) from error


def _tokens(metadata: Mapping[str, Any]) -> list[Token]:
    pieces = metadata["tokenizer.ggml.tokens"]
    kinds = metadata.get("tokenizer.ggml.token_type", [NORMAL] * len(pieces))
    return [
        Token(token, piece, kind)
        for token, (piece, kind) in enumerate(zip(pieces, kinds, strict=True))
    ]


def _byte_level(name: str, tokens: list[Token], metadata: Mapping[str, Any]) -> Vocabulary:
    raw = {token.id: bytes_of_piece(token.piece) for token in tokens if token.kind == NORMAL}
    ordinary = {token: known for token, known in raw.items() if known is not None}
    ordinary |= {token.id: _raw(token.piece) for token in tokens if token.kind == USER_DEFINED}
    merges = (
        (left, right)
        for left, _, right in (merge.partition(" ") for merge in metadata["tokenizer.ggml.merges"])
    )
    pre = metadata.get("tokenizer.ggml.pre", "default")
    encoder = byte_level_encoder(_ids(tokens, NORMAL), merges, pre, _ids(tokens, USER_DEFINED))
    return Vocabulary(name, ordinary, _ids(tokens, CONTROL, UNKNOWN), len(tokens), encoder)


def _sentencepiece(name: str, tokens: list[Token], metadata: Mapping[str, Any]) -> Vocabulary:
    text = [token for token in tokens if token.kind in (NORMAL, USER_DEFINED)]
    byte_of = {token.id: _byte(token.piece) for token in tokens if token.kind == BYTE}
    ordinary = {token.id: _raw(token.piece.replace(SPACE, " ")) for token in text}
    ordinary |= {token: bytes([byte]) for token, byte in byte_of.items()}
    scores = metadata["tokenizer.ggml.scores"]
    encoder = sentencepiece_encoder(
        _ids(tokens, NORMAL, USER_DEFINED),
        {token.piece: scores[token.id] for token in text},
        _ids(tokens, USER_DEFINED),
        {byte: token for token, byte in byte_of.items()},
        metadata.get("tokenizer.ggml.add_space_prefix", True),
    )
    return Vocabulary(name, ordinary, _ids(tokens, CONTROL, UNKNOWN), len(tokens), encoder)


def _ids(tokens: list[Token], *kinds: int) -> dict[str, int]:
    """Piece to id, of the tokens of these kinds."""
    return {token.piece: token.id for token in tokens if token.kind in kinds}


def _raw(piece: str) -> bytes:
    """The bytes of the file for a piece."""
    return piece.encode("utf-8", "surrogateescape")


def _byte(piece: str) -> int:
    match = BYTE_PIECE.fullmatch(piece)
    if match is None:
        raise ValueError(f"the byte token {piece!r} is not written as <0x0A>")
    return int(match[1], 16)


def read_metadata(path: Path) -> dict[str, Any]:
    """All key-value pairs of a GGUF file; bytes that are no UTF-8 are kept as surrogate escapes.

    Raises InputError: the file is damaged, big-endian, or of a version before 2.
    """
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
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
        self._at = self._at + struct.calcsize(form)
        return struct.unpack_from(form, self._data, start)

    def _string(self) -> str:
        length = self._number("Q")
        start = self._at
        self._at = self._at + length
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
