"""Interpreting: from intervention scores to bands, families, minimal pairs, and tokens in their
contexts.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from blackbox_lb.estimate.inputs.checks import Vector
from blackbox_lb.estimate.inputs.rollouts import Rollouts
from blackbox_lb.estimate.reweighting.intervention import InterventionScores
from blackbox_lb.extras.analysis.document import Band, Family, MinimalPair, Side, TokenScore
from blackbox_lb.extras.analysis.token_classes import nearly_equal, surface_class
from blackbox_lb.safety.printable import printable

CONTEXTS = 3
"""Contexts a token, each of another completion where there are as many."""
BEFORE = 40
AFTER = 20
"""Characters of a context before and after the token."""
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
NOT_TOLD = "▯"
"""A token in a context whose text is not known."""


@dataclass(frozen=True, slots=True)
class Texts:
    """The texts of token ids. raw: their bytes, where known; names: of those without any; special:
    ids without a text.
    """

    raw: Mapping[int, bytes]
    names: Mapping[int, str]
    special: frozenset[int] = frozenset()

    def text(self, token: int) -> str:
        """The text as it is, not safe to print; "" where not known."""
        raw = self.raw.get(token)
        return raw.decode("utf-8", "replace") if raw else self.names.get(token, "")

    def readable(self, token: int) -> str:
        """The text, safe to print and never empty."""
        return printable(self.text(token)) or f"<token {token}>"

    def surface(self, token: int) -> str:
        """The token's surface class."""
        return surface_class(self.raw.get(token), self.text(token), special=token in self.special)


def side_of(score: float) -> Side:
    return "promoted" if score > 0 else "suppressed" if score < 0 else "unmoved"


def bands(scores: Vector) -> tuple[Band, ...]:
    """The number of the scores (s,) in each band; a score of exactly 0 is in none."""
    rows = []
    for low, high, label, meaning in BANDS:
        inside = (scores >= (-math.inf if low is None else low)) & (
            scores < (math.inf if high is None else high)
        )
        count = int((inside & (scores != 0)).sum())
        rows.append(Band(low=low, high=high, label=label, count=count, meaning=meaning))
    return tuple(rows)


def token_scores(
    scores: InterventionScores,
    bias: Mapping[int, float],
    texts: Texts,
    rollouts: Rollouts,
    scored: Vector,
) -> tuple[TokenScore, ...]:
    """A row for each token of ``scores``, the most promoted first. scored: (m,) the shifts of the
    positions, NaN where unknown.
    """
    where = _positions(rollouts, np.isfinite(scored))
    surface = {token: texts.surface(token) for token in scores.token_ids.tolist()}
    order = np.argsort(-scores.scores, kind="stable").tolist()
    return tuple(
        TokenScore(
            id=token,
            text=texts.readable(token),
            bytes=texts.raw.get(token, b"").hex(),
            bias=bias.get(token, 0.0),
            score=float(scores.scores[row]),
            se=None if math.isnan(scores.errors[row]) else float(scores.errors[row]),
            count=int(scores.counts[row]),
            surface=surface[token],
            family=surface[token],
            contexts=_contexts(rollouts, texts, where[token]),
        )
        for row, token in ((row, int(scores.token_ids[row])) for row in order)
    )


def _positions(
    rollouts: Rollouts, known: np.ndarray[tuple[int], np.dtype[np.bool_]]
) -> dict[int, list[int]]:
    """Token -> up to ``CONTEXTS`` of the positions that are known, each of another completion where
    there are as many.
    """
    found: dict[int, list[int]] = defaultdict(list)
    again: dict[int, list[int]] = defaultdict(list)
    owner = rollouts.rollout_of
    for position in np.flatnonzero(known).tolist():
        rows = found[int(rollouts.token_ids[position])]
        if len(rows) == CONTEXTS:
            continue
        if rows and owner[rows[-1]] == owner[position]:
            again[int(rollouts.token_ids[position])].append(position)
        else:
            rows.append(position)
    return {token: (rows + again[token])[:CONTEXTS] for token, rows in found.items()}


