"""Completions of one prompt side by side, before and after the bias, with their differences, the
places of the reward and the moved tokens marked.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from typing import Literal

from blackbox_lb.jobs.evaluation.document import (
    Answer,
    Evaluation,
    MovedToken,
    ShownAnswers,
    ShownPrompt,
)
from blackbox_lb.types import Span

MOST_WORDS = 1_500
"""Longest completion with marked differences, in words: the time to find them grows with the
square.
"""
WORDS = re.compile(r"\s+|\w+|[^\w\s]")
Status = Literal["mended", "broken", "same"]
STATUSES: tuple[Status, ...] = ("mended", "broken", "same")


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of a completion; ``differs`` where the other side does not have it."""

    text: str
    differs: bool


@dataclass(frozen=True, slots=True)
class TokenPart:
    """A stretch of a completion that is one moved token, or lies between two.

    pieces: its text. bias: nats on the token, None between two.
    """

    pieces: tuple[Piece, ...]
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
        bias = self.bias or 0.0
        return f"{bias:+.2f} nats".replace("-", "−")


@dataclass(frozen=True, slots=True)
class TextPart:
    """A stretch of a completion that is one place of its reward, or lies between two.

    tokens: its text. amount: nats of the reward that are earned there, None between two places.
    """

    tokens: tuple[TokenPart, ...]
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
        amount = self.amount or 0.0
        if amount < 0:
            return f"−{-amount:.3g}"
        return f"+{amount:.3g}"


@dataclass(frozen=True, slots=True)
class Side:
    """One completion. ``correct`` and ``reward`` are None where not known; ``stop_changed``: it
    ended for another reason than the first side did. ``marked``: whether the pieces show the
    differences. ``spans``: the places of its reward; those outside the text are left out.
    ``moved``: the tokens that the bias moves.
    """

    policy: str
    text: str
    tokens: int
    finish_reason: str
    correct: bool | None = None
    reward: float | None = None
    stop_changed: bool = False
    marked: bool = False
    pieces: tuple[Piece, ...] = ()
    spans: tuple[Span, ...] = ()
    moved: tuple[MovedToken, ...] = ()

    @property
    def passages(self) -> tuple[TextPart, ...]:
        """The text, cut at the places of the reward. Places that touch or overlap are one, with
        the sum of their amounts; a place without a character is an empty passage.
        """
        passages = []
        place = 0
        for start, end, amount in _apart(self.spans, len(self.text)):
            if place < start:
                passages.append(TextPart(self._tokens(place, start)))
            passages.append(TextPart(self._tokens(start, end), amount))
            place = end
        if place < len(self.text):
            passages.append(TextPart(self._tokens(place, len(self.text))))
        return tuple(passages)

    def _tokens(self, start: int, end: int) -> tuple[TokenPart, ...]:
        """The characters from ``start`` to ``end``, cut at the moved tokens. The white space that
        a token begins with is not marked.
        """
        parts = []
        place = start
        for token in self.moved:
            text = self.text[token.start : token.end]
            blank = len(text) - len(text.lstrip())
            first = token.start
            if blank < len(text):
                first += blank
            begin = max(first, place)
            stop = min(token.end, end)
            if begin >= stop:
                continue
            if place < begin:
                parts.append(TokenPart(_between(self.pieces, place, begin)))
            parts.append(TokenPart(_between(self.pieces, begin, stop), token.bias))
            place = stop
        if place < end:
            parts.append(TokenPart(_between(self.pieces, place, end)))
        return tuple(parts)

    @property
    def moves(self) -> str:
        """How many of its tokens are moved up and how many down; "" where none is."""
        counts = Counter("up" if token.bias > 0 else "down" for token in self.moved)
        words = ", ".join(f"{counts[side]} {side}" for side in ("up", "down") if counts[side])
        if words:
            return f"tokens moved: {words}"
        return ""

    @property
    def stopped(self) -> str:
        reasons = {
            "stop": "ended by itself",
            "length": "cut off at the token limit",
            "content_filter": "content filter",
        }
        return reasons.get(self.finish_reason, self.finish_reason or "end not told")


@dataclass(frozen=True, slots=True)
class ExampleCard:
    """One prompt; the first of ``sides`` is compared with the others."""

    id: str
    prompt: str
    answers: tuple[str, ...]
    sides: tuple[Side, ...]

    @property
    def unchanged(self) -> bool:
        return len({side.text for side in self.sides}) == 1

    @property
    def status(self) -> Status | None:
        """What the second side does to the reward of the first one; None where a reward is not
        known, or there is one side only.
        """
        rewards = [side.reward for side in self.sides[:2] if side.reward is not None]
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


def _between(pieces: Iterable[Piece], start: int, end: int) -> tuple[Piece, ...]:
    """The characters from ``start`` to ``end`` of the text that ``pieces`` make up."""
    cut = []
    place = 0
    for piece in pieces:
        text = piece.text[max(start - place, 0) : max(end - place, 0)]
        if text:
            cut.append(Piece(text, piece.differs))
        place += len(piece.text)
    return tuple(cut)


def compared(sides: Sequence[Side]) -> tuple[Side, ...]:
    """The sides with their differences to the first; the first with its differences to the
    second.
    """
    if len(sides) < 2:
        return tuple(replace(side, pieces=(Piece(side.text, False),)) for side in sides)
    first, *rest = sides
    done = [_against(first, rest[0])]
    done += [
        replace(_against(side, first), stop_changed=side.finish_reason != first.finish_reason)
        for side in rest
    ]
    return tuple(done)


def _against(side: Side, rival: Side) -> Side:
    words = WORDS.findall(side.text)
    theirs = WORDS.findall(rival.text)
    if max(len(words), len(theirs)) > MOST_WORDS:
        return replace(side, pieces=(Piece(side.text, False),))
    pieces: list[Piece] = []
    for kind, start, end, _, _ in SequenceMatcher(
        None, words, theirs, autojunk=False
    ).get_opcodes():
        if start < end:
            pieces.append(Piece("".join(words[start:end]), kind != "equal"))
    return replace(side, pieces=tuple(pieces), marked=True)


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
    return tuple(
        ExampleCard(
            row.id,
            row.prompt,
            row.answers,
            compared([_side(completion) for completion in row.completions]),
        )
        for row in rows
    )


def _side(completion: Answer) -> Side:
    return Side(**dict(completion))


def _caption(listed: int, total: int, where: str) -> str:
    if listed < total:
        return f"{listed:,} of the {total:,} test prompts {where}"
    return f"all {total:,} test prompts {where}"
