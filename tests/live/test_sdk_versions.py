"""Applying a bias works under every openai from 2.0 on: the matrix of client classes and call
styles, in an environment of each.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MATRIX = (
    "tests/support/recording_server.py",
    "tests/unit/deploy/test_apply_matrix.py",
    "tests/support/exact/listener.py",
    "tests/support/errors.py",
)


@pytest.mark.live
@pytest.mark.parametrize(
    ("requirements", "skipped"),
    [
        # The oldest takes no httpx2 client: four classes, two ways each.
        (["openai==2.0.0"], 8),
        # The newest is the one that unit/deploy/test_apply_matrix.py runs with by default.
        pytest.param(["openai>=2,<3"], 0, marks=pytest.mark.slow),
        pytest.param(["openai>=3", "httpx"], 0, marks=pytest.mark.slow),
    ],
    ids=lambda each: each[0] if isinstance(each, list) else "",
)
def test_matrix_under(requirements: list[str], skipped: int, tmp_path: Path) -> None:
    """This checkout installs beside that SDK, and every cell of the matrix passes there; warnings
    are errors.
    """
    home = tmp_path / "venv"
    _run(tmp_path, "uv", "venv", "--quiet", "--python", sys.executable, home)
    _run(
        tmp_path,
        "uv",
        "pip",
        "install",
        "--quiet",
        "--python",
        home / "bin/python",
        ROOT,
        "pytest>=9",
        *requirements,
    )
    for name in MATRIX:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\naddopts = --import-mode=importlib\nfilterwarnings = error\n"
    )
    answer = _run(tmp_path, home / "bin/python", "-m", "pytest", "-q", MATRIX[1])
    passed = 24 - skipped
    # 12 call styles with the SDK's own HTTP client and 2 with each of the caller's that it takes.
    cells = 4 * 2 * (12 + 2 * 2) - 2 * skipped
    expected = (
        f"{passed} passed, {f'{skipped} skipped, ' if skipped else ''}{cells} subtests passed"
    )
    assert expected in answer, answer


def _run(folder: Path, *command: object) -> str:
    """stdout of a command that must succeed, run outside the checkout, whose pins and package stay
    out of it.
    """
    left = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("VIRTUAL_ENV", "PYTEST"))
    }
    environment = {**left, "PYTHONPATH": str(folder)}
    words = [str(word) for word in command]
    done = subprocess.run(
        words, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
