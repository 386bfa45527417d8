"""The one layer that keeps secrets out of messages and files: known ones by their value, all others
by their shape.

Known are the credentials in use, and the values of environment variables that a profile, a judge or
a reward names, or whose own name marks a secret. Names are remembered here, values never: they are
read at each masking. Messages, log records, tracebacks, recorded command lines, reports and
cassettes go through ``redacted``; answers of servers, which are data, go through
``Redactor.answer``, which masks the credentials in use and nothing else.
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
from urllib.parse import quote

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
    spelled = _spellings([*secrets, *known()], SHORTEST)

    def masking(text: str) -> str:
        if len(text) < SHORTEST:
            return text
        for secret in spelled:
            text = text.replace(secret, MASK)
        return (
            _SHAPES.sub(lambda found: (found["name"] or "") + MASK, text)
            if _LONG_WORD.search(text)
            else text
        )

    return masking


def _spellings(secrets: Iterable[str], shortest: int) -> list[str]:
    """Each secret as it is, in a URL's spelling and in JSON's; the longest first, because one may
    begin with another.
    """
    told = {
        each
        for secret in secrets
        if secret and len(secret) >= shortest
        for each in _spelled(secret)
    }
    return sorted(told, key=len, reverse=True)


def _spelled(secret: str) -> tuple[str, ...]:
    escaped = json.dumps(secret)[1:-1]
    return secret, quote(secret, safe=""), quote(secret), escaped, escaped.replace("/", "\\/")


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
        """A server's answer with the credentials in use masked; ``content`` itself where it holds
        none.
        """
        for secret in _spellings(self._secrets(), SHORTEST_IN_ANSWERS):
            content = content.replace(secret.encode(), MASK.encode())
        return content

    def clean(self, error: BaseException) -> None:
        """Mask the words of an error and of its causes, which a traceback would show."""
        seen: set[int] = set()
        link: BaseException | None = error
        while link is not None and id(link) not in seen:
            seen.add(id(link))
            link.args = tuple(self(each) if isinstance(each, str) else each for each in link.args)
            if isinstance(getattr(link, "message", None), str):
                link.message = self(link.message)  # type: ignore[attr-defined]  # of the SDK's errors
            link = link.__cause__ or link.__context__

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
        record.msg, record.args = clean, ()
    if record.exc_info:
        record.exc_text = redacted("".join(traceback.format_exception(*record.exc_info))).rstrip(
            "\n"
        )


def _guard_tracebacks() -> None:
    """Replace Python's own hooks only: a hook of a debugger or a test runner stays."""
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = _told
    if threading.excepthook is threading.__excepthook__:
        threading.excepthook = lambda found: _told(
            found.exc_type, found.exc_value, found.exc_traceback
        )
    if sys.unraisablehook is sys.__unraisablehook__:
        sys.unraisablehook = lambda found: _told(
            found.exc_type, found.exc_value, found.exc_traceback
        )


def _told(
    kind: type[BaseException], error: BaseException | None, trace: TracebackType | None
) -> None:
    if kind is not SystemExit and sys.stderr is not None:
        sys.stderr.write(redacted("".join(traceback.format_exception(kind, error, trace))))
