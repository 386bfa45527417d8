"""The runs in a folder, by what their files say."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from blackbox_lb.bias.records import Verdict, headline
from blackbox_lb.errors import InputError
from blackbox_lb.jobs.records.run_file import read_run_file
from blackbox_lb.jobs.runs.names import BIAS, RESULT
from blackbox_lb.records import Count, Row
from blackbox_lb.safety.documents import read_document


@dataclass(frozen=True, slots=True)
class RunRow:
    """One finished fit.

    date: when it was made, as result.json has it. verdict, headline: its word over all settings,
    and its sentence. dollars: what its last command cost; None where that is not recorded. metric:
    the first one, the reward's. base, biased, low, high: of it at the first setting, None where
    nothing was judged.
    """

    folder: Path
    date: str
    verdict: str
    entries: int
    dollars: float | None
    headline: str
    metric: str = ""
    base: float | None = None
    biased: float | None = None
    low: float | None = None
    high: float | None = None
    prompts: int = 0


class ListedResult(Row, extra="ignore"):
    """What a list of runs reads of ``FitResult``: the answers are most of the file, and checking
    them takes most of the time.
    """

    format: Literal["blackbox-lb/result"] = "blackbox-lb/result"
    version: Literal[2] = 2
    verdict: tuple[Verdict, ...] = ()
    entries: Count
    provenance: dict[str, Any] = Field(default_factory=dict)


def runs_in(folder: Path) -> tuple[list[RunRow], list[InputError]]:
    """The finished fits in ``folder`` and its folders, the newest first, and the errors of those
    whose result is damaged.

    Raises:
        InputError: there is no such folder.
    """
    if not folder.is_dir():
        raise InputError(
            f"there is no folder {folder}; blb fit makes runs/NAME, give another folder of runs"
        )
    rows = []
    damaged = []
    for path in _results(folder):
        try:
            rows.append(run_row(path.parent))
        except InputError as error:
            damaged.append(error)
    return sorted(rows, key=lambda row: row.date, reverse=True), damaged


def _results(folder: Path) -> list[Path]:
    """The results of the finished fits in ``folder`` and its folders."""
    paths = [folder / RESULT, *folder.glob(f"*/{RESULT}"), *folder.glob(f"*/*/{RESULT}")]
    return [path for path in paths if path.is_file()]


def newest_bias(folder: Path) -> Path:
    """The bias file of the newest finished fit in ``folder``.

    A result is written after the date in it. So none is read that was written before the newest
    date so far.

    Raises InputError: there is none, or a result that may be the newest is damaged.
    """
    paths = [path for path in _results(folder) if path.with_name(BIAS).is_file()]
    newest: RunRow | None = None
    for written, path in sorted(((_written(path), path) for path in paths), reverse=True):
        if newest is not None and written < newest.date:
            break
        row = run_row(path.parent)
        if newest is None or row.date > newest.date:
            newest = row
    if newest is None:
        raise InputError(
            f"there is no finished fit in {folder} here; give a bias.json or the folder of a run,"
            " or make one with blb fit"
        )
    return newest.folder / BIAS


def _written(path: Path) -> str:
    """When a file was written, as a result has its date."""
    return datetime.fromtimestamp(path.stat().st_mtime, UTC).isoformat(timespec="seconds")


def run_row(folder: Path) -> RunRow:
    """The finished fit in ``folder``.

    Raises:
        InputError: it has no result.json, or one that no fit wrote.
    """
    result = read_document(
        folder / RESULT, ListedResult, "write it again with blb fit, or remove it"
    )
    if result is None:
        raise InputError(f"{folder} has no {RESULT}; name the folder of a finished fit")
    verdict, sentence = headline(result.verdict)
    row = RunRow(
        folder=folder,
        date=str(result.provenance.get("date", "")),
        verdict=verdict,
        entries=result.entries,
        dollars=_dollars(folder),
        headline=sentence,
    )
    if not result.verdict:
        return row
    first = result.verdict[0]
    return replace(
        row,
        metric=first.metric,
        base=first.base,
        biased=first.biased,
        low=first.low,
        high=first.high,
        prompts=first.n_prompts,
    )


def _dollars(folder: Path) -> float | None:
    """What the fit spent, None where the record of the run does not tell it."""
    with suppress(InputError):  # a damaged record keeps no run out of the list
        fit = read_run_file(folder).runs.get("fit")
        if fit is not None:
            return fit.spent.get("dollars")
    return None
