"""What a result says of its origin."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import click
from click.testing import CliRunner

from blackbox_lb import __version__
from blackbox_lb.cli.echo import preset_options
from blackbox_lb.jobs.records.run_record import command_line, provenance
from tests.support.commands import options
from tests.support.exact import ExactModel, ExactServer

ROOT = Path(__file__).parents[3]


def test_no_password_in_the_command() -> None:
    """Whatever stands between :// and the last @ before the path is masked, as URL parsers read
    it.
    """
    assert (
        command_line(["fit", "--reward", "https://ada:p@ss@host/x"])
        == "blb fit --reward 'https://[masked]@host/x'"
    )
    assert (
        command_line(["--base-url=http://k@host/v1"]) == "blb '--base-url=http://[masked]@host/v1'"
    )
    assert command_line(["--baseline-prompt", "mail a@b.c"]) == "blb --baseline-prompt 'mail a@b.c'"


def test_what_a_file_gave_is_recorded() -> None:
    """Options from blb.toml or the environment, which the command line does not show, and those
    alone.
    """
    seen: list[dict[str, str]] = []

    @click.command()
    @click.option("--tau", type=float)
    @click.option("--base-url")
    @click.option("--limit", default=3)
    def command(**options: object) -> None:
        seen.append(provenance(settings=preset_options())["settings"])

    defaults = {"tau": 0.5, "base_url": "http://k:secret@host/v1"}
    CliRunner().invoke(command, ["--tau", "0.7"], default_map=defaults, catch_exceptions=False)
    assert seen == [{"base_url": "http://[masked]@host/v1"}]
    assert preset_options() == {}


def test_a_checkout_that_is_not_installed_collects(tmp_path: Path) -> None:
    """On ``PYTHONPATH`` beside the packages that it needs, as in a server's own environment, with
    no metadata of its own.
    """
    others, data, out = tmp_path / "others", tmp_path / "data.jsonl", tmp_path / "run"
    others.mkdir()
    for path in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
        for entry in Path(path).iterdir():
            if "blackbox_lb" not in entry.name:
                (others / entry.name).symlink_to(entry)
    data.write_text("".join(f'{{"prompt": "question {n}", "answer": "a"}}\n' for n in range(30)))
    hidden = (
        "import importlib.metadata as m; assert not"
        " [*m.Distribution.discover(name='blackbox-lb')]\n"
    )
    script = f"{hidden}from blackbox_lb.cli import main; main()"
    with ExactServer(ExactModel(12, 8, end=True)) as server:
        words = [
            *options(provider="llamacpp", base_url=server.base_url, data=str(data), reward="length")
        ]
        more = ["--max-tokens", "8", "--samples-per-prompt", "1", "--out", str(out), "--quiet"]
        line = [sys.executable, "-S", "-c", script, "collect", *words, *more]
        where = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{others}"}
        done = subprocess.run(
            line, env=where, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
        )
    assert done.returncode == 0, done.stderr
    assert json.loads((out / "run.json").read_text())["runs"]["collect"]["version"] == __version__
