"""The spellings of tokens in the bytes of answers: numbered once, and found again for all entries
of a list at once.
"""

from __future__ import annotations

import json
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
MOST_BYTES = 1 << 25
"""Most bytes of their spellings; memory that is not used takes none."""
SLOTS = 20
"""Bits of a hash. The second of two spellings that share a slot is looked up in a dictionary, which
takes a microsecond.
"""
STEP = 32
"""Bytes that are compared at once."""
FACTORS = [
    np.uint64(factor)
    for factor in (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xD6E8FEB86659FD93)
]
_NEEDED = np.array([0, 1 << 24, 0x0101 << 16, 0x010101 << 8, 0x01010101], "<u4")
"""Which of four words must be equal, by the number of the field's bytes in the last."""


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
        # By number, in rows, so that one is in one or two lines of the processor's cache: the last
        # words of the token and of its bytes; their lengths, and the ends of what is kept of them.
        self._tails = np.zeros((MOST, 2, STEP // 8), np.uint64)
        self._places = np.zeros((MOST, 4), np.int32)
        self._keep = np.zeros(MOST_BYTES, np.uint8)
        self._kept = STEP

    def numbers(self, content: bytes, spans: Spans) -> Any:
        """The number of each entry's spelling (n,). Raises UnsupportedLayout, ValueError,
        IndexError where no more can be remembered, and the errors of ``Identity``.
        """
        windows = [
            words_at(content, ends - STEP, STEP // 8) for _, ends in (spans.token, spans.raw)
        ]
        slots = self._hashed(windows)
        numbers = self._slots[slots]
        same = self._same(content, windows, spans, numbers)
        if not same.all():
            self._look_up(content, spans, numbers, slots, (~same).nonzero()[0])
        return numbers

    def bytes_of(self, numbers: Any) -> ListedBytes:
        """Id -> bytes of these tokens, where the profile's are exact."""
        numbers = numbers[self._has_bytes[numbers]]
        return ListedBytes(self.ids[numbers], numbers, self._bytes)

    @property
    def full(self) -> bool:
        """Whether the cache may hold no answer's new tokens any more."""
        return len(self._bytes) > MOST // 2 or self._kept > MOST_BYTES // 2

    @staticmethod
    def _hashed(windows: list[Any]) -> Any:
        """A slot for each entry by the last 16 bytes up to its token's end, and the last 8 up to
        that of its bytes.
        """
        token, raw = windows
        mixed = token[:, -1] * FACTORS[0]
        mixed ^= token[:, -2] * FACTORS[1]
        mixed ^= raw[:, -1] * FACTORS[2]
        mixed ^= mixed >> np.uint64(29)
        mixed *= FACTORS[-1]
        return mixed >> np.uint64(64 - SLOTS)

    def _same(self, content: bytes, windows: list[Any], spans: Spans, found: Any) -> Any:
        """Whether each entry equals the spelling with the number ``found``, to the last byte."""
        same = found > 0
        tails = self._tails.take(found, axis=0)
        places = self._places.take(found, axis=0)
        for field, (words, (begins, ends)) in enumerate(
            zip(windows, (spans.token, spans.raw), strict=True)
        ):
            lengths = ends - begins
            same &= lengths == places[:, field]
            self._compare(
                content, words == tails[:, field], same, ends, places[:, 2 + field], lengths
            )
        return same

    def _compare(
        self, content: bytes, equal: Any, same: Any, ends: Any, stored: Any, lengths: Any
    ) -> None:
        """Make False in ``same`` (n,) whatever differs before ``ends``, backwards to the first
        byte; ``equal``: the last words.

        A word may hold bytes before the field: those of its key, the same everywhere. Bytes behind
        the field differ.
        """
        needed = _NEEDED.take(lengths + 7 >> 3, mode="clip")
        same &= equal.view("<u4")[:, 0] & needed == needed
        if (longer := lengths > STEP).any() and len(rows := (same & longer).nonzero()[0]):
            rest = np.ones(len(rows), np.bool_)
            before = ends[rows] - STEP
            earlier = stored[rows] - STEP
            equal = words_at(content, before - STEP, STEP // 8) == words_at(
                self._keep, earlier - STEP, STEP // 8
            )
            self._compare(content, equal, rest, before, earlier, lengths[rows] - STEP)
            same[rows] = rest

    def _look_up(self, content: bytes, spans: Spans, found: Any, slots: Any, rows: Any) -> None:
        """Put the numbers of the entries ``rows`` into ``found``, one by one."""
        columns = [bounds[rows].tolist() for bounds in (*spans.token, *spans.raw)]
        numbers = []
        for begin, end, start, stop in zip(*columns, strict=True):
            key = (
                content[begin:end] + b"\0" + content[start:stop]
            )  # no JSON string holds a zero byte
            number = self._numbers.get(key)
            if number is None:
                number = self._add(key, content[begin:end], content[start:stop])
                self._remember(number, content[begin - 8 : end], content[start - 8 : stop])
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

    def _remember(self, number: int, token: bytes, raw: bytes) -> None:
        """Keep a spelling, each part with the eight bytes before it, to compare entries to."""
        end = self._kept + len(token)
        stop = end + len(raw)
        if stop > MOST_BYTES:
            raise IndexError("no more bytes can be remembered")
        self._keep[self._kept : stop] = np.frombuffer(token + raw, np.uint8)
        self._kept = stop
        self._places[number] = [len(token) - 8, len(raw) - 8, end, stop]
        for field, place in enumerate((end, stop)):
            self._tails[number, field] = self._keep[place - STEP : place].view("<u8")


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
