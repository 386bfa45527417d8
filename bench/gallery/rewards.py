"""Rewards of the gallery's uses."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

from blackbox_lb import Completion, Example, Score, Span

# The list of a reward ``avoid:FILE``, without a file.
from blackbox_lb.tasks.rewards.forms.avoid import AvoidList, count_words
from blackbox_lb.tasks.rewards.spans import sum_of

__all__ = [
    "DASHES",
    "FAMILIES",
    "LETTERS_HAN",
    "PHRASES",
    "STOCK",
    "contradicts",
    "little_slop",
    "one_script",
    "quoted",
    "record",
    "record_of",
    "right_record",
    "slop",
    "stripped_record",
    "words_of",
]

LETTERS_HAN = re.compile("[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]")
LETTERS_HANGUL = re.compile("[\uac00-\ud7a3]")
SHORTEST = 10
"""Korean syllables of the shortest answer that counts."""

WORDS = tomllib.loads(Path(__file__).with_name("stock.toml").read_text(encoding="utf-8"))
FAMILIES: dict[str, str] = WORDS["families"]
PHRASES: tuple[str, ...] = tuple(WORDS["others"]["phrases"])
DASHES: str = WORDS["others"]["dashes"]
STOCK_LIST = "\n".join(
    [
        *(rf"/\b(?:{forms})\b/" for forms in FAMILIES.values()),
        *PHRASES,
        f"/{DASHES}/",
    ]
)
"""All of it as a list of the reward ``avoid:FILE``."""
STOCK = AvoidList.parse(STOCK_LIST, Path("stock words"))
WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)*")
FEWEST, WORST = 20, -10.0
"""Words below which a text is no opening, and the reward of one: as bad as ten stock words in a
hundred.
"""
FENCE = re.compile(r"^```(?:json)?\s*|\s*```$")


def record(example: Example, completion: Completion) -> float:
    """1 where the whole text is the JSON object that the row wants, else 0: what ``json.loads`` of
    a strict client says.
    """
    return _is(completion.text, example)


def stripped_record(example: Example, completion: Completion) -> float:
    """The same for a client that takes a Markdown fence off before it parses."""
    return _is(FENCE.sub("", completion.text.strip()), example)


def _is(text: str, example: Example) -> float:
    try:
        return float(json.loads(text) == json.loads(example.answers[0]))
    except ValueError:
        return 0.0


def words_of(text: str) -> list[str]:
    """The words in lower case, without numbers and signs; "don't" is one."""
    return [word.lower() for word in WORD.findall(text)]


class Stock(NamedTuple):
    """A stock "word", stock "phrase" or "dash", its text, and where it begins."""

    kind: str
    text: str
    start: int


def slop(text: str) -> list[Stock]:
    """What a text has of these, in their order."""
    stock = []
    for span in STOCK.spans(text):
        passage = text[span.start : span.end]
        stock.append(Stock(_kind(passage), passage, span.start))
    return stock


def _kind(passage: str) -> str:
    if not WORD.search(passage):
        return "dash"
    return "phrase" if " " in passage else "word"


class LittleSlop:
    """Less the number of stock words, stock phrases and dashes for each hundred words of the text,
    each where it stands; a text that is too short costs where it ends.
    """

    rule = STOCK

    def __call__(self, example: Example, completion: Completion) -> Score:
        text = completion.text
        if count_words(text) < FEWEST:
            return Score(WORST, (Span(len(text), len(text), WORST),))
        spans = STOCK.spans(text)
        return Score(sum_of(spans), spans)


little_slop = LittleSlop()


def one_script(example: Example, completion: Completion) -> float:
    """1 for a Korean answer without Chinese characters, else 0."""
    korean = len(LETTERS_HANGUL.findall(completion.text)) >= SHORTEST
    return float(korean and not LETTERS_HAN.search(completion.text))


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
