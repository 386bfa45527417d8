"""Completions of one prompt side by side, before and after the bias, with their differences, the
places of the reward and the moved tokens marked.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import groupby
from typing import Literal, TypeAlias

from blackbox_lb.jobs.evaluation.document import Answer, Evaluation, ShownAnswers, ShownPrompt
from blackbox_lb.types import Span

MOST_PAIRS = 50_000
"""Pairs of equal words in two completions, up to which their differences are marked: two of 1,500
words of prose have fewer. With all pairs of two that repeat one sentence it would take a minute.
"""
WORDS = re.compile(r"\n|\w+|[^\w\s]")
Stretches: TypeAlias = tuple[tuple[int, int], ...]
"""Start and end of each, in characters."""
Status = Literal["mended", "broken", "same"]
STATUSES: tuple[Status, ...] = ("mended", "broken", "same")


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of a completion that is marked alike.

    differs: whether the other side does not have it. bias: nats on the token that it is of, None
    where none moves it.
    """

    text: str
    differs: bool
    bias: float | None = None

    @property
    def direction(self) -> str:
        """up or down, by the sign of the bias."""
        if (self.bias or 0.0) < 0:
            return "down"
        return "up"

    @property
    def shown(self) -> str:
        """The bias with its sign and unit."""
        return f"{self.bias or 0.0:+.2f} nats".replace("-", "−")


@dataclass(frozen=True, slots=True)
class Passage:
    """A stretch of a completion that is one place of its reward, or lies between two.

    segments: its text. amount: nats of the reward that are earned there, None between two places.
    """

    segments: tuple[Segment, ...]
    amount: float | None = None

    @property
    def spoken(self) -> str:
        """The amount in words: "costs 2.5", "earns 1"."""
        amount = self.amount or 0.0
        if amount < 0:
            return f"costs {-amount:.3g}"
        return f"earns {amount:.3g}"

    @property
    def shown(self) -> str:
        """The amount with its sign."""
        return f"{self.amount or 0.0:+.3g}".replace("-", "−")


@dataclass(frozen=True, slots=True)
class Side:
    """One completion.

    stop_changed: whether it ended for another reason than the first side did. different: start and
    end of the stretches that the other side does not have; None where too many of their words are
    equal to tell.
    """

    answer: Answer
    stop_changed: bool = False
    different: Stretches | None = ()

    @property
    def passages(self) -> tuple[Passage, ...]:
        """The text, cut at the places of the reward. Places that touch or overlap are one, with
        the sum of their amounts; a place without a character is an empty passage.
        """
        passages = []
        place = 0
        length = len(self.answer.text)
        marks = self._marks()
        for start, end, amount in _apart(self.answer.spans, length):
            if place < start:
                passages.append(Passage(self._segments(marks, place, start)))
            passages.append(Passage(self._segments(marks, start, end), amount))
            place = end
        if place < length:
            passages.append(Passage(self._segments(marks, place, length)))
        return tuple(passages)

    def _marks(self) -> list[tuple[bool, int | None]]:
        """For each character, whether the other side lacks it, and the number of its moved token.
        The white space that a token begins with is not marked.
        """
        text = self.answer.text
        differs = [False] * len(text)
        for start, end in self.different or ():
            differs[start:end] = [True] * (end - start)
        tokens: list[int | None] = [None] * len(text)
        for number, token in enumerate(self.answer.moved):
            spelled = text[token.start : token.end]
            blank = len(spelled) - len(spelled.lstrip())
            first = token.start
            if blank < len(spelled):
                first += blank
            end = token.start + len(spelled)
            tokens[first:end] = [number] * (end - first)
        return list(zip(differs, tokens, strict=True))

    def _segments(
        self, marks: Sequence[tuple[bool, int | None]], start: int, end: int
    ) -> tuple[Segment, ...]:
        """The characters from ``start`` to ``end``, those with equal marks together."""
        segments = []
        for (differs, token), places in groupby(range(start, end), key=marks.__getitem__):
            text = "".join(self.answer.text[place] for place in places)
            bias = None if token is None else self.answer.moved[token].bias
            segments.append(Segment(text, differs, bias))
        return tuple(segments)

    @property
    def moves(self) -> str:
        """How many of its tokens are moved up and how many down; "" where none is."""
        counts = Counter("up" if token.bias > 0 else "down" for token in self.answer.moved)
        words = ", ".join(f"{counts[side]} {side}" for side in ("up", "down") if counts[side])
        if words:
            return f"tokens moved: {words}"
        return ""

    @property
    def stopped(self) -> str:
        """Why it ended."""
        reasons = {
            "stop": "ended by itself",
            "length": "cut off at the token limit",
            "content_filter": "content filter",
        }
        reason = self.answer.finish_reason
        return reasons.get(reason, reason or "end not told")


