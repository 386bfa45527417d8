"""The places of the fields of regular lists of logprobs in their bytes: found for all entries at
once, every byte accounted for.

A server writes all entries of all lists alike: the same keys in the same order with the same
blanks. So the text between two fields is read once and compared everywhere else. The rest are the
fields: token strings, lists of bytes, numbers. Of short answers most of the time goes into the
calls, so those of many answers are read together. A list of another kind raises
``UnsupportedLayout``.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from blackbox_lb.api.wire.position import Identity, checked_bytes
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
        self._spelled = dict[int, bytes]()
        self._clash = False
        self._all_told = True
        self._slots = np.zeros(1 << SLOTS, np.int32)
        self.ids = np.zeros(1024, np.int32)
        self._told = np.zeros(1024, np.bool_)
        # By number, in rows, so that one is in one or two lines of the processor's cache: the last
        # words of the token and of its bytes; their lengths, and the ends of what is kept of them.
        self._tails = np.zeros((1024, 2, STEP // 8), np.uint64)
        self._places = np.zeros((1024, 4), np.int32)
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
        numbers = self._slots[slots]
        same = self._same(content, windows, spans, numbers)
        if not same.all():
            self._look_up(content, spans, numbers, slots, (~same).nonzero()[0])
        return numbers

    def bytes_of(self, numbers: Any) -> ListedBytes:
        """Id -> bytes of these tokens, where the profile's are exact. Raises UnsupportedLayout
        where one id has two.
        """
        used = numbers if self._all_told else numbers[self._told[numbers]]
        listed = ListedBytes(self.ids[used], used, self._bytes)
        if self._clash and any(
            listed[self.ids[number]] != self._bytes[number] for number in used.tolist()
        ):
            raise UnsupportedLayout("a token with two lists of bytes")
        return listed

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
        spelled = (
            checked_bytes(self._provider, listed)
            if self._exact and listed and token_id != UNNAMED
            else b""
        )
        number = len(self._bytes)
        if number == len(self.ids):
            for name in ("ids", "_told", "_tails", "_places"):
                setattr(
                    self, name, np.concatenate([(had := getattr(self, name)), np.zeros_like(had)])
                )
        self.ids[number] = token_id
        self._told[number] = bool(spelled)
        self._all_told = self._all_told and bool(spelled)
        self._clash = self._clash or (
            bool(spelled) and self._spelled.setdefault(token_id, spelled) != spelled
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


LONGEST = 900
"""Most bytes of a token or of its list of bytes."""
WIDEST = 23
"""Most characters of a number: the 17 digits of a float64 with sign, point and exponent."""
BEFORE = 32
"""Bytes before a list that are read together with it."""
BLANKS = b" \t\r\n"
OPENING = re.compile(rb'"logprobs":[ \t\r\n]*\{[ \t\r\n]*"content"[ \t\r\n]*:[ \t\r\n]*(?=\[)')
"""The text before a list."""
ORDERS = (("logprob", "bytes"), ("bytes", "logprob"))
"""The order of the fields behind the token, of OpenAI and vLLM, and of SGLang."""
BETWEEN = {
    (True, False): b',"top_logprobs":[{"token":"',
    (True, True): b',"top_logprobs":[]},{"token":"',
    (False, False): b'},{"token":"',
    (False, True): b'}]},{"token":"',
}
"""The text between two entries, without blanks, by whether each is a position's own."""
LAST = {
    True: (b",", b'"top_logprobs"', b":", b"[", b"]", b"}", b"]"),
    False: (b"}", b"]", b"}", b"]"),
}
"""The text behind the last entry."""

COLON = ord(":")
_BYTE = np.uint64(8)
_TOKEN, _BYTES = (np.uint64(int.from_bytes(name, "little")) for name in (b'"token"', b'"bytes"'))
_LOGPROB, _LOGPROBS, _TOP = (
    np.uint64(int.from_bytes(name, "little")) for name in (b'logprob"', b'ogprobs"', b'"top_log')
)
_END = np.array([_TOKEN])
_FLOATS = msgspec.json.Decoder(list[float])
_BLANK = b"[ \t\r\n]*"
_FIELD = {"bytes": rb"null|\[[^\]]*\]", "logprob": rb"[^,}\] \t\r\n]+"}
_KEEP = np.frombuffer(
    b"".join(b"\0" * (WIDEST - n) + b"\xff" * n + b"\0" for n in range(WIDEST + 1)), "<u8"
).reshape(-1, 3)
_PAD = np.frombuffer(
    b"".join(b" " * (WIDEST - n) + b"\0" * n + b"," for n in range(WIDEST + 1)), "<u8"
).reshape(-1, 3)
"""By the length of a number: the mask for the 24 bytes that end behind it, and the filling for the
rest.
"""


