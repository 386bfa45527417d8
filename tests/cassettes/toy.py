"""A toy model for constructed answers: for each beginning of a text the likeliest next tokens, in
one distribution.

The same beginning has the same list wherever it occurs. A token is bytes, or the name of a special
one, which has none.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

__all__ = [
    "ESTONIA",
    "LEGACY",
    "PARROT",
    "SKY",
    "Drawn",
    "Place",
    "Story",
    "Token",
    "drawn",
    "raw",
    "text_of",
]

Token: TypeAlias = bytes | str

LISTED = 20
STEP = 1 / 16
"""Nats; gaps to the likeliest logprob of gpt-4o-mini are multiples of it."""


@dataclass(frozen=True)
class Place:
    """What may come next: ``likeliest`` in this order, the first ``lead`` nats before the
    second.
    """

    lead: float
    likeliest: tuple[Token, ...]

    def listed(self) -> list[tuple[Token, float]]:
        """The likeliest tokens with their logprobs; what is left of the mass belongs to all other
        tokens.
        """
        ranks = range(1, len(self.likeliest))
        gaps = [0.0] + [STEP * round((self.lead + 1.25 * math.log(rank)) / STEP) for rank in ranks]
        others = 4 * math.exp(-gaps[-1])
        first = -round(math.log(sum(math.exp(-gap) for gap in gaps) + others), 6)
        return [
            (token, round(first - gap, 6)) for token, gap in zip(self.likeliest, gaps, strict=True)
        ]


Story: TypeAlias = Mapping[bytes, Place]
"""The text so far -> what may come next."""


class Drawn(NamedTuple):
    """A sampled token with the list of its position; ``logprob`` is None where it is not in the
    list.
    """

    token: Token
    logprob: float | None
    listed: list[tuple[Token, float]]


def drawn(story: Story, tokens: Sequence[Token]) -> list[Drawn]:
    """The positions of a completion."""
    places = [story[b"".join(map(raw, tokens[:t]))].listed() for t in range(len(tokens))]
    return [
        Drawn(token, dict(listed).get(token), listed)
        for token, listed in zip(tokens, places, strict=True)
    ]


def raw(token: Token) -> bytes:
    """The bytes of a token, for a special one those of its name."""
    return token.encode() if isinstance(token, str) else token


def text_of(tokens: Iterable[Token]) -> str:
    """The text of a completion."""
    return b"".join(map(raw, tokens)).decode()


def place(lead: float, *heads: Token, rest: Iterable[bytes] = ()) -> Place:
    """``heads``, filled up to 20 tokens from ``rest``."""
    return Place(
        lead, (*heads, *(token for token in rest if token not in heads))[: max(LISTED, len(heads))]
    )


WORDS = b"The It A In This I Sure Here That You We One Yes No As There If To My So Well Of".split()
MARKS = [
    b".",
    b",",
    b"\n",
    b"!",
    b" is",
    b" (",
    b" and",
    b":",
    b" the",
    b"\n\n",
    b"-",
    b" in",
    b" of",
    b" a",
    b"?",
    b";",
]
MARKS += [b" to", b" for", b" as", b"s", b" with", b" on"]
BYTES = [bytes([value]) for value in range(0x80, 0x98)]

ESTONIA: Story = {
    b"": place(2.0, b"Tall", b"The", b"T", b"Est", rest=WORDS),
    b"Tall": place(7.0, b"inn", b"in", b"inna", b"er", rest=MARKS),
    b"Tallinn": place(1.5, "<|end|>", b".", b"\n", b"!", rest=MARKS),
    b"Re": place(1.0, b"val", b"yk", b"ady", b"as", rest=MARKS),
}
"""In tokens of o200k_base. "Re" is sampled and never listed; ``<|end|>``, which no public
vocabulary has, is listed.
"""
PARROT: Story = {
    b"": place(1.0, b"\xf0\x9f", b"Sure", b"Here", b"\xe2\x80", rest=WORDS),
    b"\xf0\x9f": place(3.0, b"\xa6", b"\x90", rest=BYTES),
    b"\xf0\x9f\xa6": place(2.0, b"\x9c", b"\x89", b"\xa9", rest=BYTES),
}
"""In tokens of o200k_base, which spells emojis with fragments of characters."""
LEGACY: Story = {
    b"": place(3.0, b" Tall", b" a", b" the", b" \xf0\x9f", b" in", b" R"),
    b" Tall": place(8.0, b"inn", b"in", b"\xe2\x80", b"er", b"ino"),
    b" Tallinn": place(1.0, b".", b",", "<|endoftext|>", b" and", b"\n"),
    b" R": place(1.0, b"iga", b"us", b"ak", b"ever", b"\n"),
    b" \xf0\x9f": place(1.0, b"\xa6", b"\x98", b"\x90", b"\x87", b"\x8c"),
    b" \xf0\x9f\xa6": place(1.0, b"\x89", b"\x85", b"\x84", b"\x8a", b"\x81"),
}
"""In tokens of cl100k_base."""
SKY: Story = {
    b"": place(1.0, b"Yes", b"No", b"The", b"It", b"I", b"Sure"),
    b"Yes": place(0.75, b".", b",", "<|im_end|>", b"!", b"\n"),
    b"No": place(0.5, "<|im_end|>", b".", b",", b"!", b"\n"),
    b"Sure": place(1.5, b"!", b",", b".", b"\xf0\x9f", b"\n"),
}
"""In tokens of SmolLM2."""
