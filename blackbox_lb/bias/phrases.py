"""Lists of words, phrases and patterns: how they are written, read, and found in a text.

A list is a file with an entry a line, a file of a public sampler (JSON with words and factors), or
words with commas between them. The reward ``avoid`` counts what it finds in a finished text; who
sends requests asks after every token where a phrase is, or could still come (``PhraseList.find``).

The package ``regex`` is imported where a list is made, so that a bias without phrases needs none.
"""

from __future__ import annotations

import logging
import re
import unicodedata
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from blackbox_lb.errors import InputError
from blackbox_lb.safety.files import exists
from blackbox_lb.safety.printable import shorten
from blackbox_lb.safety.untrusted import parse_json, read_settings, text_of_file

if TYPE_CHECKING:
    import regex

log = logging.getLogger(__name__)

SECONDS = 5.0
"""Longest search of one pattern in one text, in seconds of processor time: a good one takes
microseconds.
"""
SENDING_SECONDS = 1.0
"""The same while an answer is being sent."""
REMEDY = (
    "give a file with a word, a phrase or a /pattern/ a line, or the words themselves, as in"
    " delve,tapestry"
)
WITHOUT_NESTING = "write it without repetitions inside repetitions"
INLINE = Path("the words given")
"""The name of a list that no file holds."""
OF_A_BIAS = Path("phrases")
"""The name of a list that a bias file holds."""
PATTERN_MARK = "re:"
"""Begins a line that is a pattern, as the slash does."""
KEY = 3
"""First letters by which the words and phrases of a list are looked up."""
REPEATED = 48
"""Repetitions in a text on which a pattern is tried: where the time doubles with each of them, it
would take months.
"""
MOST_PROBED = 144
"""Characters of such a text."""
MOST_UNITS = 16
"""Texts that are repeated in such a trial."""
MOST_TAILS = 24
"""Parts of a pattern that are tried by themselves."""
SMALLEST_WEIGHT = 1e-6
_USUAL_UNITS = ("a", "1", " ", "a ", ".", "\n", "-")
_UNSPACED = r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Hangul}\p{Thai}\p{Lao}\p{Myanmar}\p{Khmer}]"
"""Scripts in which words stand side by side, or (Hangul) with particles behind them."""
_SLASHED = re.compile(r"/(?P<entry>.+?)(?<!\\)/(?=\s|$)(?P<rest>.*)", re.DOTALL)
_QUOTED = re.compile(r'"(?P<entry>(?:[^"]|"")*)"(?P<forms>\*?)(?=\s|$)(?P<rest>.*)', re.DOTALL)
_RAW_QUOTED = re.compile(r'"(?P<entry>.*)"', re.DOTALL)
_PLAIN = re.compile(
    r"(?P<entry>.+?)(?:\s+(?P<rest>[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?))?", re.DOTALL
)
_NUMBER_OR_NOTHING = re.compile(r"\s*[-+.\deE]*\s*(?:#.*)?", re.DOTALL)
_TABBED = re.compile(
    r"(?P<entry>(?:(?!\s#).)*\S)\s*\t\s*(?P<rest>[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*(?:#.*)?",
    re.DOTALL,
)
_WHITE = re.compile(r"(?:(?![\x1c-\x1f])\s)+")
_UNEVEN = re.compile(r"  |(?![\x1c-\x1f ])\s")
"""White space that is not one space between words."""
_JSON = re.compile(r'\s*(?:\[\s*["\[\]]|\{\s*["}])')
_LOOKS_LIKE_PATTERN = re.compile(r"\\[bBdDsSwW]|\(\?")
_ENDINGS = "s|es|'s|e|d|ed|r|er|rs|ers|st|est|ing|ings|ly|y|ness"
_ENDINGS_OF_STEM = "ing|ings|ed|er|ers|ely|y|ity|ily"
_ENDINGS_DOUBLED = "ed|er|ers|est|ing|ings|y"
_ENDINGS_OF_I = "es|ed|er|ers|est|ly|ness"


