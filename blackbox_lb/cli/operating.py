"""The curve of operating points on the terminal, and the option --at."""

from __future__ import annotations

from typing import Any

from blackbox_lb.bias.document import Bias
from blackbox_lb.bias.operating import OperatingCurve, OperatingPoint, Promise
from blackbox_lb.cli.terminal import print_table
from blackbox_lb.safety.printable import printable

MOST_ROWS = 15
"""Points of a curve that are printed; the JSON and the bias file hold all of them."""


def at_point(bias: Bias, at: str | None) -> Bias:
    """``bias`` at the point that --at names, as it is without one."""
    if at is None:
        return bias
    return bias.at_promise(Promise.parse(at))


def print_curve(curve: OperatingCurve) -> None:
    """Print the curve: precision, recall and rate with their 95 % intervals, the chosen point
    marked.
    """
    points = shown_points(curve)
    print_table(
        f"Operating points for {printable(curve.positive)}, on"
        f" {curve.validation.prompts} validation prompts"
        f" ({curve.validation.positives} have it); AUC {curve.auc:.2f}"
        f" ({curve.auc_low:.2f} to {curve.auc_high:.2f})",
        ("shift (nats)", "precision", "recall", "rate", ""),
        (_row(curve, point) for point in points),
    )


def shown_points(curve: OperatingCurve, most: int = MOST_ROWS) -> list[OperatingPoint]:
    """At most ``most`` points of different decisions, evenly spread, and the chosen one."""
    distinct: list[OperatingPoint] = []
    for point in curve.points:
        if not distinct or point.validation != distinct[-1].validation:
            distinct.append(point)
    step = max((len(distinct) - 1) / max(most - 1, 1), 1.0)
    places = {round(number * step) for number in range(most)}
    points = [point for place, point in enumerate(distinct) if place in places]
    if curve.chosen not in points:
        points.append(curve.chosen)
    return sorted(points, key=lambda point: point.shift)


def _row(curve: OperatingCurve, point: OperatingPoint) -> tuple[Any, ...]:
    shares = (share.text for share in curve.measured(point))
    mark = ""
    if point.shift == curve.shift:
        mark = "chosen"
    return (f"{point.shift:+.2f}", *shares, mark)
