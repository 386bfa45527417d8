"""The doctor before a real language model: the embedded engine does what its profile says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from blackbox_lb.extras.doctor.checks import neutral, strength
from blackbox_lb.providers.profile import load_profile
from tests.support.commands import blb

pytest.importorskip("xllamacpp")
pytestmark = pytest.mark.live

PROVEN = {
    "neutral",
    "bias",
    "bias.high",
    "bias.low",
    "bias.fractions",
    "bias.entries",
    "logprobs.meaning",
    "tokens.id",
}


@pytest.mark.parametrize("completions", [8, pytest.param(26, marks=pytest.mark.slow)])
def test_the_embedded_engine(
    completions: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No row is contradicted, those that a fit leans on are confirmed, and the saved profile keeps
    the evidence. With a third of the completions, too: how many a wrong temperature takes is stated
    of exact models, and ``test_local_engine`` tests the engine's own draws.
    """
    if completions < neutral.REQUESTS:
        monkeypatch.setattr(neutral, "REQUESTS", completions)
        monkeypatch.setattr(neutral, "DOUBT", 0.0)
        monkeypatch.setattr(strength, "REQUESTS", 4)
    path = tmp_path / "mine.toml"
    done = blb("doctor", "--provider", "local", "--save", path, "--json")
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    status = {finding["row"]: finding["status"] for finding in report["findings"]}
    assert set(status.values()) <= {"CONFIRMED", "NOT CHECKED", "MEASURED"}
    assert {row for row in PROVEN if status[row] != "CONFIRMED"} == set()
    assert report["requests"] < 120
    assert load_profile(str(path)).evidence["neutral"].grade == "L"
