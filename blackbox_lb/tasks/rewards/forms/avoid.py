"""Words, phrases and patterns to avoid, and what a text that holds them costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import regex

from blackbox_lb.bias.phrases import INLINE, PhraseList
from blackbox_lb.tasks.rewards.reward import Form, TextRule
from blackbox_lb.types import FloatArray, Span

PER_WORDS = 100
"""Words of a text in which a hit costs its weight."""
MOST_SHOWN = 6
"""Entries that the summary of a list names."""
_WORD = regex.compile(
    r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Myanmar}\p{Khmer}]"
    r"|\p{L}[\p{L}\p{M}]*(?:['’]\p{L}[\p{L}\p{M}]*)*"
)


def count_words(text: str) -> int:
    """Words of ``text``: "don't" is one, a number none, and so is each letter of a script without
    spaces between words (Han, kana, Thai, Lao, Myanmar, Khmer).
    """
    return sum(1 for _ in _WORD.finditer(text))


def words_of(text: str) -> list[str]:
    """The words that ``count_words`` counts, in lower case."""
    return [match.group().lower() for match in _WORD.finditer(text)]


def hits_for_words(phrases: PhraseList, text: str) -> float:
    """The weights of the hits of a list for each ``PER_WORDS`` words of a text, as the reward has
    them. InputError: a pattern takes too long.
    """
    weight = sum(hit.line.weight for hit in phrases.hits(text))
    return weight * PER_WORDS / max(count_words(text), 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class AvoidList(TextRule):
    """The lines of a file, each hit of which costs its weight.

    Attributes:
        phrases: the list, which finds the places.
    """

    phrases: PhraseList

    @property
    def label(self) -> str:
        """See ``Reward``."""
        return f"-hits per {PER_WORDS} words"

    @property
    def summary(self) -> str:
        """See ``Reward``."""
        lines = self.phrases.lines
        entries = [line.entry for line in lines[:MOST_SHOWN]]
        if len(lines) > MOST_SHOWN:
            entries.append("...")
        origin = f"in the file {self.phrases.path}"
        if self.phrases.path == INLINE:
            origin = "read as words, since no file has that name"
        return f"less the hits per {PER_WORDS} words of {', '.join(entries)}; {origin}"

    def spans(self, text: str) -> tuple[Span, ...]:
        """See ``TextRule.spans``. InputError: a pattern takes too long."""
        hits = self.phrases.hits(text)
        if not hits:
            return ()
        scale = PER_WORDS / max(count_words(text), 1)
        return tuple(Span(hit.start, hit.end, -hit.line.weight * scale) for hit in hits)

    def token_costs(self, texts: Sequence[str], typical: Sequence[str]) -> FloatArray:
        """See ``Reward.token_costs``. A word counts in a token that holds the whole of it."""
        words = sum(count_words(text) for text in typical)
        scale = 1.0
        if words:
            scale = PER_WORDS * len(typical) / words
        weights = [sum(hit.line.weight for hit in self.phrases.hits(text)) for text in texts]
        return np.array([-weight * scale for weight in weights], dtype=np.float32)


FORMS = (
    Form(
        "avoid",
        "less the hits of words, phrases and /patterns/ for each hundred words; WORDS are a file"
        " with one a line, or delve,tapestry",
        lambda name: AvoidList(phrases=PhraseList.load(name)),
        takes="WORDS",
        reaches="file",
    ),
)
