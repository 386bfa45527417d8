"""What the runs in a folder found: one JSON file, and Markdown tables."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bench.gallery.page import policies_table, program_table
from bench.gallery.results import Table, evaluation_of
from bench.measuring import markdown

__all__ = ["write"]

KEPT = ("verdict", "beside", "usage", "chosen", "entries", "decisions")
"""Of result.json."""


def write(out: Path) -> None:
    """Write OUT/summary.json and OUT/summary.md."""
    fits = {}
    for path in sorted(out.glob("*/result.json")):
        result = json.loads(path.read_text(encoding="utf-8"))
        fits[path.parent.name] = {name: result.get(name) for name in KEPT}
    evaluations = {
        path.parent.name: json.loads(path.read_text(encoding="utf-8"))
        for path in sorted(out.glob("*/evaluation.json"))
    }
    tables = {path.stem: list(_tables(path)) for path in sorted(out.glob("*_pasting.log"))}
    document = {"fits": fits, "evaluations": evaluations, "tables": tables}
    (out / "summary.json").write_text(json.dumps(document, indent=1), encoding="utf-8")
    parts = ["## Fits\n", _fits(fits), "\n## By number of labels\n", _labels(fits)]
    parts += [
        policies_table(evaluation_of(document, name)) for name, document in evaluations.items()
    ]
    parts += [
        program_table(Table.model_validate(table))
        for printed in tables.values()
        for table in printed
    ]
    (out / "summary.md").write_text("\n".join(parts) + "\n", encoding="utf-8")


def _tables(log: Path) -> Iterator[dict[str, Any]]:
    """Those that a program printed into its log."""
    for line in log.read_text(encoding="utf-8").splitlines():
        if line.startswith('{"tables"'):
            yield from json.loads(line)["tables"]


def _verdict(result: Mapping[str, Any]) -> dict[str, Any]:
    """The first row that is not of the length, at greedy where that was judged."""
    rows = [row for row in result["verdict"] if row["metric"] != "tokens"]
    return dict(next((row for row in rows if row["setting"] == "greedy"), rows[0]))


def _beside(result: Mapping[str, Any]) -> dict[str, float]:
    """What the bias was compared with -> its reward."""
    return {row["against"]: row["base"] for row in result["beside"] or []}


def _fits(fits: Mapping[str, Any]) -> str:
    rows = []
    for name, result in fits.items():
        if re.search(r"_\d+_\d+_", name):
            continue
        row = _verdict(result)
        usage = result["usage"] or {}
        beside = "; ".join(f"{name} {value:.3f}" for name, value in _beside(result).items())
        difference = f"{row['low']:+.3f} to {row['high']:+.3f} {row['verdict']}"
        spent = [str(usage.get(key, "")) for key in ("completions", "completion_tokens")]
        numbers = [f"{row['base']:.3f}", f"{row['biased']:.3f}"]
        rows.append([name, *numbers, difference, beside, *spent])
    head = ["run", "base", "biased", "difference", "beside", "completions", "tokens"]
    return markdown(head, rows)


def _labels(fits: Mapping[str, Any]) -> str:
    """Means over draws with their standard errors."""
    groups: dict[tuple[str, int, str], list[tuple[float, float, float]]] = defaultdict(list)
    kept: dict[tuple[str, int, str], int] = defaultdict(int)
    pattern = r"(.+_(?:sst2|rte|agnews|trec))(?:_(\d+)_\d+)?_(words|embedding)"
    for name, result in fits.items():
        match = re.fullmatch(pattern, name)
        if match is None:
            continue
        biased = _verdict(result)["biased"]
        beside = _beside(result)
        classifiers = [value for name, value in beside.items() if name.startswith("classifier")]
        key = (match[1], int(match[2] or 300), match[3])
        fixed = beside.get("fixed bias", biased)
        groups[key].append((fixed, biased, *(classifiers or [float("nan")])[:1]))
        kept[key] += "fixed bias" in beside
    rows = []
    for key, values in sorted(groups.items()):
        numbers = np.array(values)
        means = numbers.mean(axis=0)
        errors = numbers.std(axis=0, ddof=min(1, len(values) - 1)) / len(values) ** 0.5
        cells = [f"{mean:.3f} ± {error:.3f}" for mean, error in zip(means, errors, strict=True)]
        better = f"{means[1] - max(means[0], means[2]):+.3f}"
        run, size, feature = key
        counts = [str(size), feature, str(len(values))]
        rows.append([run, *counts, *cells, str(kept[key]), better])
    head = ["run", "labels", "feature", "draws", "fixed", "chosen", "classifier"]
    return markdown([*head, "dependent chosen", "less the better"], rows)
