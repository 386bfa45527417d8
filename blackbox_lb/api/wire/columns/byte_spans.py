"""The places of the fields of a regular list of logprobs in its bytes: found for all entries at once, every byte accounted for.

A server writes all entries of a list alike: the same keys in the same order with the same blanks. So the text between two fields
is read once and compared everywhere else. The rest are the fields: token strings, lists of bytes, numbers.
A list of another kind raises ``Aside``.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import msgspec
import numpy as np

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
LAST = {True: (b",", b'"top_logprobs"', b":", b"[", b"]", b"}", b"]"), False: (b"}", b"]", b"}", b"]")}
"""The text behind the last entry."""

_BYTE = np.uint64(8)
_TOKEN, _BYTES = (np.uint64(int.from_bytes(name, "little")) for name in (b'"token"', b'"bytes"'))
_LOGPROB, _LOGPROBS, _TOP = (np.uint64(int.from_bytes(name, "little")) for name in (b'logprob"', b'ogprobs"', b'"top_log'))
_FLOATS = msgspec.json.Decoder(list[float])
_BLANK = b"[ \t\r\n]*"
_FIELD = {"bytes": rb"null|\[[^\]]*\]", "logprob": rb"[^,}\] \t\r\n]+"}
_KEEP = np.frombuffer(b"".join(b"\0" * (WIDEST - n) + b"\xff" * n + b"\0" for n in range(WIDEST + 1)), "<u8").reshape(-1, 3)
_PAD = np.frombuffer(b"".join(b" " * (WIDEST - n) + b"\0" * n + b"," for n in range(WIDEST + 1)), "<u8").reshape(-1, 3)
"""By the length of a number: the mask for the 24 bytes that end behind it, and the filling for the rest."""


class Aside(Exception):
    """The answer is not of the plain kind."""


@dataclass(frozen=True, slots=True)
class Spans:
    """A list from ``begin`` to ``end``. Of its n entries, each (n,): begin and end of token strings, without their quotes, and of
    lists of bytes; the logprobs. ``own``: the entry is a position's own, and the next ones up to another such its alternatives.
    """

    begin: int
    end: int
    own: Any
    token: tuple[Any, Any]
    raw: tuple[Any, Any]
    logprobs: Any


def at(content: Any, places: Any, size: int) -> Any:
    """The ``size`` bytes at each of these places, as elements of one array (n,)."""
    return np.ndarray((len(content) - size + 1,), f"V{size}", content, 0, (1,))[places]


def words_at(content: Any, places: Any, words: int = 1) -> Any:
    """The bytes at each of these places as ``words`` numbers of eight: (n,), or (n, words) where they are several."""
    found = at(content, places, 8 * words).view("<u8")
    return found if words == 1 else found.reshape(-1, words)


def lists_of(content: bytes) -> Iterator[Spans]:
    """The spans of each list ``{"logprobs": {"content": [...]}}`` in ``content``. Raises Aside, and what msgspec raises."""
    colons, names, openings = _keys(content)
    ends = np.searchsorted(colons, [start for start, _ in openings[1:]])
    begins = np.searchsorted(colons, [begin for _, begin in openings])
    for (_, begin), low, high in zip(openings, begins, [*ends, len(colons)], strict=True):
        yield _spans(content, int(begin), *_entries(colons[low:high], names[low:high]))


def _spans(content: bytes, begin: int, colons: list[Any], own: Any, order: tuple[str, str]) -> Spans:
    layout = _Layout(content, colons, own, order)
    starts = layout.starts(begin)
    token_end, first = layout.field(0)
    first_end, second = layout.field(1)
    second_end, end = layout.between(starts)
    spans = {order[0]: (first, first_end), order[1]: (second, second_end)}
    for one, other in ((starts, token_end), *spans.values()):
        lengths = other - one
        if lengths.min() < 0 or lengths.max() > LONGEST:
            raise Aside("fields out of order, or a long one")
    return Spans(begin, end, own, (starts, token_end), spans["bytes"], _numbers(content, *spans["logprob"]))


def _keys(content: bytes) -> tuple[Any, Any, list[tuple[int, int]]]:
    """The colons behind keys of entries, these keys' last eight bytes, and begin and end of the text before a list."""
    colons = np.flatnonzero(np.frombuffer(content, np.uint8) == ord(":"))
    colons = colons[np.searchsorted(colons, BEFORE) :]
    names = words_at(content, colons - 8)
    short = names >> _BYTE
    keys = (short == _TOKEN) | (short == _BYTES) | (names == _LOGPROB)
    lists = np.flatnonzero(names == _LOGPROBS)
    top = words_at(content, colons[lists] - 14) == _TOP
    keys[lists[top]] = True
    openings = [OPENING.match(content, int(colon) - 10) for colon in colons[lists[~top]]]
    if not keys.all():  # those within tokens and outside of lists
        colons, names = colons[keys], names[keys]
    return colons, names, [each.span() for each in openings if each is not None]


