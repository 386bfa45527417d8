"""The door to the page: texts without secrets, and without characters that nobody can see."""

import unicodedata
from collections.abc import Callable
from typing import Any

from blackbox_lb.safety.printable import UNSAFE
from blackbox_lb.safety.secrets import redacted


def tame(value: Any, masking: Callable[[str], str] = redacted) -> Any:
    """The text without secrets, with every character of UNSAFE except line ends and tabs written as
    ⟨U+202E⟩. A value that is no plain string, such as our own HTML, is returned unchanged.
    """
    if type(value) is str:
        return named(masking(value).replace("\r\n", "\n"))
    return value


def named(text: str) -> str:
    """The text with every character of UNSAFE but line ends and tabs named."""
    if text.isprintable():
        return text
    return "".join(_named(character) for character in text)


def drawn(text: str) -> str:
    """A text in a figure: tame, and none of matplotlib's formulas."""
    tamed: str = tame(text)
    return tamed.replace("$", r"\$")


def _named(character: str) -> str:
    unsafe = unicodedata.category(character) in UNSAFE and character not in "\n\t"
    if unsafe:
        return f"⟨U+{ord(character):04X}⟩"
    return character
