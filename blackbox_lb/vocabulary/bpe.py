"""Byte-pair encoding the way llama.cpp does it, for vocabularies that come as tables and not as a program.

Byte-level BPE (GPT-2: Radford et al. 2019, section 2.2) writes bytes as 256 printable characters and joins listed pairs;
SentencePiece BPE (Kudo and Richardson 2018) writes a space as U+2581 and joins whatever pair has the best score.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush

from blackbox_lb.errors import InputError

__all__ = ["SPACE", "byte_level_encoder", "bytes_of_piece", "join", "sentencepiece_encoder", "splitter"]

Encoder = Callable[[str], list[int]]
SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
"""U+2581, how SentencePiece writes a space."""

CONTRACTION = r"'(?i:s|t|re|ve|m|ll|d)"
NEWLINES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
DIGITS = (r"\p{N}", GPT2)
LLAMA3 = rf"{CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{NEWLINES}"
QWEN2 = rf"{CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{NEWLINES}"
QWEN35 = (
    rf"{CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{NEWLINES}"
)
DEEPSEEK3 = (
    r"\p{N}{1,3}",
    r"[一-龥぀-ゟ゠-ヿ]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|"
    + NEWLINES,
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
"""How a text is split into words before any pair is joined, by the name in ``tokenizer.ggml.pre``: each pattern splits further.

From llama.cpp's ``llama_vocab``. Left out are those that llama.cpp approximates and the models' own tokenizers do otherwise.
"""
WHOLE_WORDS = frozenset({"llama-bpe", "llama-v3", "llama3"})
"""Of these, a word that is a token is taken whole, whatever its merges say ("ignore_merges")."""


def _characters() -> dict[int, str]:
    """GPT-2's table: printable Latin-1 bytes stand for themselves, the others for characters from U+0100 on."""
    table = {byte: chr(byte) for byte in range(256) if chr(byte).isprintable() and chr(byte) != " "}
    others = [byte for byte in range(256) if byte not in table]
    return table | {byte: chr(256 + number) for number, byte in enumerate(others)}


CHARACTER_OF = _characters()
BYTE_OF = {character: byte for byte, character in CHARACTER_OF.items()}


def bytes_of_piece(piece: str) -> bytes | None:
    """The bytes that a piece of a byte-level vocabulary stands for; None if a character of it stands for no byte."""
    try:
        return bytes(BYTE_OF[character] for character in piece)
    except KeyError:
        return None


def byte_level_encoder(
    ids: Mapping[str, int], merges: Iterable[tuple[str, str]], pre: str, literal: Mapping[str, int]
) -> Encoder:
    """Encoder of a byte-level vocabulary. ``literal``: tokens that are found in the text as they are, before anything else.

    Raises:
        InputError: no pre-tokenizer ``pre`` is known.
    """
    split = splitter(pre)
    whole = ids if pre in WHOLE_WORDS else {}
    ranks: dict[tuple[str, str], int] = {}
    for number, pair in enumerate(merges):
        ranks.setdefault(pair, number)

    def encode(text: str) -> list[int]:
        out: list[int] = []
        for word in split(text):
            piece = "".join(CHARACTER_OF[byte] for byte in word.encode())
            parts = [piece] if piece in whole else join(list(piece), lambda left, right: ranks.get((left, right)))
            out.extend(_looked_up(ids, parts))
        return out

    return lambda text: _around(literal, text, encode)


def sentencepiece_encoder(
    ids: Mapping[str, int],
    scores: Mapping[str, float],
    literal: Mapping[str, int],
    byte_ids: Mapping[int, int],
    prefix: bool,
) -> Encoder:
    """Encoder of a SentencePiece BPE vocabulary; ``prefix``: a space is put before each stretch of text, as for Llama 2.

    ``byte_ids``: the token of each byte, for characters that have none.
    """

    def cost(left: str, right: str) -> float | None:
        score = scores.get(left + right)
        return None if score is None else -score

    def encode(text: str) -> list[int]:
        pieces = join(list(f"{' ' if prefix else ''}{text}".replace(" ", SPACE)), cost)
        return [token for piece in pieces for token in ([ids[piece]] if piece in ids else bytewise(piece.encode()))]

    def bytewise(raw: bytes) -> list[int]:
        if not all(byte in byte_ids for byte in raw):
            raise InputError(_unwritable(raw))
        return [byte_ids[byte] for byte in raw]

    return lambda text: _around(literal, text, encode)


def splitter(pre: str) -> Callable[[str], list[str]]:
    """The function that splits a text into words, each pattern of ``pre`` after the other; nothing of the text is lost."""
    import regex  # type: ignore[import-untyped]

    if pre not in PATTERNS:
        raise InputError(
            f"the pre-tokenizer {pre!r} is not known here (known: {', '.join(PATTERNS)}); give the model's tokenizer.json instead"
        )
    patterns = [regex.compile(f"({pattern})") for pattern in PATTERNS[pre]]

    def split(text: str) -> list[str]:
        words = [text]
        for pattern in patterns:
            words = [part for word in words for part in pattern.split(word) if part]
        return words

    return split


def join(parts: list[str], rank: Callable[[str, str], float | None]) -> list[str]:
    """Join neighbours, the lowest rank first and the leftmost of equals, until no two have a rank."""
    parts = [*parts, ""]  # the empty part is the right neighbour of the last one, and joins with nothing
    end = len(parts) - 1
    after, before = list(range(1, end + 2)), list(range(-1, end))

    def candidate(left: int) -> tuple[float, int, str, str] | None:
        one, two = parts[left], parts[after[left]]
        found = rank(one, two) if two else None
        return None if found is None else (found, left, one, two)

    heap = [pair for left in range(end) if (pair := candidate(left))]
    heapify(heap)
    while heap:
        _, left, one, two = heappop(heap)
        right = after[left]
        if parts[left] != one or parts[right] != two:
            continue  # one of them has been joined with another since
        parts[left], parts[right] = one + two, ""
        after[left], before[after[right]] = after[right], left
        for start in (before[left], left):
            if start >= 0 and (pair := candidate(start)):
                heappush(heap, pair)
    return [part for part in parts if part]


def _around(literal: Mapping[str, int], text: str, encode: Encoder) -> list[int]:
    """Encode the stretches between literal tokens, which are looked for longest first."""
    stretches: list[str | int] = [text]
    for word in sorted(literal, key=len, reverse=True):
        if word in text:
            stretches = [part for stretch in stretches for part in _cut(stretch, word, literal[word])]
    return [
        token for part in stretches for token in ([part] if isinstance(part, int) else encode(part) if part else [])
    ]


def _cut(stretch: str | int, word: str, token: int) -> list[str | int]:
    """A stretch of text, with each ``word`` in it replaced by its token."""
    if isinstance(stretch, int):
        return [stretch]
    pieces = [piece for part in stretch.split(word) for piece in (part, token)]
    return pieces[:-1]


def _looked_up(ids: Mapping[str, int], parts: Iterable[str]) -> list[int]:
    missing = [part for part in parts if part not in ids]
    if missing:
        raise InputError(_unwritable(bytes_of_piece(missing[0]) or missing[0].encode()))
    return [ids[part] for part in parts]


def _unwritable(raw: bytes) -> str:
    return f"the text cannot be encoded: this vocabulary has no token for its bytes {raw!r}; leave them out"
