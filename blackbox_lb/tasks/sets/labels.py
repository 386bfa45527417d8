"""Labels: the few answers of a decision task, the spellings of each, and the label of a
completion.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from blackbox_lb.errors import InputError
from blackbox_lb.safety.printable import shorten
from blackbox_lb.tasks.rewards.matching import normalise
from blackbox_lb.types import Example

MOST_LABELS = 50
"""Most distinct answers of data that count as labels by default: more are answers of their own."""
LEAST_ROWS = 3
"""Least training rows a label, on average, for answers to count as labels by default."""


def spellings(answers: Iterable[str]) -> tuple[str, ...]:
    """The spellings of ``answers``: as they are, in lower and upper case and with capitals, each
    alone and after a space.
    """
    found: dict[str, None] = {}
    for answer in answers:
        text = answer.strip()
        for written in (text, text.lower(), text.capitalize(), text.title(), text.upper()):
            if written:
                found |= {written: None, f" {written}": None}
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Labels:
    """The labels of a decision task.

    names: (l,) as users read them, in alphabetical order.
    accepted: (l,) the normalised texts that count as each.
    """

    names: tuple[str, ...]
    accepted: tuple[frozenset[str], ...]

    @classmethod
    def found_in(cls, training: Sequence[Example]) -> Labels | None:
        """The distinct answers of ``training``, where each row has one and they are few; None
        otherwise. Rows of one prompt that differ in the answer count as rows.
        """
        answered = [example for example in training if example.answers]
        firsts = [answers[0] for example in answered for answers in example.answers_by_row]
        kinds = Counter(normalise(answer) for answer in firsts)
        many = len(kinds) > MOST_LABELS or len(firsts) < LEAST_ROWS * len(kinds)
        if len(answered) < len(training) or len(kinds) < 2 or many or "" in kinds:
            return None
        return cls.named(dict.fromkeys(sorted(firsts, key=str.casefold)), training)

    @classmethod
    def named(cls, names: Iterable[str], training: Sequence[Example]) -> Labels:
        """Make the labels ``names``; answers that stand in one row of ``training`` with a label
        count as it.

        InputError: fewer than two, one twice, one that no training row has, or a row without a
        label.
        """
        first: dict[str, str] = {}
        for name in names:
            first.setdefault(normalise(name), name.strip())
        if len(first) < 2 or "" in first:
            raise InputError(
                "a decision has at least two labels, and these are"
                f" {shorten(', '.join(first.values()))}; name all of them with --labels, as in"
                " --labels yes,no"
            )
        accepted = {key: {key} for key in first}
        for example in training:
            for answers in example.answers_by_row:
                keys = [normalise(answer) for answer in answers]
                label = next((key for key in keys if key in first), None)
                if label is None:
                    raise InputError(
                        f"{example.place} has the answer {shorten(', '.join(answers) or 'none')},"
                        f" which is none of the labels {shorten(', '.join(first.values()))};"
                        " correct the row or name the label with --labels"
                    )
                accepted[label].update(key for key in keys if key not in first)
        return cls(tuple(first.values()), tuple(frozenset(accepted[key]) for key in first))

    def of(self, example: Example) -> int | None:
        """The number of the example's label, of its first answer that is one; None where it has
        none of them.
        """
        for answer in example.answers:
            key = normalise(answer)
            for number, accepted in enumerate(self.accepted):
                if key in accepted:
                    return number
        return None

    def said(self, text: str) -> int | None:
        """The number of the first label in ``text``, at word boundaries; None where it holds none
        of them.
        """
        words = f" {normalise(text)} "
        places = {
            number: min(place for key in accepted if (place := words.find(f" {key} ")) >= 0)
            for number, accepted in enumerate(self.accepted)
            if any(f" {key} " in words for key in accepted)
        }
        return min(places, key=lambda number: places[number]) if places else None

    def begun(self, text: str) -> int | None:
        """The number of the label that ``text`` begins with, at word boundaries, the longest of
        several; None where it is none.
        """
        words = f"{normalise(text)} "
        found = [
            (len(key), number)
            for number, accepted in enumerate(self.accepted)
            for key in accepted
            if words.startswith(f"{key} ")
        ]
        return max(found)[1] if found else None

    def counts(self, examples: Iterable[Example]) -> dict[str, int]:
        """The number of ``examples`` with each label, the commonest first."""
        found = Counter(number for each in examples if (number := self.of(each)) is not None)
        return {
            self.names[number]: found[number]
            for number in sorted(range(len(self.names)), key=lambda n: -found[n])
        }
