"""Every benchmark at its smallest size, some with a subprocess of their own, and the comparison of
what they measure.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import bench.__main__ as program
from bench import scale, startup
from bench.ratios import STORED, compared, kept

BLB, STARTUP, BYTES = (
    "collector/blb over bare",
    "startup/blb --help over import openai",
    "store/bytes over raw JSON",
)
SMALLEST = {
    "store_speed": "--completions 4 --tokens 16 --repeats 1",
    "scale": "--positions 1000 --part ips --part fit --part errors --repeats 1",
    "startup": "--repeats 1",
    "collector": "--tokens 4 --seconds 0.01 --repeats 1 --only blb",
    "apply_overhead": "--rounds 2 --prompt 100",
    "proxy_overhead": "--requests 2 --streams 1",
}
SLOW = {"decision": "--repeats 1"}


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is measured in processes of its own is run here, and of the commands one alone."""

    def apart(function: Callable[..., Any], *arguments: Any) -> tuple[Any, int]:
        return function(*arguments), 1

    monkeypatch.setattr(scale, "apart", apart)
    command = [sys.executable, "-c", "pass"]
    monkeypatch.setattr(startup, "COMMANDS", dict.fromkeys(startup.COMMANDS, command))


@pytest.mark.usefixtures("in_this_process")
@pytest.mark.parametrize(
    ("name", "options"),
    [*SMALLEST.items(), *(pytest.param(*row, marks=pytest.mark.slow) for row in SLOW.items())],
)
def test_a_benchmark_runs(name: str, options: str, tmp_path: Path) -> None:
    """It gives ratios under the names that are stored."""
    out = tmp_path / "out.json"
    command = importlib.import_module(f"bench.{name}").main
    ended = CliRunner().invoke(command, [*options.split(), "--out", str(out)])
    assert not ended.exception or isinstance(ended.exception, SystemExit), ended.output
    document = json.loads(out.read_text(encoding="utf-8"))
    stored = json.loads(STORED.read_text(encoding="utf-8"))
    known = {name for benchmark in stored.values() for name in benchmark["ratios"]}
    assert set() < set(document["ratios"]) <= known


def test_every_benchmark_that_is_run_is_stored() -> None:
    """With the options that ``python -m bench`` gives; each has a smallest size here."""
    assert {module for module, *_ in program.JOBS.values()} == SMALLEST.keys() | SLOW.keys()


OPTIONS = {"tokens": 128}


def document(**ratios: float) -> dict[str, Any]:
    """What a benchmark writes."""
    names = {"blb": BLB, "startup": STARTUP, "bytes": BYTES}
    return {
        "ratios": {names[key]: value for key, value in ratios.items()},
        "options": OPTIONS,
        "machine": {"cores": 2},
        "date": "2026-11-22",
    }


OLD = kept({}, [document(blb=0.5), document(startup=0.1), document(bytes=0.05)])


def failures(*documents: dict[str, Any]) -> dict[str, str]:
    """Ratio -> what is said of it; only those of which something is said."""
    table, passes = compared(OLD, documents)
    cells = [line.strip("| ").split(" | ") for line in table.splitlines()[2:]]
    said = {row[0]: row[-1] for row in cells if not row[-1].endswith("%")}
    assert passes == (not set(said.values()) - {"new"})
    return said


def test_a_planted_regression_is_named() -> None:
    """A rate that fell by a quarter and a time that rose by a half, each by its own direction;
    within a fifth, or better by any amount, nothing is.
    """
    assert failures(document(blb=0.375, startup=0.15, bytes=0.01)) == {
        BLB: "WORSE",
        STARTUP: "WORSE",
    }
    assert failures(document(blb=0.41, startup=0.119)) == {}
    assert failures(document(blb=5.0, startup=0.001)) == {}


def test_what_hides_a_regression_fails() -> None:
    """A ratio that its benchmark no longer gives, or gives for other options; a new one does not,
    nor a benchmark that was not run.
    """
    other = document(blb=0.5)
    assert failures({**other, "options": {}}) == {BLB: "other options"}
    renamed = {**other, "ratios": {"collector/blb over gone": 2.0}}
    assert failures(renamed) == {BLB: "no longer measured", "collector/blb over gone": "new"}
