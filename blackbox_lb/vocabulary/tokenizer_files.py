"""Vocabularies from files: a ``tokenizer.json``, the metadata of a ``.gguf`` file, or tiktoken's
encodings, which are read without internet.

The tokenizers library (extra ``hf``) encodes for both. It reads a tokenizer.json itself. For a GGUF
file, which holds tables only, the encoder is put together here: byte-level BPE (GPT-2, Radford et
al. 2019, section 2.2) writes bytes as 256 printable characters and joins listed pairs, and
SentencePiece BPE (Kudo and Richardson 2018) writes a space as U+2581 and joins the pair with the
best score.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import re
import struct
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from blackbox_lb.errors import InputError
from blackbox_lb.safety.network import OF_REQUESTS, check_environment
from blackbox_lb.safety.untrusted import open_regular, parse_json, read_bounded
from blackbox_lb.vocabulary.tokenizer import Vocabulary, rust_errors, without_reports

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from tokenizers.pre_tokenizers import PreTokenizer

Encoder = Callable[[str], list[int]]
EXTRA = "pip install '.[hf]' in the checkout"
SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
"""U+2581, SentencePiece's sign for a space."""
BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
"""The piece of a single byte, in SentencePiece vocabularies."""
MISSING = "\0 no token \0"
"""The piece of a character that has no token: no text is split into it."""
SURROGATE = re.compile("[\ud800-\udfff]")
"""Stands for a byte of a piece that is no UTF-8; no text has one."""

CONTRACTION = r"'(?i:s|t|re|ve|m|ll|d)"
NEWLINES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
DIGITS = (r"\p{N}", GPT2)
LLAMA3 = (
    rf"{CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|"
    rf" ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{NEWLINES}"
)
QWEN2 = (
    rf"{CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|"
    rf" ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{NEWLINES}"
)
QWEN35 = (
    rf"{CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}|"
    rf" ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{NEWLINES}"
)
DEEPSEEK3 = (
    r"\p{N}{1,3}",
    r"[一-龥぀-ゟ゠-ヿ]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|"
    r" ?[\p{P}\p{S}]+[\r\n]*|" + NEWLINES,
)
PATTERNS: Mapping[str, Sequence[str]] = {
    "gpt-2": (GPT2,),
    "phi-2": (GPT2,),
    "smollm": DIGITS,
    "starcoder": DIGITS,
    "refact": DIGITS,
    "command-r": DIGITS,
    "llama-bpe": (LLAMA3,),
    "llama-v3": (LLAMA3,),
    "llama3": (LLAMA3,),
    "qwen2": (QWEN2,),
    "deepseek-r1-qwen": (QWEN2,),
    "qwen35": (QWEN35,),
    "deepseek-v3": DEEPSEEK3,
}
"""Name in ``tokenizer.ggml.pre`` -> the patterns that split a text into words before any pair is
joined, each splitting the parts of the one before.

They are those of llama.cpp's ``llama_vocab``, without the names that llama.cpp only approximates.
"""
WHOLE_WORDS = frozenset({"llama-bpe", "llama-v3", "llama3"})
"""The names under which a word that is a token is kept, whatever its merges ("ignore_merges")."""


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


def byte_level_encoder(
    ids: Mapping[str, int], merges: Iterable[tuple[str, str]], pre: str, literal: Mapping[str, int]
) -> Encoder:
    """The encoder of a byte-level vocabulary.

    Args:
        ids: the id of each piece.
        merges: the pairs to join, the first one first.
        pre: name of the patterns that split a text into words, in ``PATTERNS``.
        literal: tokens that are matched in the text first, as they are written.

    Raises:
        InputError: there are no patterns of the name ``pre``, or the extra ``hf`` is missing.
    """
    tokenizer = _tokenizer(ids, dict.fromkeys(merges), literal, whole_words=pre in WHOLE_WORDS)
    tokenizer.pre_tokenizer = splitter(pre)
    return _encoder(tokenizer)


def sentencepiece_encoder(
    ids: Mapping[str, int],
    scores: Mapping[str, float],
    literal: Mapping[str, int],
    byte_ids: Mapping[int, int],
    prefix: bool,
) -> Encoder:
    """The encoder of a SentencePiece BPE vocabulary.

    Args:
        ids: the id of each piece.
        scores: the score of each piece; the pair with the best score is joined first.
        literal: tokens that are matched in the text first, as they are written.
        byte_ids: the token of each byte, for characters that are no piece.
        prefix: whether a space is put before each stretch of text, as for Llama 2.

    Raises:
        InputError: the extra ``hf`` is missing.
    """
    best_first = sorted(scores, key=lambda piece: -scores[piece])
    merges = ((piece[:at], piece[at:]) for piece in best_first for at in range(1, len(piece)))
    names = {f"<0x{byte:02X}>": token for byte, token in byte_ids.items()}
    tokenizer = _tokenizer({**ids, **names}, merges, literal)
    from tokenizers import normalizers

    steps: list[normalizers.Normalizer] = [normalizers.Replace(" ", SPACE)]
    if prefix:
        steps.insert(0, normalizers.Prepend(SPACE))
    tokenizer.normalizer = normalizers.Sequence(steps)
    return _encoder(tokenizer)