def _contexts(rollouts: Rollouts, texts: Texts, positions: Iterable[int]) -> tuple[str, ...]:
    """Pieces of completions with the token marked, each once."""
    owner = rollouts.rollout_of
    ends = np.cumsum(rollouts.lengths)
    pieces = []
    for position in positions:
        end = int(ends[owner[position]])
        start = end - int(rollouts.lengths[owner[position]])
        before = _joined(
            texts, rollouts.token_ids[max(start, position - BEFORE) : position].tolist()
        )
        after = _joined(
            texts, rollouts.token_ids[position + 1 : min(end, position + 1 + AFTER)].tolist()
        )
        left = printable(before[-BEFORE:])
        right = printable(after[:AFTER])
        cut = "…" if len(before) > BEFORE or position - start > BEFORE else ""
        rest = "…" if len(after) > AFTER or end - position - 1 > AFTER else ""
        pieces.append(
            f"{cut}{left}«{texts.readable(int(rollouts.token_ids[position]))}»{right}{rest}"
        )
    return tuple(dict.fromkeys(pieces))


def _joined(texts: Texts, tokens: Sequence[int]) -> str:
    """The text of several tokens; bytes are joined first, because a character may be split over
    some.
    """
    named = {
        token: texts.names.get(token, "" if token in texts.special else NOT_TOLD)
        for token in tokens
    }
    parts = [texts.raw.get(token) or named[token].encode(errors="replace") for token in tokens]
    return b"".join(parts).decode("utf-8", "replace")


def families(tokens: Iterable[TokenScore]) -> tuple[Family, ...]:
    """The families of each side, by mean score: the promoted from the highest on, then the
    suppressed from the lowest on.
    """
    groups: dict[tuple[Side, str], list[TokenScore]] = defaultdict(list)
    for token in tokens:
        groups[side_of(token.score), token.family].append(token)
    rows = [_family(name, side, members) for (side, name), members in groups.items()]
    sides: dict[Side, int] = {"promoted": 0, "suppressed": 1, "unmoved": 2}
    return tuple(sorted(rows, key=lambda row: (sides[row.side], -abs(row.mean_score), row.name)))


def _family(name: str, side: Side, members: Sequence[TokenScore]) -> Family:
    ordered = sorted(members, key=lambda each: -abs(each.score) * each.count)
    return Family(
        name=name,
        side=side,
        size=len(members),
        count=sum(member.count for member in members),
        mean_score=float(np.mean([member.score for member in members])),
        examples=tuple(each.text for each in ordered[:EXAMPLES]),
    )


def minimal_pairs(tokens: Sequence[TokenScore], texts: Texts) -> tuple[MinimalPair, ...]:
    """Pairs of nearly equal tokens, one promoted and one suppressed, by usage times the difference
    of scores.

    A pair with several relations is listed once, by the closest (see ``nearly_equal``).
    """
    groups: dict[tuple[str, str], list[TokenScore]] = defaultdict(list)
    order: dict[str, int] = {"space": 0, "case": 1, "repetition": 2, "whitespace": 3}
    for token in tokens:
        if token.surface not in ("special", "not known", "part of a character"):
            for key in nearly_equal(texts.text(token.id)):
                groups[key].append(token)
    found: dict[tuple[int, int], MinimalPair] = {}
    for (relation, _), members in sorted(groups.items(), key=lambda item: order[item[0][0]]):
        for up in (member for member in members if member.score > 0):
            for down in (member for member in members if member.score < 0):
                found[up.id, down.id] = found.get((up.id, down.id)) or MinimalPair(
                    promoted=up.id,
                    suppressed=down.id,
                    promoted_text=up.text,
                    suppressed_text=down.text,
                    relation=relation,
                    promoted_score=up.score,
                    suppressed_score=down.score,
                    promoted_count=up.count,
                    suppressed_count=down.count,
                    weight=(up.count + down.count) * (up.score - down.score),
                )
    return tuple(
        sorted(found.values(), key=lambda pair: (-pair.weight, pair.promoted, pair.suppressed))
    )
