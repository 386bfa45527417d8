"""Calibrated probabilities of labels, learned from the first lists of the training prompts."""

from collections.abc import Sequence

import numpy as np

from blackbox_lb.bias.calibration import Calibration, LabelTokens, label_scores
from blackbox_lb.estimate.decisions.feasibility import label_fit
from blackbox_lb.estimate.decisions.scores import expected_calibration_error
from blackbox_lb.estimate.inputs.checks import Ids
from blackbox_lb.rollouts.answers.given_answers import FirstTokens, listed_tokens
from blackbox_lb.tasks.sets.labels import Labels

FEWEST = 2
"""Labels that the training prompts must have at least."""


def calibration_of(
    labels: Labels, tokens: Sequence[Ids], training: FirstTokens, validation: FirstTokens
) -> Calibration | None:
    """The calibration of a decision; None where the lists hold fewer than two labels.

    Args:
        labels: of the task.
        tokens: (l,) those that begin each label and no other.
        training: the first positions that it is learned from.
        validation: those that tell its error.
    """
    token_ids = [tuple(ids.tolist()) for ids in tokens]
    scores = []
    numbers = []
    for example, completion in zip(training.examples, training.whole, strict=True):
        number = labels.of(example)
        score = label_scores(listed_tokens(completion), token_ids)
        if number is not None and score is not None:
            scores.append(score)
            numbers.append(number)
    if len(set(numbers)) < FEWEST:
        return None
    weight, offsets = label_fit(
        np.array(scores, np.float64), np.array(numbers, np.int64), weighed=True
    )
    rows = [
        LabelTokens(label=name, token_ids=ids, offset=offset)
        for name, ids, offset in zip(labels.names, token_ids, offsets.tolist(), strict=True)
    ]
    calibration = Calibration(labels=tuple(rows), weight=weight, prompts=len(numbers))
    return calibration.replacing(error=_error(calibration, labels, validation))


def _error(calibration: Calibration, labels: Labels, validation: FirstTokens) -> float | None:
    """The expected calibration error on these prompts; None without one."""
    confidence = []
    is_right = []
    for example, completion in zip(validation.examples, validation.whole, strict=True):
        number = labels.of(example)
        probabilities = calibration.probabilities(listed_tokens(completion))
        if number is None or probabilities is None:
            continue
        decided = max(probabilities, key=lambda label: probabilities[label])
        confidence.append(probabilities[decided])
        is_right.append(decided == labels.names[number])
    return expected_calibration_error(confidence, is_right) if confidence else None
