"""The test rows of a question: before and after mending.

Index letters: ``n`` test rows, ``c`` options.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from blackbox_lb.bias.records import Comparison
from blackbox_lb.estimate.decisions.prediction import (
    BINS,
    decisions_of,
    expected_calibration_error,
)
from blackbox_lb.estimate.inputs.checks import Bools, Ids, Vector
from blackbox_lb.jobs.decisions.document import ChangedRow, CoveragePoint, ReliabilityBin
from blackbox_lb.jobs.fitting.document import BothDecisions
from blackbox_lb.questions.question import Question
from blackbox_lb.records import Decisions
from blackbox_lb.rollouts.judging.decisions import beside_commonest
from blackbox_lb.rollouts.judging.verdict import GREEDY, decide, paired_comparison
from blackbox_lb.safety.printable import shorten
from blackbox_lb.types import Example

RAW = "as it is"
MENDED = "mended"
MOST_SHOWN = 20
"""Changed rows that a result shows."""
LEAST_SHARE = 1e-12
REPLICATES = 2_000
"""Resamplings for the interval of the calibration error."""


def right_rows(probabilities: Vector, answers: Ids) -> Bools:
    """(n,) whether the likeliest option is the right one."""
    return np.asarray(probabilities.argmax(axis=1) == answers)


def log_losses(probabilities: Vector, answers: Ids) -> Vector:
    """(n,) nats: minus the logarithm of the right option's probability."""
    right = probabilities[np.arange(len(answers)), answers]
    return np.asarray(-np.log(np.maximum(right, LEAST_SHARE)))


def comparisons(
    names: Sequence[str], raw: Vector, mended: Vector, answers: Ids, suffix: str = ""
) -> list[Comparison]:
    """Accuracy, log loss and calibration error of both, paired by row; p-values not adjusted yet.

    names: (c,) of the options. raw, mended: (n, c) probabilities. answers: (n,) right options.
    suffix: behind the names of the metrics.
    """
    calibration = _calibration(f"calibration error{suffix}", raw, mended, answers)
    rows = [*_by_row(raw, mended, answers, suffix), calibration]
    decisions = {GREEDY.name: _decisions(names, mended, answers)}
    return beside_commonest(rows, decisions, "accuracy")


def beside(
    name: str, rival: Vector, mended: Vector, answers: Ids, suffix: str = ""
) -> list[Comparison]:
    """Accuracy and log loss of the mended probabilities against a rival's, by row."""
    rows = _by_row(rival, mended, answers, suffix)
    return [row.replacing(against=name, family="secondary") for row in rows]


def _by_row(base: Vector, mended: Vector, answers: Ids, suffix: str) -> list[Comparison]:
    """Accuracy and log loss of the probabilities ``base`` and ``mended``, both (n, c)."""
    before = right_rows(base, answers).astype(float)
    after = right_rows(mended, answers).astype(float)
    base_losses = log_losses(base, answers)
    losses = log_losses(mended, answers)
    return [
        _comparison(f"accuracy{suffix}", "higher", before, after),
        _comparison(f"log loss{suffix}", "lower", base_losses, losses),
    ]


def _comparison(
    metric: str, better: Literal["higher", "lower"], base: Vector, mended: Vector
) -> Comparison:
    return paired_comparison(GREEDY, metric, better, base, mended, mended - base, (RAW, MENDED))


def _calibration(metric: str, raw: Vector, mended: Vector, answers: Ids) -> Comparison:
    """The calibration error is no mean over rows, so that its interval resamples the rows."""
    before = right_rows(raw, answers)
    after = right_rows(mended, answers)
    confidences = raw.max(axis=1), mended.max(axis=1)

    def errors(rows: Ids) -> tuple[float, float]:
        base = expected_calibration_error(confidences[0][rows], before[rows])
        after_mending = expected_calibration_error(confidences[1][rows], after[rows])
        return base or 0.0, after_mending or 0.0

    size = len(before)
    base, biased = errors(np.arange(size))
    generator = np.random.default_rng(0)
    resampled = [errors(generator.integers(0, size, size)) for _ in range(REPLICATES)]
    differences = np.array([second - first for first, second in resampled])
    low, high = np.quantile(differences, [0.025, 0.975]).tolist()
    above = float((differences >= 0).mean())
    p = min(1.0, 2 * (min(above, float((differences <= 0).mean())) + 1 / REPLICATES))
    difference = biased - base
    return Comparison(
        against=RAW,
        policy=MENDED,
        setting=GREEDY.name,
        metric=metric,
        better="lower",
        base=base,
        biased=biased,
        difference=difference,
        low=low,
        high=high,
        percentile_low=low,
        percentile_high=high,
        p=p,
        p_sign=1.0,
        sd=0.0,
        n_prompts=size,
        n_base=size,
        n_biased=size,
        verdict=decide(difference, "lower", p),
    )


def both_decisions(question: Question, raw: Vector, mended: Vector, answers: Ids) -> BothDecisions:
    """The scores of the options before and after."""
    return BothDecisions(
        base=_decisions(question.names, raw, answers),
        biased=_decisions(question.names, mended, answers),
    )


def _decisions(names: Sequence[str], probabilities: Vector, answers: Ids) -> Decisions:
    return decisions_of(names, answers, probabilities.argmax(axis=1), probabilities.max(axis=1))


def reliability(probabilities: Vector, answers: Ids) -> tuple[ReliabilityBin, ...]:
    """The rows by tenths of their largest probability; empty tenths are left out."""
    confidence = probabilities.max(axis=1)
    is_right = right_rows(probabilities, answers)
    tenth = np.minimum((confidence * BINS).astype(np.int64), BINS - 1)
    bins = []
    for number in np.unique(tenth).tolist():
        inside = tenth == number
        bins.append(
            ReliabilityBin(
                rows=int(inside.sum()),
                confidence=float(np.clip(confidence[inside].mean(), 0, 1)),
                accuracy=float(is_right[inside].mean()),
            )
        )
    return tuple(bins)


def coverage(probabilities: Vector, answers: Ids) -> tuple[CoveragePoint, ...]:
    """The share of errors among the surest rows, for each tenth of the rows; () without rows."""
    if not len(answers):
        return ()
    confidence = probabilities.max(axis=1)
    wrong = ~right_rows(probabilities, answers)
    order = np.argsort(-confidence, kind="stable")
    size = len(order)
    points = []
    for tenth in range(1, BINS + 1):
        count = max(round(size * tenth / BINS), 1)
        points.append(
            CoveragePoint(coverage=count / size, error=float(wrong[order[:count]].mean()))
        )
    return tuple(points)


def changed_rows(
    question: Question, examples: Sequence[Example], raw: Vector, mended: Vector, answers: Ids
) -> tuple[list[ChangedRow], int]:
    """Some of the rows whose decision changes, those of the surest decisions first, and how many
    there are.
    """
    before = raw.argmax(axis=1)
    after = mended.argmax(axis=1)
    confidence = mended.max(axis=1)
    numbers = np.flatnonzero(before != after)
    numbers = numbers[np.argsort(-confidence[numbers], kind="stable")]
    examples_of_change = [
        ChangedRow(
            place=examples[number].place,
            state=shorten(examples[number].prompt.text),
            answer=question.names[answers[number]],
            before=question.names[before[number]],
            after=question.names[after[number]],
            probability=float(np.clip(confidence[number], 0, 1)),
        )
        for number in numbers[:MOST_SHOWN].tolist()
    ]
    return examples_of_change, len(numbers)