class UnsupportedLayout(Exception):
    """The answer is not of the plain kind."""


@dataclass(frozen=True, slots=True)
class Spans:
    """Lists with n entries in all. Each (n,): begin and end of token strings, without their quotes,
    and of lists of bytes; the logprobs. ``own``: the entry is a position's own, and the next ones
    up to another such its alternatives.

    ``lists``: begin, end, and number of the first entry, of each list.
    """

    lists: list[tuple[int, int, int]]
    own: Any
    token: tuple[Any, Any]
    raw: tuple[Any, Any]
    logprobs: Any


def at(content: Any, places: Any, size: int) -> Any:
    """The ``size`` bytes at each of these places, as elements of one array (n,)."""
    return np.ndarray((len(content) - size + 1,), f"V{size}", content, 0, (1,))[places]


def words_at(content: Any, places: Any, words: int = 1) -> Any:
    """The bytes at each of these places as ``words`` numbers of eight: (n,), or (n, words) where
    they are several.
    """
    values = at(content, places, 8 * words).view("<u8")
    return values if words == 1 else values.reshape(-1, words)


def spans_of(content: bytes) -> Spans:
    """The spans of all lists ``{"logprobs": {"content": [...]}}`` in ``content``. Raises
    UnsupportedLayout, and what msgspec raises.
    """
    colons, names, begins = _keys(content)
    entries, is_own, order = _entries(colons, names)
    firsts = np.searchsorted(entries[0], begins)
    layout = _Layout(content, entries, is_own, order, firsts)
    starts = layout.starts(begins)
    token_end, first = layout.field(0)
    first_end, second = layout.field(1)
    second_end, ends = layout.between(starts)
    spans = {order[0]: (first, first_end), order[1]: (second, second_end)}
    for field_begin, field_end in ((starts, token_end), *spans.values()):
        lengths = field_end - field_begin
        if lengths.min() < 0 or lengths.max() > LONGEST:
            raise UnsupportedLayout("fields out of order, or a long one")
    lists = list(zip(begins, ends, firsts.tolist(), strict=True))
    return Spans(
        lists, is_own, (starts, token_end), spans["bytes"], _numbers(content, *spans["logprob"])
    )


def _keys(content: bytes) -> tuple[Any, Any, list[int]]:
    """The colons behind keys of entries, these keys' last eight bytes, and the begin of each
    list.
    """
    colons = (np.frombuffer(content, np.uint8) == COLON).nonzero()[0]
    colons = colons[colons.searchsorted(BEFORE) :]
    names = words_at(content, colons - 8)
    short = names >> _BYTE
    keys = (short == _TOKEN) | (short == _BYTES) | (names == _LOGPROB)
    lists = (names == _LOGPROBS).nonzero()[0]
    top = words_at(content, colons[lists] - 14) == _TOP
    keys[lists[top]] = True
    openings = [OPENING.match(content, colon - 10) for colon in colons[lists[~top]].tolist()]
    begins = [opening.end() for opening in openings if opening is not None]
    if not begins:
        raise UnsupportedLayout("no list")
    keys[: colons.searchsorted(begins[0])] = False
    return colons[keys], names[keys], begins  # without those within tokens and outside of lists


def _entries(colons: Any, names: Any) -> tuple[list[Any], Any, tuple[str, str]]:
    """The colons behind the three keys of each entry, whether it is a position's own (n,), and the
    order of the keys.
    """
    first = (names >> _BYTE == _TOKEN).nonzero()[0]
    if not len(first) or first[0] or first[-1] + 2 >= len(colons):
        raise UnsupportedLayout("no entries")
    is_own = np.concatenate([names, _END])[first + 3] == _LOGPROBS
    if not is_own[0] or (first[1:] - first[:-1] != 3 + is_own[:-1]).any():
        raise UnsupportedLayout("entries with other keys")
    return (
        [colons[first], colons[first + 1], colons[first + 2]],
        is_own,
        ORDERS[int(names[1] != _LOGPROB)],
    )


