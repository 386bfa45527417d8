"""Ranking: how well the model's own lists separate the prompts of one label from all others.

A shift of one label moves a threshold on the margins; it changes no order, so that the area under
the ROC curve is the same for all of them.

Index letters: ``p`` prompts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from blackbox_lb.estimate.decisions.prediction import FirstLists
from blackbox_lb.estimate.inputs.checks import Bools, Ids, Vector

Z = 1.959963984540054
"""Standard normal quantile of a two-sided 95 % interval."""
BISECTIONS = 50


@dataclass(frozen=True, slots=True)
class RocArea:
    """The area under the ROC curve, from 0 to 1, with its 95 % interval."""

    value: float
    low: float
    high: float

    @property
    def separates(self) -> bool:
        """Whether it is shown to be above .5, so that a threshold can help."""
        return self.low > 0.5


def margins(lists: FirstLists, bias: Mapping[int, float], token_ids: Ids) -> Vector:
    """(p,) nats by which the best of ``token_ids`` is ahead of every other listed token under
    ``bias``: greedy decoding takes one of them where it is above 0.
    """
    tilted = lists.tilted(bias)
    is_positive = np.isin(lists.ids, token_ids)
    positive = np.where(is_positive, tilted, -np.inf).max(axis=1)
    other = np.where(is_positive, -np.inf, tilted).max(axis=1)
    return np.asarray(positive - other)


def label_margins(lists: FirstLists, token_ids: Ids, other_ids: Ids) -> Vector:
    """(p,) nats by which the best of ``token_ids`` is ahead of the best of ``other_ids`` without a
    bias; what a list misses counts as its least listed token.
    """
    logprobs = lists.logprobs.astype(np.float64)
    least = np.where(lists.ids >= 0, logprobs, np.inf).min(axis=1)
    best = [
        np.where(np.isin(lists.ids, ids), logprobs, -np.inf).max(axis=1)
        for ids in (token_ids, other_ids)
    ]
    return np.asarray(np.maximum(best[0], least) - np.maximum(best[1], least))


def roc_area(scores: Vector, is_positive: Bools) -> RocArea:
    """The chance that a positive prompt has the larger score (Mann and Whitney 1947; ties count
    half), with the interval of Newcombe (2006, "Confidence intervals for an effect size measure
    based on the Mann-Whitney statistic", method 5), which stays honest where all are separated.

    scores: (p,) nats. is_positive: (p,). An area of .5 with the interval [0, 1] where all prompts
    are of one kind.
    """
    positives = int(is_positive.sum())
    negatives = len(scores) - positives
    if not positives or not negatives:
        return RocArea(0.5, 0.0, 1.0)
    from scipy import stats  # a quarter of a second, where a command starts

    ranks = stats.rankdata(scores)[is_positive].sum()
    area = float((ranks - positives * (positives + 1) / 2) / (positives * negatives))
    low = _interval_end(area, positives, negatives, 0.0)
    high = _interval_end(area, positives, negatives, 1.0)
    return RocArea(area, low, high)


def _interval_end(area: float, positives: int, negatives: int, far: float) -> float:
    """The area furthest towards ``far`` (0 or 1) that is within ``Z`` of its own standard errors
    of the observed one.
    """
    inside = area
    outside = far
    for _ in range(BISECTIONS):
        middle = (inside + outside) / 2
        if abs(middle - area) <= Z * _standard_error(middle, positives, negatives):
            inside = middle
        else:
            outside = middle
    return inside


def _standard_error(area: float, positives: int, negatives: int) -> float:
    """Of the Mann-Whitney statistic where the true area is ``area``: Hanley and McNeil (1982) with
    both group sizes at their mean.
    """
    size = (positives + negatives) / 2 - 1
    ties = (1 - area) / (2 - area) + area / (1 + area)
    return math.sqrt(area * (1 - area) * (1 + size * ties) / (positives * negatives))
