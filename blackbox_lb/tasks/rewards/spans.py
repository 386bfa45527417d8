"""Places of a text where a reward is earned: their sum, those of somebody else's code checked, and
those that a quotation names.

A reward such as "every stock word costs 1" is earned at places of the text. Its spans name those
places, and their amounts add up to the reward. A fit then weighs each token by what was earned from
it on (``RewardToGo``), and a report marks the places.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable
from typing import Any

import regex

from blackbox_lb.errors import InputError
from blackbox_lb.safety.printable import shorten
from blackbox_lb.types import Span

ROUNDING = 1e-6
"""Share of the largest number by which the sum of the amounts may differ from the reward."""
_SPELLINGS = {"'": "['’‘]", "’": "['’‘]", "‘": "['’‘]", '"': '["“”„]', "“": '["“”„]', "”": '["“”„]'}


def sum_of(spans: Iterable[Span]) -> float:
    """The reward in nats that ``spans`` add up to."""
    return math.fsum(span.amount for span in spans)


def checked_spans(raw_spans: Any, reward: float, text: str, source: str) -> tuple[Span, ...]:
    """The spans that somebody else's code gave with its reward.

    Args:
        raw_spans: rows of start, end and amount, or ``Span`` objects.
        reward: nats that they must add up to.
        text: of the completion, in which they are counted in characters.
        source: who gave them, to begin a message with.

    Raises:
        InputError: a row that is no such triple, a place outside the text, an amount that is not
            finite, or amounts that add up to another number than the reward.
    """
    if isinstance(raw_spans, str) or not isinstance(raw_spans, Iterable):
        raise InputError(
            f"{source} gave the spans {shorten(raw_spans)}; give a list of (start, end,"
            " amount), with"
            " start and end in characters of the text and the amount in nats"
        )
    spans = tuple(checked_span(row, len(text), source) for row in raw_spans)
    total = sum_of(spans)
    largest = max(1.0, abs(reward), *(abs(span.amount) for span in spans))
    if not math.isfinite(reward) or abs(total - reward) > ROUNDING * largest:
        raise InputError(
            f"{source} gave the reward {reward:.9g}, and its {len(spans)} spans add up to"
            f" {total:.9g}; the amounts of the spans must add up to the reward, or give no spans"
        )
    return spans


def checked_span(row: Any, length: int, source: str) -> Span:
    """One of ``checked_spans``, in a text of ``length`` characters."""
    try:
        start, end, amount = (
            (row.start, row.end, row.amount) if isinstance(row, Span) else tuple(row)
        )
        span = Span(operator.index(start), operator.index(end), float(amount))
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(
            f"{source} gave the span {shorten(row)}; a span is (start, end, amount), two whole"
            " numbers of characters and a number of nats"
        ) from error
    if not 0 <= span.start <= span.end <= length:
        raise InputError(
            f"{source} gave a span from {span.start} to {span.end} in a text of {length}"
            f" characters; start and end must be in order and from 0 to {length}"
        )
    if not math.isfinite(span.amount):
        raise InputError(
            f"{source} gave a span from {span.start} to {span.end} the amount {span.amount}; an"
            " amount must be finite"
        )
    return span


def find_quote(text: str, quote: str, after: int = 0) -> tuple[int, int] | None:
    """The characters of ``text`` that ``quote`` repeats, from ``after`` on: its start and end.

    White space and the spelling of quotation marks may differ, and so may the case where the exact
    one does not occur. None: the quote does not occur, or holds nothing but white space.
    """
    words = quote.split()
    if not words:
        return None
    pattern = r"\s+".join(_spelled(word) for word in words)
    for flags in (0, regex.IGNORECASE):
        match = regex.compile(pattern, flags).search(text, after)
        if match is not None:
            return match.start(), match.end()
    return None


def _spelled(word: str) -> str:
    """The pattern of a word with its quotation marks and apostrophes in any spelling."""
    return "".join(_SPELLINGS.get(letter) or regex.escape(letter) for letter in word)
