"""How a value the user gave, or another library's error, is quoted in an error message: on one line, and short."""

from __future__ import annotations

LIMIT = 60


def shorten(value: object) -> str:
    """``repr(value)``, cut to 60 characters with an ellipsis."""
    text = repr(value)
    return text if len(text) <= LIMIT else f"{text[: LIMIT - 1]}…"


def first_line(error: BaseException) -> str:
    """What the error says first, else its kind."""
    return (str(error).splitlines() or [type(error).__name__])[0]
