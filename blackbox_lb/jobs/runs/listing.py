"""The runs in a folder, by what their files say."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blackbox_lb.bias.records import Verdict, headline
from blackbox_lb.errors import InputError
from blackbox_lb.jobs.runs.names import BIAS, RESULT
from blackbox_lb.safety.untrusted import parse_json, read_bounded

LARGEST = 50_000_000
"""Bytes of a result.json that are read."""
RECORD = "run.json"


@dataclass(frozen=True, slots=True)
class RunRow:
    """One finished fit.

    date: when it was made, as result.json has it. metric: the first one, the reward's. verdict,
    headline: its word over all settings, and its sentence. base, biased: of it at the first
    setting. dollars: what its last command cost; None where that is not recorded.
    """

    folder: Path
    date: str
    metric: str
    verdict: str
    base: float
    biased: float
    low: float
    high: float
    prompts: int
    entries: int
    dollars: float | None
    headline: str = ""


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
    path = folder / RESULT
    document = _document(path)
    try:
        rows = [Verdict.model_validate(row) for row in document["verdict"]]
        first = rows[0]
        word, sentence = headline(rows)
        return RunRow(
            folder,
            str(document["provenance"]["date"]),
            first.metric,
            word,
            first.base,
            first.biased,
            first.low,
            first.high,
            first.n_prompts,
            int(document["entries"]),
            _dollars(folder),
            sentence,
        )
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise InputError(
            f"{path} is no result of a fit ({type(error).__name__}: {error}); run blb fit again in"
            " that folder, or name another run"
        ) from error


def _document(path: Path) -> dict[str, Any]:
    try:
        document = parse_json(read_bounded(path, LARGEST))
    except OSError as error:
        raise InputError(
            f"cannot read {path}: {error.strerror}; name the folder of a finished fit"
        ) from error
    except ValueError as error:
        raise InputError(f"{path} is no JSON of a result; name another run") from error
    if not isinstance(document, dict):
        raise InputError(f"{path} is no result of a fit; name another run")
    return document


def _dollars(folder: Path) -> float | None:
    """What the fit spent, by the record of the run."""
    try:
        spent = _document(folder / RECORD)["runs"]["fit"]["spent"]["dollars"]
    except (InputError, KeyError, TypeError):
        return None
    if isinstance(spent, int | float) and math.isfinite(spent):
        return float(spent)
    return None
