"""A table of the page, and those tables that the terminal prints, too."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress

from blackbox_lb.bias.operating import OperatingCurve, OperatingPoint
from blackbox_lb.records import SharesOfGroup
from blackbox_lb.rollouts.progress import short
from blackbox_lb.safety.printable import printable

MOST_ROWS = 2_000
"""Most rows of a token table in the page: a megabyte of HTML, which a phone still sorts at once."""
SIGNS = str.maketrans({"\n": "⏎", "\r": "␍", "\t": "⇥"})


@dataclass(frozen=True, slots=True)
class Bar:
    """An interval with its point, each from -1 to 1 of the widest interval of its kind; ``label``:
    in words. ``ends``: both ends in words.
    """

    low: float
    point: float
    high: float
    label: str
    ends: tuple[str, str]


@dataclass(frozen=True, slots=True)
class Cell:
    """``value``: the sort key, where that is not the text. ``kind``: text, number, token, word or
    bar.
    """

    text: str
    value: float | str | None = None
    kind: str = "text"
    note: str = ""
    bar: Bar | None = None


@dataclass(frozen=True, slots=True)
class PageTable:
    """``left_out``: rows that are not in the page, and ``where`` they are. ``searchable``: long
    enough to search and sort.
    """

    name: str
    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    numbers: frozenset[int] = frozenset()
    searchable: bool = False
    left_out: int = 0
    where: str = ""


def number(value: float | None, text: str | None = None, note: str = "") -> Cell:
    """A cell with a number, empty where it is not known."""
    if value is None:
        return Cell("", kind="number")
    if text is None:
        text = short(value)
    return Cell(text.replace("-", "−"), value, "number", note)


def count(value: int | None) -> Cell:
    """A cell with a whole number, empty where it is not known."""
    if value is None:
        return number(None)
    return number(value, f"{value:,}")


def per_cent(value: float | None) -> str:
    """A share in words."""
    if value is None:
        return "unknown"
    return f"{100 * value:.1f} %"


def signed(value: float) -> Cell:
    """A cell with nats that may be below 0."""
    return number(value, f"{value:+.3f}")


def word(text: str) -> Cell:
    """A cell with HELPS, FAIL or the like."""
    return Cell(text, kind="word")


def token(text: str) -> Cell:
    """A token with its outer spaces, line ends and tabs visible."""
    inner = text.strip(" ")
    lead = len(text) - len(text.lstrip(" "))
    trail = len(text) - lead - len(inner)
    return Cell(("␣" * lead + inner + "␣" * trail).translate(SIGNS), text, "token")


def table(
    name: str,
    caption: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[Cell]],
    *,
    searchable: bool = False,
    where: str = "",
) -> PageTable:
    """A table whose number columns are those that hold a number anywhere; rows beyond MOST_ROWS are
    counted. A column without anything in it is left out.
    """
    cells = tuple(tuple(row) for row in rows)
    if cells:
        filled = [
            any(cell.text or cell.bar for cell in column) for column in zip(*cells, strict=True)
        ]
        columns = tuple(compress(columns, filled))
        cells = tuple(tuple(compress(row, filled)) for row in cells)
    page_rows = cells[:MOST_ROWS]
    numbers = frozenset(
        place for row in page_rows for place, cell in enumerate(row) if cell.kind == "number"
    )
    return PageTable(
        name,
        caption,
        tuple(columns),
        page_rows,
        numbers,
        searchable,
        len(cells) - len(page_rows),
        where,
    )


def numbers_table(
    name: str, caption: str, columns: Sequence[str], rows: Iterable[Sequence[str | float]]
) -> PageTable:
    """The numbers behind a picture."""
    return table(name, caption, columns, [[_plain(value) for value in row] for row in rows])


def _plain(value: str | float) -> Cell:
    if isinstance(value, str):
        return Cell(value)
    if isinstance(value, int):
        return count(value)
    return number(value)


def shares_table(setting: str, sampled: Mapping[str, Sequence[SharesOfGroup]]) -> PageTable:
    """The wanted share of each label and that of every policy, group after group, with both
    distances.
    """
    targets = next(iter(sampled.values()))
    labels = list(targets[0].wanted)
    rows = []
    for place, group in enumerate(targets):
        name = Cell(group.group or "all prompts")
        target_cells = [
            number(group.wanted[label], f"{group.wanted[label]:.2f}") for label in labels
        ]
        chance = number(group.chance_level, f"{group.chance_level:.2f}", "by chance alone")
        rows.append([name, Cell("wanted"), *target_cells, number(None), chance, number(None)])
        for policy, groups in sampled.items():
            if place < len(groups):
                rows.append([name, Cell(policy), *_shares_of(groups[place], labels)])
    columns = ("group", "policy", *labels, "no label", "TV", "JS")
    caption = (
        f"Shares of the labels at {setting}; TV: total variation, beside the wanted shares that of"
        " as many draws from them; JS: Jensen-Shannon, nats"
    )
    return table(f"shares-{setting.replace(' ', '-')}", caption, columns, rows)


def operating_table(curve: OperatingCurve, points: Sequence[OperatingPoint]) -> PageTable:
    """Points of a decision with precision, recall and rate, the chosen one marked."""
    validation = curve.validation
    rows = [
        [
            f"{point.shift:+.2f}",
            *(share.text for share in curve.measured(point)),
            "chosen" if point.shift == curve.shift else "",
        ]
        for point in points
    ]
    return numbers_table(
        "operating-numbers",
        f"Operating points for {printable(curve.positive)}, with 95 % intervals, on"
        f" {validation.prompts} validation prompts ({validation.positives} have it); AUC"
        f" {curve.auc:.2f} ({curve.auc_low:.2f} to {curve.auc_high:.2f})",
        ("shift (nats)", "precision", "recall", "rate", "goal"),
        rows,
    )


def _shares_of(group: SharesOfGroup, labels: Sequence[str]) -> list[Cell]:
    shares = [group.drawn.get(label) for label in labels]
    cells = [number(share, None if share is None else f"{share:.2f}") for share in shares]
    return [
        *cells,
        number(group.no_label, f"{group.no_label:.2f}"),
        number(group.total_variation, f"{group.total_variation:.2f}"),
        number(group.jensen_shannon, f"{group.jensen_shannon:.3f}"),
    ]