@dataclass(frozen=True, slots=True)
class PhraseLine:
    """One line of a list.

    Attributes:
        number: of the line in its file, from 1; of the entry where it is no file of lines.
        weight: cost of a hit, above 0.
        entry: the word, the phrase or the pattern, as it is written.
        is_pattern: whether it is a pattern.
        has_forms: whether English forms of its last word count, too.
    """

    number: int
    weight: float
    entry: str
    is_pattern: bool = False
    has_forms: bool = False

    @property
    def written(self) -> str:
        """The line as a file holds it; reading it gives the same line."""
        if self.is_pattern:
            text = PATTERN_MARK + self.entry.replace("\t", r"\t")
        else:
            text = self.entry
            if self.has_forms:
                text += "*"
            if _needs_quotes(text, self.has_forms):
                text = '"' + self.entry.replace('"', '""') + '"' + "*" * self.has_forms
        if self.weight != 1.0:
            text += f"\t{repr(self.weight).removesuffix('.0')}"
        return text


class Sight(NamedTuple):
    """A place of a text, in characters, where a phrase is, or may become one with more text.

    start, end: the place, the end not included. is_complete: whether the phrase is there. entry:
    of the line that it is, "" where it is not complete.
    """

    start: int
    end: int
    is_complete: bool
    entry: str


class Hit(NamedTuple):
    """A place of a text, in characters, and the line that is found there."""

    start: int
    end: int
    line: PhraseLine


@dataclass(slots=True)
class _Pattern:
    """A pattern of a user.

    line: where it is written.
    regex: finds it.
    opened: of it, and one character more, finds with ``partial`` where it could still come: it has
        no complete match, since nothing may follow.
    """

    line: PhraseLine
    regex: regex.Pattern[str]
    opened: regex.Pattern[str]


class _Word(NamedTuple):
    """A word or a phrase in folded letters, with one space between words.

    is_set_off, ends_set_off: whether no letter may stand before it, and behind it.
    """

    line: PhraseLine
    is_set_off: bool
    ends_set_off: bool


class _Words:
    """The words and phrases of a list, each form by itself, looked up by their letters.

    Patterns for 10,000 lines, joined into one, took 8 seconds to compile and half a millisecond a
    word of a text.
    """

    def __init__(self, lines: Sequence[PhraseLine]) -> None:
        self.by_text: dict[str, _Word] = {}
        for line in lines:
            is_set_off = _is_spaced(line.entry[0])
            ends_set_off = _is_spaced(line.entry[-1])
            for form in forms_of(line):
                self.by_text.setdefault(_folded(form), _Word(line, is_set_off, ends_set_off))
        sizes: dict[str, set[int]] = {}
        for text in self.by_text:
            sizes.setdefault(text[:KEY], set()).add(len(text))
        self.sizes = {key: sorted(lengths, reverse=True) for key, lengths in sizes.items()}
        self.firsts = {text[0] for text in self.by_text}
        self.longest = max(map(len, self.by_text), default=0)
        self.set_off = sorted(text for text, word in self.by_text.items() if word.is_set_off)
        self.anywhere = sorted(text for text, word in self.by_text.items() if not word.is_set_off)

    def hits(self, text: str) -> Iterator[Hit]:
        """The places of a finished text, none over another; of two at one start the longer one."""
        squeezed = _Squeezed.of(text, 0)
        end = 0
        for place, letter in enumerate(squeezed.letters):
            if place < end or letter not in self.firsts:
                continue
            match = self._complete(text, squeezed, place, len(text) + 1)
            if match is not None:
                end = place + match[0]
                yield match[1]

    def find(self, text: str, start: int, ended: bool) -> Sight | None:
        """See ``PhraseList.find``."""
        squeezed = _Squeezed.of(text, start)
        last = len(text)
        if ended:
            last += 1
        letters = squeezed.letters
        for place, letter in enumerate(letters):
            if letter not in self.firsts:
                continue
            match = self._complete(text, squeezed, place, last)
            if match is not None:
                hit = match[1]
                return Sight(hit.start, hit.end, True, hit.line.entry)
            is_near = len(letters) - place <= self.longest
            if not ended and is_near and self._is_begun(text, squeezed, place):
                return Sight(squeezed.start(place), len(text), False, "")
        return None

    def _complete(
        self, text: str, squeezed: _Squeezed, place: int, last: int
    ) -> tuple[int, Hit] | None:
        """The longest hit at a place of the squeezed text that ends before character ``last``, with
        the number of its letters there.
        """
        letters = squeezed.letters
        for size in range(KEY, 0, -1):
            for length in self.sizes.get(letters[place : place + size], ()):
                word = self.by_text.get(letters[place : place + length])
                if word is None or place + length > len(letters):
                    continue
                start = squeezed.start(place)
                end = squeezed.end(place + length)
                before = word.is_set_off and start > 0 and _is_letter(text[start - 1])
                behind = word.ends_set_off and end < len(text) and _is_letter(text[end])
                if end < last and not before and not behind:
                    return length, Hit(start, end, word.line)
        return None

    def _is_begun(self, text: str, squeezed: _Squeezed, place: int) -> bool:
        """Whether all letters from a place of the squeezed text on begin a word or phrase."""
        rest = squeezed.letters[place:]
        if _begins(self.anywhere, rest):
            return True
        start = squeezed.start(place)
        return not (start and _is_letter(text[start - 1])) and _begins(self.set_off, rest)


