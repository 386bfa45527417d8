"""The study of few labels, at its smallest size, on an exact model."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from bench.measuring import read_rows
from bench.studies.few_labels import main
from tests.support.exact import ExactModel, ExactServer
from tests.support.questions import write_rows


@pytest.mark.parametrize("way", ["--shared", "--crossed"])
def test_the_study_runs_and_resumes(way: str, tmp_path: Path) -> None:
    """A row for each number of prompts and draw; what was measured is not measured again."""
    pytest.importorskip("sklearn")
    rows = [
        {"prompt": f"{split} {number} near {label}", "answer": label, "split": split}
        for split, size in {"train": 12, "validation": 4, "test": 6}.items()
        for number in range(size)
        for label in "ab"
    ]
    write_rows(tmp_path / "letters.jsonl", rows)
    profile = tmp_path / "own.toml"
    profile.write_text('extends = "llamacpp"\nname = "own"\n')
    out = tmp_path / "out"
    with ExactServer(ExactModel(12, 8, end=True, prompts=4, sharpness=0.7)) as server:
        words = [str(tmp_path), str(out), "--task", "letters", "--prompts", "10", "--draws", "2"]
        words += ["--provider", str(profile), "--base-url", server.base_url, "--unlabelled", "4"]
        ended = CliRunner().invoke(main, [*words, way])
        assert ended.exception is None, ended.output
        asked = len(server.requests)
        again = CliRunner().invoke(main, [*words, way])
    assert again.stdout == ended.stdout
    assert len(server.requests) - asked <= 12
    found = read_rows(out / "rows.jsonl")
    assert [(row["labels"], row["draw"]) for row in found] == [(10, 0), (10, 1)]
    for row in found:
        for name in ("base", "fixed", "sent", "classifier"):
            assert 0 <= row[name] <= 1
    assert "| letters | 10 | words |" in ended.stdout
