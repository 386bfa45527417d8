"""bench.compare names what became worse, and what could hide that it did."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from bench.__main__ import JOBS, MODULES
from bench.compare import compared, kept, main
from bench.measuring import alternately, medians

BLB, STARTUP, BYTES = (
    "collector/blb over bare",
    "startup/blb --help over import openai",
    "store/bytes over raw JSON",
)
OPTIONS = {"tokens": 128}


def document(**ratios: float) -> dict[str, Any]:
    """What a benchmark writes."""
    names = {"blb": BLB, "startup": STARTUP, "bytes": BYTES}
    found = {names[key]: value for key, value in ratios.items()}
    return {
        "rows": [],
        "ratios": found,
        "options": OPTIONS,
        "machine": {"cores": 2},
        "date": "2026-11-22",
    }


STORED = kept({}, [document(blb=0.5), document(startup=0.1), document(bytes=0.05)])


def test_a_planted_regression_is_named(tmp_path: Path) -> None:
    """A rate that fell by a quarter and a time that rose by a half are named, each by its own
    direction; exit code 1.
    """
    against, new = tmp_path / "ratios.json", tmp_path / "new.json"
    against.write_text(json.dumps(STORED))
    new.write_text(json.dumps(document(blb=0.375, startup=0.15, bytes=0.01)))
    done = CliRunner().invoke(main, [str(new), "--against", str(against)])
    assert done.exit_code == 1
    assert [line for line in done.output.splitlines() if line.startswith("worse")] == [
        f"worse by more than 20%: {BLB}",
        f"worse by more than 20%: {STARTUP}",
    ]


@pytest.mark.parametrize(("blb", "startup"), [(0.41, 0.119), (5.0, 0.001)])
def test_noise_and_progress_pass(blb: float, startup: float) -> None:
    """Within a fifth, or better by any amount, nothing is named."""
    verdict = compared(STORED, [document(blb=blb, startup=startup, bytes=0.05)])
    assert verdict.passes
    assert not verdict.skipped


def test_what_is_missing_on_either_side_is_named() -> None:
    """A ratio that its benchmark no longer gives fails; one that is new, or whose benchmark was not
    run, is only told.
    """
    two = kept({}, [document(blb=0.5) | {"ratios": {BLB: 0.5, "collector/blb over gone": 2.0}}])
    verdict = compared(two | {"startup": STORED["startup"]}, [document(blb=0.5, bytes=1.0)])
    assert (verdict.lost, verdict.new, verdict.skipped) == (
        ["collector/blb over gone"],
        [BYTES],
        ["startup"],
    )
    assert not verdict.passes


def test_every_benchmark_that_is_run_is_there() -> None:
    """The list of ``python -m bench`` names modules."""
    for name in JOBS:
        assert (Path(__file__).parents[3] / "bench" / f"{MODULES.get(name, name)}.py").is_file()


def test_functions_take_turns_in_an_order_that_rotates() -> None:
    """Nobody is always first; warm-up turns are run and not counted."""
    seen: list[str] = []
    found = alternately({name: lambda name=name: seen.append(name) for name in "ab"}, 2, warm_up=1)  # type: ignore[misc]
    assert seen == ["b", "a", "a", "b", "b", "a"]
    assert found == {"a": [None, None], "b": [None, None]}
    assert medians({"nothing": lambda: None}, 3)["nothing"] < 1
