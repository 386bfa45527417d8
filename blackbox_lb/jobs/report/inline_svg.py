"""A matplotlib figure as SVG inside a page: colours that follow light and dark, the page's font, ids of its own."""

from __future__ import annotations

import importlib
import io
import re
from pathlib import Path
from typing import Any

from blackbox_lb.errors import InputError
from blackbox_lb.jobs.report.figures import COLOURS, Plot

FONT = re.compile(r"font: ([\d.]+)px [^;\"]*")
IDENTITY = re.compile(r"(\bid=\"|url\(#|href=\"#)([^\")]+)")
DPI = 200


def inline(plot: Plot) -> str:
    """The figure as an ``<svg>`` element, hidden from screen readers: its text alternative stands beside it."""
    text = _svg(plot.figure)
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r"<title>.*?</title>|<!--.*?-->", "", text, flags=re.DOTALL)
    for name, colour in COLOURS.items():
        text = text.replace(colour, f"var(--plot-{name})")
    text = FONT.sub(r"font-size: \1px; font-family: inherit", text)
    text = IDENTITY.sub(rf"\g<1>{plot.name}-\g<2>", text)
    start, rest = text.split(">", 1)
    start = re.sub(r' (width|height)="[^"]*"', "", start)
    return f'{start} aria-hidden="true" focusable="false">{rest}'


def save(plot: Plot, folder: Path) -> list[Path]:
    """Write the figure as NAME.png and NAME.svg into ``folder``. Raises InputError: they cannot be written."""
    paths = [folder / f"{plot.name}.png", folder / f"{plot.name}.svg"]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        plot.figure.savefig(paths[0], dpi=DPI)
        paths[1].write_text(_svg(plot.figure), encoding="utf-8")
    except OSError as error:
        raise InputError(f"{folder}: plots cannot be written ({error.strerror}); give another --plots") from error
    return paths


def _svg(figure: Any) -> str:
    buffer = io.StringIO()
    rules = {"svg.fonttype": "none", "svg.hashsalt": "blackbox-lb"}
    with importlib.import_module("matplotlib").rc_context(rules):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()
