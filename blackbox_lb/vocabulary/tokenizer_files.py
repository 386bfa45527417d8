"""Vocabularies from a ``tokenizer.json``, by the tokenizers library (extra ``hf``), or from
tiktoken's encodings, which are read without internet; and the bytes of pieces.

Byte-level vocabularies (GPT-2, Radford et al. 2019, section 2.2) write bytes as 256 printable
characters, SentencePiece's (Kudo and Richardson 2018) a space as U+2581.
"""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blackbox_lb.errors import InputError
from blackbox_lb.safety.network import OF_REQUESTS, check_environment
from blackbox_lb.safety.untrusted import parse_json, read_bounded
from blackbox_lb.vocabulary.tokenizer import Vocabulary, rust_errors, without_reports

if TYPE_CHECKING:
    from tokenizers import Tokenizer

EXTRA = "pip install '.[hf]' in the checkout"
SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
"""U+2581, SentencePiece's sign for a space."""
BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
"""The piece of a single byte, in SentencePiece vocabularies."""


def _characters() -> dict[int, str]:
    """GPT-2's table from a byte to the character that stands for it.

    Printable Latin-1 bytes stand for themselves; characters from U+0100 on stand for the others.
    """
    table = {byte: chr(byte) for byte in range(256) if chr(byte).isprintable() and chr(byte) != " "}
    unprintable = [byte for byte in range(256) if byte not in table]
    return table | {byte: chr(256 + number) for number, byte in enumerate(unprintable)}


CHARACTER_OF = _characters()
BYTE_OF = {character: byte for byte, character in CHARACTER_OF.items()}


def bytes_of_piece(piece: str) -> bytes | None:
    """The bytes of a piece of a byte-level vocabulary; None if a character stands for no byte."""
    try:
        return bytes(BYTE_OF[character] for character in piece)
    except KeyError:
        return None


# --- tokenizer.json

MAX_BYTES = 256 * 2**20
"""Bytes of the largest tokenizer.json that is read, eight times that of Gemma 3."""
Decode = Callable[[str], "bytes | None"]
"""From a piece to its bytes; None for a piece that is no text."""


def read_tokenizer_json(path: Path) -> Vocabulary:
    """The vocabulary of a tokenizer.json.

    Its decoder must be byte-level or like SentencePiece's, with U+2581 for a space. The bytes of a
    piece follow from the decoder.

    Raises:
        InputError: the extra ``hf`` is missing, or the file is damaged, no tokenizer.json, or of
            another kind.
    """
    try:
        text = read_bounded(path, MAX_BYTES).decode("utf-8")
        tokenizer = _load_tokenizer(path, text)
        document = parse_json(text)
    except InputError:
        raise
    except (OSError, ValueError) as error:
        raise InputError(
            f"cannot read {path}: {error}; give the model's own tokenizer.json"
        ) from error
    _check_ids(path, document.get("added_tokens") or [], tokenizer)
    decode, decode_added = _decoders(path, _steps(document.get("decoder")))
    pieces = tokenizer.get_vocab(with_added_tokens=False)
    table = {number: decode(piece) for piece, number in pieces.items()}
    special = {}
    for number, token in tokenizer.get_added_tokens_decoder().items():
        if token.special:
            special[token.content] = number
            table[number] = None
        else:
            table[number] = decode_added(token.content)
    size = 1 + max(table, default=-1)
    ordinary = {number: raw for number, raw in sorted(table.items()) if raw is not None}

    def encode(text: str) -> list[int]:
        ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    return Vocabulary(str(path), ordinary, special, size, encode)


def _load_tokenizer(path: Path, text: str) -> Tokenizer:
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
    tokenizer.encode_special_tokens = True  # encode their names as text like any other
    return tokenizer


def _check_ids(path: Path, added: list[dict[str, Any]], tokenizer: Tokenizer) -> None:
    """Raise InputError where the library gives an added token another id than the file.

    The library numbers added tokens itself where the file leaves a gap.
    """
    for token in added:
        number = tokenizer.token_to_id(token["content"])
        if number != token["id"]:
            raise InputError(
                f"{path} gives the added token {token['content']!r} the id {token['id']}, the"
                f" tokenizers library {number}: save the tokenizer anew with the transformers"
                " version that the model was made with"
            )


