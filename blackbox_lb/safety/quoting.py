"""Quotes of a user's value, or of another library's error, in an error message: on one line, and short."""

from __future__ import annotations

LIMIT = 60


def shorten(value: object) -> str:
    """``repr(value)``, cut to 60 characters with an ellipsis."""
    text = repr(value)
    return text if len(text) <= LIMIT else f"{text[: LIMIT - 1]}…"


def first_line(error: BaseException) -> str:
    """The first line of the error's message, else its kind."""
    return (str(error).splitlines() or [type(error).__name__])[0]
