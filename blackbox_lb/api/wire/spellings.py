"""The spellings of tokens in the bytes of answers: numbered once, and found again for all entries
of a list at once.
"""

from __future__ import annotations

import json
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from blackbox_lb.api.wire.identity import Identity, checked_bytes
from blackbox_lb.api.wire.position import UnsupportedLayout
from blackbox_lb.providers.profile import Profile
from blackbox_lb.providers.schema import EndpointRules
from blackbox_lb.types import UNNAMED, ListedBytes

if TYPE_CHECKING:
    from blackbox_lb.vocabulary import Vocabulary

MOST = 1 << 18
"""Most tokens that are remembered, about the largest vocabularies."""
SLOTS = 20
"""Bits of a hash. The second of two spellings that share a slot is looked up in a dictionary, which
takes a microsecond.
"""
TOKEN_WORDS = 4
RAW_WORDS = 8
"""Words of eight bytes of a token string and of a list of bytes that are compared at once. A longer
one is looked up in the dictionary.
"""
FACTORS = [
    np.uint64(factor)
    for factor in (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xD6E8FEB86659FD93)
]
_EQUAL = 0x01010101
"""Four words that are equal, as four booleans."""


class TokenSpellings:
    """Numbers the spellings, (token string, list of bytes) as in JSON; ``ids`` by number."""

    def __init__(
        self, profile: Profile, rules: EndpointRules, vocabulary: Vocabulary | None
    ) -> None:
        self._identity = Identity(profile, rules, vocabulary)
        self._provider = profile.name
        self._exact = profile.tokens.bytes_exact
        self._numbers: dict[bytes, int] = {}
        self._bytes = [b""]  # number 0 is none
        self._spelled: dict[int, bytes] = {}
        self._slots = np.zeros(1 << SLOTS, np.int32)
        self.ids = np.zeros(MOST, np.int32)
        self._has_bytes = np.zeros(MOST, np.bool_)
        # By number: the words of a spelling, and its two lengths, -1 where there is none or it is
        # too long to be compared.
        self._words = np.zeros((MOST, TOKEN_WORDS + RAW_WORDS), np.uint64)
        self._lengths = np.full((MOST, 2), -1, np.int32)

    def numbers(self, content: bytes, spans: Spans) -> Any:
        """The number of each entry's spelling (n,). Raises UnsupportedLayout, ValueError,
        IndexError where no more can be remembered, and the errors of ``Identity``.
        """
        words = np.concatenate(
            [
                words_of(content, *spans.token, TOKEN_WORDS),
                words_of(content, *spans.raw, RAW_WORDS),
            ],
            axis=1,
        )
        lengths = [ends - begins for begins, ends in (spans.token, spans.raw)]
        slots = self._hashed(words)
        numbers = self._slots[slots]
        stored = self._lengths.take(numbers, axis=0)
        same = (stored[:, 0] == lengths[0]) & (stored[:, 1] == lengths[1])
        equal = words == self._words.take(numbers, axis=0)
        for four in (equal.view("<u4") == _EQUAL).T:
            same &= four
        if not same.all():
            rows = (~same).nonzero()[0]
            self._look_up(content, spans, words, numbers, slots, rows)
        return numbers

    def bytes_of(self, numbers: Any) -> ListedBytes:
        """Id -> bytes of these tokens, where the profile's are exact."""
        numbers = numbers[self._has_bytes[numbers]]
        return ListedBytes(self.ids[numbers], numbers, self._bytes)

    @property
    def full(self) -> bool:
        """Whether the cache may hold no answer's new tokens any more."""
        return len(self._bytes) > MOST // 2

    @staticmethod
    def _hashed(words: Any) -> Any:
        """A slot for each entry by the last 16 bytes of its token and the last 8 of its bytes."""
        mixed = words[:, TOKEN_WORDS - 1] * FACTORS[0]
        mixed ^= words[:, TOKEN_WORDS - 2] * FACTORS[1]
        mixed ^= words[:, -1] * FACTORS[2]
        mixed ^= mixed >> np.uint64(29)
        mixed *= FACTORS[-1]
        return mixed >> np.uint64(64 - SLOTS)

    def _look_up(
        self, content: bytes, spans: Spans, words: Any, found: Any, slots: Any, rows: Any
    ) -> None:
        """Put the numbers of the entries ``rows`` into ``found``, one by one."""
        columns = [bounds[rows].tolist() for bounds in (*spans.token, *spans.raw)]
        numbers = []
        for row, begin, end, start, stop in zip(rows.tolist(), *columns, strict=True):
            key = (
                content[begin:end] + b"\0" + content[start:stop]
            )  # no JSON string holds a zero byte
            number = self._numbers.get(key)
            if number is None:
                number = self._add(key, content[begin:end], content[start:stop])
                if end - begin <= 8 * TOKEN_WORDS and stop - start <= 8 * RAW_WORDS:
                    self._words[number] = words[row]
                    self._lengths[number] = end - begin, stop - start
            numbers.append(number)
        found[rows] = numbers
        empty = self._slots[slots[rows]] == 0  # the commonest tokens come first
        self._slots[slots[rows][empty]] = found[rows][empty]

    def _add(self, key: bytes, token: bytes, raw: bytes) -> int:
        text = json.loads(f'"{token.decode()}"')
        listed = json.loads(raw)
        if not (
            listed is None or (type(listed) is list and all(type(byte) is int for byte in listed))
        ):
            raise UnsupportedLayout("bytes that are none")
        token_id = self._identity.of_entry({"token": text, "bytes": listed})
        spelled = b""
        if self._exact and listed and token_id != UNNAMED:
            spelled = checked_bytes(self._provider, listed)
            if self._spelled.setdefault(token_id, spelled) != spelled:
                raise UnsupportedLayout("a token with two lists of bytes")
        number = len(self._bytes)
        self.ids[number] = token_id
        self._has_bytes[number] = bool(spelled)
        self._bytes.append(spelled)
        self._numbers[key] = number
        return number


