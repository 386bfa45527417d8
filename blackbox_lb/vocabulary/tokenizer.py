"""Tokenizers: their fingerprint, the table of their tokens, and errors of their libraries.

A token is an id under a tokenizer, and a tokenizer is identified by its ids for one fixed text. The
fingerprint needs only a way to tokenise, so the same tokenizer has the same fingerprint behind
llama.cpp, vLLM, or tiktoken.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property

from blackbox_lb.errors import BlbError, InputError
from blackbox_lb.safety.printable import first_line

PROBE_TEXT = (
    "The quick brown fox jumps over 13 lazy dogs; 1234567890 + 0.5 = 1234567890.5?\n\ndef"
    " f(x):\n\treturn {'key': x ** 2, \"other\": [None, True]}  # comment\n\\frac{a}{b} \\leq"
    " \\sum_{i=1}^{n} x_i^2 $100 50% #tag @name http://example.org/a?b=c&d=e\nÜberraschung, déjà"
    " vu, naïve façade, smørrebrød, żółw, Ελληνικά, Русский текст, עברית, العربية, हिन्दी, ไทย,"
    " 中文字符, 日本語テキスト, 한국어, 😀 👩‍👩‍👧 — “quotes” … ≠ ∞\nAntidisestablishmentarianism"
    " uncharacteristically Capital LETTERS camelCaseName snake_case_name    four spaces\r\n"
)
"""Words, numbers, code, mathematics, scripts and whitespace. Tokenizers that differ at all split
some of it differently.

