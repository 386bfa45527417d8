"""Which token teaches a label that several tokens begin: "positive", "Positive", " positive".

Greedy decoding decides between single tokens, and one vector can lift a single spelling of each
label and leave the others where they are. Spellings of one label follow the prompt differently
well: the one that the model says most is not the one that tells the labels apart best.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from blackbox_lb.estimate.decisions.first_lists import FirstLists
from blackbox_lb.estimate.inputs.checks import Bools, Ids, Vector
from blackbox_lb.estimate.label_fit import SlopePull, label_fit

GAIN = 3.0
"""Nats of likelihood of all labelled prompts together that a single spelling must gain: with less,
the best of a handful of spellings is chosen by chance, and ten prompts would choose badly."""
SLOPE = SlopePull(0.0, 1.0)
"""Pulled to 0 by one prompt: a few prompts that one spelling happens to divide prove little."""
LISTED = 0.95
"""Share of the lists that must hold a token: elsewhere its probability is only bounded."""
ROUNDS = 3
"""Times that the labels are gone through; a choice for one may change that for another."""


def taught_tokens(
    lists: FirstLists, numbers: Ids, tokens: Sequence[Ids], may_be_single: Bools
) -> list[Ids]:
    """The tokens of each label that are to be taught: one of them where that makes the right labels
    likelier by ``GAIN``, else all.

    Likelihoods are those of the labels' likeliest tokens with a slope and an offset a label
    (``label_fit``). The labels take turns.

    Args:
        lists: (p,) first positions of labelled prompts.
        numbers: (p,) the right label of each, -1 for none.
        tokens: (l,) those that begin each label and no other.
        may_be_single: (l,) the labels that may be taught as one of them.
    """
    is_usable = lists.has_list & (numbers >= 0)
    every = np.concatenate([np.zeros(0, np.int64), *tokens])
    if len(np.unique(numbers[is_usable])) < 2:
        return list(tokens)
    held = lists.only(is_usable)
    singles = [np.array([token]) for token in every.tolist()]
    is_listed = np.isfinite(held.best(singles)).mean(axis=0) >= LISTED
    scores = held.with_tokens(every).best(singles)
    at = {token: place for place, token in enumerate(every.tolist())}
    places = [np.array([at[token] for token in ids.tolist()]) for ids in tokens]
    candidates = [
        ids[is_listed[ids]].tolist() if allowed else []
        for ids, allowed in zip(places, may_be_single.tolist(), strict=True)
    ]
    chosen = _climb(scores, numbers[is_usable], places, candidates)
    return [every[group] for group in chosen]


def _climb(
    scores: Vector, numbers: Ids, places: Sequence[Ids], candidates: Sequence[Sequence[int]]
) -> list[Ids]:
    """The columns of ``scores`` that are taught of each label; ``places``: all of each;
    ``candidates``: those of them that may be taught alone.
    """
    chosen = list(places)
    best = _likelihood(scores, numbers, chosen)
    for _ in range(ROUNDS):
        before = best
        for label, columns in enumerate(candidates):
            for column in columns:
                changed = [*chosen[:label], np.array([column]), *chosen[label + 1 :]]
                likelihood = _likelihood(scores, numbers, changed)
                if likelihood > best + GAIN:
                    chosen, best = changed, likelihood
        if best == before:
            break
    return chosen


def _likelihood(scores: Vector, numbers: Ids, chosen: Sequence[Ids]) -> float:
    """Nats of the right labels of all prompts together, by the likeliest of the chosen tokens."""
    table = np.stack([scores[:, columns].max(axis=1) for columns in chosen], axis=1)
    table = table - table.mean(axis=0)
    slope, offsets = label_fit(table, numbers, slope=SLOPE)
    tilted = slope * table + offsets
    right = tilted[np.arange(len(tilted)), numbers]
    return float((right - np.logaddexp.reduce(tilted, axis=1)).sum())
