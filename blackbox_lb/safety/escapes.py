"""Texts behind their escapes: what readers of JSON, HTML and addresses make of a text, and where in
the text each character of it stands.

A secret is masked in what is read, not in how a server happened to spell it: ``\\u002b``, ``%2B``,
``&#43;`` and ``&plus;`` are all a plus sign, also in one another.
"""

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from html.entities import html5

Span = tuple[int, int]
"""The place of a secret in a text: its begin and its end."""
MOST_LAYERS = 4
"""Escapes in escapes that are taken off: JSON in JSON in a page is three."""

_HEX = "[2-7][0-9A-Fa-f]"
_ESCAPE = re.compile(  # without re.IGNORECASE, which makes the search ten times slower
    rf"\\(?:u00(?P<json>{_HEX})|x(?P<python>{_HEX})|(?P<mark>[\"'\\/]))"
    rf"|%(?P<percent>{_HEX})"
    rf"|&(?:\#0{{0,8}}(?P<decimal>\d{{2,3}})|\#[xX]0{{0,8}}(?P<hexadecimal>{_HEX})"
    r"|(?P<name>[A-Za-z]{2,8}));?",
    re.ASCII,
)
"""An escape of a printable ASCII character, which all keys consist of."""
_BEGINS = tuple(
    re.compile(pattern)
    for pattern in (rb"\\u00[2-7]", rb"\\/", rb"%[2-7][0-9A-Fa-f]", rb"&(?:#|[A-Za-z]{2,8};)")
)
"""The beginnings of escapes, each found faster than one pattern of them all."""
LONGEST = 12
"""Characters of a longest escape that is looked for: ``&amp;#x2b;`` has ten."""


def may_escape_ascii(content: bytes) -> bool:
    """Whether a printable ASCII character may be spelled as an escape somewhere in an answer."""
    return any(pattern.search(content) for pattern in _BEGINS)


def near_escapes(text: str, length: int) -> Iterator[Span]:
    """Where a secret of ``length`` characters may stand behind escapes: the stretches around them,
    in order.
    """
    reach = LONGEST * length
    begin = end = 0
    for match in _ESCAPE.finditer(text):
        if match.start() - reach > end:
            if end:
                yield begin, end
            begin = match.start() - reach
        end = match.end() + reach
    if end:
        yield begin, end


def masked_behind_escapes(text: str, find: Callable[[str], Iterable[Span]], mask: str) -> str:
    """``text`` with a mask in place of what is found in it, and in what is behind its escapes.

    Args:
        find: the spans to mask in any text.
    """
    parts = []
    end = 0
    for begin, stop in sorted(_spans(text, find, MOST_LAYERS)):
        if begin >= end:
            parts += [text[end:begin], mask]
        end = max(end, stop)
    return "".join([*parts, text[end:]])


def _spans(text: str, find: Callable[[str], Iterable[Span]], layers: int) -> list[Span]:
    """What is found in a text and behind its escapes, as spans of the text."""
    spans = list(find(text))
    if layers == 0:
        return spans
    plain, origin = _unescaped(text)
    if plain != text:
        spans += [(origin(begin), origin(end)) for begin, end in _spans(plain, find, layers - 1)]
    return spans


def _unescaped(text: str) -> tuple[str, Callable[[int], int]]:
    """The text without its outermost escapes, and a function from positions in it to those in
    ``text``.
    """
    parts: list[str] = []
    plain_starts: list[int] = []
    text_starts: list[int] = []
    length = end = 0

    def add(part: str, start: int) -> None:
        nonlocal length
        parts.append(part)
        plain_starts.append(length)
        text_starts.append(start)
        length += len(part)

    for match in _ESCAPE.finditer(text):
        character = _character(match)
        if len(character) == 1:
            add(text[end : match.start()], end)
            add(character, match.start())
            end = match.end()
    add(text[end:], end)

    def origin(position: int) -> int:
        segment = bisect_right(plain_starts, position) - 1
        return text_starts[segment] + position - plain_starts[segment]

    return "".join(parts), origin


def _character(match: re.Match[str]) -> str:
    """The character of an escape; empty where it is none, more where an entity is several."""
    kind = match.lastgroup
    if kind == "mark":
        return match["mark"]
    if kind == "name":
        return html5.get(f"{match['name']};", "")
    return chr(int(match[kind or 0], 10 if kind == "decimal" else 16))
