"""The frontier as a picture: reward over KL, one panel a problem, one colour an estimator."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.curves import Curve

__all__ = ["Panel", "draw"]

COLOURS = {
    "projection, all logprobs": "#08306b",
    "projection, top-20": "#2171b5",
    "projection, top-5": "#6baed6",
    "ips": "#d94801",
    "ips, heavy smoothing": "#fdae6b",
}


@dataclass(frozen=True, slots=True)
class Panel:
    """Curves to be drawn solid, and dashed ones of fewer rollouts, by estimator; ``reward`` labels
    the axis.
    """

    title: str
    reward: str
    solid: dict[str, Curve]
    dashed: dict[str, Curve]


def draw(panels: Sequence[Panel], legend: tuple[str, str], path: Path) -> None:
    """Write ``path`` (.png or .svg). legend: what solid and dashed lines are. RuntimeError where
    matplotlib is missing.
    """
    try:
        importlib.import_module("matplotlib").use("Agg")
        pyplot = importlib.import_module("matplotlib.pyplot")
        line = importlib.import_module("matplotlib.lines").Line2D
    except ModuleNotFoundError as error:
        raise RuntimeError(
            "the plot needs matplotlib: run with uv run --group bench, or give --no-plot"
        ) from error
    columns = min(len(panels), 2)
    rows = -(-len(panels) // columns)
    width = 5.2 * columns + (2.6 if columns == 1 else 0.0)
    figure, axes = pyplot.subplots(rows, columns, figsize=(width, 3.7 * rows + 0.6), squeeze=False)
    for axis, panel in zip(axes.flat, panels, strict=False):
        for curves, style in ((panel.solid, "-"), (panel.dashed, "--")):
            for name, curve in curves.items():
                kl, reward = zip(*curve.hull, strict=True)
                axis.plot(
                    kl, reward, style, color=COLOURS[name], linewidth=1.6, marker=".", markersize=5
                )
        axis.set_xlim(
            left=0
        )  # a linear axis: what lies between two biases is on the straight line between them
        axis.set(
            title=panel.title,
            xlabel="KL to the base model (nats a completion)",
            ylabel=panel.reward,
        )
        axis.grid(alpha=0.3)
    for axis in list(axes.flat)[len(panels) :]:
        axis.set_visible(False)
    names = dict.fromkeys(name for panel in panels for name in (*panel.solid, *panel.dashed))
    handles = [line([], [], color=COLOURS[name], label=name) for name in names]
    handles += [
        line([], [], color="grey", linestyle=s, label=t)
        for s, t in zip(("-", "--"), legend, strict=True)
    ]
    if columns == 1:
        figure.legend(handles=handles, loc="center right", frameon=False, fontsize=9)
        figure.tight_layout(rect=(0, 0, 5.2 / width, 1))
    else:
        figure.legend(handles=handles, loc="lower center", ncol=4, frameon=False, fontsize=9)
        figure.tight_layout(rect=(0, 0.6 / (3.7 * rows + 0.6), 1, 1))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)
    pyplot.close(figure)