def splitter(pre: str) -> PreTokenizer:
    """The pre-tokenizer that splits a text into words and writes their bytes as characters.

    Args:
        pre: name of the patterns, in ``PATTERNS``.

    Raises:
        InputError: there are no patterns of that name.
    """
    from tokenizers import Regex, pre_tokenizers

    if pre not in PATTERNS:
        raise InputError(
            f"the pre-tokenizer {pre!r} is not known here (known: {', '.join(PATTERNS)}); give the"
            " model's tokenizer.json instead"
        )
    steps = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in PATTERNS[pre]]
    return pre_tokenizers.Sequence(
        [*steps, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )


def _tokenizer(
    ids: Mapping[str, int],
    merges: Iterable[tuple[str, str]],
    literal: Mapping[str, int],
    *,
    whole_words: bool = False,
) -> Tokenizer:
    """A tokenizer that joins the first of ``merges`` first.

    A pair is left out if a part of it, or the joined pair, is no token.
    """
    try:
        from tokenizers import AddedToken, Tokenizer, models
    except ModuleNotFoundError as error:
        raise InputError(
            f"reading the tokenizer of a .gguf file needs the tokenizers library: {EXTRA}"
        ) from error
    vocab = {
        piece: token for piece, token in {**ids, **literal}.items() if not SURROGATE.search(piece)
    }
    pairs = [
        pair for pair in merges if pair[0] in vocab and pair[1] in vocab and "".join(pair) in vocab
    ]
    tokenizer = Tokenizer(
        models.BPE(
            {**vocab, MISSING: 1 + max(vocab.values(), default=-1)},
            pairs,
            unk_token=MISSING,
            byte_fallback=True,
            ignore_merges=whole_words,
        )
    )
    tokenizer.add_tokens(
        [AddedToken(piece, normalized=False) for piece in literal if piece in vocab]
    )
    return tokenizer


def _encoder(tokenizer: Tokenizer) -> Encoder:
    """The encoding function of a tokenizer, which refuses a text with bytes without a token."""
    missing = tokenizer.token_to_id(MISSING)

    def encode(text: str) -> list[int]:
        encoding = tokenizer.encode(text, add_special_tokens=False)
        ids: list[int] = encoding.ids
        if missing in ids:
            start, end = encoding.offsets[ids.index(missing)]
            raise InputError(
                "the text cannot be encoded: this vocabulary has no token for its bytes"
                f" {text[start:end].encode()!r}; leave them out"
            )
        return ids

    return encode


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

    return Vocabulary(str(path), ordinary, special, size, _encoder(tokenizer))


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


def _byte_or_text(piece: str) -> bytes | None:
    match = BYTE_PIECE.fullmatch(piece)
    if match is None:
        return _spaced(piece)
    return bytes([int(match[1], 16)])


# --- GGUF: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md

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
"""Values of ``tokenizer.ggml.token_type``. A user-defined token is matched as it is written."""


class Token(NamedTuple):
    """One row of the file's token table."""

    id: int
    piece: str
    kind: int


def read_gguf(path: Path) -> Vocabulary:
    """The vocabulary of a GGUF file with a byte-level BPE or a SentencePiece BPE tokenizer.

    It is read from the metadata; the weights of the model are never touched.

    Raises:
        InputError: a damaged or big-endian file, no tokenizer in it, or one of another kind.
    """
    metadata = read_metadata(path)
    kind = metadata.get("tokenizer.ggml.model", "none")
    if kind not in ("gpt2", "llama"):
        raise InputError(
            f"{path} has a tokenizer of kind {kind!r}; gpt2 and llama can be read from a .gguf"
            " file: give the model's tokenizer.json instead"
        )
    try:
        tokens = _tokens(metadata)
        if kind == "gpt2":
            return _byte_level(str(path), tokens, metadata)
        return _sentencepiece(str(path), tokens, metadata)
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
    ordinary = {}
    for token in tokens:
        if token.kind == NORMAL:
            raw = bytes_of_piece(token.piece)
            if raw is not None:
                ordinary[token.id] = raw
        elif token.kind == USER_DEFINED:
            ordinary[token.id] = _raw(token.piece)
    merges = []
    for merge in metadata["tokenizer.ggml.merges"]:
        first, _, second = merge.partition(" ")
        merges.append((first, second))
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
