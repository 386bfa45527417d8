"""Letters outside the wanted scripts, and what a text that holds them costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import regex

from blackbox_lb.errors import InputError
from blackbox_lb.safety.printable import did_you_mean, shorten
from blackbox_lb.tasks.rewards.reward import Form, TextRule
from blackbox_lb.types import FloatArray, Span

PER_LETTERS = 100
"""Letters of a text in which a foreign one costs 1."""
_ANY_LETTER = regex.compile(r"\p{L}")
_COMMON = r"\p{Script=Common}\p{Script=Inherited}"
"""Letters that no script has for itself, such as the mark that lengthens a vowel in kana."""
_NAMES = (
    *("Arabic", "Armenian", "Bengali", "Bopomofo", "Cyrillic", "Devanagari", "Ethiopic"),
    *("Georgian", "Greek", "Gujarati", "Gurmukhi", "Han", "Hangul", "Hebrew", "Hiragana"),
    *("Kannada", "Katakana", "Khmer", "Lao", "Latin", "Malayalam", "Mongolian", "Myanmar"),
    *("Sinhala", "Tamil", "Telugu", "Thai", "Tibetan"),
)
"""The commonest scripts, to suggest one for a mistyped name; every script of Unicode works."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptRule(TextRule):
    """A text costs the number of its letters outside the scripts ``names``, for each hundred
    letters. Signs, digits and emoji belong to every script.
    """

    names: tuple[str, ...]
    foreign: regex.Pattern[str] = field(repr=False, compare=False)

    @classmethod
    def parse(cls, written: str) -> ScriptRule:
        """From names with commas between them, as in "Latin" or "Han,Hiragana,Katakana".

        Raises:
            InputError: a name that is no script of Unicode.
        """
        names = tuple(name.strip() for name in written.split(","))
        for name in names:
            if not regex.fullmatch(r"[A-Za-z][A-Za-z_ -]*", name) or not _is_script(name):
                raise InputError(
                    f"{shorten(name)} is no script of Unicode{did_you_mean(name, _NAMES)}; give"
                    " script:NAME, such as script:Latin, or several with commas:"
                    " script:Han,Hiragana,Katakana"
                )
        scripts = "".join(rf"\p{{Script={name}}}" for name in names)
        return cls(names=names, foreign=regex.compile(rf"(?![{scripts}{_COMMON}])\p{{L}}"))

    @property
    def label(self) -> str:
        """See ``Reward``."""
        return f"-letters not {', '.join(self.names)} per {PER_LETTERS}"

    def spans(self, text: str) -> tuple[Span, ...]:
        """See ``TextRule.spans``: a span for each foreign letter."""
        places = [match.start() for match in self.foreign.finditer(text)]
        if not places:
            return ()
        amount = -PER_LETTERS / count_letters(text)
        return tuple(Span(place, place + 1, amount) for place in places)

    def token_costs(self, texts: Sequence[str], typical: Sequence[str]) -> FloatArray:
        """See ``Reward.token_costs``."""
        letters = sum(count_letters(text) for text in typical)
        scale = 1.0
        if letters:
            scale = PER_LETTERS * len(typical) / letters
        counts = [len(self.foreign.findall(text)) for text in texts]
        return np.array([-count * scale for count in counts], dtype=np.float32)


def count_letters(text: str) -> int:
    """Letters of ``text``, of any script."""
    return len(_ANY_LETTER.findall(text))


def _is_script(name: str) -> bool:
    try:
        regex.compile(rf"\p{{Script={name}}}")
    except regex.error:
        return False
    return True


FORMS = (
    Form(
        "script",
        "less the letters outside a Unicode script, such as Latin, for each hundred letters",
        ScriptRule.parse,
        takes="NAME",
    ),
)
