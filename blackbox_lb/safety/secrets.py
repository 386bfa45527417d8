"""The one layer that keeps secrets out of messages and files.

Secrets are the credentials in use, the values of environment variables that a profile, a judge or a
reward names or whose own name marks a secret, and all else with the shape of a key. Names of
variables are remembered here, values never: they are read at each masking.

Messages, log records, tracebacks, recorded command lines, reports and cassettes go through
``redacted``. Answers of servers are data and go through ``masked_answer``, which masks the
credentials in use and nothing else. Both mask what a reader sees and not how a server spells it:
``\\u002b``, ``%2B``, ``&#43;`` and ``&plus;`` are all a plus sign, also inside one another.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import threading
import traceback
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from html.entities import html5
from types import TracebackType
from typing import Any

from blackbox_lb.safety.printable import causes

MASK = "[masked]"
Span = tuple[int, int]
"""Begin and end of a secret in a text, in characters."""
SHORTEST = 6
"""Characters of the shortest masked secret. A test server's key may be "k", and no message is
readable with every k masked.
"""
SHORTEST_IN_ANSWERS = 16
"""Characters of the shortest secret masked in answers, which are data: no provider issues shorter
keys, and a key such as "nothing" may be a word of an answer.
"""

SECRET_WORD = re.compile(
    r"(?:^|[-_.])(?:api-?key|key|token|sig|signature|secret|password|passwd|pwd|auth|authorization|credentials?|code)$",
    re.IGNORECASE,
)
"""Last part of the name of a secret query parameter, header or field: api-key, access_token,
X-Amz-Signature.
"""
_VARIABLE = re.compile(
    r"(?:^|_)(?:API_?KEY|KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?)(?:_|$)|(?<=[A-Z])(?:APIKEY|PASSWORD|PASSWD)$",
    re.IGNORECASE,
)
"""The name of any environment variable that holds a secret."""
_SHAPES = re.compile(
    # By the issuer's prefix, and JSON web tokens.
    r"(?<![a-z0-9])(?:(?:sk|gsk|xai|nvapi|pplx|sess)[-_][\w-]{8,}|fw[-_](?=[\w-]*\d)[\w-]{8,}|(?:hf|tgp)_\w{16,}|AIza[\w-]{20,})|"
    r"(?<![a-z0-9])eyJ[\w-]{8,}(?:\.[\w-]+)*|"
    r"(?<=bearer )(?=[^\s'\",]*\d)[^\s'\",]{8,}|(?<=basic"
    r" )(?=[a-z0-9+/]*[\d=])[a-z0-9+/]{8,}={0,2}|"
    # After the name of a header that carries a key.
    r"(?<=api-key: )[^\s'\",]{6,}|"
    # In addresses: user:password@, with the escapes that RFC 3986 asks for, and query parameters.
    r"(?<=://)(?:[^/\s]*(?=@)|[^/\s:@]+:(?!\d+(?:/|\s|$))[^\s@]*(?=@))|"
    r"(?<=[?&;])(?P<name>(?:[\w.%-]*[-_.])?(?:api-?key|key|token|sig|signature|secret|password|passwd|pwd|auth|code|credential)=)"
    r"[^&;\s#'\"<>]+",
    re.IGNORECASE | re.ASCII,
)
_LONG_WORD = re.compile(r"\S{8}")
"""Part of every shape; ordinary words are shorter, and the search for it is much faster."""
_watched: set[str] = set()


def watch(names: Iterable[str | None]) -> None:
    """Treat the values of these environment variables as secrets from now on."""
    _watched.update(name for name in names if name)


def environment_secrets() -> list[str]:
    """The values of all environment variables that hold a secret."""
    names = [name for name in os.environ if name in _watched or _VARIABLE.search(name)]
    values = [os.environ[name].strip() for name in names]
    return [value for value in values if len(value) >= SHORTEST]


def redacted(text: str, secrets: Iterable[str] = ()) -> str:
    """``text`` without ``secrets``, those of the environment, and all else shaped like a key."""
    return redaction(secrets)(text)


def redaction(secrets: Iterable[str] = ()) -> Callable[[str], str]:
    """``redacted`` for many texts: the environment is read once."""
    values = _longest_first([*secrets, *environment_secrets()], SHORTEST)

    def find(text: str) -> Iterator[Span]:
        yield from _occurrences(text, values)
        if _LONG_WORD.search(text):
            for match in _SHAPES.finditer(text):
                begin = match.start()
                if match["name"]:
                    begin = match.end("name")
                yield begin, match.end()

    def mask(text: str) -> str:
        if len(text) < SHORTEST:
            return text
        return masked_behind_escapes(text, find)

    return mask


def _longest_first(secrets: Iterable[str], shortest: int) -> list[str]:
    """Secrets of at least ``shortest`` characters, the longest first: one may begin another."""
    return sorted({value for value in secrets if len(value) >= shortest}, key=len, reverse=True)


def _occurrences(text: str, secrets: Iterable[str]) -> Iterator[Span]:
    for secret in secrets:
        begin = text.find(secret)
        while begin >= 0:
            yield begin, begin + len(secret)
            begin = text.find(secret, begin + len(secret))


def _as_utf8(content: bytes) -> bytes:
    """JSON of any encoding as UTF-8, as far as it can be read; parsers of JSON read them all."""
    if b"\0" not in content[:4]:
        return content
    return content.decode(json.detect_encoding(content), "replace").encode("utf-8", "replace")


def masked_answer(content: bytes, secrets: Iterable[str]) -> bytes:
    """A server's answer with the credentials in use masked, however JSON spells them; ``content``
    itself where it holds none.
    """
    longest_first = _longest_first(secrets, SHORTEST_IN_ANSWERS)
    longest_first += [json.dumps(secret)[1:-1] for secret in longest_first if not secret.isascii()]
    plain = _as_utf8(content)
    clean = plain
    for secret in longest_first:
        clean = clean.replace(secret.encode(), MASK.encode())
    if longest_first and any(pattern.search(clean) for pattern in _BEGINS):
        # Each byte as one character, so that whatever is no escape stays as it is.
        values = [secret.encode().decode("latin-1") for secret in longest_first]
        text = clean.decode("latin-1")
        parts = []
        done = 0
        for begin, end in near_escapes(text, len(values[0])):
            near = masked_behind_escapes(text[begin:end], lambda part: _occurrences(part, values))
            parts += [text[done:begin], near]
            done = end
        clean = "".join([*parts, text[done:]]).encode("latin-1")
    if clean == plain:
        return content
    return clean


def mask_error(error: BaseException, secrets: Iterable[str]) -> None:
    """Mask the words of an error and of its causes, which a traceback would show."""
    mask = redaction(secrets)
    for cause in causes(error):
        cause.args = tuple(
            mask(argument) if isinstance(argument, str) else argument for argument in cause.args
        )
        if isinstance(getattr(cause, "message", None), str):
            cause.message = mask(cause.message)  # type: ignore[attr-defined]  # of the SDK's


# --- Secrets behind escapes

MOST_LAYERS = 4
"""Layers of escapes that are read; JSON in JSON in a page has three."""

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
"""Most characters of an escape of one character; ``&amp;#x2b;`` has ten."""


