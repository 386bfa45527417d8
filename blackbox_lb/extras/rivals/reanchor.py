"""The rule of DSPy's ReAnchor (3.4), by its own code: a weight for each option of a choice, or the
threshold of a noul, chosen for right decisions with a check on five folds.

It multiplies probabilities, as an offset adds to their logarithms, and says nothing of their size.
"""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import Any

import numpy as np

from blackbox_lb.estimate.inputs.checks import Ids, Vector
from blackbox_lb.questions.question import Question

MODULE = "dspy.teleprompt.reanchor.calibrate"
_FIELD = "answer"
LEAST = 1e-6
"""Distance of a threshold from 0 and 1, so that its odds stay finite."""


def reanchor_weights(question: Question, probabilities: Vector, answers: Ids) -> Vector:
    """(c,) weights that the rule learns; 1 where it keeps the decisions as they are.

    Args:
        question: a choice or a noul.
        probabilities: (n, c) of the training rows.
        answers: (n,) right options.

    Raises:
        ImportError, AttributeError, TypeError: no DSPy, or one whose rule has another form.
    """
    rule: Any = importlib.import_module(MODULE)
    config: dict[str, Any] = {"weights": {}, "threshold": 0.5}
    predictor = SimpleNamespace(fields={_FIELD: config})
    kind = SimpleNamespace(criteria=lambda: dict.fromkeys(question.names))
    is_noul = question.kind == "noul"

    def weights() -> Vector:
        if is_noul:
            threshold = min(max(config["threshold"], LEAST), 1 - LEAST)
            return np.array([1 - threshold, threshold])
        return np.array([config["weights"].get(name, 1.0) for name in question.names])

    def score() -> list[float]:
        decided = (probabilities * weights()).argmax(axis=1)
        right: list[float] = (decided == answers).astype(float).tolist()
        return right

    before = score()
    if is_noul:
        evidence = [{"noul": row[0]} for row in probabilities.tolist()]
        fit = rule._fit_threshold
    else:
        evidence = [
            {"probabilities": dict(zip(question.names, row, strict=True))}
            for row in probabilities.tolist()
        ]
        fit = rule._fit_weights
    _, fitted, _, _ = fit(predictor, _FIELD, kind, evidence, score, before)
    if rule._select(before, [(fitted, (), None)])[0] is None:
        return np.ones(len(question.names))
    return weights()