def _begins(texts: Sequence[str], beginning: str) -> bool:
    """Whether one of the sorted ``texts`` begins so."""
    place = bisect_left(texts, beginning)
    return place < len(texts) and texts[place].startswith(beginning)


@dataclass(frozen=True, slots=True)
class _Squeezed:
    """A text in folded letters, each run of white space as one space.

    letters: of it. places: where each of them stands in the text; None where no letter is left out,
    so that they stand from character ``offset`` on.
    """

    letters: str
    offset: int
    places: Sequence[int] | None

    @classmethod
    def of(cls, text: str, start: int) -> _Squeezed:
        """A text from character ``start`` on."""
        folded = _folded(text[start:])
        if _UNEVEN.search(folded) is None:
            return cls(folded, start, None)
        letters: list[str] = []
        places: list[int] = []
        behind = 0
        for run in _WHITE.finditer(folded):
            letters += [folded[behind : run.start()], " "]
            places += range(start + behind, start + run.start() + 1)
            behind = run.end()
        letters.append(folded[behind:])
        places += range(start + behind, start + len(folded))
        return cls("".join(letters), start, places)

    def start(self, place: int) -> int:
        """The character of the text where a letter stands."""
        if self.places is None:
            return self.offset + place
        return self.places[place]

    def end(self, place: int) -> int:
        """The character behind the letter before ``place``, which is no space."""
        return self.start(place - 1) + 1


