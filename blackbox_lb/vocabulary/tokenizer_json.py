"""The vocabulary of a ``tokenizer.json``, the format of Hugging Face's tokenizers library.

The library (extra ``hf``) reads the table and encodes; the bytes of a piece follow from the file's
decoder.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blackbox_lb.errors import InputError
from blackbox_lb.safety.untrusted import parse_json, read_bounded
from blackbox_lb.vocabulary.bpe import EXTRA, SPACE, bytes_of_piece
from blackbox_lb.vocabulary.rust import rust_errors, without_reports
from blackbox_lb.vocabulary.table import Vocabulary

if TYPE_CHECKING:
    from tokenizers import Tokenizer

MAX_BYTES = 256 * 2**20
"""Largest tokenizer.json that is read, in bytes: eight times that of Gemma 3, which has 262,144
tokens.
"""
BYTE_PIECE = re.compile(r"<0x([0-9A-F]{2})>")
Decode = Callable[[str], "bytes | None"]


def read_tokenizer_json(path: Path) -> Vocabulary:
    """The vocabulary of a tokenizer.json whose decoder is byte-level or SentencePiece-like (U+2581
    for a space).

    Raises InputError: the extra is missing, or the file is damaged, no tokenizer.json, or of
    another kind.
    """
    try:
        text = read_bounded(path, MAX_BYTES).decode("utf-8")
        tokenizer = _tokenizer(path, text)
        document = parse_json(text)
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"cannot read {path}: {error}; give the model's own tokenizer.json"
        ) from error
    _same_ids(path, document.get("added_tokens") or [], tokenizer)
    decode, decode_added = _decoding(path, _flat(document.get("decoder")))
    added = tokenizer.get_added_tokens_decoder()
    table = {
        number: decode(piece)
        for piece, number in tokenizer.get_vocab(with_added_tokens=False).items()
    }
    size = 1 + max([*table, *added], default=-1)
    table |= {
        number: None if token.special else decode_added(token.content)
        for number, token in added.items()
    }
    ordinary = {number: raw for number, raw in sorted(table.items()) if raw is not None}
    special = {token.content: number for number, token in added.items() if token.special}

    def encode(text: str) -> list[int]:
        with rust_errors(f"the tokenizer in {path} cannot encode {text[:40]!r}"):
            return list(tokenizer.encode(text, add_special_tokens=False).ids)

    return Vocabulary(str(path), ordinary, special, size, encode)


def _tokenizer(path: Path, text: str) -> Tokenizer:
    try:
        from tokenizers import Tokenizer
    except ModuleNotFoundError as error:
        raise InputError(f"reading {path} needs the tokenizers library: {EXTRA}") from error
    with (
        rust_errors(
            f"{path} is no tokenizer.json that the tokenizers library reads",
            "; give the model's own",
        ),
        without_reports(),
    ):
        tokenizer = Tokenizer.from_str(text)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = True  # the property's name means: encode them as text
    return tokenizer


def _same_ids(path: Path, added: list[dict[str, Any]], tokenizer: Tokenizer) -> None:
    """Raise InputError where the library changes an id: it numbers added tokens itself where the
    file leaves a gap.
    """
    for token in added:
        given = tokenizer.token_to_id(token["content"])
        if given != token["id"]:
            raise InputError(
                f"{path} gives the added token {token['content']!r} the id {token['id']}, the"
                f" tokenizers library {given}: save the tokenizer anew with the transformers"
                " version that the model was made with"
            )


def _flat(decoder: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    """The decoder's steps, in order."""
    if decoder is None:
        return []
    if decoder.get("type") == "Sequence":
        return [step for inner in decoder["decoders"] for step in _flat(inner)]
    return [decoder]


def _decoding(path: Path, decoders: list[Mapping[str, Any]]) -> tuple[Decode, Decode]:
    """Functions from a piece of the model's vocabulary, and from an added token, to bytes."""
    kinds = {step.get("type", "unknown") for step in decoders}
    if "ByteLevel" in kinds:
        return bytes_of_piece, _utf8
    if any(_is_space(step) for step in decoders):
        return (_fallback if "ByteFallback" in kinds else _spaced), _spaced
    found = ", ".join(sorted(kinds)) or "none"
    raise InputError(
        f"{path} has a decoder of kind {found}: pieces that are no bytes cannot be matched; give"
        " the model's .gguf file, if its tokenizer is byte-level or SentencePiece-like"
    )


def _is_space(step: Mapping[str, Any]) -> bool:
    """Whether a decoder's step turns U+2581 into a space."""
    if step.get("type") == "Metaspace":
        return bool(step.get("replacement") == SPACE)
    return (
        step.get("type") == "Replace"
        and step.get("pattern") == {"String": SPACE}
        and step.get("content") == " "
    )


def _utf8(piece: str) -> bytes | None:
    return piece.encode("utf-8", "surrogatepass")


def _spaced(piece: str) -> bytes | None:
    return _utf8(piece.replace(SPACE, " "))


def _fallback(piece: str) -> bytes | None:
    match = BYTE_PIECE.fullmatch(piece)
    return bytes([int(match[1], 16)]) if match else _spaced(piece)