It holds nothing on which implementations of one tokenizer differ, as llama.cpp and transformers do
on vulgar fractions.
"""


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """The tokenizer behind an API.

    fingerprint: see ``fingerprint()``.
    vocabulary_size: in tokens; None where the provider does not give it.
    """

    fingerprint: str
    vocabulary_size: int | None


def fingerprint(probe_ids: Sequence[int]) -> str:
    """The fingerprint of a tokenizer.

    probe_ids: its token ids for ``PROBE_TEXT``, without special tokens.
    """
    digest = hashlib.sha256(",".join(str(token) for token in probe_ids).encode()).hexdigest()
    return f"probe-sha256:{digest[:32]}"


END_OF_TEXT = "<|endoftext|>"
ESCAPED = re.compile(r"bytes:((?:[^\\]|\\x[0-9a-fA-F]{2})*)", re.DOTALL)
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """All tokens of one tokenizer: the bytes of an id, and the one id for given bytes.

    name: the encoding or the file.
    ordinary: the bytes of each token that stands for text, by id.
    special: the ids of the tokens that stand for no text (end of turn, padding), by their printed
        name in APIs. Two names may share an id.
    size: the highest id + 1, in tokens.
    encoder: text to ids; the names of special tokens are read as text.
    """

    name: str
    ordinary: Mapping[int, bytes] = field(repr=False)
    special: Mapping[str, int] = field(repr=False)
    size: int
    encoder: Callable[[str], list[int]] = field(repr=False)

    @cached_property
    def fingerprint(self) -> str:
        """The fingerprint of this tokenizer, the same as behind a server that uses it."""
        return fingerprint(self.encode(PROBE_TEXT))

    @cached_property
    def shared(self) -> Mapping[bytes, tuple[int, ...]]:
        """Byte strings that several ordinary tokens share, with the ids of these tokens.

        SentencePiece vocabularies have them: Gemma 3 writes a line feed as ``\\n`` (107) and as
        ``<0x0A>`` (248). Byte-level vocabularies have none.
        """
        repeated: dict[bytes, tuple[int, ...]] = {}
        for token, raw in self.ordinary.items():
            if raw and self._last_ids[raw] != token:
                repeated[raw] = (*repeated.get(raw, ()), token)
        return {raw: (*ids, self._last_ids[raw]) for raw, ids in repeated.items()}

    @property
    def end_of_text(self) -> int | None:
        """The id of ``<|endoftext|>``; None if there is none.

        OpenAI's ``logit_bias`` takes ids up to this one: "Invalid key in 'logit_bias': 100265.
        Maximum value is 100257."
        """
        return self.special.get(END_OF_TEXT)

    def id_of(self, raw: bytes) -> int | None:
        """The ordinary token with these bytes; None for no token, or several (see ``shared``)."""
        if raw in self.shared:
            return None
        return self._last_ids.get(raw)

    def id_of_special(self, text: str) -> int | None:
        """The special token of this name, as in ``<|im_end|>``; None if there is none."""
        return self.special.get(text)

    def id_of_text(self, text: str) -> int | None:
        """The token that an API without ids displays as ``text``; None for no token, or several.

        OpenAI's legacy completions are such an API. ``bytes:\\xe2\\x80`` is read as bytes, anything
        else as UTF-8 or as a special token's name. A text with U+FFFD, which may stand for any
        fragment of a character, is no token.
        """
        if REPLACEMENT in text:
            return None
        spellings = {_utf8(text), display_bytes(text) or b""}
        if not spellings.isdisjoint(self.shared):
            return None
        readings = {self._last_ids.get(raw) for raw in spellings}
        readings.add(self.id_of_special(text))
        readings.discard(None)
        if len(readings) != 1:
            return None
        return readings.pop()

    def bytes_of(self, token: int) -> bytes | None:
        """The bytes that a token adds to the text; None if the id is no token.

        A special token has its printed name in UTF-8. ``id_of(bytes_of(token))`` is ``token`` for
        every ordinary token that is not in ``shared``, and never for a special one.
        """
        if token in self.ordinary:
            return self.ordinary[token]
        return self._names.get(token)

    def encode(self, text: str) -> list[int]:
        """The token ids of ``text``; the names of special tokens in it are read as text.

        Raises:
            InputError: a byte of the text has no token in this vocabulary, or its library fails.
        """
        # JSON allows half a surrogate pair, which has no UTF-8: tiktoken reads it as U+FFFD, and so
        # does all code here.
        paired = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        with rust_errors(f"the tokenizer {self.name} cannot encode {paired[:40]!r}"):
            return self.encoder(paired)

    @cached_property
    def _last_ids(self) -> dict[bytes, int]:
        """The last id of each byte string."""
        return {raw: token for token, raw in self.ordinary.items() if raw}

    @cached_property
    def _names(self) -> dict[int, bytes]:
        """The first name of each special token."""
        return {self.special[name]: _utf8(name) for name in reversed(list(self.special))}


def display_bytes(text: str) -> bytes | None:
    """The bytes behind a display string such as ``bytes: \\xe2\\x80``; None for any other text.

    OpenAI's legacy completions print a token in this form when its bytes are no complete UTF-8.
    Characters outside the escapes stand for themselves.
    """
    match = ESCAPED.fullmatch(text)
    if match is None or "\\" not in text:
        return None
    raw = b""
    for part in re.findall(r"\\x..|[^\\]+", match[1]):
        if part.startswith("\\x"):
            raw += bytes.fromhex(part[2:])
        else:
            raw += _utf8(part)
    return raw


def _utf8(text: str) -> bytes:
    """The text in UTF-8; half a surrogate pair becomes bytes that no token has."""
    return text.encode("utf-8", "surrogatepass")


# --- Errors of libraries in Rust, which raise no certain class or panic

STDERR = 2
"""The file number under which the libraries write."""


@contextmanager
def rust_errors(failure: str, remedy: str = "") -> Iterator[None]:
    """Turn any error of the block into an InputError, "``failure``: reason``remedy``".

    A panic in Rust reaches Python as a BaseException.
    """
    try:
        yield
    except (BlbError, MemoryError, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:
        raise InputError(f"{failure}: {first_line(error)}{remedy}") from error


@contextmanager
def without_reports() -> Iterator[None]:
    """Discard what the block writes to stderr.

    Rust reports a panic there, although the error has the same words.
    """
    try:
        stderr_copy = os.dup(STDERR)
        null_file = os.open(os.devnull, os.O_WRONLY)
    except OSError:  # no stderr, or no more files may be opened: the report is shown
        yield
        return
    try:
        os.dup2(null_file, STDERR)
        yield
    finally:
        os.dup2(stderr_copy, STDERR)
        for number in (stderr_copy, null_file):
            with suppress(OSError):
                os.close(number)