@dataclass(slots=True)
class PhraseList:
    """Words, phrases and patterns.

    Attributes:
        lines: in the order of the file.
        path: of the file, for messages.
    """

    lines: tuple[PhraseLine, ...]
    path: Path = OF_A_BIAS
    _words: _Words = field(init=False, repr=False, compare=False)
    _patterns: list[_Pattern] = field(init=False, repr=False, compare=False)
    _any: regex.Pattern[str] | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._words = _Words([line for line in self.lines if not line.is_pattern])
        self._patterns = [_compiled(line, self.path) for line in self.lines if line.is_pattern]
        self._any = _any_of(self._patterns)

    @classmethod
    def load(cls, name: str) -> PhraseList:
        """Read the list ``name``: the file of that name, or where there is none, the words and
        patterns in it, with commas between them.

        Raises:
            InputError: no such file though ``name`` is that of one, no line with a word, a word
                with two weights, a weight that is no number above 0, a factor that is none, or a
                pattern that is not valid, matches the empty text or can take exponential time.
        """
        path = Path(name)
        is_pattern = name.startswith(PATTERN_MARK) or (name.startswith("/") and name.endswith("/"))
        is_path = bool(path.suffix) or "/" in name
        if exists(path) or (is_path and "," not in name and not is_pattern):
            text = read_settings(path, "the list", REMEDY, parse=text_of_file)
            return cls.parse(text, path)
        return cls.parse(name.replace(",", "\n"), INLINE)

    @classmethod
    def parse(cls, text: str, path: Path) -> PhraseList:
        """The list in ``text``; ``path`` names it in messages. InputError: see ``load``."""
        if path.suffix.lower() == ".json" or _JSON.match(text):
            lines = _json_lines(text, path)
        else:
            lines = [
                _line(written.strip(), number, path)
                for number, written in enumerate(text.splitlines(), start=1)
                if written.strip() and not written.strip().startswith("#")
            ]
        if not lines:
            raise InputError(f"the list {path} has no line with a word; {REMEDY}")
        _check_weights(lines, path)
        phrases = cls(tuple(lines), path)
        for pattern in phrases._patterns:
            _check_time(pattern, path)
        return phrases

    @classmethod
    def of_entries(cls, entries: Iterable[str]) -> PhraseList:
        """The lines of a bias file, as ``entries`` gives them.

        Raises InputError: one holds no word, or a pattern that is not valid.
        """
        return cls(
            tuple(_line(entry, number, OF_A_BIAS) for number, entry in enumerate(entries, start=1))
        )

    @property
    def entries(self) -> tuple[str, ...]:
        """How a bias file writes the lines; see ``PhraseLine.written``."""
        return tuple(line.written for line in self.lines)

    def hits(self, text: str) -> list[Hit]:
        """The places of a finished text in their order, none over another: of two that overlap the
        one that begins first counts, and at the same start the longer one.

        Raises InputError: a pattern takes too long.
        """
        candidates = list(self._words.hits(text))
        if self._may_hit(text):
            for pattern in self._patterns:
                candidates += self._hits_of(pattern, text)
        candidates.sort(key=lambda hit: (hit.start, -hit.end))
        hits: list[Hit] = []
        for hit in candidates:
            if not hits or hit.start >= hits[-1].end:
                hits.append(hit)
        return hits

    def find(self, text: str, start: int, ended: bool) -> Sight | None:
        """The leftmost place at or behind character ``start`` where a phrase is complete or could
        still come; at one place a complete one before one that could come.

        What stands before ``start`` is read as context alone. A phrase that touches the end of the
        text is not complete, since more letters may follow ("testament" in "testaments"), unless
        the text has ``ended``: then only complete ones count.

        A pattern that takes too long is switched off, which is logged once: nothing is raised while
        an answer is being sent.
        """
        nearest = self._words.find(text, start, ended)
        for pattern in list(self._patterns):
            try:
                sight = _sight(pattern, text, start, ended)
            except TimeoutError:
                self._switch_off(pattern)
                continue
            if sight is not None and (nearest is None or _order(sight) < _order(nearest)):
                nearest = sight
        return nearest

    def _switch_off(self, pattern: _Pattern) -> None:
        """Look no longer for a pattern."""
        self._patterns.remove(pattern)
        log.warning(
            "%s: the pattern %s takes more than %g s on an answer, and is no longer looked for; %s",
            _place(self.path, pattern.line.number),
            shorten(pattern.line.entry),
            SENDING_SECONDS,
            WITHOUT_NESTING,
        )

    def _may_hit(self, text: str) -> bool:
        """Whether a pattern may have a hit: one search for all of them, which most of the tokens of
        a vocabulary do not pass.
        """
        if self._any is None:
            return True
        try:
            return self._any.search(text, timeout=SECONDS) is not None
        except TimeoutError:
            return True  # the search for each says which it is

    def _hits_of(self, pattern: _Pattern, text: str) -> list[Hit]:
        line = pattern.line
        try:
            matches = list(pattern.regex.finditer(text, timeout=SECONDS))
        except TimeoutError as error:
            raise InputError(
                f"{_place(self.path, line.number)}: the pattern {shorten(line.entry)} takes more"
                f" than {SECONDS:g} s on a text of {len(text):,} characters; {WITHOUT_NESTING}"
            ) from error
        return [
            Hit(match.start(), match.end(), line)
            for match in matches
            if match.end() > match.start()
        ]


