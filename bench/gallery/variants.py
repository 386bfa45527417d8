"""What a learned bias pushes down of that which a reward counts, and whether a hand list has it,
too.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from bench.gallery.rewards import Stock

__all__ = ["Found", "Meant", "meant", "variants"]

FEWEST, MOSTLY = 3, 0.5
"""A token may be meant by the reward where it was drawn this often in training, and at least this
share of it in what counts.
"""
LOOKED_AT = 60
"""Most negative tokens of a bias that are looked at."""


@dataclass(slots=True)
class Meant:
    """seen, counted: how often a token was drawn, and of these inside of something that counts.
    inside: (kind, text) -> times.
    """

    seen: int = 0
    counted: int = 0
    inside: Counter[tuple[str, str]] = field(default_factory=Counter)

    @property
    def mostly(self) -> bool:
        """Whether the reward can have meant the token."""
        return self.seen >= FEWEST and self.counted >= MOSTLY * self.seen


@dataclass(frozen=True, slots=True)
class Found:
    """A token, its bias in nats, what it stood in, and the relation to the hand list in words."""

    text: str
    bias: float
    inside: str
    hand_list: str


def meant(
    texts: Iterable[Sequence[tuple[int, bytes]]], find: Callable[[str], Iterable[Stock]]
) -> dict[int, Meant]:
    """Token id -> how often it stood in what ``find`` finds; ``texts``: the tokens of each
    completion, with their bytes.
    """
    found: dict[int, Meant] = defaultdict(Meant)
    for tokens in texts:
        whole = b"".join(raw for _, raw in tokens).decode("utf-8", "surrogateescape")
        kinds: list[tuple[str, str] | None] = []  # of each byte
        end = 0
        for stock in find(whole):
            kinds += [None] * _bytes(whole[end : stock.start])
            kinds += [(stock.kind, stock.text.lower())] * _bytes(stock.text)
            end = stock.start + len(stock.text)
        kinds += [None] * _bytes(whole[end:])
        place = 0
        for token, raw in tokens:
            here = next(
                (kind for kind in kinds[place : place + len(raw)] if kind is not None), None
            )
            place += len(raw)
            found[token].seen += 1
            if here is not None:
                found[token].counted += 1
                found[token].inside[here] += 1
    return dict(found)


def _bytes(text: str) -> int:
    return len(text.encode("utf-8", "surrogateescape"))


def variants(
    bias: Mapping[int, float],
    texts: Mapping[int, str],
    counted: Mapping[int, Meant],
    listed: Iterable[int],
    families: Mapping[str, str],
) -> tuple[list[Found], list[str]]:
    """Of the most negative tokens those that the reward can have meant, and the texts of the
    others, both most negative first.

    bias: token id -> nats. texts: token id -> text. listed: the tokens of the hand list. families:
    word of the hand list -> pattern of its forms.
    """
    found, others, listed = [], [], frozenset(listed)
    negative = sorted(
        (token for token, value in bias.items() if value < 0), key=lambda token: bias[token]
    )
    for token in negative[:LOOKED_AT]:
        text, known = texts.get(token, f"token {token}"), counted.get(token, Meant())
        if not known.mostly:
            others.append(text)
            continue
        (kind, inside), _ = known.inside.most_common(1)[0]
        found.append(
            Found(text, bias[token], inside, _relation(token, text, kind, inside, listed, families))
        )
    return found, others


def _relation(
    token: int,
    text: str,
    kind: str,
    inside: str,
    listed: frozenset[int],
    families: Mapping[str, str],
) -> str:
    if token in listed:
        return "on it"
    if kind != "word":
        return f"missing: a {kind}"
    word = next(word for word, forms in families.items() if re.fullmatch(forms, inside))
    if inside != word:
        return f"missing: a form of {word!r}"
    return (
        f"missing: another spelling of {word!r}"
        if text.strip().lower() == word
        else f"missing: a piece of {word!r}"
    )
