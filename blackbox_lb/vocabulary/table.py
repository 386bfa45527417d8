"""The table of a vocabulary: the bytes of a token id, and the one id for given bytes."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from blackbox_lb.vocabulary.tokenizer import PROBE_TEXT, fingerprint

END_OF_TEXT = "<|endoftext|>"
ESCAPED = re.compile(r"bytes:((?:[^\\]|\\x[0-9a-fA-F]{2})*)", re.DOTALL)
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """All tokens of one tokenizer.

    name: the encoding or the file. ordinary: the bytes of each token that stands for text. special:
    the ids of the tokens that stand for no text (end of turn, padding), by their printed name in
    APIs; two names may share an id. size: the highest id + 1, in tokens; a .gguf file counts the
    padding of the model's output too, as its server does. encoder: text to ids, special tokens read
    as text.
    """

    name: str
    ordinary: Mapping[int, bytes] = field(repr=False)
    special: Mapping[str, int] = field(repr=False)
    size: int
    encoder: Callable[[str], list[int]] = field(repr=False)

    @cached_property
    def fingerprint(self) -> str:
        """The fingerprint of this tokenizer, the same as behind a server that uses it; see
        ``tokens.fingerprint``.
        """
        return fingerprint(self.encode(PROBE_TEXT))

    @cached_property
    def shared(self) -> Mapping[bytes, tuple[int, ...]]:
        """Byte strings of several ordinary tokens, with those ids: bytes alone cannot distinguish
        them.

        SentencePiece vocabularies have them: Gemma 3 writes a line feed as ``\\n`` (107) and as
        ``<0x0A>`` (248). Byte-level vocabularies have none.
        """
        return {raw: ids for raw, ids in self._ids.items() if len(ids) > 1}

    @property
    def end_of_text(self) -> int | None:
        """The id of ``<|endoftext|>``, None if there is none.

        OpenAI's ``logit_bias`` takes ids up to this one: "Invalid key in 'logit_bias': 100265.
        Maximum value is 100257."
        """
        return self.special.get(END_OF_TEXT)

    def id_of(self, raw: bytes) -> int | None:
        """The one ordinary token with exactly these bytes; None if there is none, or more than one
        (see ``shared``).
        """
        ids = self._ids.get(raw, ())
        return ids[0] if len(ids) == 1 else None

    def id_of_special(self, text: str) -> int | None:
        """The special token of this name, as in ``<|im_end|>``; None if there is none."""
        return self.special.get(text)

    def id_of_text(self, text: str) -> int | None:
        """The one token that an API without ids and bytes displays as ``text``, as OpenAI's legacy
        completions do.

        ``bytes:\\xe2\\x80`` is read as bytes, anything else as its UTF-8 or as a special token's
        name. None where no token or more than one could be meant: U+FFFD may stand for any fragment
        of a character.
        """
        if REPLACEMENT in text:
            return None
        readings = set(self._ids.get(_utf8(text), ()))
        readings.update(self._ids.get(display_bytes(text) or b"", ()))
        special = self.id_of_special(text)
        if special is not None:
            readings.add(special)
        return readings.pop() if len(readings) == 1 else None

    def bytes_of(self, token: int) -> bytes | None:
        """The bytes that a token adds to the text, a special token's printed name in UTF-8, or None
        if the id is no token.

        ``id_of(bytes_of(token))`` is ``token`` for every ordinary token that is not in ``shared``;
        it never is for special ones.
        """
        raw = self.ordinary.get(token)
        return self._names.get(token) if raw is None else raw

    def encode(self, text: str) -> list[int]:
        """The token ids of ``text``, in which the names of special tokens are text like any other.

        Raises InputError: a byte of the text has no token in this vocabulary.
        """
        # JSON allows half a surrogate pair, which has no UTF-8: tiktoken reads it as U+FFFD, and so
        # does all code here.
        return self.encoder(text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))

    @cached_property
    def _ids(self) -> dict[bytes, tuple[int, ...]]:
        table: dict[bytes, tuple[int, ...]] = {}
        for token, raw in self.ordinary.items():
            if raw:
                table[raw] = (*table.get(raw, ()), token)
        return table

    @cached_property
    def _names(self) -> dict[int, bytes]:
        """The first name of each special token."""
        return {self.special[name]: _utf8(name) for name in reversed(list(self.special))}


def display_bytes(text: str) -> bytes | None:
    """The bytes behind a display string such as ``bytes: \\xe2\\x80``; None if it is not of that
    form.

    OpenAI's legacy completions print a token in this form when its bytes are no whole UTF-8;
    characters outside the escapes stand for themselves.
    """
    match = ESCAPED.fullmatch(text)
    if match is None or "\\" not in text:
        return None
    parts = re.split(r"\\x(..)", match[1])
    return b"".join(
        bytes.fromhex(part) if number % 2 else _utf8(part) for number, part in enumerate(parts)
    )


def _utf8(text: str) -> bytes:
    """UTF-8; half a surrogate pair becomes bytes that no token has."""
    return text.encode("utf-8", "surrogatepass")