def _order(sight: Sight) -> tuple[int, bool]:
    """The leftmost first, and of one place what is complete."""
    return sight.start, not sight.is_complete


def _sight(pattern: _Pattern, text: str, start: int, ended: bool) -> Sight | None:
    """The first place of a pattern. TimeoutError: the search takes too long."""
    complete = None
    for match in pattern.regex.finditer(text, start, timeout=SENDING_SECONDS):
        touches = match.end() == len(text) and not ended
        if match.end() > match.start() and not touches:
            complete = Sight(match.start(), match.end(), True, pattern.line.entry)
            break
    if ended or (complete is not None and complete.start == start):
        return complete
    match = pattern.opened.search(text, start, timeout=SENDING_SECONDS, partial=True)
    if match is None or match.start() == len(text):
        return complete
    if complete is not None and complete.start <= match.start():
        return complete
    return Sight(match.start(), len(text), False, "")


# --- Lines


def _place(path: Path, number: int) -> str:
    """The name of a line in messages."""
    unit = "line"
    if path in (INLINE, OF_A_BIAS) or path.suffix.lower() == ".json":
        unit = "entry"
    return f"{path}, {unit} {number}"


def _line(written: str, number: int, path: Path) -> PhraseLine:
    """The line ``written``, which holds more than a comment."""
    place = _place(path, number)
    tabbed = _TABBED.fullmatch(written)
    if written.startswith(PATTERN_MARK):
        return _marked_pattern(written, number, place)
    if written.startswith("/"):
        match = _SLASHED.fullmatch(written)
        if match is None:
            raise InputError(
                f"{place}: {shorten(written)} begins with a slash, and a pattern ends with one,"
                " too: write /PATTERN/, and a word that begins with a slash in quotation marks"
            )
        return PhraseLine(number, _weight(match["rest"], place), match["entry"], is_pattern=True)
    entry = written
    rest = ""
    has_forms = False
    match = _QUOTED.fullmatch(written)
    if match is not None and _is_quoted_alone(match["rest"], written):
        entry = match["entry"].replace('""', '"')
        has_forms = match["forms"] == "*"
        rest = match["rest"]
    elif (raw := _RAW_QUOTED.fullmatch(written)) is not None:
        entry = raw["entry"]
    else:
        if tabbed is not None:
            entry = tabbed["entry"]
            rest = tabbed["rest"]
        else:
            match = _PLAIN.fullmatch(re.split(r"\s#", written, maxsplit=1)[0].strip())
            if match is not None:
                entry = match["entry"]
                rest = match["rest"] or ""
        has_forms = entry.endswith("*")
        entry = entry.removesuffix("*")
    weight = _weight(rest, place)
    return _phrase_line(number, weight, entry, has_forms, place, written)


def _is_quoted_alone(rest: str, written: str) -> bool:
    """Whether what follows a text in quotation marks is a weight or a comment: a sampler's list
    writes quotation marks around a text that holds some, too.
    """
    return not written.endswith('"') or _NUMBER_OR_NOTHING.fullmatch(rest) is not None


def _phrase_line(
    number: int, weight: float, entry: str, has_forms: bool, place: str, written: str
) -> PhraseLine:
    words = entry.split()
    if not words:
        raise InputError(
            f"{place}: {shorten(written)} holds no word, so nothing would match; write one, or"
            " delete the line"
        )
    return PhraseLine(number, weight, " ".join(words), has_forms=has_forms)


