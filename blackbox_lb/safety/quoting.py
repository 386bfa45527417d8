"""How a value the user gave is quoted in an error message: on one line, and short."""

from __future__ import annotations

LIMIT = 60


def shorten(value: object) -> str:
    """``repr(value)``, cut to 60 characters with an ellipsis."""
    text = repr(value)
    return text if len(text) <= LIMIT else f"{text[: LIMIT - 1]}…"
