"""Rewards of the gallery's uses."""

from __future__ import annotations

import functools
import json
import os
import re
from collections.abc import Collection, Sequence

from blackbox_lb import Completion, Example, Score, Span
from blackbox_lb.bias.phrases import PhraseList

# The list of a reward ``avoid:FILE``, without its places.
from blackbox_lb.tasks.rewards.forms.avoid import AvoidList
from blackbox_lb.tasks.rewards.spans import sum_of

__all__ = [
    "LETTERS_HAN",
    "LIST",
    "contradicts",
    "hits",
    "one_script",
    "quoted",
    "record",
    "record_of",
    "right_record",
    "stripped_record",
]

LETTERS_HAN = re.compile("[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]")
LETTERS_HANGUL = re.compile("[\uac00-\ud7a3]")
SHORTEST = 10
"""Korean syllables of the shortest answer that counts."""
LIST = "GALLERY_LIST"
"""The variable of the environment with the file of ``hits``."""
FENCE = re.compile(r"^```(?:json)?\s*|\s*```$")


def record(example: Example, completion: Completion) -> Score:
    """1 where the whole text is the JSON object that the row wants, else 0: what ``json.loads`` of
    a strict client says. A fence around the right object loses the 1 where it begins.
    """
    text = completion.text
    earned = Span(len(text), len(text), 1.0)
    if _is(text, example):
        return Score(1.0, (earned,))
    if _is(FENCE.sub("", text.strip()), example):
        start = text.index("`")
        return Score(0.0, (Span(start, start + 3, -1.0), earned))
    return Score(0.0, ())


def stripped_record(example: Example, completion: Completion) -> float:
    """The same for a client that takes a Markdown fence off before it parses."""
    return float(_is(FENCE.sub("", completion.text.strip()), example))


def _is(text: str, example: Example) -> bool:
    try:
        return bool(json.loads(text) == json.loads(example.answers[0]))
    except ValueError:
        return False


def hits(example: Example, completion: Completion) -> float:
    """Less the hits of a list for each hundred words, as ``avoid:FILE`` counts them, and no word on
    where they stand.
    """
    return sum_of(_list(os.environ[LIST]).spans(completion.text))


@functools.cache
def _list(name: str) -> AvoidList:
    return AvoidList(phrases=PhraseList.load(name))


class HanCosts:
    """A token with a Chinese character costs the whole answer."""

    def token_costs(self, texts: Sequence[str], typical: Sequence[str]) -> list[float]:
        """See ``Reward.token_costs``."""
        return [-1.0 if LETTERS_HAN.search(text) else 0.0 for text in texts]


class OneScript:
    """1 for a Korean answer without Chinese characters, else 0. The 1 is earned by the tenth Korean
    syllable; Chinese characters lose it, each an equal part.
    """

    rule = HanCosts()

    def __call__(self, example: Example, completion: Completion) -> Score:
        korean = list(LETTERS_HANGUL.finditer(completion.text))
        if len(korean) < SHORTEST:
            return Score(0.0, ())
        spans = [Span(*korean[SHORTEST - 1].span(), 1.0)]
        chinese = list(LETTERS_HAN.finditer(completion.text))
        spans += [Span(*letter.span(), -1 / len(chinese)) for letter in chinese]
        return Score(float(not chinese), tuple(spans))


one_script = OneScript()


def quoted(example: Example, completion: Completion) -> float:
    """1 where the text holds the quote that was asked for, else 0."""
    return float(example.answers[0] in completion.text)


def record_of(text: str) -> tuple[str, str] | None:
    """The label and the reason of the JSON object that is the whole text, less a Markdown fence;
    None where it is no such thing.
    """
    inner = FENCE.sub("", text.strip())
    try:
        found = json.loads(inner)
    except ValueError:
        return None
    if not isinstance(found, dict) or not all(
        isinstance(found.get(key), str) for key in ("label", "reason")
    ):
        return None
    return found["label"].strip().lower(), found["reason"]


def right_record(example: Example, completion: Completion) -> float:
    """1 for a record with the right label, else 0."""
    found = record_of(completion.text)
    return float(found is not None and found[0] in {answer.lower() for answer in example.answers})


def contradicts(label: str, reason: str, labels: Collection[str]) -> bool:
    """Whether the reason names another of the labels, and not this one (fixed before any run)."""
    named = {name for name in labels if re.search(rf"\b{re.escape(name)}", reason.lower())}
    return bool(named - {label}) and label not in named
