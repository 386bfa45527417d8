"""Words, phrases and patterns to avoid, and what a text that holds them costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np
import regex

from blackbox_lb.errors import InputError
from blackbox_lb.safety.printable import shorten
from blackbox_lb.safety.untrusted import read_settings, text_of_file
from blackbox_lb.tasks.rewards.reward import Form, TextRule
from blackbox_lb.types import FloatArray, Span

PER_WORDS = 100
"""Words of a text in which a hit costs its weight."""
SECONDS = 5.0
"""Longest search of one pattern in one text: a good one takes microseconds."""
REMEDY = (
    "give avoid:FILE, with a word, a phrase or a /pattern/ a line, or the words themselves, as in"
    " avoid:delve,tapestry"
)
INLINE = Path("avoid:WORDS")
"""The name of a list that no file holds."""
MOST_SHOWN = 6
"""Entries that the summary of a list names."""
_LETTER = r"[\p{L}\p{M}\p{N}]"
_UNSPACED = r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Hangul}\p{Thai}\p{Lao}\p{Myanmar}\p{Khmer}]"
"""Scripts in which words stand side by side, or (Hangul) with particles behind them."""
_WORD = regex.compile(
    r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Myanmar}\p{Khmer}]"
    r"|\p{L}[\p{L}\p{M}]*(?:['’]\p{L}[\p{L}\p{M}]*)*"
)
_PATTERN = regex.compile(r"/(?P<entry>.+?)(?<!\\)/(?=\s|$)(?P<rest>.*)")
_QUOTED = regex.compile(r'"(?P<entry>[^"]*)"(?P<forms>\*?)(?=\s|$)(?P<rest>.*)')
_PLAIN = regex.compile(r"(?P<entry>.+?)(?:\s+(?P<rest>[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?))?")
_ENDINGS = "s|es|['’]s|e|d|ed|r|er|rs|ers|st|est|ing|ings|ly|y|ness"
_ENDINGS_OF_STEM = "ing|ings|ed|er|ers|ely|y|ity|ily"
_ENDINGS_DOUBLED = "ed|er|ers|est|ing|ings|y"
_ENDINGS_OF_I = "es|ed|er|ers|est|ly|ness"


def count_words(text: str) -> int:
    """Words of ``text``: "don't" is one, a number none, and so is each letter of a script without
    spaces between words (Han, kana, Thai, Lao, Myanmar, Khmer).
    """
    return sum(1 for _ in _WORD.finditer(text))


@dataclass(frozen=True, slots=True)
class AvoidLine:
    """One line of a list.

    Attributes:
        number: of the line in its file, from 1.
        weight: cost of a hit, above 0.
        entry: the word, the phrase or the pattern, as it is written.
        source: the pattern that finds its hits.
        is_pattern: whether the user wrote that pattern.
    """

    number: int
    weight: float
    entry: str
    source: str
    is_pattern: bool = False


Patterns: TypeAlias = tuple[tuple[AvoidLine, "regex.Pattern[str]"], ...]


class _Hit(NamedTuple):
    """A place of a text, in characters, and the weight of its line."""

    start: int
    end: int
    weight: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AvoidList(TextRule):
    """The lines of a file.

    Attributes:
        path: of the file, for messages.
        lines: in the order of the file.
        words: finds the words and phrases, each as a group of its line.
        weights: group -> cost of a hit.
        patterns: those that the user wrote.
        any_pattern: is found where any of these is; None where they cannot be joined.
    """

    path: Path
    lines: tuple[AvoidLine, ...]
    words: regex.Pattern[str] | None = field(repr=False, compare=False)
    weights: Mapping[str, float] = field(repr=False, compare=False)
    patterns: Patterns = field(repr=False, compare=False)
    any_pattern: regex.Pattern[str] | None = field(repr=False, compare=False)

    @classmethod
    def load(cls, name: str) -> AvoidList:
        """Read the list ``name``: the file of that name, or where there is none, the words and
        patterns in it, with commas between them.

        Raises:
            InputError: no such file though ``name`` is that of one, no line with a word, a word
                with two weights, a weight that is no number above 0, or a pattern that is not valid
                or matches the empty text.
        """
        path = Path(name)
        is_pattern = name.startswith("/") and name.endswith("/")
        is_path = bool(path.suffix) or "/" in name
        if path.exists() or (is_path and "," not in name and not is_pattern):
            text = read_settings(path, "the list to avoid", REMEDY, parse=text_of_file)
            return cls.parse(text, path)
        return cls.parse(name.replace(",", "\n"), INLINE)

    @classmethod
    def parse(cls, text: str, path: Path) -> AvoidList:
        """The list in ``text``; ``path`` names it in messages. InputError: see ``load``."""
        lines = [
            _line(written.strip(), number, path)
            for number, written in enumerate(text.splitlines(), start=1)
            if written.strip() and not written.strip().startswith("#")
        ]
        if not lines:
            raise InputError(f"the list to avoid {path} has no line with a word; {REMEDY}")
        patterns = tuple((line, _compiled(line, path)) for line in lines if line.is_pattern)
        literal = [line for line in lines if not line.is_pattern]
        first_lines: dict[str, AvoidLine] = {}
        for line in literal:
            first = first_lines.setdefault(line.source.casefold(), line)
            if first.weight != line.weight:
                raise InputError(
                    f"{_place(path, line.number)}: {shorten(line.entry)} has the weight"
                    f" {line.weight:g}, and {shorten(first.entry)} in line {first.number}"
                    f" {first.weight:g}; words count in any case, so keep one of them"
                )
        return cls(
            path=path,
            lines=tuple(lines),
            words=_all_words(literal) if literal else None,
            weights={f"line{line.number}": line.weight for line in literal},
            patterns=patterns,
            any_pattern=_any_of(patterns),
        )

    @property
    def label(self) -> str:
        """See ``Reward``."""
        return f"-hits per {PER_WORDS} words"

    @property
    def summary(self) -> str:
        """See ``Reward``."""
        entries = [line.entry for line in self.lines[:MOST_SHOWN]]
        if len(self.lines) > MOST_SHOWN:
            entries.append("...")
        origin = f"in the file {self.path}"
        if self.path == INLINE:
            origin = "read as words, since no file has that name"
        return f"less the hits per {PER_WORDS} words of {', '.join(entries)}; {origin}"

    def spans(self, text: str) -> tuple[Span, ...]:
        """See ``TextRule.spans``. InputError: a pattern takes too long."""
        hits = self._hits(text)
        if not hits:
            return ()
        scale = PER_WORDS / max(count_words(text), 1)
        return tuple(Span(hit.start, hit.end, -hit.weight * scale) for hit in hits)

    def token_costs(self, texts: Sequence[str], typical: Sequence[str]) -> FloatArray:
        """See ``Reward.token_costs``. A word counts in a token that holds the whole of it."""
        words = sum(count_words(text) for text in typical)
        scale = 1.0
        if words:
            scale = PER_WORDS * len(typical) / words
        weights = [sum(hit.weight for hit in self._hits(text)) for text in texts]
        return np.array([-weight * scale for weight in weights], dtype=np.float32)

    def _hits(self, text: str) -> list[_Hit]:
        """The places that count, in their order."""
        candidates = []
        if self.words is not None:
            for match in self.words.finditer(text):
                weight = self.weights[str(match.lastgroup)]
                candidates.append(_Hit(match.start(), match.end(), weight))
        if self._may_hit(text):
            for line, pattern in self.patterns:
                candidates += self._pattern_hits(line, pattern, text)
        candidates.sort(key=lambda hit: (hit.start, -hit.end))
        hits: list[_Hit] = []
        for hit in candidates:
            if not hits or hit.start >= hits[-1].end:
                hits.append(hit)
        return hits

    def _may_hit(self, text: str) -> bool:
        """Whether a pattern may have a hit: one search for all of them, which most of the tokens of
        a vocabulary do not pass.
        """
        if self.any_pattern is None:
            return True
        try:
            return self.any_pattern.search(text, timeout=SECONDS) is not None
        except TimeoutError:
            return True  # the search for each says which it is

    def _pattern_hits(self, line: AvoidLine, pattern: regex.Pattern[str], text: str) -> list[_Hit]:
        try:
            matches = list(pattern.finditer(text, timeout=SECONDS))
        except TimeoutError as error:
            raise InputError(
                f"{_place(self.path, line.number)}: the pattern {shorten(line.source)} takes more"
                f" than {SECONDS:g} s on a text of {len(text):,} characters; write it without"
                " repetitions inside repetitions"
            ) from error
        return [
            _Hit(match.start(), match.end(), line.weight)
            for match in matches
            if match.end() > match.start()
        ]


def _place(path: Path, number: int) -> str:
    """The name of a line in messages."""
    unit = "entry" if path == INLINE else "line"
    return f"{path}, {unit} {number}"


def _line(written: str, number: int, path: Path) -> AvoidLine:
    """The line ``written``, which holds more than a comment."""
    place = _place(path, number)
    if written.startswith("/"):
        match = _PATTERN.fullmatch(written)
        if match is None:
            raise InputError(
                f"{place}: {shorten(written)} begins with a slash, and a pattern ends with one,"
                " too: write /PATTERN/, and a word that begins with a slash in quotation marks"
            )
        pattern = match["entry"]
        return AvoidLine(number, _weight(match["rest"], place), pattern, pattern, is_pattern=True)
    match = _QUOTED.fullmatch(written)
    if match is not None:
        entry = match["entry"]
        has_forms = match["forms"] == "*"
    else:
        match = _PLAIN.fullmatch(regex.split(r"\s#", written, maxsplit=1)[0].strip())
        assert match is not None  # it has a letter
        entry = match["entry"].removesuffix("*")
        has_forms = match["entry"].endswith("*")
    words = entry.split()
    if not words:
        raise InputError(
            f"{place}: {shorten(written)} holds no word, so nothing would match; write one, or"
            " delete the line"
        )
    weight = _weight(match["rest"] or "", place)
    return AvoidLine(number, weight, " ".join(words), _phrase(words, has_forms))


def _weight(rest: str, place: str) -> float:
    """The weight in what stands behind an entry, 1 where nothing does. Raises InputError."""
    written = rest.partition("#")[0].strip()
    if not written:
        return 1.0
    try:
        weight = float(written)
    except ValueError:
        weight = float("nan")
    if not 0 < weight < float("inf"):
        raise InputError(
            f"{place}: the weight {shorten(written)} is not a number above 0; write what a hit"
            " costs, as in tapestry 2, or leave it out for 1"
        )
    return weight


def _phrase(words: Sequence[str], has_forms: bool) -> str:
    """The pattern that finds ``words`` in a text as whole words."""
    parts = [_literal(word) for word in words]
    if has_forms:
        parts[-1] = _with_forms(words[-1])
    first = words[0][0]
    last = words[-1][-1]
    pattern = r"\s+".join(parts)
    if _is_spaced(first):
        pattern = f"(?<!{_LETTER}){pattern}"
    if _is_spaced(last):
        pattern = f"{pattern}(?!{_LETTER})"
    return pattern


def _all_words(lines: Sequence[AvoidLine]) -> regex.Pattern[str]:
    """The pattern that finds the words and phrases of all lines, each as the group "line" with its
    number.

    Where two lines begin at one place the longer one counts, so the longer goes first. Lines that
    begin with the same letter stand together, so that most places of a text are passed quickly.
    """
    by_letter: dict[str, list[AvoidLine]] = {}
    for line in sorted(lines, key=lambda line: -len(line.entry)):
        by_letter.setdefault(_literal(line.entry[0].lower()), []).append(line)
    groups = []
    for letter, together in by_letter.items():
        sources = "|".join(f"(?P<line{line.number}>{line.source})" for line in together)
        groups.append(f"(?={letter})(?:{sources})")
    return regex.compile("|".join(groups), regex.IGNORECASE)


def _any_of(patterns: Patterns) -> regex.Pattern[str] | None:
    """One pattern that is found where any of these is; None where they cannot be joined, because
    one counts its groups or sets flags.
    """
    if not patterns:
        return None
    for line, pattern in patterns:
        if pattern.groups or regex.search(r"\(\?(?!:|=|!|<=|<!)", line.source):
            return None
    joined = "|".join(f"(?:{line.source})" for line, _ in patterns)
    return regex.compile(joined, regex.IGNORECASE)


def _literal(word: str) -> str:
    return "".join("['’]" if letter in "'’" else regex.escape(letter) for letter in word)


def _is_spaced(letter: str) -> bool:
    """Whether a word that begins or ends with ``letter`` is set off from other letters."""
    return bool(regex.match(_LETTER, letter)) and not regex.match(_UNSPACED, letter)


def _with_forms(word: str) -> str:
    """The pattern of an English word and its regular forms: endings, "delve" and "delving",
    "tapestry" and "tapestries", "shrug" and "shrugged".
    """
    forms = [f"{_literal(word)}(?:{_ENDINGS})?"]
    if word.endswith("e") and len(word) > 2:
        forms.append(f"{_literal(word[:-1])}(?:{_ENDINGS_OF_STEM})")
    elif word.endswith("y") and len(word) > 2:
        forms.append(f"{_literal(word[:-1])}i(?:{_ENDINGS_OF_I})")
    elif regex.search(r"[aeiou][bdfgklmnprtvz]$", word):
        forms.append(f"{_literal(word)}{word[-1]}(?:{_ENDINGS_DOUBLED})")
    return f"(?:{'|'.join(forms)})"


def _compiled(line: AvoidLine, path: Path) -> regex.Pattern[str]:
    """The pattern of a line that a user wrote. Raises InputError: not valid, or it matches
    everywhere.
    """
    place = _place(path, line.number)
    try:
        pattern = regex.compile(line.source, regex.IGNORECASE)
        matches_nothing = pattern.fullmatch("", timeout=SECONDS) is not None
    except (regex.error, RecursionError, OverflowError, TimeoutError) as error:
        raise InputError(
            f"{place}: the pattern {shorten(line.source)} is not valid: {error}; correct it, the"
            " syntax is that of the package regex"
        ) from error
    if matches_nothing:
        raise InputError(
            f"{place}: the pattern {shorten(line.source)} matches the empty text, so it would hit"
            " at every place; let it hold a letter or a sign that must be there"
        )
    return pattern


FORMS = (
    Form(
        "avoid",
        "less the hits of words, phrases and /patterns/ for each hundred words; WORDS are a file"
        " with one a line, or delve,tapestry",
        AvoidList.load,
        takes="WORDS",
        reaches="file",
        use="stock words, names, dashes",
        places="each hit",
        section="words-to-avoid",
    ),
)
