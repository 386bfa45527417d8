"""The unit file and the compose file of docs/serving.md: each is read by its own reader, and its
command line by ``blb``.
"""

from __future__ import annotations

import configparser
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]

from blackbox_lb.deploy.proxy.limits import GRACE
from tests.docs.test_snippets import parse

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")


def block(language: str) -> str:
    """The page's only block in this language."""
    (text,) = re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    return str(text)


def unit() -> configparser.ConfigParser:
    """The unit file."""
    parser = configparser.ConfigParser(interpolation=None)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string(block("ini"))
    return parser


def test_the_unit_file_starts_the_proxy() -> None:
    """Its command is one, and it waits longer for the end than the proxy does for its answers."""
    service = unit()["Service"]
    program, *words = shlex.split(service["ExecStart"])
    assert Path(program).name == "blb"
    parse(words)
    assert float(service["TimeoutStopSec"]) > GRACE


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_accepts_the_unit_file(tmp_path: Path) -> None:
    """With a program that is there."""
    path = tmp_path / "blb-proxy.service"
    path.write_text(block("ini").replace("/opt/blackbox-lb/bin/blb", sys.executable))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(path)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_the_compose_file_starts_the_proxy() -> None:
    """The command reads the mounted file, the port is published to this machine alone, and health
    is /ready of the very port.
    """
    service = yaml.safe_load(block("yaml"))["services"]["blb"]
    program, *words = shlex.split(service["command"])
    assert program == "blb"
    parse(words)
    (volume,) = service["volumes"]
    _, folder, mode = volume.split(":")
    assert mode == "ro"
    assert words[words.index("--bias") + 1].startswith(f"{folder}/")
    assert service["ports"] == ["127.0.0.1:8080:8080"]
    probe, url = service["healthcheck"]["test"][-1], "http://127.0.0.1:8080/ready"
    compile(probe, "probe", "exec")
    assert url in probe
    build = service["build"]
    assert (ROOT / build["context"] / "pyproject.toml").is_file()
    assert "pip install --no-cache-dir /src" in build["dockerfile_inline"]
