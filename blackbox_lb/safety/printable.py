"""Untrusted text, made safe for a terminal: characters that move a cursor or reverse a line become
backslash escapes; and quotes of a user's value, or of another library's error, in an error message:
on one line, and short.
"""

import difflib
import unicodedata
from collections.abc import Iterable

# Control, format (bidirectional overrides among them), surrogate, private and unassigned
# characters, and exotic line ends: each can move a terminal's cursor, reverse a line or break a
# diff.
UNSAFE = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
LIMIT = 60
LEAST_LIKENESS = 0.5
"""Least share of letters in common with what was written (difflib's ratio), for a suggestion."""


def printable(text: str) -> str:
    """The text with every control, ANSI and bidirectional character as a backslash escape; distinct
    texts stay distinct.
    """
    return "".join(_escape(character) for character in text)


def legible(text: str) -> str:
    """A message of several lines with the same characters escaped, but for its line ends;
    backslashes stay as they are.
    """
    if text.isprintable():
        return text
    return "".join(c if c in "\n\\" or c.isprintable() else _escape(c) for c in text)


def _escape(character: str) -> str:
    if character == "\\" or unicodedata.category(character) in UNSAFE:
        return character.encode("unicode_escape").decode("ascii")
    return character


def shorten(value: object) -> str:
    """``repr(value)``, cut to 60 characters with an ellipsis."""
    text = repr(value)
    return text if len(text) <= LIMIT else f"{text[: LIMIT - 1]}…"


def did_you_mean(word: str, names: Iterable[str], *, most: int = 1) -> str:
    """The ``most`` names that are nearest to ``word``, as " (did you mean tau?)"; "" for none."""
    close = difflib.get_close_matches(word, sorted(names), n=most, cutoff=LEAST_LIKENESS)
    if not close:
        return ""
    *before, last = close
    if before:
        return f" (did you mean {', '.join(before)} or {last}?)"
    return f" (did you mean {last}?)"


def first_line(error: BaseException) -> str:
    """The first line of the error's message without its full stop, else its kind."""
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")


def with_remedy(said: object, remedy: str) -> str:
    """Someone else's words, then ours: behind a semicolon in place of their full stop, or a new
    sentence after their question.
    """
    words = str(said).rstrip(" .;:,")
    return (
        f"{words} {remedy[:1].upper()}{remedy[1:]}"
        if words.endswith(("?", "!"))
        else f"{words}; {remedy}"
    )
