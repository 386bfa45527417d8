"""The runs in a folder, by what their files say."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from blackbox_lb.bias.records import headline
from blackbox_lb.errors import InputError
from blackbox_lb.jobs.fitting.document import FitResult
from blackbox_lb.jobs.records.run_file import read_run_file
from blackbox_lb.jobs.runs.names import BIAS, RESULT
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


def runs_in(folder: Path) -> list[RunRow]:
    """The finished fits in ``folder`` and its folders, the newest first.

    Raises:
        InputError: there is no such folder.
    """
    if not folder.is_dir():
        raise InputError(
            f"there is no folder {folder}; blb fit makes runs/NAME, give another folder of runs"
        )
    paths = [folder / RESULT, *folder.glob(f"*/{RESULT}"), *folder.glob(f"*/*/{RESULT}")]
    rows = [run_row(path.parent) for path in paths if path.is_file()]
    return sorted(rows, key=lambda row: row.date, reverse=True)


def newest_bias(folder: Path) -> Path:
    """The bias file of the newest finished fit in ``folder``. Raises InputError: there is none."""
    rows = runs_in(folder) if folder.is_dir() else []
    files = [row.folder / BIAS for row in rows if (row.folder / BIAS).is_file()]
    if not files:
        raise InputError(
            f"there is no finished fit in {folder} here; give a bias.json or the folder of a run,"
            " or make one with blb fit"
        )
    return files[0]


def run_row(folder: Path) -> RunRow:
    """The finished fit in ``folder``.

    Raises:
        InputError: it has no result.json, or one that no fit wrote.
    """
    result = read_result(folder)
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


def read_result(folder: Path) -> FitResult | None:
    """The result of the fit in ``folder``, None where there is none. Raises InputError: damaged."""
    return read_document(folder / RESULT, FitResult, "write it again with blb fit, or remove it")