def at(content: Any, places: Any, size: int) -> Any:
    """The ``size`` bytes at each of these places, as elements of one array (n,)."""
    return np.ndarray((len(content) - size + 1,), f"V{size}", content, 0, (1,))[places]


def words_at(content: Any, places: Any, words: int = 1) -> Any:
    """The bytes at each of these places as ``words`` numbers of eight: (n,), or (n, words) where
    they are several.
    """
    values = at(content, places, 8 * words).view("<u8")
    if words == 1:
        return values
    return values.reshape(-1, words)


def words_of(content: bytes, begins: Any, ends: Any, words: int) -> Any:
    """The fields between these places, each as so many numbers of eight bytes (n, words): its last
    bytes, behind zeros.
    """
    values = words_at(content, ends - 8 * words, words)
    values &= _mask(words).take(np.minimum(ends - begins, 8 * words), axis=0)
    return values


@cache
def _mask(words: int) -> Any:
    """By the length of a field: the mask of its bytes in so many numbers of eight."""
    size = 8 * words
    rows = (b"\0" * (size - length) + b"\xff" * length for length in range(size + 1))
    return np.frombuffer(b"".join(rows), "<u8").reshape(-1, words)


class Spans(NamedTuple):
    """Lists with n entries in all, by their places in the bytes of an answer.

    lists: begin, end, and number of the first entry, of each list.
    own: (n,) whether the entry is a position's own; the next ones up to another such are its
        alternatives.
    token: begins and ends (n,) of token strings, without their quotes.
    raw: begins and ends (n,) of lists of bytes.
    logprobs: (n,) in nats.
    """

    lists: list[tuple[int, int, int]]
    own: Any
    token: tuple[Any, Any]
    raw: tuple[Any, Any]
    logprobs: Any