@dataclass(frozen=True, slots=True)
class ExampleCard:
    """One prompt; the first of ``sides`` is compared with the others."""

    row: ShownPrompt
    sides: tuple[Side, ...]

    @property
    def unchanged(self) -> bool:
        """Whether all sides have the same text."""
        return len({side.answer.text for side in self.sides}) == 1

    @property
    def status(self) -> Status | None:
        """What the second side does to the reward of the first one; None where a reward is not
        known, or there is one side only.
        """
        answers = [side.answer for side in self.sides[:2]]
        rewards = [answer.reward for answer in answers if answer.reward is not None]
        if len(rewards) < 2:
            return None
        if rewards[0] == rewards[1]:
            return "same"
        if rewards[1] > rewards[0]:
            return "mended"
        return "broken"


def status_counts(examples: Iterable[ExampleCard]) -> dict[Status, int]:
    """Status -> how many examples have it; nothing where no example has one."""
    counts = Counter(example.status for example in examples if example.status is not None)
    if counts:
        return {status: counts[status] for status in STATUSES}
    return {}


def _apart(spans: Iterable[Span], length: int) -> list[tuple[int, int, float]]:
    """Start, end and amount of the places of a text of ``length`` characters, in order. Places that
    touch or overlap are merged. Where one place covers the whole text, marking it would show
    nothing, and the list is empty.
    """
    places: list[tuple[int, int, float]] = []
    inside = [span for span in spans if 0 <= span.start <= span.end <= length]
    for span in sorted(inside, key=lambda span: (span.start, span.end)):
        if places and span.start <= places[-1][1]:
            start, end, amount = places.pop()
            places.append((start, max(end, span.end), amount + span.amount))
        else:
            places.append((span.start, span.end, span.amount))
    full_spans = [place for place in places if place[:2] == (0, length)]
    if full_spans and length:
        return []
    return places


def compared(answers: Sequence[Answer]) -> tuple[Side, ...]:
    """The answers with their differences to the first; the first with its differences to the
    second.
    """
    if len(answers) < 2:
        return tuple(map(Side, answers))
    first, *rest = answers
    pairs = [_differences(first.text, answer.text) for answer in rest]
    sides = [Side(first, different=pairs[0][0])]
    for answer, (_, different) in zip(rest, pairs, strict=True):
        sides.append(Side(answer, answer.finish_reason != first.finish_reason, different))
    return tuple(sides)


def _differences(text: str, rival: str) -> tuple[Stretches | None, Stretches | None]:
    """The words of each text that the other one does not have; None where too many are equal."""
    if text == rival:
        return (), ()
    both = [list(WORDS.finditer(side)) for side in (text, rival)]
    ours, theirs = ([word[0] for word in words] for words in both)
    counts = Counter(theirs)
    if sum(number * counts[word] for word, number in Counter(ours).items()) > MOST_PAIRS:
        return None, None
    matcher = SequenceMatcher(None, ours, theirs, autojunk=False)
    changes = [change for kind, *change in matcher.get_opcodes() if kind != "equal"]
    return (
        _stretches(both[0], [(start, end) for start, end, _, _ in changes]),
        _stretches(both[1], [(start, end) for _, _, start, end in changes]),
    )


def _stretches(words: Sequence[re.Match[str]], changes: Iterable[tuple[int, int]]) -> Stretches:
    """From the first character of the first word to the last one of the last."""
    return tuple(
        (words[start].start(), words[end - 1].end()) for start, end in changes if start < end
    )


def evaluated(evaluation: Evaluation) -> tuple[tuple[ExampleCard, ...], str]:
    """The examples of an evaluation and their source."""
    examples = evaluation.examples
    judged = max((policy.prompts for policy in evaluation.policies), default=len(examples))
    caption = _caption(len(examples), max(judged, len(examples)), "of the evaluation")
    return _cards(examples), f"{caption}, those with different answers first"


def judged(answers: ShownAnswers) -> tuple[tuple[ExampleCard, ...], str]:
    """The answers that a fit was judged by, and their source."""
    setting = "with greedy decoding"
    if answers.setting != "greedy":
        setting = f"at {answers.setting}"
    caption = _caption(len(answers.shown), answers.prompts, f"of the fit {setting}")
    return _cards(answers.shown), caption


def _cards(rows: Iterable[ShownPrompt]) -> tuple[ExampleCard, ...]:
    return tuple(ExampleCard(row, compared(row.completions)) for row in rows)


def _caption(listed: int, total: int, where: str) -> str:
    if listed < total:
        return f"{listed:,} of the {total:,} test prompts {where}"
    return f"all {total:,} test prompts {where}"
