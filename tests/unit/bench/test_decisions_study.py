"""The study of mended decisions, small: every way has its rows, and the tables hold them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from click.testing import CliRunner

from bench.studies.decisions import WAYS, main


def test_the_study_writes_rows_and_tables(tmp_path: Path) -> None:
    """Of two files, one of them a score."""
    rng = np.random.default_rng(0)
    data = tmp_path / "data"
    data.mkdir()
    for name, is_ordered in (("reader", False), ("levels", True)):
        rows = []
        for number, vector in enumerate(rng.dirichlet(np.ones(3), 60).tolist()):
            answer = int(rng.choice(3, p=vector))
            row = {"id": str(number), "probabilities": vector, "answer": answer}
            rows.append({**row, "options": ["a", "b", "c"], "ordered": is_ordered})
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (data / f"{name}.jsonl").write_text(text, encoding="utf-8")
    out = tmp_path / "out"
    options = ["--draws", "2", "--labels", "10", "--resamplings", "5", "--rows", "100"]
    result = CliRunner().invoke(main, [str(data), str(out), *options], catch_exceptions=False)
    assert result.exit_code == 0
    lines = (out / "rows.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(lines) == 2 * 2 * 2 * len(WAYS)
    assert "levels, 2 decimals" in (out / "decisions.md").read_text(encoding="utf-8")
    promised = (out / "promises.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(promised) == 5 * 3
