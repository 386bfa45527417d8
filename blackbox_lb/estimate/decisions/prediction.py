"""What decisions are worth: the scores of labels, the area under the ROC curve, and the calibration
error.

Index letters: ``p`` prompts, ``n`` decisions, ``l`` labels. A decision of -1 says none of the
labels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from blackbox_lb.binomial import binomial_tail
from blackbox_lb.errors import InputError
from blackbox_lb.estimate.inputs.checks import Bools, Ids, Vector
from blackbox_lb.records import Decisions, LabelScores

LEVEL = 0.05
"""The chance that decisions no better than the commonest label are called better."""


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
    _, place, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = np.cumsum(counts) - (counts - 1) / 2  # of each score: ties share their mean
    rank_sum = ranks[place][is_positive].sum()
    area = float((rank_sum - positives * (positives + 1) / 2) / (positives * negatives))
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


BINS = 10
"""Bins of confidence, equally wide: the usual number for the expected calibration error (Guo et al.
2017).
"""


def decisions_of(
    names: Sequence[str],
    right: npt.ArrayLike,
    decided: npt.ArrayLike,
    confidence: npt.ArrayLike | None = None,
) -> Decisions:
    """The scores of decisions between the labels ``names`` (l,).

    right, decided: (n,) numbers of labels, -1 in ``decided`` for none. confidence: (n,) in that
    decision, NaN where unknown.

    Raises InputError: different lengths, or a number that names no label.
    """
    truth = np.asarray(right, np.int64)
    decisions = np.asarray(decided, np.int64)
    size = len(names)
    if truth.shape != decisions.shape or truth.ndim != 1:
        raise InputError(
            f"{truth.shape} labels and {decisions.shape} decisions; there must be one decision"
            " a label"
        )
    if truth.size and not (
        truth.min() >= 0 and truth.max() < size and decisions.min() >= -1 and decisions.max() < size
    ):
        raise InputError(f"a label is none of the {size} that were named")
    confusion = np.zeros((size, size + 1), np.int64)
    np.add.at(confusion, (truth, np.where(decisions < 0, size, decisions)), 1)
    error = None
    if confidence is not None:
        error = expected_calibration_error(confidence, truth == decisions)
    return _scores(names, confusion, error)


def _scores(names: Sequence[str], confusion: Ids, calibration_error: float | None) -> Decisions:
    hits = np.diagonal(confusion)
    counts = confusion.sum(axis=1).tolist()
    decided = confusion[:, :-1].sum(axis=0).tolist()
    total = int(confusion.sum())
    labels = []
    for name, hit, count, chosen in zip(names, hits.tolist(), counts, decided, strict=True):
        row = LabelScores(
            label=name,
            precision=_share(hit, chosen),
            recall=_share(hit, count),
            f1=_share(2 * hit, count + chosen) if count else None,
            count=count,
        )
        labels.append(row)
    f1 = [row.f1 for row in labels if row.f1 is not None]
    return Decisions(
        accuracy=_share(int(hits.sum()), total),
        majority=_share(max(counts, default=0), total),
        macro_f1=float(np.mean(f1)) if f1 else None,
        no_label=_share(int(confusion[:, -1].sum()), total),
        calibration_error=calibration_error,
        labels=tuple(labels),
        confusion=tuple(tuple(row) for row in confusion.tolist()),
    )


def beats_commonest(decisions: Decisions, completions: float = 1.0) -> bool:
    """Whether the decisions are right more often than always deciding for the commonest label, by
    an exact sign test over the prompts where the two differ (Conover 1999, "Practical Nonparametric
    Statistics", section 3.4).

    completions: decisions a prompt; those of one prompt count as one, since they are no independent
    evidence.
    """
    confusion = np.array(decisions.confusion, np.int64)
    commonest = int(confusion.sum(axis=1).argmax())
    right = np.diagonal(confusion)
    losses = int(confusion[commonest].sum() - right[commonest])
    wins = int(right.sum() - right[commonest])
    if wins <= losses:
        return False
    differing = math.ceil((wins + losses) / completions)
    won = math.floor(wins / completions)
    return 2 * binomial_tail(won, differing, 0.5) <= LEVEL


def expected_calibration_error(confidence: npt.ArrayLike, right: npt.ArrayLike) -> float | None:
    """The mean of |accuracy - confidence| over ``BINS`` bins of confidence, weighted by their
    counts; None without confidence.

    confidence: (n,) from 0 to 1, NaN where unknown. right: (n,) whether the decision was right.
    (Naeini et al. 2015.)
    """
    sure = np.asarray(confidence, np.float64)
    hit = np.asarray(right, np.float64)
    mask = ~np.isnan(sure)
    if not mask.any():
        return None
    sure = sure[mask]
    hit = hit[mask]
    bins = np.minimum((sure * BINS).astype(np.int64), BINS - 1)
    gaps = np.bincount(bins, weights=hit - sure, minlength=BINS)
    return float(np.abs(gaps).sum() / len(sure))


def _share(part: int, total: int) -> float | None:
    if total:
        return part / total
    return None