def near_escapes(text: str, length: int) -> Iterator[Span]:
    """Stretches of the text around its escapes, in order, in which a secret may be spelled.

    length: characters of the longest secret.
    """
    reach = LONGEST * length
    begin = 0
    end = 0
    for match in _ESCAPE.finditer(text):
        if match.start() - reach > end:
            if end:
                yield begin, end
            begin = match.start() - reach
        end = match.end() + reach
    if end:
        yield begin, end


def masked_behind_escapes(text: str, find: Callable[[str], Iterable[Span]]) -> str:
    """``text`` with ``MASK`` in place of each secret, whether plain or spelled with escapes.

    find: returns the spans of secrets in a text without escapes.
    """
    parts = []
    end = 0
    for begin, stop in sorted(_spans(text, find, MOST_LAYERS)):
        if begin >= end:
            parts += [text[end:begin], MASK]
        end = max(end, stop)
    return "".join([*parts, text[end:]])


def _spans(text: str, find: Callable[[str], Iterable[Span]], layers: int) -> list[Span]:
    """Spans of the secrets in a text, plain or behind up to ``layers`` layers of escapes."""
    spans = list(find(text))
    if layers == 0:
        return spans
    plain, origin = _unescaped(text)
    if plain != text:
        spans += [(origin(begin), origin(end)) for begin, end in _spans(plain, find, layers - 1)]
    return spans


def _unescaped(text: str) -> tuple[str, Callable[[int], int]]:
    """The text without its outermost escapes, and a map from its positions to those in ``text``."""
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
    """The character of an escape; "" for no known entity, several for some entities."""
    kind = match.lastgroup
    if kind == "mark":
        return match["mark"]
    if kind == "name":
        return html5.get(f"{match['name']};", "")
    if kind == "decimal":
        return chr(int(match["decimal"]))
    return chr(int(match[kind or 0], 16))


# --- Logs and tracebacks of a whole process


@contextmanager
def guarded() -> Iterator[None]:
    """Mask every log record inside the block, and tracebacks from now on.

    Tracebacks are those of errors that end the process or a thread.
    """
    factory = logging.getLogRecordFactory()

    def masking_factory(*arguments: Any, **more: Any) -> logging.LogRecord:
        record = factory(*arguments, **more)
        _clean_record(record)
        return record

    _guard_tracebacks()
    logging.setLogRecordFactory(masking_factory)
    try:
        yield
    finally:
        logging.setLogRecordFactory(factory)


def _clean_record(record: logging.LogRecord) -> None:
    try:
        message = record.getMessage()
    except (TypeError, ValueError):  # logging itself reports a mismatch of message and arguments
        return
    clean = redacted(message)
    if clean != message:
        record.msg = clean
        record.args = ()
    if record.exc_info:
        trace = "".join(traceback.format_exception(*record.exc_info))
        record.exc_text = redacted(trace).rstrip("\n")


def _guard_tracebacks() -> None:
    """Replace Python's own hooks only: a hook of a debugger or a test runner stays."""
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = _masked_traceback
    if threading.excepthook is threading.__excepthook__:
        threading.excepthook = lambda failure: _masked_traceback(
            failure.exc_type, failure.exc_value, failure.exc_traceback
        )
    if sys.unraisablehook is sys.__unraisablehook__:
        sys.unraisablehook = lambda failure: _masked_traceback(
            failure.exc_type, failure.exc_value, failure.exc_traceback
        )


def _masked_traceback(
    kind: type[BaseException], error: BaseException | None, trace: TracebackType | None
) -> None:
    if kind is not SystemExit and sys.stderr is not None:
        sys.stderr.write(redacted("".join(traceback.format_exception(kind, error, trace))))