class _Layout:
    """The text between the fields of the lists that begin with the entries ``firsts``. Its methods
    raise UnsupportedLayout where that differs between entries.
    """

    def __init__(
        self, content: bytes, colons: list[Any], own: Any, order: tuple[str, str], firsts: Any
    ) -> None:
        self._content = content
        self._colons = colons
        self._own = own
        self._pattern = _pattern(order)
        self._firsts = firsts
        self._lasts = np.concatenate([firsts[1:], [len(own)]]) - 1
        if (self._lasts < firsts).any() or not own[firsts].all():
            raise UnsupportedLayout("a list without entries")
        kinds = (own.nonzero()[0], (~own).nonzero()[0])
        samples = [self._entry(int(rows[0])) for rows in kinds if len(rows)]
        if len({self._shape(sample) for sample in samples}) == 1:
            kinds = (slice(None),)  # type: ignore[assignment]
        self._kinds = list(zip(kinds, samples, strict=False))

    def _entry(self, number: int) -> re.Match[bytes]:
        """An entry from the colon behind its first key to its last field: token, glue, field, glue,
        field.
        """
        match = self._pattern.match(self._content, int(self._colons[0][number]))
        if match is None:
            raise UnsupportedLayout("an entry of another layout")
        return match

    @staticmethod
    def _shape(entry: re.Match[bytes]) -> tuple[int, bytes, bytes]:
        return entry.start(1) - entry.start(), entry[2], entry[4]

    def starts(self, begins: list[int]) -> Any:
        """The begins of the token strings."""
        starts = np.empty_like(self._colons[0])
        for rows, sample in self._kinds:
            starts[rows] = self._colons[0][rows] + self._shape(sample)[0]
        for begin, start in zip(begins, starts[self._firsts].tolist(), strict=True):
            if self._content[begin:start].translate(None, BLANKS) != b'[{"token":"':
                raise UnsupportedLayout("a list of another layout")
        return starts

    def field(self, number: int) -> tuple[Any, Any]:
        """Begin and end of the text before a field behind the token."""
        colons = self._colons[number + 1]
        begins = np.empty_like(self._colons[0])
        ends = np.empty_like(self._colons[0])
        for rows, sample in self._kinds:
            glue = sample[2 * number + 2]
            begins[rows] = colons[rows] - glue.index(b":")
            _check_same(self._content, begins[rows], glue)
            ends[rows] = begins[rows] + len(glue)
        return begins, ends

    def between(self, starts: Any) -> tuple[Any, list[int]]:
        """The ends of the last fields, and of the lists."""
        is_own = self._own
        ends = np.empty_like(starts)
        list_ends = list[int]()
        kinds = 2 * is_own[:-1] + is_own[1:]
        kinds[self._lasts[:-1]] = len(BETWEEN)
        for (current, following), expected in BETWEEN.items():
            rows = (kinds == 2 * current + following).nonzero()[0]
            if not len(rows):
                continue
            some = int(rows[0])
            glue = self._content[self._entry(some).end(5) : int(starts[some + 1])]
            if glue.translate(None, BLANKS) != expected:
                raise UnsupportedLayout("entries of another layout")
            ends[rows] = starts[rows + 1] - len(glue)
            _check_same(self._content, ends[rows], glue)
        for number in self._lasts.tolist():
            ends[number] = self._entry(number).end(5)
            last = _closing(bool(is_own[number])).match(self._content, int(ends[number]))
            if last is None:
                raise UnsupportedLayout("a list without an end")
            list_ends.append(last.end())
        return ends, list_ends


@cache
def _pattern(order: tuple[str, str]) -> re.Pattern[bytes]:
    keys = [rb'%b,%b"%b"%b:%b' % (_BLANK, _BLANK, name.encode(), _BLANK, _BLANK) for name in order]
    first, second = (_FIELD[name] for name in order)
    string = rb'[^"\\]*+(?:\\.[^"\\]*+)*+'
    return re.compile(
        rb':%b"(%b)("%b)(%b)(%b)(%b)' % (_BLANK, string, keys[0], first, keys[1], second)
    )


@cache
def _closing(has_own_list: bool) -> re.Pattern[bytes]:
    return re.compile(b"".join(_BLANK + re.escape(glue) for glue in LAST[has_own_list]))


def _check_same(content: bytes, places: Any, glue: bytes) -> None:
    """Check that ``glue`` stands at each of these places."""
    if at(content, places, len(glue)).tobytes() != glue * len(places):
        raise UnsupportedLayout("an entry unlike the others")


def _numbers(content: bytes, begins: Any, ends: Any) -> Any:
    """The numbers there (n,), read by msgspec as one list of equal widths. Raises
    UnsupportedLayout, and msgspec's errors.
    """
    lengths = ends - begins
    if lengths.max() > WIDEST:
        raise UnsupportedLayout("a long number")
    text = words_at(content, ends - WIDEST, 3)
    text &= _KEEP.take(lengths, axis=0)
    text |= _PAD.take(lengths, axis=0)
    floats = _FLOATS.decode(b"[" + text.tobytes()[:-1] + b"]")
    values = np.fromiter(floats, np.float64, len(floats))
    if len(values) != len(ends) or ((values == 0) & np.signbit(values) & (lengths == 2)).any():
        raise UnsupportedLayout("not a number each, or the integer -0, which is 0")
    return values