def _marked_pattern(written: str, number: int, place: str) -> PhraseLine:
    """The line of a pattern behind ``re:``, which reaches to a tab or to the end of the line."""
    pattern, _, rest = written.removeprefix(PATTERN_MARK).partition("\t")
    if not pattern.strip():
        raise InputError(
            f"{place}: {shorten(written)} holds no pattern; write one behind {PATTERN_MARK}, or"
            " delete the line"
        )
    return PhraseLine(number, _weight(rest, place), pattern, is_pattern=True)


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


def _needs_quotes(text: str, has_forms: bool) -> bool:
    """Whether a plain line of this text would be read as another entry."""
    if text.startswith(("#", "/", '"', PATTERN_MARK)) or " #" in text:
        return True
    if text.endswith("*") and not has_forms:
        return True
    match = _PLAIN.fullmatch(text)
    return match is None or match["rest"] is not None


def _check_weights(lines: Sequence[PhraseLine], path: Path) -> None:
    """Raise InputError where a word has two weights."""
    first_lines: dict[tuple[str, bool], PhraseLine] = {}
    for line in lines:
        if line.is_pattern:
            continue
        first = first_lines.setdefault(_spelling(line), line)
        if first.weight != line.weight:
            raise InputError(
                f"{_place(path, line.number)}: {shorten(line.entry)} has the weight"
                f" {line.weight:g}, and {shorten(first.entry)} in line {first.number}"
                f" {first.weight:g}; words count in any case, so keep one of them"
            )


def _spelling(line: PhraseLine) -> tuple[str, bool]:
    """What two lines of one word share: its letters in any case, and whether its forms count."""
    if line.is_pattern:
        return line.entry, False
    return _folded(line.entry), line.has_forms


# --- Lists of public samplers


def _json_lines(text: str, path: Path) -> list[PhraseLine]:
    """The entries of a JSON list of a sampler: ``[["word", factor], ...]``, ``{"word": factor}`` or
    ``["word", ...]``. Of an entry that stands there twice, the one that is kept out more counts.

    Where all numbers are whole and at least 1, they count how often a model wrote each, and all
    weigh alike.
    """
    try:
        document = parse_json(text)
    except ValueError as error:
        raise InputError(
            f"the list {path} is not JSON: {error}; correct the file, or write a word, a"
            " phrase or a /pattern/ a line"
        ) from error
    pairs: list[Any] = []
    if isinstance(document, dict):
        pairs = [list(pair) for pair in document.items()]
    elif isinstance(document, list):
        pairs = document
    numbers = [row[1] for row in pairs if isinstance(row, list) and len(row) == 2]
    are_counts = all(type(number) is int and number >= 1 for number in numbers)
    heaviest: dict[tuple[str, bool, bool], PhraseLine] = {}
    for number, row in enumerate(pairs, start=1):
        place = _place(path, number)
        entry = row
        weight = 1.0
        if isinstance(row, list) and len(row) == 2:
            entry = row[0]
            weight = 1.0 if are_counts else _weight_of_factor(row[1], entry, place)
        if not isinstance(entry, str):
            raise InputError(
                f"{place}: {shorten(row)} is neither a text nor a text with a factor; write"
                ' ["word", ...], [["word", 0.03], ...] or {"word": 0.03}'
            )
        line = _json_line(entry, weight, number, place)
        key = (*_spelling(line), line.is_pattern)
        if key not in heaviest or weight > heaviest[key].weight:
            heaviest[key] = line
    return sorted(heaviest.values(), key=lambda line: line.number)


def _json_line(entry: str, weight: float, number: int, place: str) -> PhraseLine:
    """A text of a JSON list: a pattern behind ``re:``, else a word or a phrase as it is."""
    if entry.startswith(PATTERN_MARK):
        pattern = entry.removeprefix(PATTERN_MARK)
        line = _marked_pattern(PATTERN_MARK + pattern.replace("\t", r"\t"), number, place)
        return PhraseLine(number, weight, line.entry, is_pattern=True)
    if _LOOKS_LIKE_PATTERN.search(entry):
        raise InputError(
            f"{place}: {shorten(entry)} is an expression, and a text of a JSON list is a phrase; if"
            f" it is meant as one, write {PATTERN_MARK} before it"
        )
    return _phrase_line(number, weight, entry, False, place, entry)


