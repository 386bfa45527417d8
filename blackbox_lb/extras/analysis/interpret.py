"""From intervention scores to bands, families, and tokens with their texts."""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from blackbox_lb.estimate.inputs.checks import Vector
from blackbox_lb.estimate.reweighting import InterventionScores
from blackbox_lb.extras.analysis.document import Band, Family, Side, TokenScore
from blackbox_lb.extras.analysis.token_classes import surface_class
from blackbox_lb.safety.printable import printable

EXAMPLES = 8
"""Tokens shown of a family."""

BANDS: tuple[tuple[float | None, float | None, str, str], ...] = (
    (1.0, None, "S >= 1", "strongest promoted tokens"),
    (0.1, 1.0, "0.1 <= S < 1", "strong positive signal"),
    (0.01, 0.1, "0.01 <= S < 0.1", "moderate positive signal"),
    (0.0, 0.01, "0 < S < 0.01", "weak positive or noise"),
    (-0.001, 0.0, "-0.001 <= S < 0", "almost neutral negative"),
    (-0.01, -0.001, "-0.01 <= S < -0.001", "weak suppression"),
    (-0.1, -0.01, "-0.1 <= S < -0.01", "meaningful suppression"),
    (-1.0, -0.1, "-1 <= S < -0.1", "strong suppression"),
    (None, -1.0, "S < -1", "strongest negative shifts"),
)
"""The rows of the paper's tables of score bands."""


@dataclass(frozen=True, slots=True)
class Texts:
    """The texts of token ids.

    raw: bytes by id, where known.
    names: texts of ids without bytes.
    special: ids that stand for no text.
    """

    raw: Mapping[int, bytes]
    names: Mapping[int, str]
    special: frozenset[int] = frozenset()

    def text(self, token: int) -> str:
        """The text as it is, not safe to print; "" where not known."""
        raw = self.raw.get(token)
        if raw:
            return raw.decode("utf-8", "replace")
        return self.names.get(token, "")

    def readable(self, token: int) -> str:
        """The text, safe to print and never empty."""
        return printable(self.text(token)) or f"<token {token}>"

    def family(self, token: int) -> str:
        """The token's surface class."""
        return surface_class(self.raw.get(token), self.text(token), special=token in self.special)


def side_of(score: float) -> Side:
    """The side of a score, by its sign."""
    if score > 0:
        return "promoted"
    if score < 0:
        return "suppressed"
    return "unmoved"


def bands(scores: Vector) -> tuple[Band, ...]:
    """The number of scores in each band; a score of exactly 0 is in no band.

    scores: (s,) nats.
    """
    rows = []
    for low, high, label, meaning in BANDS:
        inside = scores != 0
        if low is not None:
            inside &= scores >= low
        if high is not None:
            inside &= scores < high
        count = int(inside.sum())
        rows.append(Band(low=low, high=high, label=label, count=count, meaning=meaning))
    return tuple(rows)


def token_scores(
    scores: InterventionScores, bias: Mapping[int, float], texts: Texts
) -> tuple[TokenScore, ...]:
    """A row for each token of ``scores``, the most promoted first.

    Args:
        scores: the intervention score of each token.
        bias: nats by token id.
        texts: the texts of tokens.
    """
    rows = []
    for row in np.argsort(-scores.scores, kind="stable").tolist():
        token = int(scores.token_ids[row])
        error: float | None = float(scores.errors[row])
        if math.isnan(scores.errors[row]):
            error = None
        rows.append(
            TokenScore(
                id=token,
                text=texts.readable(token),
                bytes=texts.raw.get(token, b"").hex(),
                bias=bias.get(token, 0.0),
                score=float(scores.scores[row]),
                se=error,
                count=int(scores.counts[row]),
                family=texts.family(token),
            )
        )
    return tuple(rows)


def families(tokens: Iterable[TokenScore]) -> tuple[Family, ...]:
    """The families of each side by mean score, the most moved first.

    Promoted families come before suppressed ones.
    """
    groups: dict[tuple[Side, str], list[TokenScore]] = defaultdict(list)
    for token in tokens:
        groups[side_of(token.score), token.family].append(token)
    rows = [_family(name, side, members) for (side, name), members in groups.items()]
    sides: dict[Side, int] = {"promoted": 0, "suppressed": 1, "unmoved": 2}
    return tuple(sorted(rows, key=lambda row: (sides[row.side], -abs(row.mean_score), row.name)))


def _family(name: str, side: Side, members: Sequence[TokenScore]) -> Family:
    ordered = sorted(members, key=lambda member: -abs(member.score) * member.count)
    return Family(
        name=name,
        side=side,
        size=len(members),
        count=sum(member.count for member in members),
        mean_score=float(np.mean([member.score for member in members])),
        examples=tuple(member.text for member in ordered[:EXAMPLES]),
    )
