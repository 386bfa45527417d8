"""The tokens of one endpoint by their spelling in its entries: the same bytes are the same token,
and are examined once.

An entry is looked up by a hash of a part of its bytes, for all entries of a list at once, and then
compared to the last byte.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from blackbox_lb.api.wire.columns.byte_spans import Spans, UnsupportedLayout, words_at
from blackbox_lb.api.wire.dialects.token_identity import Identity, checked_bytes
from blackbox_lb.providers.profile import Profile
from blackbox_lb.providers.schema import EndpointRules
from blackbox_lb.types import UNNAMED, ListedBytes

if TYPE_CHECKING:
    from blackbox_lb.vocabulary import Vocabulary

MOST = 1 << 19
"""Most tokens that are remembered; twice the largest vocabularies."""
SLOTS = 20
"""Bits of a hash. The second of two spellings that share a slot is looked up in a dictionary, which
takes a microsecond.
"""
STEP = 32
"""Bytes that are compared at once."""
FACTORS = [
    np.uint64(each)
    for each in (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xD6E8FEB86659FD93)
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
        self._spelled = dict[int, bytes]()
        self._clash = False
        self._all_told = True
        self._slots = np.zeros(1 << SLOTS, np.int32)
        self.ids = np.zeros(1024, np.int32)
        self._told = np.zeros(1024, np.bool_)
        # By number, in rows, so that one is in one or two lines of the processor's cache: the last
        # words of the token and of its bytes; their lengths, and the ends of what is kept of them.
        self._tails, self._places = (
            np.zeros((1024, 2, STEP // 8), np.uint64),
            np.zeros((1024, 4), np.int32),
        )
        self._keep = np.zeros(1 << 16, np.uint8)
        self._kept = STEP

    def numbers(self, content: bytes, spans: Spans) -> Any:
        """The number of each entry's spelling (n,). Raises UnsupportedLayout, ValueError, and the
        errors of ``Identity``.
        """
        windows = [
            words_at(content, ends - STEP, STEP // 8) for _, ends in (spans.token, spans.raw)
        ]
        slots = self._hashed(windows)
        found = self._slots[slots]
        same = self._same(content, windows, spans, found)
        if not same.all():
            self._look_up(content, spans, found, slots, (~same).nonzero()[0])
        return found

    def bytes_of(self, numbers: Any) -> ListedBytes:
        """Id -> bytes of these tokens, where the profile's are exact. Raises UnsupportedLayout
        where one id has two.
        """
        used = numbers if self._all_told else numbers[self._told[numbers]]
        found = ListedBytes(self.ids[used], used, self._bytes)
        if self._clash and any(
            found[self.ids[number]] != self._bytes[number] for number in used.tolist()
        ):
            raise UnsupportedLayout("a token with two lists of bytes")
        return found

    @property
    def full(self) -> bool:
        """Whether the cache holds more than any vocabulary needs."""
        return len(self._bytes) > MOST

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
        self, content: bytes, equal: Any, same: Any, ends: Any, kept: Any, lengths: Any
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
            earlier = kept[rows] - STEP
            equal = words_at(content, before - STEP, STEP // 8) == words_at(
                self._keep, earlier - STEP, STEP // 8
            )
            self._compare(content, equal, rest, before, earlier, lengths[rows] - STEP)
            same[rows] = rest

    def _look_up(self, content: bytes, spans: Spans, found: Any, slots: Any, rows: Any) -> None:
        """Put the numbers of the entries ``rows`` into ``found``, one by one."""
        columns = [each[rows].tolist() for each in (*spans.token, *spans.raw)]
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
        given = json.loads(raw)
        if not (
            given is None or (type(given) is list and all(type(each) is int for each in given))
        ):
            raise UnsupportedLayout("bytes that are none")
        found = self._identity.of_entry({"token": text, "bytes": given})
        spelled = (
            checked_bytes(self._provider, given)
            if self._exact and given and found != UNNAMED
            else b""
        )
        number = len(self._bytes)
        if number == len(self.ids):
            for name in ("ids", "_told", "_tails", "_places"):
                setattr(
                    self, name, np.concatenate([(had := getattr(self, name)), np.zeros_like(had)])
                )
        self.ids[number], self._told[number] = found, bool(spelled)
        self._all_told = self._all_told and bool(spelled)
        self._clash = self._clash or (
            bool(spelled) and self._spelled.setdefault(found, spelled) != spelled
        )
        self._bytes.append(spelled)
        self._numbers[key] = number
        return number

    def _remember(self, number: int, token: bytes, raw: bytes) -> None:
        """Keep a spelling, each part with the eight bytes before it, to compare entries to."""
        both = token + raw
        while self._kept + len(both) > len(self._keep):
            self._keep = np.concatenate([self._keep, np.zeros_like(self._keep)])
        end = self._kept + len(token)
        self._keep[self._kept : end + len(raw)] = np.frombuffer(both, np.uint8)
        self._kept = end + len(raw)
        self._places[number] = len(token) - 8, len(raw) - 8, end, self._kept
        for field, stop in enumerate((end, self._kept)):
            self._tails[number, field] = self._keep[stop - STEP : stop].view("<u8")
