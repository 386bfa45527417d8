"""Labels: the few answers of a decision task, the spellings of each, the label that a completion
names, and whether that is right.

Where the answers of data are labels, a completion is right if the first label that it names is the
right one. A completion that repeats the list of labels names the first of the list.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import regex

from blackbox_lb.errors import DataError, InputError
from blackbox_lb.safety.printable import did_you_mean, shorten
from blackbox_lb.tasks.records.files import WANT
from blackbox_lb.tasks.rewards.matching import Matcher
from blackbox_lb.tasks.rewards.normalising import (
    decomposed,
    normalise,
    pattern,
    without_accents,
    without_emphasis,
)
from blackbox_lb.tasks.sets.task import SPLITS, Task
from blackbox_lb.types import CALL_OPENINGS, Example

MOST_LABELS = 50
"""Most distinct answers of data that count as labels by default: more are answers of their own."""
LEAST_ROWS = 3
"""Least training rows a label, on average, for answers to count as labels by default."""
FIRST_NAMED = "first label named"
"""The name of the test of correctness where answers are labels."""
_STANDING_ALONE = (
    r"(?<!\w)(?<!\w['’.-])[{letters}](?!\w)(?!['’.-]\w)"
    r"(?!\+\+|\+(?!\w)|#(?![^\W\d_])|\*(?![\w*]))"
)
"""A letter that is no part of a word ("I'm", "e.g.", "T-shirt", "C++")."""
_NEXT_WORD = re.compile(r"[ \t]+([^\W\d_]+)")
_AFTER_A_LABEL = frozenset(
    [
        "and",
        "as",
        "because",
        "but",
        "fits",
        "for",
        "has",
        "if",
        "is",
        "isn",
        "looks",
        "matches",
        "means",
        "nor",
        "not",
        "or",
        "seems",
        "since",
        "so",
        "then",
        "though",
    ]
)
"""Words that follow the label "A" or "I", and hardly the article or the pronoun."""


def spellings(answers: Iterable[str]) -> tuple[str, ...]:
    """The spellings of ``answers``: as they are, in lower and upper case and with capitals, each
    alone and after a space. A single letter has the case that it is written in, also beside signs
    (``A+``).
    """
    texts: dict[str, None] = {}
    for answer in answers:
        text = answer.strip()
        cases = [text, text.lower(), text.capitalize(), text.title(), text.upper()]
        if _is_letter("".join(filter(str.isalnum, text))):
            cases = [text]
        for written in cases:
            if written:
                texts |= {written: None, f" {written}": None}
    return tuple(texts)


def _is_letter(text: str) -> bool:
    """Whether a text is one letter of a script with capitals."""
    return len(text) == 1 and text.isalpha() and text.lower() != text.upper()


@lru_cache(maxsize=4096)
def _key(label: str) -> str:
    """A label or an answer without regard to case; there are few, and completions ask for each."""
    return normalise(label)


@lru_cache(maxsize=4096)
def _accepted(answer: str) -> str:
    """An answer as ``Labels.accepted`` holds it."""
    text = unicodedata.normalize("NFKC", answer.strip())
    return text if _is_letter(text) else answer.strip()


@lru_cache(maxsize=256)
def _patterns(
    accepted: tuple[frozenset[str], ...],
) -> tuple[tuple[int, regex.Pattern[str]], ...]:
    """The number of a label and what finds it, for all texts in ``Labels.accepted`` but letters.

    An accent counts where two labels differ in accents alone; elsewhere it may be left out.
    """
    texts = [
        (number, text)
        for number, label in enumerate(accepted)
        for text in sorted(label)
        if not _is_letter(text) and _key(text)
    ]
    owners: dict[str, set[int]] = {}
    for number, text in texts:
        owners.setdefault(without_accents(text), set()).add(number)
    return tuple(
        (number, pattern(text, accents=len(owners[without_accents(text)]) > 1))
        for number, text in texts
    )


@dataclass(frozen=True, slots=True)
class Labels:
    """The labels of a decision task.

    names: (l,) as users read them, in alphabetical order.
    accepted: (l,) the texts that count as each, in any case, but for single letters, which count in
    the case that they are written in. Signs and marks count, and punctuation does not
    (``normalise``).
    """

    names: tuple[str, ...]
    accepted: tuple[frozenset[str], ...]

    @classmethod
    def found_in(cls, training: Sequence[Example]) -> Labels | None:
        """The distinct answers of ``training``, where each row has one and they are few; None
        otherwise, and where rows want a distribution, of which no label is the right one. Rows of
        one prompt that differ in the answer count as rows. Answers that differ in case and white
        space are one label, named as most rows write it.

        DataError: answers that differ in punctuation alone, or as little, would be one label.
        """
        if not all(example.answers and not example.weights for example in training):
            return None
        firsts = [answers[0] for example in training for answers in example.answers_by_row]
        spellings_by_key: dict[str, Counter[str]] = {}
        for answer in sorted(firsts, key=str.casefold):
            spellings_by_key.setdefault(_key(answer), Counter())[answer.strip()] += 1
            if len(spellings_by_key) > MOST_LABELS:  # texts, of which each takes long to read
                return None
        count = len(spellings_by_key)
        if count < 2 or len(firsts) < LEAST_ROWS * count or "" in spellings_by_key:
            return None
        _refuse_punctuation(training)
        names = [counts.most_common(1)[0][0] for counts in spellings_by_key.values()]
        return cls.named(names, training)

    @classmethod
    def named(cls, names: Iterable[str], training: Sequence[Example]) -> Labels:
        """Make the labels ``names``; answers that stand in one row of ``training`` with a label
        count as it, unless they are another label.

        InputError: fewer than two, one twice, one without a word or a sign, a row without a label,
        or with shares of several.
        """
        if any(example.weights for example in training):
            raise InputError(
                "``labels`` names the labels of a decision, and rows with shares of several labels"
                " have no right one; leave it out: ``reward=distribution`` reads the labels from"
                " the shares"
            )
        first: dict[str, str] = {}
        for name in names:
            if name.strip() and not _key(name):
                raise InputError(
                    f"the label {shorten(name)} has no letter, digit or sign that could be found in"
                    " a completion; name it by a word with ``labels``"
                )
            if name.strip() and _key(name) in first:
                raise InputError(
                    f"the labels {shorten(first[_key(name)])} and {shorten(name)} are read as one"
                    " in a completion, where case, white space and punctuation do not count; name"
                    " one of them with ``labels``, or write them with other words or signs"
                )
            first[_key(name)] = name.strip()
        if len(first) < 2 or "" in first:
            raise InputError(
                "a decision has at least two labels, and these are"
                f" {shorten(', '.join(first.values()))}; name all of them with ``labels``, as in"
                " ``labels=yes,no``"
            )
        accepted: dict[str, set[str]] = {key: set() for key in first}
        for example in training:
            for answers in example.answers_by_row:
                keys = {_key(answer): _accepted(answer) for answer in answers}
                mine = [key for key in keys if key in first]
                if not mine:
                    raise InputError(
                        f"{example.place} has the answer {shorten(', '.join(answers) or 'none')},"
                        f" which is none of the labels {shorten(', '.join(first.values()))}"
                        f"{did_you_mean(', '.join(answers), first.values())};"
                        " correct the row or name the label with ``labels``"
                    )
                for key in mine:
                    accepted[key].add(keys[key])
                accepted[mine[0]].update(text for key, text in keys.items() if key not in first)
        texts = tuple(frozenset(accepted[key] or {_accepted(first[key])}) for key in first)
        return cls(tuple(first.values()), texts)

    @classmethod
    def of_shares(cls, examples: Sequence[Example]) -> Labels:
        """The labels of a wanted distribution, in the order of the first of ``examples``.

        InputError: no example, or one without shares.
        """
        without = [example for example in examples if not example.weights]
        if without or not examples:
            place = "the task"
            if without:
                place = without[0].place
            raise InputError(
                f"``reward=distribution`` compares with wanted shares, and {place} has none; give"
                ' every row an answer such as {"yes": 0.6, "no": 0.4}, or choose another reward'
            )
        return cls.named(examples[0].answers, [])

    def shares(self, example: Example) -> tuple[float, ...]:
        """(l,) the wanted share of each label in ``example``, which has shares of these labels."""
        shares = {
            _key(answer): weight
            for answer, weight in zip(example.answers, example.weights, strict=True)
        }
        return tuple(shares[_key(name)] for name in self.names)

    @property
    def matcher(self) -> Matcher:
        """The test of correctness: whether the first label named is an accepted one."""
        return Matcher(FIRST_NAMED, needs_answer=True, test=self.right)

    def right(self, answers: Sequence[str], text: str) -> bool:
        """Whether the first label named in ``text`` is one of ``answers``.

        Answers none of which is a label count as one label more.
        """
        numbers = self._of_answers(answers)
        if numbers:
            return self.said(text) in numbers
        texts = frozenset(_accepted(answer) for answer in answers)
        return Labels((*self.names, ""), (*self.accepted, texts)).said(text) == len(self.names)

    def of(self, example: Example) -> int | None:
        """The number of the example's label, of its first answer that is one; None where it has
        none of them.
        """
        for answer in example.answers:
            numbers = self._of_answers([answer])
            if numbers:
                return min(numbers)
        return None

    def _of_answers(self, answers: Iterable[str]) -> set[int]:
        """The numbers of all labels among ``answers``, in any case."""
        keys = {_key(answer) for answer in answers}
        return {
            number
            for number, accepted in enumerate(self.accepted)
            if any(_key(text) in keys for text in accepted)
        }

    def said(self, text: str) -> int | None:
        """The number of the first label in ``text``, at word boundaries; None where it holds none
        of them.
        """
        first = self._first(text)
        return None if first is None else first[1]

    def begun(self, text: str) -> int | None:
        """The number of the label that ``text`` begins with, at word boundaries; None where it is
        none.
        """
        first = self._first(text)
        if first is None or first[0] > 0:
            return None
        return first[1]

    def _first(self, text: str) -> tuple[int, int] | None:
        """The words before the first label in ``text``, and its number; of several that begin there
        the longest.
        """
        words = decomposed(text)
        places: list[tuple[str, int, int]] = []
        for number, finder in _patterns(self.accepted):
            match = finder.search(words)
            if match is not None:
                places.append((words[: match.start()], -len(match.group()), number))
        letters = {
            letter: number
            for number, accepted in reversed(list(enumerate(self.accepted)))
            for letter in accepted
            if _is_letter(letter)
        }
        letter_place = _first_letter(text, letters)
        if letter_place is not None:
            before, letter = letter_place
            places.append((decomposed(before), -1, letters[letter]))
        if not places:
            return None
        before, _, number = min(places, key=lambda place: (len(place[0].split()), *place[1:]))
        return sum(any(map(str.isalnum, word)) for word in before.split()), number

    def counts(self, examples: Iterable[Example]) -> dict[str, int]:
        """The number of ``examples`` with each label, the commonest first."""
        counts = Counter(number for example in examples if (number := self.of(example)) is not None)
        return {
            self.names[number]: counts[number]
            for number in sorted(range(len(self.names)), key=lambda n: -counts[n])
        }


def _first_letter(text: str, letters: Iterable[str]) -> tuple[str, str] | None:
    """The text before the first of ``letters`` that stands alone and is neither an article nor a
    pronoun, and that letter.
    """
    accepted = "".join(letters)
    if not accepted:
        return None
    written = without_emphasis(unicodedata.normalize("NFKC", text))
    for match in re.finditer(_STANDING_ALONE.format(letters=re.escape(accepted)), written):
        before = written[: match.start()]
        if not _is_english_word(match.group(), before, written[match.end() :]):
            return before, match.group()
    return None


def _is_english_word(letter: str, before: str, after: str) -> bool:
    """Whether a letter is the article "a" or the pronoun "I", by the word after it.

    A capital article begins a sentence: "A good answer is B" begins with one, "it is A", "option A
    fits" and "A is right" name the label.
    """
    following = _NEXT_WORD.match(after)
    if letter not in ("A", "a", "I") or following is None:
        return False
    if not following.group(1).islower() or following.group(1) in _AFTER_A_LABEL:
        return False
    return letter != "A" or re.search(r"(^|[.!?:;\n])[\s\"'“‘(*_]*$", before) is not None


def _refuse_punctuation(training: Sequence[Example]) -> None:
    """Raise DataError: answers that are read as one in a completion differ in more than case and
    white space.
    """
    firsts: dict[str, tuple[str, Example]] = {}
    for example in training:
        for answer, *_ in example.answers_by_row:
            words = " ".join(unicodedata.normalize("NFKC", answer).casefold().split())
            first_words, first = firsts.setdefault(_key(answer), (words, example))
            if words != first_words:
                raise DataError(
                    f"{example.place} has the answer {shorten(answer)} and {first.place}"
                    f" {shorten(first.answers[0])}, which are read as one label in a completion,"
                    " where punctuation does not count; write them alike or with other words or"
                    " signs, or name the labels with ``labels``"
                )


def check_answers(task: Task, labels: Labels | None) -> None:
    """DataError: ``task`` has rows without an answer, and nothing says what these could be."""
    if task.unlabelled and labels is None:
        raise DataError(
            f"{task.unlabelled[0].place} has no answer, and the answers of the other rows are not"
            " few labels, of which a row without one would still tell something; add the answer, or"
            " choose a reward that needs none"
        )


CALLS_TOOL = "calls-tool"
BEGINS_WITH = "begins-with:"
FORMS = f"{CALLS_TOOL} or {BEGINS_WITH}TEXT[,TEXT...]"
OPENING = 0
OTHER = 1
"""The numbers of both labels."""


@dataclass(frozen=True, slots=True)
class OpenLabels(Labels):
    """The labels of a decision for or against an opening, which is the first of them.

    openings: texts that begin the completions of the first label; spaces before them do not count.
    """

    openings: tuple[str, ...] = ()

    @classmethod
    def parse(cls, spec: str) -> OpenLabels:
        """The labels of ``calls-tool`` (call, answer) or of ``begins-with:TEXT,...`` (begins,
        other).

        Raises InputError: another form, or no text.
        """
        if spec == CALLS_TOOL:
            return cls._of(("call", "answer"), CALL_OPENINGS)
        texts = [text.strip() for text in spec.removeprefix(BEGINS_WITH).split(",")]
        if not spec.startswith(BEGINS_WITH) or not all(texts):
            raise InputError(f"``decide={spec}`` is unknown; give {FORMS}")
        return cls._of(("begins", "other"), tuple(dict.fromkeys(texts)))

    @classmethod
    def _of(cls, names: tuple[str, str], openings: tuple[str, ...]) -> OpenLabels:
        accepted = tuple(frozenset({name}) for name in names)
        return cls(names, accepted, openings)

    @property
    def spec(self) -> str:
        """What names these labels, as a user writes it."""
        if self.openings == CALL_OPENINGS:
            return CALLS_TOOL
        return f"{BEGINS_WITH}{','.join(self.openings)}"

    @property
    def matcher(self) -> Matcher:
        """See ``Labels.matcher``."""
        return Matcher("the wanted beginning", needs_answer=True, test=self.right)

    def opens(self, text: str) -> bool:
        """Whether a text begins with one of the openings."""
        return text.lstrip().startswith(self.openings)

    def said(self, text: str) -> int:
        """See ``Labels.said``: every text has one of both labels."""
        return OPENING if self.opens(text) else OTHER

    def begun(self, text: str) -> int:
        """See ``Labels.begun``."""
        return self.said(text)

    def right(self, answers: Sequence[str], text: str) -> bool:
        """See ``Labels.right``."""
        return self.said(text) in self._of_answers(answers)

    def check(self, examples: Iterable[Example]) -> None:
        """Raise InputError: an example has an answer that is neither label, or both."""
        for example in examples:
            numbers = self._of_answers(example.answers)
            if len(numbers) != 1 or len(example.answers) != 1:
                wants = shorten(", ".join(example.answers) or "nothing")
                raise InputError(
                    f"{example.place} wants {wants}; with ``decide={self.spec}`` each row wants"
                    f" {' or '.join(self.names)}, in its column {WANT} or answer"
                )


def labels_of_task(decide: str | None, names: Iterable[str] | None, task: Task) -> Labels | None:
    """The labels of a task: open ones, those that are named, or those in the answers of all rows
    that are not test rows; where there are none of these, in those of the test prompts. Rows
    without an answer may be among them only where names are given.

    Raises InputError: both kinds are asked for, or the answers are not of these labels.
    """
    if decide is None:
        training = (*task.train, *task.validation) or task.test
        if names is None:
            return Labels.found_in(training)
        return Labels.named(names, [example for example in training if example.answers])
    if names is not None:
        raise InputError(
            "``decide`` has labels of its own, so ``labels`` would name others; leave one out"
        )
    labels = OpenLabels.parse(decide)
    labels.check(example for split in SPLITS for example in task.split(split))
    return labels
