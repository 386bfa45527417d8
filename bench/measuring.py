"""What all benchmarks share: functions that take turns, processes of their own, and one file format
for the ratios.
"""

from __future__ import annotations

import datetime
import gc
import json
import os
import platform
import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

import click

__all__ = [
    "OUT",
    "REPEATS",
    "alternately",
    "apart",
    "jsonl",
    "machine",
    "markdown",
    "medians",
    "peak_memory",
    "ratio",
    "read_rows",
    "today",
    "write",
    "write_rows",
]

T = TypeVar("T")

OUT = click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), help="JSON file for the ratios."
)
REPEATS = click.option(
    "--repeats", default=3, show_default=True, type=click.IntRange(1), help="Turns of each."
)


def alternately(
    functions: Mapping[str, Callable[[], T]], repeats: int, warm_up: int = 0
) -> dict[str, list[T]]:
    """What each function returns, ``repeats`` times each, in turns whose order rotates: all meet
    the same machine.

    The first ``warm_up`` turns are run and not counted.
    """
    names = list(functions)
    found: dict[str, list[T]] = {name: [] for name in names}
    for turn in range(-warm_up, repeats):
        at = turn % len(names)
        for name in names[at:] + names[:at]:
            value = functions[name]()
            if turn >= 0:
                found[name].append(value)
    return found


def medians(
    functions: Mapping[str, Callable[[], object]], repeats: int, warm_up: int = 0
) -> dict[str, float]:
    """Median wall-clock seconds of each function, taken in turns."""

    def timed(function: Callable[[], object]) -> Callable[[], float]:
        def once() -> float:
            gc.collect()
            start = time.perf_counter()
            function()
            return time.perf_counter() - start

        return once

    taken = alternately(
        {name: timed(function) for name, function in functions.items()}, repeats, warm_up
    )
    return {name: statistics.median(seconds) for name, seconds in taken.items()}


def apart(function: Callable[..., T], *arguments: Any) -> tuple[T, int]:
    """What ``function``, one of a module's own, returns in a fresh process, whose memory and caches
    are nobody else's; and the peak memory of that process in bytes, imports included.
    """
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(_with_peak, function, *arguments).result()


def _with_peak(function: Callable[..., T], *arguments: Any) -> tuple[T, int]:
    return function(*arguments), peak_memory()


def peak_memory() -> int:
    """Bytes that this process had resident at most; Linux counts ru_maxrss in KiB, macOS in
    bytes.
    """
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def machine() -> dict[str, Any]:
    """What a number of this machine depends on: processor, cores that this process may use, memory
    in bytes, Python, system.
    """
    return {
        "processor": _processor(),
        "cores": (
            len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        ),
        "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")),
        "unknown",
    )


def today() -> str:
    """The date as YYYY-MM-DD, UTC."""
    return datetime.datetime.now(datetime.UTC).date().isoformat()


def ratio(ours: float, theirs: float) -> float:
    """``ours / theirs`` to four significant digits, as the files keep it."""
    return float(f"{ours / theirs:.4g}")


def write(out: Path | None, ratios: Mapping[str, float]) -> None:
    """Write the ratios of a run to ``out``, where there is one. Their names: BENCHMARK/WHAT over
    WHAT.

    The options of the running command stand beside them, since ratios of other sizes are other
    ratios.
    """
    if out is None:
        return
    document = {
        "ratios": dict(ratios),
        "options": {
            name: value
            for name, value in sorted(click.get_current_context().params.items())
            if not isinstance(value, Path)
        },
        "machine": machine(),
        "date": today(),
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A markdown table, without an end of its last line."""
    lines = [f"| {' | '.join(cells)} |" for cells in (head, *rows)]
    return "\n".join([lines[0], f"|{'---|' * len(head)}", *lines[1:]])


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> Path:
    """Write rows as JSONL and return the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(jsonl(rows), encoding="utf-8")
    return path


def jsonl(rows: Iterable[Mapping[str, Any]]) -> str:
    """Rows as the text of a JSONL file."""
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a JSONL file."""
    # Not splitlines(): it also breaks at characters that JSON strings may hold.
    lines = path.read_text(encoding="utf-8").split("\n")
    return [json.loads(line) for line in lines if line]