def _weight_of_factor(factor: object, entry: object, place: str) -> float:
    """1 - factor, where a sampler multiplies the word's probability with the factor."""
    if isinstance(factor, bool) or not isinstance(factor, int | float) or not 0 <= factor < 1:
        raise InputError(
            f"{place}: the factor of {shorten(entry)} is {shorten(factor)}, and a factor is what"
            " the word's probability is multiplied with, from 0 to below 1; correct it, or give"
            " whole numbers from 1 on in all entries where they count how often a model wrote each"
        )
    return max(round(1.0 - factor, 6), SMALLEST_WEIGHT)


# --- Words


@lru_cache(maxsize=4096)
def _is_spaced(letter: str) -> bool:
    """Whether a word that begins or ends with ``letter`` is set off from other letters."""
    import regex

    return _is_letter(letter) and not regex.match(_UNSPACED, letter)


def _is_letter(letter: str) -> bool:
    return unicodedata.category(letter)[0] in "LMN"


def forms_of(line: PhraseLine) -> list[str]:
    """A word or phrase with each of its forms, with one space between words: endings, "delve" and
    "delving", "tapestry" and "tapestries", "shrug" and "shrugged".
    """
    if not line.has_forms:
        return [line.entry]
    before, space, word = line.entry.rpartition(" ")
    return [f"{before}{space}{form}" for form in _forms(word)]


def _forms(word: str) -> list[str]:
    """An English word and its regular forms, see ``forms_of``."""
    forms = [word, *(word + ending for ending in _ENDINGS.split("|"))]
    stem, endings = _stem(word)
    return forms + [stem + ending for ending in endings]


def _stem(word: str) -> tuple[str, list[str]]:
    """The stem of a word that changes before some endings, and these endings."""
    if word.endswith("e") and len(word) > 2:
        return word[:-1], _ENDINGS_OF_STEM.split("|")
    if word.endswith("y") and len(word) > 2:
        return f"{word[:-1]}i", _ENDINGS_OF_I.split("|")
    if re.search(r"[aeiou][bdfgklmnprtvz]$", word):
        return word + word[-1], _ENDINGS_DOUBLED.split("|")
    return word, []


def _folded(text: str) -> str:
    """A letter for each letter of the text: letters that match each other in any case are one."""
    if text.isascii():
        return text.lower()
    return "".join(map(_folded_letter, text))


@lru_cache(maxsize=4096)
def _folded_letter(letter: str) -> str:
    if letter == "’":
        return "'"
    if letter == "İ":
        return "i"
    folded = letter.casefold()
    if len(folded) == 1:
        return folded
    return letter.lower()


# --- Patterns


def _compiled(line: PhraseLine, path: Path) -> _Pattern:
    """The pattern of a line that a user wrote. Raises InputError: not valid, or it matches
    everywhere.
    """
    import regex

    place = _place(path, line.number)
    try:
        compiled = regex.compile(line.entry, regex.IGNORECASE)
        opened = regex.compile(_opened(line.entry, compiled.flags), regex.IGNORECASE)
        matches_nothing = compiled.fullmatch("", timeout=SECONDS) is not None
    except (regex.error, RecursionError, OverflowError, TimeoutError) as error:
        raise InputError(
            f"{place}: the pattern {shorten(line.entry)} is not valid: {error}; correct it, the"
            " syntax is that of the package regex"
        ) from error
    if matches_nothing:
        raise InputError(
            f"{place}: the pattern {shorten(line.entry)} matches the empty text, so it would hit"
            " at every place; let it hold a letter or a sign that must be there"
        )
    return _Pattern(line, compiled, opened)


