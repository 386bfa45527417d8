"""The tokens of one endpoint by their spelling in its entries: the same bytes are the same token, and are examined once.

An entry is looked up by a hash of a part of its bytes, for all entries of a list at once, and then compared to the last byte.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from blackbox_lb.api.wire.columns.byte_spans import Aside, Spans, words_at
from blackbox_lb.api.wire.dialects.token_identity import Identity, checked_bytes
from blackbox_lb.providers.profile import Profile
from blackbox_lb.providers.schema import EndpointRules
from blackbox_lb.types import UNNAMED

if TYPE_CHECKING:
    from blackbox_lb.vocabulary import Vocabulary

MOST = 1 << 19
"""Most tokens that are remembered; twice the largest vocabularies."""
SLOTS = 20
"""Bits of a hash. The second of two spellings that share a slot is looked up in a dictionary, which takes a microsecond."""
STEP = 32
"""Bytes that are compared at once."""
FEW = 2_000
"""More tokens are looked up faster once each."""
FACTORS = [np.uint64(each) for each in (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xD6E8FEB86659FD93)]
_NEEDED = np.array([0, 1 << 24, 0x0101 << 16, 0x010101 << 8, 0x01010101], "<u4")
"""Which of four words must be equal, by the number of the field's bytes in the last."""


class TokenSpellings:
    """Numbers the spellings, (token string, list of bytes) as in JSON; ``ids`` by number."""

    def __init__(self, profile: Profile, rules: EndpointRules, vocabulary: Vocabulary | None) -> None:
        self._identity, self._provider = Identity(profile, rules, vocabulary), profile.name
        self._exact = profile.tokens.bytes_exact
        self._numbers: dict[bytes, int] = {}
        self._bytes = [b""]  # number 0 is none
        self._spelled, self._clash = dict[int, bytes](), False
        self._slots = np.zeros(1 << SLOTS, np.int32)
        self.ids = np.zeros(1024, np.int32)
        self._told = np.zeros(1024, np.bool_)
        self._places = np.zeros((2, 2, 1024), np.intp)
        self._keep = np.zeros(1 << 16, np.uint8)
        self._kept = STEP

    def numbers(self, content: bytes, spans: Spans) -> Any:
        """The number of each entry's spelling (n,). Raises Aside, ValueError, and the errors of ``Identity``."""
        slots = self._hashed(content, spans)
        found = self._slots[slots]
        same = self._same(content, spans, found)
        if not same.all():
            self._look_up(content, spans, found, slots, (~same).nonzero()[0])
        return found

    def bytes_of(self, numbers: Any) -> dict[int, bytes]:
        """Id -> bytes of these tokens, where the profile's are exact. Raises Aside where one id has two."""
        used = numbers[self._told[numbers]]
        if len(used) > FEW:
            seen = np.zeros(len(self._bytes), np.bool_)
            seen[used] = True
            used = seen.nonzero()[0]
        pairs = zip(self.ids[used].tolist(), map(self._bytes.__getitem__, used.tolist()), strict=True)
        table = dict(pairs)
        if self._clash and any(table[self.ids[number]] != self._bytes[number] for number in used.tolist()):
            raise Aside("a token with two lists of bytes")
        return table

    @property
    def full(self) -> bool:
        """Whether the cache holds more than any vocabulary needs."""
        return len(self._bytes) > MOST

    @staticmethod
    def _hashed(content: bytes, spans: Spans) -> Any:
        """A slot for each entry by the first and last eight bytes of its token, and the last eight of its bytes."""
        (token, token_end), (_, raw_end) = spans.token, spans.raw
        mixed = np.zeros(len(token), np.uint64)
        for places, factor in zip((token, token_end - 8, raw_end - 8), FACTORS, strict=False):
            mixed ^= words_at(content, places) * factor
        mixed ^= mixed >> np.uint64(29)
        mixed *= FACTORS[-1]
        return mixed >> np.uint64(64 - SLOTS)

    def _same(self, content: bytes, spans: Spans, found: Any) -> Any:
        """Whether each entry equals the spelling with the number ``found``, to the last byte."""
        same = found > 0
        for (begins, ends), (sizes, kept) in zip((spans.token, spans.raw), self._places, strict=True):
            lengths = ends - begins
            same &= lengths == sizes[found]
            self._compare(content, same, ends, kept[found], lengths)
        return same

    def _compare(self, content: bytes, same: Any, ends: Any, kept: Any, lengths: Any) -> None:
        """Make False in ``same`` (n,) whatever differs before ``ends``, backwards to the first byte.

        A word may hold bytes before the field: those of its key, the same everywhere. Bytes behind the field differ.
        """
        equal = words_at(content, ends - STEP, 4) == words_at(self._keep, kept - STEP, 4)
        needed = _NEEDED.take(lengths + 7 >> 3, mode="clip")
        same &= equal.view("<u4")[:, 0] & needed == needed
        if (longer := lengths > STEP).any() and len(rows := (same & longer).nonzero()[0]):
            rest = np.ones(len(rows), np.bool_)
            self._compare(content, rest, ends[rows] - STEP, kept[rows] - STEP, lengths[rows] - STEP)
            same[rows] = rest

    def _look_up(self, content: bytes, spans: Spans, found: Any, slots: Any, rows: Any) -> None:
        """Put the numbers of the entries ``rows`` into ``found``, one by one."""
        columns = [each[rows].tolist() for each in (*spans.token, *spans.raw)]
        numbers = []
        for begin, end, start, stop in zip(*columns, strict=True):
            key = content[begin:end] + b"\0" + content[start:stop]  # no JSON string holds a zero byte
            number = self._numbers.get(key)
            if number is None:
                number = self._add(key, content[begin:end], content[start:stop])
                self._remember(number, content[begin - 8 : end], content[start - 8 : stop])
            numbers.append(number)
        found[rows] = numbers
        empty = self._slots[slots[rows]] == 0  # the commonest tokens come first
        self._slots[slots[rows][empty]] = found[rows][empty]

    def _add(self, key: bytes, token: bytes, raw: bytes) -> int:
        text, given = json.loads(f'"{token.decode()}"'), json.loads(raw)
        if not (given is None or (type(given) is list and all(type(each) is int for each in given))):
            raise Aside("bytes that are none")
        found = self._identity.of_entry({"token": text, "bytes": given})
        spelled = checked_bytes(self._provider, given) if self._exact and given and found != UNNAMED else b""
        number = len(self._bytes)
        if number == len(self.ids):
            self.ids, self._told = (np.concatenate([each, np.zeros_like(each)]) for each in (self.ids, self._told))
            self._places = np.concatenate([self._places, np.zeros_like(self._places)], axis=2)
        self.ids[number], self._told[number] = found, bool(spelled)
        self._clash = self._clash or (bool(spelled) and self._spelled.setdefault(found, spelled) != spelled)
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
        self._places[:, :, number] = (len(token) - 8, end), (len(raw) - 8, self._kept)
