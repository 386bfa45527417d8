"""Rewards of the gallery's uses."""

from __future__ import annotations

import json
import re

from blackbox_lb.types import Completion, Example

__all__ = ["LETTERS_HAN", "STOCK", "few_stock_words", "one_script", "quoted", "record", "stripped_record"]

LETTERS_HAN = re.compile("[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]")
LETTERS_HANGUL = re.compile("[\uac00-\ud7a3]")
SHORTEST = 10
"""Korean syllables of the shortest answer that counts."""

STOCK = (
    "bustling",
    "nestled",
    "vibrant",
    "tapestry",
    "testament",
    "whispers",
    "delve",
    "cherished",
    "breathtaking",
    "serene",
    "lush",
    "gentle",
    "golden",
    "ancient",
    "mysterious",
    "once upon a time",
)
"""Words and a phrase that generated prose is full of; the last is no single token, so that no list of words can hold it."""
FENCE = re.compile(r"^```(?:json)?\s*|\s*```$")


def record(example: Example, completion: Completion) -> float:
    """1 where the whole text is the JSON object that the row wants, else 0: what ``json.loads`` of a strict client says."""
    return _is(completion.text, example)


def stripped_record(example: Example, completion: Completion) -> float:
    """The same for a client that takes a Markdown fence off before it parses."""
    return _is(FENCE.sub("", completion.text.strip()), example)


def _is(text: str, example: Example) -> float:
    try:
        return float(json.loads(text) == json.loads(example.answers[0]))
    except ValueError:
        return 0.0


def few_stock_words(example: Example, completion: Completion) -> float:
    """Less the number of stock words in the text, in words for each hundred characters; an empty text is as bad as three."""
    text = completion.text.lower()
    found = sum(len(re.findall(rf"\b{word}\b", text)) for word in STOCK)
    return -100.0 * found / max(len(text), 100) if text.strip() else -3.0


def one_script(example: Example, completion: Completion) -> float:
    """1 for a Korean answer without Chinese characters, else 0."""
    korean = len(LETTERS_HANGUL.findall(completion.text)) >= SHORTEST
    return float(korean and not LETTERS_HAN.search(completion.text))


def quoted(example: Example, completion: Completion) -> float:
    """1 where the text holds the quote that was asked for, else 0."""
    return float(example.answers[0] in completion.text)
