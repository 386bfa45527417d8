"""Completions of one prompt side by side, before and after the bias, with their differences
marked.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

from blackbox_lb.bias.document import Bias
from blackbox_lb.bias.request_bias import store_key, to_request_bias
from blackbox_lb.errors import InputError
from blackbox_lb.jobs.evaluation.document import Evaluation, PolicyCompletion
from blackbox_lb.store import RolloutStore, canonical
from blackbox_lb.tasks import parse_reward
from blackbox_lb.tasks.rewards.reward import reward_kind
from blackbox_lb.tasks.rewards.spans import TextRule, sum_of
from blackbox_lb.types import Prompt, Span

BASE = "without the bias"
BIASED = "with the bias"
MOST_EXAMPLES = 24
"""Most prompts that are shown."""
MOST_WORDS = 1_500
"""Longest completion with marked differences, in words: the time to find them grows with the
square.
"""
WORDS = re.compile(r"\s+|\w+|[^\w\s]")


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of a completion; ``differs`` where the other side does not have it."""

    text: str
    differs: bool


@dataclass(frozen=True, slots=True)
class TextPart:
    """A stretch of a completion that is one place of its reward, or lies between two.

    pieces: its text. amount: nats of the reward that are earned there, None between two places.
    """

    pieces: tuple[Piece, ...]
    amount: float | None = None

    @property
    def spoken(self) -> str:
        """The amount in words: "costs 2.5", "earns 1"."""
        amount = self.amount or 0.0
        return f"{'costs' if amount < 0 else 'earns'} {abs(amount):.3g}"

    @property
    def shown(self) -> str:
        """The amount with its sign."""
        amount = self.amount or 0.0
        return f"{'−' if amount < 0 else '+'}{abs(amount):.3g}"


