"""Byte-pair encoding by the tokenizers library, for vocabularies in tables.

Byte-level BPE (GPT-2: Radford et al. 2019, section 2.2) writes bytes as 256 printable characters
and joins listed pairs; SentencePiece BPE (Kudo and Richardson 2018) writes a space as U+2581 and
joins the pair with the best score.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from blackbox_lb.errors import InputError

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from tokenizers.pre_tokenizers import PreTokenizer

Encoder = Callable[[str], list[int]]
EXTRA = "pip install '.[hf]' in the checkout"
SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
"""U+2581, SentencePiece's sign for a space."""
SURROGATE = re.compile("[\ud800-\udfff]")
"""Stands for a byte of a piece that is no UTF-8, as no text has one."""

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
"""The patterns that split a text into words before any pair is joined, by the name in
``tokenizer.ggml.pre``; each splits further.

From llama.cpp's ``llama_vocab``, without those that llama.cpp only approximates.
"""
WHOLE_WORDS = frozenset({"llama-bpe", "llama-v3", "llama3"})
"""Of these, those that keep a word which is a token whole, whatever its merges ("ignore_merges").
"""


def _characters() -> dict[int, str]:
    """GPT-2's table: printable Latin-1 bytes stand for themselves, the others for characters from
    U+0100 on.
    """
    table = {byte: chr(byte) for byte in range(256) if chr(byte).isprintable() and chr(byte) != " "}
    others = [byte for byte in range(256) if byte not in table]
    return table | {byte: chr(256 + number) for number, byte in enumerate(others)}


CHARACTER_OF = _characters()
BYTE_OF = {character: byte for byte, character in CHARACTER_OF.items()}


def bytes_of_piece(piece: str) -> bytes | None:
    """The bytes of a piece of a byte-level vocabulary; None if a character of it stands for no
    byte.
    """
    try:
        return bytes(BYTE_OF[character] for character in piece)
    except KeyError:
        return None


def byte_level_encoder(
    ids: Mapping[str, int], merges: Iterable[tuple[str, str]], pre: str, literal: Mapping[str, int]
) -> Encoder:
    """Encoder of a byte-level vocabulary. ``literal``: tokens that are matched in the text first,
    as they are.

    Raises InputError: no pre-tokenizer ``pre`` is known, or the extra ``hf`` is missing.
    """
    tokenizer = _tokenizer(ids, dict.fromkeys(merges), literal, whole_words=pre in WHOLE_WORDS)
    tokenizer.pre_tokenizer = splitter(pre)
    known = {byte for byte, character in CHARACTER_OF.items() if character in ids}
    return _encoder(
        tokenizer, lambda text: [bytes([byte]) for byte in text.encode() if byte not in known]
    )


def sentencepiece_encoder(
    ids: Mapping[str, int],
    scores: Mapping[str, float],
    literal: Mapping[str, int],
    byte_ids: Mapping[int, int],
    prefix: bool,
) -> Encoder:
    """Encoder of a SentencePiece BPE vocabulary; ``prefix``: a space is put before each stretch of
    text, as for Llama 2.

    ``byte_ids``: the token of each byte, for characters that have none.

    Raises InputError: the extra ``hf`` is missing.
    """
    best_first = sorted(scores, key=lambda piece: -scores[piece])
    merges = ((piece[:at], piece[at:]) for piece in best_first for at in range(1, len(piece)))
    names = {f"<0x{byte:02X}>": token for byte, token in byte_ids.items()}
    tokenizer = _tokenizer({**ids, **names}, merges, literal)
    from tokenizers import normalizers

    spaces = normalizers.Replace(" ", SPACE)
    tokenizer.normalizer = (
        normalizers.Sequence([normalizers.Prepend(SPACE), spaces]) if prefix else spaces
    )

    def unknown(text: str) -> list[bytes]:
        raws = [each.encode() for each in text.replace(" ", SPACE) if each not in ids]
        return [raw for raw in raws if not byte_ids.keys() >= set(raw)]

    return _encoder(tokenizer, unknown)


def splitter(pre: str) -> PreTokenizer:
    """The pre-tokenizer that splits a text into words, by each pattern of ``pre`` in order, and
    writes them as characters.

    Raises InputError: no pre-tokenizer ``pre`` is known.
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
    """A tokenizer that joins the first of ``merges`` first; pairs whose parts or whole are no token
    are left out.
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
    tokenizer = Tokenizer(models.BPE(vocab, pairs, byte_fallback=True, ignore_merges=whole_words))
    tokenizer.add_tokens([AddedToken(each, normalized=False) for each in literal if each in vocab])
    return tokenizer


def _encoder(tokenizer: Tokenizer, unknown: Callable[[str], list[bytes]]) -> Encoder:
    """``unknown``: the token for text without one; the library would silently leave it out."""

    def encode(text: str) -> list[int]:
        missing = unknown(text)
        if missing:
            raise InputError(
                "the text cannot be encoded: this vocabulary has no token for its bytes"
                f" {missing[0]!r}; leave them out"
            )
        return list(tokenizer.encode(text, add_special_tokens=False).ids)

    return encode
