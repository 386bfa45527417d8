"""Text of users, servers and libraries in messages: safe for a terminal, on one line, and short.

Characters that move a cursor or reverse a line become backslash escapes.
"""

import difflib
import shlex
import unicodedata
from collections.abc import Iterable, Iterator

# Control, format (bidirectional overrides among them), surrogate, private and unassigned
# characters, and exotic line ends: each can move a terminal's cursor, reverse a line or break a
# diff.
UNSAFE = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
LIMIT = 60
"""Characters of a quoted value."""
LEAST_LIKENESS = 0.5
"""Least share of letters in common with a misspelt name (difflib's ratio), for a suggestion."""


def printable(text: str) -> str:
    """The text with every control, ANSI and bidirectional character as a backslash escape.

    Distinct texts stay distinct, because a backslash is escaped too.
    """
    return "".join(_escape(character) for character in text)


def legible(text: str) -> str:
    """A message of several lines with the same characters escaped.

    Line ends and backslashes stay as they are.
    """
    if text.isprintable():
        return text
    characters = []
    for character in text:
        if character not in "\n\\" and not character.isprintable():
            character = _escape(character)
        characters.append(character)
    return "".join(characters)


def _escape(character: str) -> str:
    if character == "\\" or unicodedata.category(character) in UNSAFE:
        return character.encode("unicode_escape").decode("ascii")
    return character


def shorten(value: object) -> str:
    """``repr(value)``, cut to 60 characters with an ellipsis."""
    text = repr(value)
    if len(text) <= LIMIT:
        return text
    return f"{text[: LIMIT - 1]}…"


def did_you_mean(word: str, names: Iterable[str], *, most: int = 1) -> str:
    """The ``most`` names that are nearest to ``word``, as " (did you mean tau?)"; "" for none."""
    nearest = difflib.get_close_matches(word, sorted(names), n=most, cutoff=LEAST_LIKENESS)
    if not nearest:
        return ""
    choice = nearest[-1]
    if len(nearest) > 1:
        choice = f"{', '.join(nearest[:-1])} or {choice}"
    return f" (did you mean {choice}?)"


def shell_line(*words: object) -> str:
    """A command to copy: a shell reads back these very words, whatever characters are in them."""
    return shlex.join(str(word) for word in words)


# --- Errors of other libraries


def first_line(error: BaseException) -> str:
    """The first line of the error's message without its full stop, else its kind."""
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")


def with_remedy(reason: object, remedy: str) -> str:
    """A reason in another's words, then the remedy.

    The remedy follows a semicolon in place of the reason's full stop. After a question it is a
    sentence of its own.
    """
    words = str(reason).rstrip(" .;:,")
    if words.endswith(("?", "!")):
        return f"{words} {remedy[:1].upper()}{remedy[1:]}"
    return f"{words}; {remedy}"


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """An error, then its cause, and so on, each once.

    Without a cause, the error in whose handling it arose stands for it.
    """
    ids = set[int]()
    while error is not None and id(error) not in ids:
        yield error
        ids.add(id(error))
        error = error.__cause__ or error.__context__