@dataclass(frozen=True, slots=True)
class Side:
    """One completion. ``correct`` and ``reward`` are None where not known; ``stop_changed``: it
    ended for another reason than the first side did. ``marked``: whether the pieces show the
    differences. ``spans``: the places of its reward; those outside the text are left out.
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

    @property
    def passages(self) -> tuple[TextPart, ...]:
        """The pieces, cut at the places of the reward. Places that touch or overlap are one, with
        the sum of their amounts; a place without a character is an empty passage.
        """
        passages = []
        place = 0
        for start, end, amount in _apart(self.spans, len(self.text)):
            if place < start:
                passages.append(TextPart(_between(self.pieces, place, start)))
            passages.append(TextPart(_between(self.pieces, start, end), amount))
            place = end
        if place < len(self.text):
            passages.append(TextPart(_between(self.pieces, place, len(self.text))))
        return tuple(passages)

    @property
    def stopped(self) -> str:
        known = {
            "stop": "ended by itself",
            "length": "cut off at the token limit",
            "content_filter": "content filter",
        }
        return known.get(self.finish_reason, self.finish_reason or "end not told")


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


def _apart(spans: Iterable[Span], length: int) -> list[tuple[int, int, float]]:
    """Start, end and amount of the places of a text of ``length`` characters, in their order, those
    that touch or overlap as one. A single place that is the whole text shows nothing, and is left
    out.
    """
    places: list[tuple[int, int, float]] = []
    inside = [span for span in spans if 0 <= span.start <= span.end <= length]
    for span in sorted(inside, key=lambda span: (span.start, span.end)):
        if places and span.start <= places[-1][1]:
            start, end, amount = places.pop()
            places.append((start, max(end, span.end), amount + span.amount))
        else:
            places.append((span.start, span.end, span.amount))
    whole = [place for place in places if place[:2] == (0, length)]
    return [] if whole and length else places


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
    first, *others = sides
    done = [_against(first, others[0])]
    done += [
        replace(_against(side, first), stop_changed=side.finish_reason != first.finish_reason)
        for side in others
    ]
    return tuple(done)


def _against(side: Side, other: Side) -> Side:
    own = WORDS.findall(side.text)
    theirs = WORDS.findall(other.text)
    if max(len(own), len(theirs)) > MOST_WORDS:
        return replace(side, pieces=(Piece(side.text, False),))
    pieces: list[Piece] = []
    for kind, start, end, _, _ in SequenceMatcher(None, own, theirs, autojunk=False).get_opcodes():
        if start < end:
            pieces.append(Piece("".join(own[start:end]), kind != "equal"))
    return replace(side, pieces=tuple(pieces), marked=True)


def evaluated(evaluation: Evaluation) -> tuple[tuple[ExampleCard, ...], str]:
    """The examples of an evaluation and their source."""
    rows = tuple(
        ExampleCard(
            shown.id,
            shown.prompt,
            shown.answers,
            compared([_side(completion) for completion in shown.completions]),
        )
        for shown in evaluation.examples[:MOST_EXAMPLES]
    )
    where = "the evaluation shows, those with different answers first"
    return rows, _caption(len(rows), len(evaluation.examples), where)


def _side(completion: PolicyCompletion) -> Side:
    fields = dict(completion)
    spans = tuple(Span(place.start, place.end, place.amount) for place in completion.spans)
    return Side(**{**fields, "spans": spans})


def _caption(shown: int, there: int, where: str) -> str:
    return (
        f"{shown} of the {there:,} prompts that {where}"
        if shown < there
        else f"the {there:,} prompts that {where}"
    )


def stored(path: Path, bias: Bias) -> tuple[tuple[ExampleCard, ...], str]:
    """Prompts in the store at ``path`` with a completion under ``bias`` and, by the same request,
    one without a bias.

    Greedy completions where there are any, else those of the setting with the most prompts. Returns
    the examples and, in words, their source or why there are none.

    Raises StoreError: the file is no store, or one of a newer version.
    """
    if not path.exists():
        return (), "there is no rollouts.db to take examples from"
    with RolloutStore(path, read_only=True) as store:
        pairs = _pairs(store, bias)
        if not pairs:
            return (
                (),
                (
                    "rollouts.db holds no completions of the same prompts with this bias and"
                    " without it"
                ),
            )
        temperature, keys = min(pairs, key=lambda pair: (pair[0] != 0, -len(pair[1])))
        rule, note = _rule(bias.reward)
        examples = tuple(
            _example(store, number, *pair, rule)
            for number, pair in enumerate(keys[:MOST_EXAMPLES], start=1)
        )
    setting = "greedily" if temperature == 0 else f"at temperature {temperature:g}"
    caption = _caption(
        len(examples), len(keys), f"rollouts.db holds {setting} with and without the bias"
    )
    return examples, caption + note


def _rule(reward: str) -> tuple[TextRule | None, str]:
    """The rule behind a reward, where it is one that needs nothing but the text; and a remark where
    its list is not there any more. No other reward is asked: it might run code, or send requests.
    """
    if reward_kind(reward) not in ("avoid", "script"):
        return None, ""
    try:
        return parse_reward(reward, max_tokens=1).rule, ""
    except InputError as error:
        return None, f" (no place is marked: {error})"


Pair = tuple[Prompt, str, str]
"""A prompt with the keys of its first completion without and with the bias."""


def _pairs(store: RolloutStore, bias: Bias) -> list[tuple[float, list[Pair]]]:
    """Temperature and pairs of every setting that was sampled on both sides."""
    requests = store.requests()
    wanted = store_key(to_request_bias(bias))
    base = {_without_bias(each): name for name, each in requests.items() if not each["bias"]}
    found = []
    for name, each in requests.items():
        first = base.get(_without_bias(each))
        if wanted and each["bias"] == wanted and first is not None:
            before = _first_of_each(store, first)
            after = _first_of_each(store, name)
            pairs = [
                (prompt, before[prompt], key) for prompt, key in after.items() if prompt in before
            ]
            if pairs:
                found.append((float(each["sampling"]["temperature"]), pairs))
    return found


def _without_bias(settings: Mapping[str, Any]) -> str:
    return canonical({key: value for key, value in settings.items() if key != "bias"})


def _first_of_each(store: RolloutStore, request: str) -> dict[Prompt, str]:
    first: dict[Prompt, str] = {}
    for key, prompt in store.prompts(request).items():
        first.setdefault(prompt, key)
    return first


def _example(
    store: RolloutStore, number: int, prompt: Prompt, before: str, after: str, rule: TextRule | None
) -> ExampleCard:
    sides = []
    drawn = store.completions((before, after))
    for name, completion in zip((BASE, BIASED), drawn, strict=True):
        side = Side(name, completion.text, completion.n_tokens, completion.finish_reason)
        if rule is not None:
            spans = rule.spans(completion.text)
            side = replace(side, spans=spans, reward=sum_of(spans))
        sides.append(side)
    return ExampleCard(str(number), prompt.text, (), compared(sides))