def _steps(decoder: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    """The decoder's steps, in order."""
    if decoder is None:
        return []
    if decoder.get("type") == "Sequence":
        return [step for inner in decoder["decoders"] for step in _steps(inner)]
    return [decoder]


def _decoders(path: Path, steps: list[Mapping[str, Any]]) -> tuple[Decode, Decode]:
    """Functions from a piece of the model's vocabulary, and from an added token, to bytes."""
    kinds = {step.get("type", "unknown") for step in steps}
    if "ByteLevel" in kinds:
        return bytes_of_piece, _utf8
    if any(_is_space(step) for step in steps):
        if "ByteFallback" in kinds:
            return _byte_or_text, _spaced
        return _spaced, _spaced
    kind = ", ".join(sorted(kinds)) or "none"
    raise InputError(
        f"{path} has a decoder of kind {kind}: pieces that are no bytes cannot be matched; give"
        " one whose tokenizer is byte-level or SentencePiece-like"
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


def _byte_or_text(piece: str) -> bytes | None:
    match = BYTE_PIECE.fullmatch(piece)
    if match is None:
        return _spaced(piece)
    return bytes([int(match[1], 16)])


RANK_FILES = "https://openaipublic.blob.core.windows.net"
"""The host of tiktoken's own rank files."""


def encoding_names() -> Sequence[str]:
    """The encodings that tiktoken and its plugins (namespace ``tiktoken_ext``) define.

    Raises:
        InputError: a plugin is broken.
    """
    import tiktoken

    try:
        return tiktoken.list_encoding_names()
    except (ImportError, ValueError) as error:
        raise InputError(
            f"a plugin of tiktoken cannot be loaded: {error}; update it, or uninstall it"
        ) from error


def read_encoding(name: str) -> Vocabulary:
    """The vocabulary of tiktoken's encoding ``name``.

    Raises:
        InputError: its rank file is not in tiktoken's cache and cannot be fetched, or is damaged.
    """
    import tiktoken

    try:
        encoding = tiktoken.get_encoding(name)
    except OSError as error:
        raise InputError(_why_unread(name, error)) from error
    except (ImportError, ValueError) as error:
        raise InputError(f"tiktoken cannot load {name}: {error}") from error
    special = {text: encoding.encode_single_token(text) for text in encoding.special_tokens_set}
    # Asking for the bytes of 200,000 ids one by one takes longer than all else that follows.
    ordinary = {token: raw for raw, token in encoding._mergeable_ranks.items()}
    # Of two names of one id the plainer one is first, so that no token is printed as reserved.
    ordered = dict(
        sorted(special.items(), key=lambda item: (item[1], "reserved" in item[0], item[0]))
    )

    return Vocabulary(name, ordinary, ordered, encoding.n_vocab, encoding.encode_ordinary)


def cache_folder() -> Path | None:
    """tiktoken's folder of rank files; None where an empty variable switches its cache off."""
    for variable in ("TIKTOKEN_CACHE_DIR", "DATA_GYM_CACHE_DIR"):
        folder = os.environ.get(variable)
        if folder:
            return Path(folder)
        if folder == "":
            return None
    return Path(tempfile.gettempdir(), "data-gym-cache")


def cache_name(address: str) -> str:
    """The name of the file in tiktoken's cache that holds a web address."""
    return hashlib.sha1(address.encode(), usedforsecurity=False).hexdigest()


def _why_unread(name: str, error: OSError) -> str:
    """Why an encoding cannot be read, and the remedy.

    Raises:
        InputError: a variable of the network is at fault.
    """
    check_environment(RANK_FILES, OF_REQUESTS)
    address = getattr(getattr(error, "request", None), "url", None)
    if address is None and error.errno is None:  # the request could not even be made
        return f"the rank file of {name} cannot be fetched: {error}"
    if address is None:  # no failed download: the cache itself
        return (
            f"tiktoken cannot read or write its cache for {name}: {error}; TIKTOKEN_CACHE_DIR says"
            " where it is"
        )
    folder = cache_folder()
    reason = "tiktoken's cache is switched off"
    if folder is not None:
        reason = f"it is not in tiktoken's cache {folder}"
    return (
        f"{name} needs the rank file {address}: {reason}, and it cannot be fetched"
        f" ({type(error).__name__}). Fetch it on a machine with internet, save it as"
        f" {cache_name(address)} in a folder, and set TIKTOKEN_CACHE_DIR to that folder"
    )
