"""The one layer that keeps secrets out of messages and files: known ones by their value, all others
by their shape.

Known are the credentials in use, and the values of environment variables that a profile, a judge or
a reward names, or whose own name marks a secret. Names are remembered here, values never: they are
read at each masking. Messages, log records, tracebacks, recorded command lines, reports and
cassettes go through ``redacted``; answers of servers, which are data, go through
``Redactor.answer``, which masks the credentials in use and nothing else. Both see a text as its
reader does, behind its escapes.
"""

import json
import logging
import os
import re
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from blackbox_lb.safety.causes import causes
from blackbox_lb.safety.escapes import Span, masked_behind_escapes, may_escape_ascii, near_escapes

MASK = "[masked]"
SHORTEST = 6
"""Shortest masked secret, in characters: with every "k" masked because a test server's key is "k",
no message is readable.
"""
SHORTEST_IN_ANSWERS = 16
"""Shortest secret masked in answers, in characters: no provider issues shorter keys, and "nothing"
may be a word of an answer.
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
_named: set[str] = set()


def watch(names: Iterable[str | None]) -> None:
    """Treat the values of these environment variables as secrets from now on, whatever their names
    are.
    """
    _named.update(name for name in names if name)


def known() -> list[str]:
    """The values of all environment variables that hold a secret."""
    names = [name for name in os.environ if name in _named or _VARIABLE.search(name)]
    return [value for name in names if len(value := os.environ[name].strip()) >= SHORTEST]


def redacted(text: str, secrets: Iterable[str] = ()) -> str:
    """``text`` without ``secrets``, the known ones, and all else with the shape of one."""
    return redaction(secrets)(text)


def redaction(secrets: Iterable[str] = ()) -> Callable[[str], str]:
    """``redacted`` for many texts: the known secrets are looked up once."""
    values = _longest_first([*secrets, *known()], SHORTEST)

    def find(text: str) -> Iterator[Span]:
        yield from _occurrences(text, values)
        if _LONG_WORD.search(text):
            for match in _SHAPES.finditer(text):
                yield (match.end("name") if match["name"] else match.start()), match.end()

    def masking(text: str) -> str:
        return text if len(text) < SHORTEST else masked_behind_escapes(text, find, MASK)

    return masking


def _longest_first(secrets: Iterable[str], shortest: int) -> list[str]:
    """Secrets worth masking, the longest first, because one may begin with another."""
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


class Redactor:
    """The layer for one connection. ``secrets``: called at each masking, returns the credentials in
    use.
    """

    def __init__(self, secrets: Callable[[], Iterable[str]] = tuple) -> None:
        self._secrets = secrets

    def __call__(self, text: str) -> str:
        """A message without the credentials in use and all else that ``redacted`` masks."""
        return redacted(text, self._secrets())

    def answer(self, content: bytes) -> bytes:
        """A server's answer with the credentials in use masked, however JSON spells them;
        ``content`` itself where it holds none.
        """
        secrets = _longest_first(self._secrets(), SHORTEST_IN_ANSWERS)
        secrets += [json.dumps(each)[1:-1] for each in secrets if not each.isascii()]
        plain = clean = _as_utf8(content)
        for secret in secrets:
            clean = clean.replace(secret.encode(), MASK.encode())
        if secrets and may_escape_ascii(clean):
            # Each byte as one character, so that whatever is no escape stays as it is.
            values = [secret.encode().decode("latin-1") for secret in secrets]
            text = clean.decode("latin-1")
            parts = []
            done = 0
            for begin, end in near_escapes(text, len(values[0])):
                near = masked_behind_escapes(
                    text[begin:end], lambda part: _occurrences(part, values), MASK
                )
                parts += [text[done:begin], near]
                done = end
            clean = "".join([*parts, text[done:]]).encode("latin-1")
        return content if clean == plain else clean

    def clean(self, error: BaseException) -> None:
        """Mask the words of an error and of its causes, which a traceback would show."""
        for cause in causes(error):
            cause.args = tuple(
                self(argument) if isinstance(argument, str) else argument for argument in cause.args
            )
            if isinstance(getattr(cause, "message", None), str):
                cause.message = self(cause.message)  # type: ignore[attr-defined]  # of the SDK's

    def __repr__(self) -> str:
        return "<Redactor>"


# --- Logs and tracebacks of a whole process


@contextmanager
def guarded() -> Iterator[None]:
    """Inside, mask every log record; from now on, mask the traceback of an error that ends the
    process or a thread.
    """
    before = logging.getLogRecordFactory()

    def made(*arguments: Any, **more: Any) -> logging.LogRecord:
        record = before(*arguments, **more)
        _clean_record(record)
        return record

    _guard_tracebacks()
    logging.setLogRecordFactory(made)
    try:
        yield
    finally:
        logging.setLogRecordFactory(before)


def _clean_record(record: logging.LogRecord) -> None:
    try:
        said = record.getMessage()
    except (TypeError, ValueError):  # logging itself reports a mismatch of message and arguments
        return
    if (clean := redacted(said)) != said:
        record.msg = clean
        record.args = ()
    if record.exc_info:
        record.exc_text = redacted("".join(traceback.format_exception(*record.exc_info))).rstrip(
            "\n"
        )


def _guard_tracebacks() -> None:
    """Replace Python's own hooks only: a hook of a debugger or a test runner stays."""
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = _masked_traceback
    if threading.excepthook is threading.__excepthook__:
        threading.excepthook = lambda found: _masked_traceback(
            found.exc_type, found.exc_value, found.exc_traceback
        )
    if sys.unraisablehook is sys.__unraisablehook__:
        sys.unraisablehook = lambda found: _masked_traceback(
            found.exc_type, found.exc_value, found.exc_traceback
        )


def _masked_traceback(
    kind: type[BaseException], error: BaseException | None, trace: TracebackType | None
) -> None:
    if kind is not SystemExit and sys.stderr is not None:
        sys.stderr.write(redacted("".join(traceback.format_exception(kind, error, trace))))
