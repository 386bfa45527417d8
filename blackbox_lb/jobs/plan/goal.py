"""The goal of a fit: what a user writes, and the file of costs that it may name."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import get_args

from blackbox_lb.errors import InputError
from blackbox_lb.estimate.choice.goal import MEASURES, Costs, Goal, Objective
from blackbox_lb.safety.printable import shorten
from blackbox_lb.safety.untrusted import parse_json, read_settings
from blackbox_lb.tasks.sets.labels import OPENING, Labels, OpenLabels

COST = "cost:"
EXAMPLE = '{"yes": {"no": 5}, "no": {"yes": 1}}'


def parse_goal(objective: str, positive: str | None, labels: Labels | None) -> Goal:
    """The goal of a fit.

    Args:
        objective: a name of ``Objective``; cost:FILE; recall@precision=, precision@recall= or rate=
            with a share.
        positive: the label that an operating point decides for.
        labels: of the task; of open ones the opening is the positive label by default, and accuracy
            the goal.

    Raises:
        InputError: no such objective, a share that is none, a file of costs that cannot be read, or
            something that the objective needs and lacks.
    """
    if isinstance(labels, OpenLabels):
        positive = positive or labels.names[OPENING]
        objective = "accuracy" if objective == "reward" else objective
    if objective.startswith(COST):
        costs = read_costs(Path(objective.removeprefix(COST)))
        return Goal("cost", positive=positive, costs=costs)
    name, equals, number = objective.partition("=")
    level = None
    if equals:
        level = _level(objective, number)
    for metric in get_args(Objective):
        if name == metric:
            return Goal(metric, level, positive)
    raise InputError(f"``objective={objective}`` is unknown; choose {', '.join(choices())}")


def choices() -> list[str]:
    """What can be named as objective, as a user writes it."""
    written = {"cost": "cost:FILE"} | {name: f"{name}=SHARE" for name in MEASURES}
    return [written.get(name, name) for name in get_args(Objective)]


def _level(objective: str, number: str) -> float:
    try:
        return float(number)
    except ValueError:
        raise InputError(
            f"``objective={objective}`` names no share; give one as in recall@precision=.95"
        ) from None


def read_costs(path: Path) -> Costs:
    """The costs in a JSON file: right label -> decided label -> cost.

    Raises InputError: it cannot be read, or a cost is no number from 0.
    """
    document = read_settings(
        path, "the file of costs", f"give a file as in {EXAMPLE}", parse=parse_json
    )
    if not isinstance(document, dict) or not document:
        raise InputError(f"{path}: the costs are no JSON object; write them as in {EXAMPLE}")
    costs: dict[str, dict[str, float]] = {}
    for right, row in document.items():
        if not isinstance(row, dict):
            raise InputError(
                f"{path}: the costs of the label {right!r} are no object; write them as in"
                f" {EXAMPLE}"
            )
        costs[right] = {decided: _cost(path, right, decided, row[decided]) for decided in row}
    return costs


def _cost(path: Path, right: str, decided: str, value: object) -> float:
    """One cost. Raises InputError: it is no number from 0."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 <= value <= sys.float_info.max:  # type: ignore[operator]
        raise InputError(
            f"{path}: deciding {decided!r} where {right!r} is right costs {shorten(value)}; give a"
            " finite number from 0"
        )
    return float(value)  # type: ignore[arg-type]
