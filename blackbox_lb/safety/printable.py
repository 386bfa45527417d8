"""Text of users, servers and libraries in messages: safe for a terminal, on one line, and short.

Characters that move a cursor or reverse a line become backslash escapes.
"""

import difflib
import re
import shlex
import textwrap
import unicodedata
from collections.abc import Iterable, Iterator

# Control, format (bidirectional overrides among them), surrogate, private and unassigned
# characters, and exotic line ends: each can move a terminal's cursor, reverse a line or break a
# diff.
UNSAFE = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
LIMIT = 60
"""Characters of a quoted value."""
_LABEL = re.compile(r" *\S.*?\S {2,}(?=\S)")
"""What stands before the text of a line in columns."""
_SUGGESTION = re.compile(r"\s*\(?[Dd]id you mean (.+?)\?\)?(?=\W|$)")
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


def counted(count: int, noun: str) -> str:
    """A count with its noun: "1 run", "2 runs"."""
    if count == 1:
        return f"1 {noun}"
    return f"{count:,} {noun}s"


def did_you_mean(word: str, names: Iterable[str], *, most: int = 1) -> str:
    """The ``most`` names that are nearest to ``word``, as " (did you mean tau?)"; "" for none."""
    nearest = difflib.get_close_matches(word, sorted(names), n=most, cutoff=LEAST_LIKENESS)
    if not nearest:
        return ""
    choice = nearest[-1]
    if len(nearest) > 1:
        choice = f"{', '.join(nearest[:-1])} or {choice}"
    return f" (did you mean {choice}?)"


def near_or_listed(word: str, names: Iterable[str], title: str) -> str:
    """The name nearest to ``word`` as a question; where none is near, all names after ``title``:
    "; the rivals are a, b".
    """
    choices = list(names)
    return did_you_mean(word, choices) or f"; {title} {', '.join(choices)}"


def suggestion_last(message: str) -> str:
    """A message with what was probably meant on a line of its own, the last."""
    suggestion = _SUGGESTION.search(message)
    if suggestion is None:
        return message
    rest = message[: suggestion.start()] + message[suggestion.end() :]
    return f"{rest}\nDid you mean {suggestion[1]}?"


def wrapped(text: str, width: int | None, *, indent: int | None = None) -> str:
    """A text of one or several lines with no line of more than ``width`` columns, unless a single
    word is longer: broken at spaces alone, so that a command, a path or a number stays whole.

    Args:
        text: what is to be printed.
        width: in columns; None to leave lines as they are.
        indent: spaces before a continued line. None for those of its first line, and two more if it
            has any; below a label and two spaces they reach to the text.
    """
    if width is None:
        return text
    return "\n".join(_wrapped_line(line, width, indent) for line in text.split("\n"))


def _wrapped_line(line: str, width: int, indent: int | None) -> str:
    if len(line) <= width:
        return line
    label = _LABEL.match(line)
    if indent is None and label is not None and len(label[0]) <= width // 2:
        indent = len(label[0])
    elif indent is None:
        leading = len(line) - len(line.lstrip())
        indent = leading + 2 if leading else 0
    return textwrap.fill(
        line,
        width,
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


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
