"""The places of the fields of regular lists of logprobs in their bytes: found for all entries at
once, every byte accounted for.

A server writes all entries of all lists alike: the same keys in the same order with the same
blanks. So the text between two fields is read once and compared everywhere else. The rest are the
fields: token strings, lists of bytes, numbers. A list of another kind raises ``UnsupportedLayout``.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any, NamedTuple

import msgspec
import numpy as np

from blackbox_lb.api.wire.position import UnsupportedLayout
from blackbox_lb.api.wire.spellings import RAW_WORDS, Spans, at, words_at, words_of

LONGEST = 900
"""Most bytes of a token or of its list of bytes."""
WIDEST = 23
"""Most characters of a number: the 17 digits of a float64 with sign, point and exponent."""
BEFORE = 8 * RAW_WORDS
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
_PAD = np.frombuffer(
    b"".join(b"," + b" " * (WIDEST - n) + b"\0" * n for n in range(WIDEST + 1)), "<u8"
).reshape(-1, 3)
"""By the length of a number: what fills the 24 bytes that end with it."""


def spans_of(content: bytes) -> Spans:
    """The spans of all lists ``{"logprobs": {"content": [...]}}`` in ``content``. Raises
    UnsupportedLayout, and what msgspec raises.
    """
    colons, names, begins = _keys(content)
    entries, is_own, order = _entries(colons, names)
    firsts = np.searchsorted(entries[0], begins)
    lasts = np.concatenate([firsts[1:], [len(is_own)]]) - 1
    if (lasts < firsts).any() or not is_own[firsts].all():
        raise UnsupportedLayout("a list without entries")
    layout = _Layout(content, entries[0], _pattern(order))
    sample = layout.entry(0)
    starts = entries[0] + (sample.start(1) - sample.start())
    for begin, start in zip(begins, starts[firsts].tolist(), strict=True):
        if content[begin:start].translate(None, BLANKS) != b'[{"token":"':
            raise UnsupportedLayout("a list of another layout")
    token_end, first = _field(content, entries[1], sample[2])
    first_end, second = _field(content, entries[2], sample[4])
    second_end, ends = _between(layout, starts, is_own, lasts)
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


class _Layout(NamedTuple):
    """Entries in ``content``, by the colons behind their first keys (n,), and their pattern."""

    content: bytes
    colons: Any
    pattern: re.Pattern[bytes]

    def entry(self, number: int) -> re.Match[bytes]:
        """An entry from the colon behind its first key to its last field: token, text, field, text,
        field. Raises UnsupportedLayout.
        """
        match = self.pattern.match(self.content, int(self.colons[number]))
        if match is None:
            raise UnsupportedLayout("an entry of another layout")
        return match


def _field(content: bytes, colons: Any, glue: bytes) -> tuple[Any, Any]:
    """Begin and end of the text before a field, by the colons in it. Raises UnsupportedLayout where
    it is not ``glue`` everywhere.
    """
    begins = colons - glue.index(b":")
    _check_same(content, begins, glue)
    return begins, begins + len(glue)


def _between(layout: _Layout, starts: Any, is_own: Any, lasts: Any) -> tuple[Any, list[int]]:
    """The ends of the last fields of all entries, and of the lists that end with the entries
    ``lasts``. Raises UnsupportedLayout.
    """
    ends = np.empty_like(starts)
    list_ends = list[int]()
    kinds = 2 * is_own[:-1] + is_own[1:]
    kinds[lasts[:-1]] = len(BETWEEN)
    for (current, following), expected in BETWEEN.items():
        rows = (kinds == 2 * current + following).nonzero()[0]
        if not len(rows):
            continue
        some = int(rows[0])
        glue = layout.content[layout.entry(some).end(5) : int(starts[some + 1])]
        if glue.translate(None, BLANKS) != expected:
            raise UnsupportedLayout("entries of another layout")
        ends[rows] = starts[rows + 1] - len(glue)
        _check_same(layout.content, ends[rows], glue)
    for number in lasts.tolist():
        ends[number] = layout.entry(number).end(5)
        last = _closing(bool(is_own[number])).match(layout.content, int(ends[number]))
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
    text = words_of(content, begins, ends, 3)
    text |= _PAD.take(lengths, axis=0)
    floats = _FLOATS.decode(b"[" + text.tobytes()[1:] + b"]")
    values = np.fromiter(floats, np.float64, len(floats))
    if len(values) != len(ends):
        raise UnsupportedLayout("not a number each")
    return values