def _entries(colons: Any, names: Any) -> tuple[list[Any], Any, tuple[str, str]]:
    """The colons behind the three keys of each entry, whether it is a position's own (n,), and the order of the keys."""
    first = np.flatnonzero(names >> _BYTE == _TOKEN)
    if not len(first) or first[0] or first[-1] + 2 >= len(colons):
        raise Aside("no entries")
    own = np.append(names, _TOKEN)[first + 3] == _LOGPROBS
    if not own[0] or (np.diff(first) != 3 + own[:-1]).any():
        raise Aside("entries with other keys")
    return [colons[first], colons[first + 1], colons[first + 2]], own, ORDERS[int(names[1] != _LOGPROB)]


class _Layout:
    """The text between the fields of one list. Its methods raise Aside where that differs between entries."""

    def __init__(self, content: bytes, colons: list[Any], own: Any, order: tuple[str, str]) -> None:
        self._content, self._colons, self._own, self._pattern = content, colons, own, _pattern(order)
        kinds = (np.flatnonzero(own), np.flatnonzero(~own))
        samples = [self._entry(int(rows[0])) for rows in kinds if len(rows)]
        if len({self._shape(each) for each in samples}) == 1:
            kinds = (slice(None),)  # type: ignore[assignment]
        self._kinds = list(zip(kinds, samples, strict=False))

    def _entry(self, number: int) -> re.Match[bytes]:
        """An entry from the colon behind its first key to its last field: token, glue, field, glue, field."""
        found = self._pattern.match(self._content, int(self._colons[0][number]))
        if found is None:
            raise Aside("an entry of another layout")
        return found

    @staticmethod
    def _shape(entry: re.Match[bytes]) -> tuple[int, bytes, bytes]:
        return entry.start(1) - entry.start(), entry[2], entry[4]

    def starts(self, begin: int) -> Any:
        """The begins of the token strings."""
        starts = np.empty_like(self._colons[0])
        for rows, sample in self._kinds:
            starts[rows] = self._colons[0][rows] + self._shape(sample)[0]
        if self._content[begin : int(starts[0])].translate(None, BLANKS) != b'[{"token":"':
            raise Aside("a list of another layout")
        return starts

    def field(self, number: int) -> tuple[Any, Any]:
        """Begin and end of the text before a field behind the token."""
        colons, begins, ends = self._colons[number + 1], np.empty_like(self._colons[0]), np.empty_like(self._colons[0])
        for rows, sample in self._kinds:
            glue = sample[2 * number + 2]
            begins[rows] = colons[rows] - glue.index(b":")
            _check_same(self._content, begins[rows], glue)
            ends[rows] = begins[rows] + len(glue)
        return begins, ends

    def between(self, starts: Any) -> tuple[Any, int]:
        """The ends of the last fields, and of the list."""
        own, ends = self._own, np.empty_like(starts)
        kinds = 2 * own[:-1] + own[1:]
        for (one, other), expected in BETWEEN.items():
            rows = np.flatnonzero(kinds == 2 * one + other)
            if not len(rows):
                continue
            some = int(rows[0])
            glue = self._content[self._entry(some).end(5) : int(starts[some + 1])]
            if glue.translate(None, BLANKS) != expected:
                raise Aside("entries of another layout")
            ends[rows] = starts[rows + 1] - len(glue)
            _check_same(self._content, ends[rows], glue)
        ends[-1] = self._entry(len(own) - 1).end(5)
        last = _closing(bool(own[-1])).match(self._content, int(ends[-1]))
        if last is None:
            raise Aside("a list without an end")
        return ends, last.end()


@cache
def _pattern(order: tuple[str, str]) -> re.Pattern[bytes]:
    keys = [rb'%b,%b"%b"%b:%b' % (_BLANK, _BLANK, name.encode(), _BLANK, _BLANK) for name in order]
    first, second = (_FIELD[name] for name in order)
    string = rb'[^"\\]*+(?:\\.[^"\\]*+)*+'
    return re.compile(rb':%b"(%b)("%b)(%b)(%b)(%b)' % (_BLANK, string, keys[0], first, keys[1], second))


@cache
def _closing(own: bool) -> re.Pattern[bytes]:
    return re.compile(b"".join(_BLANK + re.escape(each) for each in LAST[own]))


def _check_same(content: bytes, places: Any, glue: bytes) -> None:
    """Check that ``glue`` stands at each of these places."""
    if at(content, places, len(glue)).tobytes() != glue * len(places):
        raise Aside("an entry unlike the others")


def _numbers(content: bytes, begins: Any, ends: Any) -> Any:
    """The numbers there (n,), read by msgspec as one list of equal widths. Raises Aside, and msgspec's errors."""
    lengths = ends - begins
    if lengths.max() > WIDEST:
        raise Aside("a long number")
    text = words_at(content, ends - WIDEST, 3)
    text &= _KEEP.take(lengths, axis=0)
    text |= _PAD.take(lengths, axis=0)
    found = _FLOATS.decode(b"[" + text.tobytes()[:-1] + b"]")
    values = np.fromiter(found, np.float64, len(found))
    if len(values) != len(ends) or ((values == 0) & np.signbit(values) & (lengths == 2)).any():
        raise Aside("not a number each, or the integer -0, which is 0")
    return values
