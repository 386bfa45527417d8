"""Ratios that benchmarks measured, against those that are stored in ``bench/ratios.json``.

Only ratios are compared, because both sides of one were taken in turns on one machine; and only
those of the same options.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.measuring import markdown

__all__ = ["STORED", "better", "compared", "kept"]

STORED = Path(__file__).with_name("ratios.json")
TOLERANCE = 0.2
"""The part of itself by which a ratio may be worse than the stored one."""
HIGHER = frozenset({"collector", "short answers"})
"""Benchmarks whose ratios are rates, the higher the better; all others have times or bytes."""
FAILURES = frozenset({"WORSE", "no longer measured", "other options"})


def _is_worse(name: str, before: float, now: float) -> bool:
    """NaN is worse."""
    if _benchmark(name) in HIGHER:
        return not now >= before * (1 - TOLERANCE)
    return not now <= before * (1 + TOLERANCE)


def _benchmark(name: str) -> str:
    return name.partition("/")[0]


def compared(stored: Mapping[str, Any], documents: Sequence[Mapping[str, Any]]) -> tuple[str, bool]:
    """A table of all ratios of the benchmarks that were run, and whether none fails.

    Args:
        stored: benchmark -> ratios, options, machine and date.
        documents: as benchmarks write them.

    A ratio fails that is worse, that its benchmark no longer gives, or gives for other options.
    """
    measured = {
        name: (value, document["options"])
        for document in documents
        for name, value in document["ratios"].items()
    }
    ran = {_benchmark(name) for name in measured}
    rows = []
    for benchmark, before in stored.items():
        for name, value in before["ratios"].items() if benchmark in ran else ():
            now, options = measured.pop(name, (float("nan"), None))
            verdict = ""
            if options is None:
                verdict = "no longer measured"
            elif options != before["options"]:
                verdict = "other options"
            elif _is_worse(name, value, now):
                verdict = "WORSE"
            change = f"{now / value - 1:+.0%}"
            rows.append([name, f"{value:.4g}", f"{now:.4g}", change, verdict])
    rows += [[name, "", f"{value:.4g}", "", "new"] for name, (value, _) in measured.items()]
    table = markdown(["ratio", "stored", "now", "change", ""], sorted(rows))
    return table, not FAILURES & {row[-1] for row in rows}


def better(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """``second`` with the better value of each ratio that both have."""
    ratios = dict(second["ratios"])
    for name, value in first["ratios"].items():
        if name in ratios:
            best = max if _benchmark(name) in HIGHER else min
            ratios[name] = best(value, ratios[name])
    return {**second, "ratios": ratios}


def kept(stored: Mapping[str, Any], documents: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """``stored`` with the ratios of ``documents`` in place of those of the same benchmarks."""
    benchmarks = dict(stored)
    for document in documents:
        origin = {key: document[key] for key in ("options", "machine", "date")}
        for name in {_benchmark(name) for name in document["ratios"]}:
            ratios = {
                ratio: value
                for ratio, value in document["ratios"].items()
                if _benchmark(ratio) == name
            }
            benchmarks[name] = {"ratios": ratios, **origin}
    return dict(sorted(benchmarks.items()))