def _any_of(patterns: Sequence[_Pattern]) -> regex.Pattern[str] | None:
    """One pattern that is found where any of these is; None where they cannot be joined, because
    one counts its groups or sets flags.
    """
    import regex

    if not patterns:
        return None
    for pattern in patterns:
        if pattern.regex.groups or re.search(r"\(\?(?!:|=|!|<=|<!)", pattern.line.entry):
            return None
    joined = "|".join(f"(?:{pattern.line.entry})" for pattern in patterns)
    return regex.compile(joined, regex.IGNORECASE)


def _opened(source: str, flags: int) -> str:
    """The pattern with one character more, behind which nothing may follow."""
    import regex

    end = ""
    if flags & regex.VERBOSE:
        end = "\n"  # a comment may be the last that it holds
    return rf"(?:{source}{end})[\s\S](?!)"


def _check_time(pattern: _Pattern, path: Path) -> None:
    """Raise InputError where the search for a pattern can take exponential time.

    The pattern, and each of its parts that begins with a group, is tried on short texts that repeat
    what it holds. There an exponential search takes months of processor time and any other one far
    less than the limit, on however busy a machine.
    """
    import regex

    line = pattern.line
    quantifiers = re.findall(r"[*+?{]", re.sub(r"\\.|\(\?", "", line.entry, flags=re.DOTALL))
    if len(quantifiers) < 2 and not re.search(r"\)[*+{]", line.entry):
        return  # nothing is repeated twice
    units = _units(line.entry)
    for part in _parts(line.entry):
        try:
            compiled = regex.compile(part, regex.IGNORECASE)
            tried = (compiled, regex.compile(_opened(part, compiled.flags), regex.IGNORECASE))
        except (regex.error, RecursionError, OverflowError):
            continue  # it refers to a group before it
        for unit in units:
            repeated = (unit * REPEATED)[:MOST_PROBED]
            try:
                for each in tried:
                    each.search(repeated, timeout=SECONDS)
                    each.search(f"{repeated}\0", timeout=SECONDS)
                tried[1].search(repeated, timeout=SECONDS, partial=True)
            except TimeoutError as error:
                raise InputError(
                    f"{_place(path, line.number)}: the pattern {shorten(line.entry)} can take"
                    f" exponential time: more than {SECONDS:g} s on"
                    f" {shorten(repeated[:8] + '...')}, {len(repeated)} characters;"
                    f" {WITHOUT_NESTING}"
                ) from error


def _units(source: str) -> list[str]:
    """Texts whose repetition may take a pattern long: its words, its letters and the usual ones."""
    plain = re.sub(r"\\[a-zA-Z]|\(\?[a-zA-Z:=!<]*", " ", source)
    words = re.findall(r"[^\W\d_]{2,}", plain)
    units = [*_USUAL_UNITS]
    units += [letter for letter in plain if not letter.isspace()]
    units += words
    units += [f"{word} " for word in words]
    return list(dict.fromkeys(units))[: len(_USUAL_UNITS) + MOST_UNITS]


def _parts(source: str) -> list[str]:
    """A pattern, and the rest of it from each group on that it holds, to the end of what the group
    stands in.
    """
    parts = [source]
    openings: list[int] = []
    starts: list[tuple[int, int]] = []
    is_escaped = False
    in_class = False
    for place, letter in enumerate(source):
        if is_escaped:
            is_escaped = False
        elif letter == "\\":
            is_escaped = True
        elif in_class:
            in_class = letter != "]"
        elif letter == "[":
            in_class = True
        elif letter == "(":
            starts.append((place, len(openings)))
            openings.append(place)
        elif letter == ")" and openings:
            openings.pop()
            depth = len(openings)
            ended = [start for start, level in starts if level > depth]
            starts = [row for row in starts if row[1] <= depth]
            parts += [source[start:place] for start in ended]
    parts += [source[start:] for start, _ in starts]
    return list(dict.fromkeys(parts))[:MOST_TAILS]
