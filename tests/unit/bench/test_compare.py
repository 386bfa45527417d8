"""bench.compare names what became worse, and what could hide that it did."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from bench.__main__ import JOBS, MODULES, better
from bench.compare import compared, direction, kept, main
from bench.efficiency import PROBLEMS, _gain, needed
from bench.measuring import alternately, apart, machine, medians, write

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


def test_ratios_of_other_sizes_are_not_compared() -> None:
    """Other options are another measurement: named, and not taken for agreement."""
    verdict = compared(STORED, [document(blb=0.5) | {"options": {"tokens": 1024}}])
    assert verdict.unlike == [BLB]
    assert not verdict.passes


def test_not_a_number_is_worse() -> None:
    """A ratio that could not be computed never passes."""
    assert compared(STORED, [document(blb=math.nan, startup=math.nan)]).worse.keys() == {
        BLB,
        STARTUP,
    }


def test_storing_replaces_one_benchmark_and_keeps_the_others(tmp_path: Path) -> None:
    """--store takes the new ratios, with their machine and date, also where they are worse."""
    against, new = tmp_path / "ratios.json", tmp_path / "new.json"
    against.write_text(json.dumps(STORED))
    new.write_text(json.dumps(document(blb=0.1)))
    assert CliRunner().invoke(main, [str(new), "--against", str(against), "--store"]).exit_code == 0
    stored = json.loads(against.read_text())
    assert stored["collector"]["ratios"] == {BLB: 0.1}
    assert stored["startup"] == STORED["startup"]


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    """What no benchmark wrote is an error in one sentence."""
    path = tmp_path / "other.json"
    path.write_text("{}")
    done = CliRunner().invoke(main, [str(path)])
    assert done.exit_code == 1
    assert "was not written by a benchmark" in done.output


def test_the_second_run_counts_where_it_is_better() -> None:
    """Each ratio by its own direction."""
    found = better(document(blb=0.5, startup=0.2), document(blb=0.4, startup=0.1))
    assert found["ratios"] == {BLB: 0.5, STARTUP: 0.1}
    assert direction(BLB) == "higher"
    assert direction(STARTUP) == "lower"


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


def test_a_process_of_its_own_tells_what_it_took() -> None:
    """The value, some time, and a peak in bytes that a Python process has."""
    done = apart(math.sqrt, 4.0)
    assert done.value == 2.0
    assert done.seconds >= 0
    assert 1e6 < done.peak < 1e10


def test_a_document_says_where_it_was_measured(tmp_path: Path) -> None:
    """The file holds what ``write`` returns: rows, ratios, options, machine and date."""
    out = tmp_path / "new" / "out.json"
    found = write(out, [{"name": "x", "value": 1.0, "unit": "s"}], {BLB: 0.5})
    assert json.loads(out.read_text()) == found
    assert found["machine"] == machine()


def test_the_slope_of_the_exact_gain_is_its_derivative() -> None:
    """Central differences at a random bias, and no bias gains nothing."""
    exact, tau = _gain("rare"), PROBLEMS["rare"].tau
    rng = np.random.default_rng(0)
    delta, way = rng.normal(size=(2, exact.model.vocab_size)) / 3
    step = 1e-5
    difference = (exact.of(delta + step * way, tau) - exact.of(delta - step * way, tau)) / (
        2 * step
    )
    assert difference == pytest.approx(float(exact.slope(delta, tau) @ way), rel=1e-6)
    assert exact.of(np.zeros_like(delta), tau) == pytest.approx(0.0, abs=1e-12)


def test_the_rollouts_needed_are_read_off_a_log_scale() -> None:
    """Halfway between two numbers is their geometric mean; never is infinite; at once is the
    first.
    """
    assert needed((100, 400), [0.7, 0.9]) == pytest.approx(200)
    assert needed((100, 400), [0.1, 0.2]) == math.inf
    assert needed((100, 400), [0.9, 0.9]) == 100
