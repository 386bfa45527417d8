"""Virtual environments with other people's packages in their current versions, for live tests."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TypeAlias

import pytest

Install: TypeAlias = Callable[[str], Path]

OFFLINE = {"OPENAI_API_KEY": "none", "LITELLM_LOCAL_MODEL_COST_MAP": "True", "HF_HUB_OFFLINE": "1"}
"""A key is asked for and not checked; what else these clients would fetch when they start is left
out.
"""


def output(*command: str | Path, folder: str | Path | None = None, **environment: str) -> str:
    """What the command prints, which must succeed. It runs in ``folder``."""
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env=os.environ | environment,
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr[-3000:] + done.stdout[-2000:]
    return done.stdout


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Install:
    """Makes a virtual environment with packages (in one text) in their current versions; gives the
    folder of its programs.
    """

    @cache
    def make(packages: str) -> Path:
        folder = tmp_path_factory.mktemp("environment")
        install(folder, "uv", "venv", "--python", sys.executable, "--clear", folder)
        install(folder, "uv", "pip", "install", "--python", folder, *packages.split())
        versions = output(
            *("uv", "pip", "list", "--python", folder, "--format", "freeze"), folder=folder
        )
        names = [package.partition("[")[0] for package in (*packages.split(), "openai")]
        lines = versions.splitlines()
        print(*[line for line in lines if line.partition("==")[0] in names])
        return folder / "bin"

    return make


def install(folder: Path, *command: str | Path) -> None:
    """Skip the test, with the reason, where the command is missing or cannot reach its registry.

    It runs in ``folder``: inside this project uv would hold the package to the project's own pins.
    """
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=300, cwd=folder
    )
    if done.returncode:
        pytest.skip(f"{shlex.join(map(str, command))}: {done.stderr.strip()[-300:]}")
