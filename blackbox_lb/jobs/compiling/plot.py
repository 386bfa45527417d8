"""Pictures: the gain that a compiled bias keeps, over the number of its entries."""

import importlib
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from blackbox_lb.errors import InputError
from blackbox_lb.jobs.compiling.compile import Kept
from blackbox_lb.safety.atomic_file import explained

SUFFIXES = (".pdf", ".png", ".svg")
FRACTIONS, INTEGERS, LIMIT = "#08519c", "#d94801", "#636363"


def check_plot(path: Path) -> None:
    """Raise InputError where a plot cannot go to ``path``: another kind of file, or matplotlib is missing."""
    if path.suffix.lower() not in SUFFIXES:
        raise InputError(f"a plot goes to a file that ends in {', '.join(SUFFIXES)}, not to {path}")
    if not path.parent.is_dir():
        raise InputError(f"there is no folder {path.parent} for the plot; make it, or give another --plot")
    _matplotlib()


def _matplotlib() -> Any:
    try:
        importlib.import_module("matplotlib").use("Agg")
        return importlib.import_module("matplotlib.pyplot")
    except ModuleNotFoundError as error:
        raise InputError("--plot needs matplotlib: pip install 'blackbox-lb[report]', or leave --plot out") from error


def gain_plot(rows: Sequence[Kept], limit: int | None, title: str, path: Path) -> None:
    """Write the gain kept over the entries (log axis), fractions and whole numbers, as .png, .svg or .pdf.

    A ring marks the compiled one. limit: the provider's, drawn where it is within the picture.

    Raises InputError: see ``check_plot``; or the file cannot be written.
    """
    check_plot(path)
    pyplot = _matplotlib()
    figure, axis = pyplot.subplots(figsize=(7.2, 4.4), layout="constrained")
    for whole, colour, mark, name in ((False, FRACTIONS, "o", "fractions"), (True, INTEGERS, "s", "whole numbers")):
        line = [row for row in rows if row.integers == whole]
        axis.plot([row.entries for row in line], [100 * row.kept for row in line], f"{mark}-", color=colour, label=name)
    ring = {"facecolors": "none", "edgecolors": "black", "linewidths": 1.6, "zorder": 3}
    for row in rows:
        if row.chosen:
            axis.scatter([row.entries], [100 * row.kept], s=150, label=f"compiled: {row.listed:,} entries", **ring)
    most = max(row.entries for row in rows)
    if limit is not None and limit <= most:
        axis.axvline(limit, color=LIMIT, linestyle=":", label=f"the provider's limit: {limit:,}")
    _scale(axis, rows)
    axis.set(title=title.replace("$", r"\$"), xlabel="most entries (tokens in the bias)", ylabel="estimated gain kept (%)")
    axis.legend(loc="lower right", framealpha=1, edgecolor="none")
    try:
        with explained(f"write the plot {path}", "give another --plot"):
            figure.savefig(path, dpi=150)
    finally:
        pyplot.close(figure)


def _scale(axis: Any, rows: Sequence[Kept]) -> None:
    """Ticks at the computed points, as plain numbers where there is room for them."""
    places = sorted({row.entries for row in rows})
    axis.set_xscale("log" if places[0] > 0 else "linear")  # an empty bias has 0 entries at most
    room = [following >= 1.3 * place for place, following in pairwise(places)] + [True]
    axis.set_xticks(places, [f"{place:,}" if free else "" for place, free in zip(places, room, strict=True)])
    axis.tick_params(axis="x", which="minor", bottom=False)
    axis.minorticks_off()
    low = min(0.0, *(100 * row.kept for row in rows))
    axis.set_ylim(low - 2, 104)
    axis.grid(alpha=0.3)
    axis.spines[["top", "right"]].set_visible(False)
