"""Goals of decisions: what a decision earns by its label, and how much each label weighs.

Index letters: ``p`` prompts, ``l`` labels; a decision of -1 says none of the labels.
"""

from collections.abc import Iterable

import numpy as np

from blackbox_lb.errors import InputError
from blackbox_lb.estimate.choice.goal import Costs, Goal
from blackbox_lb.estimate.inputs.checks import Ids, Vector
from blackbox_lb.tasks.rewards.normalising import normalise
from blackbox_lb.tasks.sets.labels import Labels


def label_number(labels: Labels, name: str, where: str) -> int:
    """The number of a label by its name, in any case. Raises InputError: there is none."""
    for number, label in enumerate(labels.names):
        if normalise(label) == normalise(name):
            return number
    raise InputError(
        f"``{where}`` names the label {name!r}, and the labels are {', '.join(labels.names)}; give"
        " one of them"
    )


def cost_matrix(labels: Labels, costs: Costs) -> Vector:
    """(l, l + 1) the cost of deciding for the column's label where the row's is right; the last
    column, no label, costs as much as the worst decision of its row.

    Raises InputError: an unknown label, one in two spellings, or a pair of labels without a cost.
    """
    size = len(labels.names)
    matrix = np.full((size, size), np.nan)
    np.fill_diagonal(matrix, 0.0)
    _refuse_repeats(labels, costs)
    for right, row in costs.items():
        _refuse_repeats(labels, row)
        for decided, cost in row.items():
            place = (label_number(labels, right, "costs"), label_number(labels, decided, "costs"))
            matrix[place] = cost
    for right_number, decided_number in np.argwhere(np.isnan(matrix)).tolist():
        raise InputError(
            f"the costs do not say what deciding {labels.names[decided_number]!r} costs where"
            f" {labels.names[right_number]!r} is right; give every pair of labels a number from 0"
        )
    return np.column_stack([matrix, matrix.max(axis=1)])


def _refuse_repeats(labels: Labels, names: Iterable[str]) -> None:
    """Raise InputError: two of ``names`` are one label."""
    name_by_number: dict[int, str] = {}
    for name in names:
        first = name_by_number.setdefault(label_number(labels, name, "costs"), name)
        if first != name:
            raise InputError(
                f"the costs name {first!r} and {name!r}, which are one label; leave one of them out"
            )


def label_weights(goal: Goal, labels: Labels, numbers: Ids) -> Vector | None:
    """(p,) weights of training prompts with mean 1, by what their labels count for the goal; None
    where all count alike.

    numbers: (p,) of their labels, -1 for none of them.
    """
    if goal.objective not in ("balanced", "cost"):
        return None
    has_label = numbers >= 0
    counts = np.bincount(numbers[has_label], minlength=len(labels.names))
    of_label = np.zeros(len(labels.names))
    if goal.objective == "cost" and goal.costs is not None:
        # With two labels this is exactly the loss of missing each of them.
        of_label = cost_matrix(labels, goal.costs)[:, :-1].sum(axis=1)
    else:
        of_label = np.divide(1.0, counts, out=of_label, where=counts > 0)
    weights = np.ones(len(numbers))
    weights[has_label] = of_label[numbers[has_label]]
    total = weights[has_label].sum()
    if total > 0:
        weights[has_label] *= has_label.sum() / total
    return weights


def decision_parts(goal: Goal, labels: Labels, right: Ids, decided: Ids) -> Vector:
    """(p,) numbers whose mean is what the goal says of these decisions; NaN for a prompt without
    one of the labels.

    Args:
        goal: of decisions.
        labels: of the task.
        right: (p,) the number of the right label, -1 for none of them.
        decided: (p,) the number of the label that was decided for, -1 for none.
    """
    has_label = right >= 0
    parts = np.where(has_label, (decided == right).astype(np.float64), np.nan)
    if goal.objective == "balanced":
        counts = np.bincount(right[has_label], minlength=len(labels.names))
        share = has_label.sum() / np.count_nonzero(counts) / np.maximum(counts, 1)
        return np.where(has_label, parts * share[right], np.nan)
    if goal.objective == "cost" and goal.costs is not None:
        return np.where(has_label, -cost_matrix(labels, goal.costs)[right, decided], np.nan)
    return parts
