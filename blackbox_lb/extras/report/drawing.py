"""What all pictures of the page have in common: their colours, axes and legends."""

import importlib
from dataclasses import dataclass
from typing import Any

from blackbox_lb.errors import InputError
from blackbox_lb.extras.report.page_table import PageTable
from blackbox_lb.extras.report.page_text import drawn
from blackbox_lb.safety.printable import first_line

COLOURS = {
    "ink": "#1b1e24",
    "muted": "#5b6471",
    "grid": "#dfe3e8",
    "surface": "#fffffe",
    "first": "#1f5fae",
    "second": "#b4531a",
    "base": "#5b6472",
}
"""Name -> colour in a file; in the page the same colour is a variable of the style sheet, so that
it follows light and dark.
"""
SIZE = (4.7, 3.3)
"""Inches: as wide as a phone shows without scrolling."""
TEXT = 11.0
"""Points of all text, which a phone shows in 10 pixels."""


@dataclass(frozen=True, slots=True)
class Plot:
    """``alternative``: the picture in words, for screen readers. ``figure``: matplotlib's, of a
    width that a phone shows, too.
    """

    name: str
    title: str
    note: str
    alternative: str
    table: PageTable
    figure: Any


def empty_figure() -> Any:
    """A figure without axes.

    Raises InputError: matplotlib is missing, or a variable keeps it from being loaded.
    """
    try:
        figure = importlib.import_module("matplotlib.figure").Figure(
            figsize=SIZE, layout="constrained"
        )
    except ModuleNotFoundError as error:
        raise InputError(
            "blb report needs matplotlib: pip install '.[report]' in the checkout"
        ) from error
    except (ValueError, OSError) as error:  # what it reads while it is imported
        raise InputError(
            f"matplotlib cannot be loaded: {first_line(error)}; correct MPLBACKEND and"
            " MPLCONFIGDIR, or unset them"
        ) from error
    figure.patch.set_facecolor(COLOURS["surface"])
    return figure


def figure_with_axis() -> tuple[Any, Any]:
    """A figure with one plain axis, and that axis."""
    figure = empty_figure()
    axis = figure.subplots()
    axis.set_facecolor("none")
    axis.grid(color=COLOURS["grid"], linewidth=0.8)
    axis.set_axisbelow(True)
    axis.tick_params(colors=COLOURS["muted"], labelsize=TEXT, length=0)
    for side, spine in axis.spines.items():
        spine.set_visible(side == "bottom")
        spine.set_color(COLOURS["grid"])
    return figure, axis


def name_axes(axis: Any, x: str, y: str) -> None:
    """Write what stands on both axes."""
    for setter, text in ((axis.set_xlabel, x), (axis.set_ylabel, y)):
        setter(drawn(text), color=COLOURS["ink"], fontsize=TEXT)


def add_legend(axis: Any) -> None:
    """The legend below the picture, in one row."""
    legend = axis.figure.legend(
        loc="outside lower center",
        ncols=4,
        fontsize=9,
        framealpha=0.85,
        edgecolor="none",
        facecolor=COLOURS["surface"],
        handletextpad=0.4,
        columnspacing=1.2,
    )
    for text in legend.get_texts():
        text.set_color(COLOURS["ink"])
