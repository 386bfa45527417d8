"""Scores of decisions: accuracy, F1 of each label and its mean, the confusion matrix, and
calibration of the confidence.

Index letters: ``n`` decisions, ``l`` labels. A decision of -1 says none of the labels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from blackbox_lb.errors import InputError
from blackbox_lb.estimate.inputs.checks import Ids, Vector

BINS = 10
"""Bins of confidence, equally wide: the usual number for the expected calibration error (Guo et al.
2017).
"""


@dataclass(frozen=True, slots=True, eq=False)
class DecisionScores:
    """The scores of decisions.

    names: (l,) the labels. confusion: (l, l + 1) decisions for the column's label among those with
    the row's label; last column: no label. calibration_error: mean difference between confidence
    and accuracy, by confidence, from 0 to 1; None without lists.
    """

    names: tuple[str, ...]
    confusion: Ids
    calibration_error: float | None = None

    @classmethod
    def of(
        cls,
        names: tuple[str, ...],
        right: npt.ArrayLike,
        said: npt.ArrayLike,
        confidence: npt.ArrayLike | None = None,
    ) -> DecisionScores:
        """right, said: (n,) numbers of labels, -1 in ``said`` for none. confidence: (n,) in that
        decision, NaN where unknown.

        Raises InputError: different lengths, or a number that names no label.
        """
        truth = np.asarray(right, np.int64)
        decisions = np.asarray(said, np.int64)
        size = len(names)
        if truth.shape != decisions.shape or truth.ndim != 1:
            raise InputError(
                f"{truth.shape} labels and {decisions.shape} decisions; there must be one decision"
                " a label"
            )
        if truth.size and not (
            truth.min() >= 0
            and truth.max() < size
            and decisions.min() >= -1
            and decisions.max() < size
        ):
            raise InputError(f"a label is none of the {size} that were named")
        table = np.zeros((size, size + 1), np.int64)
        np.add.at(table, (truth, np.where(decisions < 0, size, decisions)), 1)
        error = None
        if confidence is not None:
            error = expected_calibration_error(confidence, truth == decisions)
        return cls(names, table, error)

    @property
    def accuracy(self) -> float:
        """The share of right decisions; NaN without a decision."""
        return _share(float(np.trace(self.confusion[:, :-1])), float(self.confusion.sum()))

    @property
    def majority(self) -> float:
        """The share of right decisions of who always decides for the commonest label."""
        by_label = self.confusion.sum(axis=1)
        return _share(float(by_label.max(initial=0)), float(by_label.sum()))

    @property
    def commonest(self) -> str:
        """The label that most decisions should have had."""
        return self.names[int(self.confusion.sum(axis=1).argmax())]

    @property
    def no_label(self) -> float:
        """The share of decisions for none of the labels."""
        return _share(float(self.confusion[:, -1].sum()), float(self.confusion.sum()))

    @property
    def precision(self) -> Vector:
        """(l,) the share of right ones among the decisions for a label; NaN where there is none."""
        return _shares(np.diagonal(self.confusion), self.confusion[:, :-1].sum(axis=0))

    @property
    def recall(self) -> Vector:
        """(l,) the share of right decisions among those that have a label; NaN where none has
        it.
        """
        return _shares(np.diagonal(self.confusion), self.confusion.sum(axis=1))

    @property
    def f1(self) -> Vector:
        """(l,) the harmonic mean of precision and recall; 0 for a label that was never right, NaN
        where none has it.
        """
        hits = np.diagonal(self.confusion)
        totals = self.confusion.sum(axis=1)
        return np.where(
            totals > 0, _shares(2 * hits, totals + self.confusion[:, :-1].sum(axis=0)), np.nan
        )

    @property
    def macro_f1(self) -> float:
        """The mean F1 over the labels that occur; NaN without a decision."""
        scores = self.f1[~np.isnan(self.f1)]
        if scores.size:
            return float(scores.mean())
        return float("nan")

    def as_json(self) -> dict[str, Any]:
        """The scores for JSON; null where not known."""
        rows = zip(
            self.names,
            self.precision,
            self.recall,
            self.f1,
            self.confusion.sum(axis=1).tolist(),
            strict=True,
        )
        return {
            "accuracy": _known(self.accuracy),
            "macro_f1": _known(self.macro_f1),
            "no_label": _known(self.no_label),
            "majority": _known(self.majority),
            "calibration_error": self.calibration_error,
            "labels": [
                {
                    "label": name,
                    "precision": _known(p),
                    "recall": _known(r),
                    "f1": _known(f),
                    "count": count,
                }
                for name, p, r, f, count in rows
            ],
            "confusion": self.confusion.tolist(),
        }


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


def _share(part: float, whole: float) -> float:
    if whole:
        return part / whole
    return float("nan")


def _shares(part: npt.ArrayLike, whole: npt.ArrayLike) -> Vector:
    top = np.asarray(part, np.float64)
    below = np.asarray(whole, np.float64)
    return np.asarray(np.divide(top, below, out=np.full(top.shape, np.nan), where=below > 0))


def _known(value: float) -> float | None:
    if np.isnan(value):
        return None
    return float(value)
