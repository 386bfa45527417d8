"""The doctor before a real language model: the embedded engine does what its profile says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from blackbox_lb.providers.profile import load_profile

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


def test_the_embedded_engine(tmp_path: Path) -> None:
    """No row is contradicted, those that a fit leans on are confirmed, and the saved profile keeps
    the evidence.
    """
    path = tmp_path / "mine.toml"
    command = [
        sys.executable,
        "-m",
        "blackbox_lb",
        "doctor",
        "--provider",
        "local",
        "--save",
        str(path),
        "--json",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    report = json.loads(done.stdout)
    status = {finding["row"]: finding["status"] for finding in report["findings"]}
    assert set(status.values()) <= {"CONFIRMED", "NOT CHECKED", "MEASURED"}
    assert {row for row in PROVEN if status[row] != "CONFIRMED"} == set()
    assert report["requests"] < 120
    assert load_profile(str(path)).evidence["neutral"].grade == "L"
