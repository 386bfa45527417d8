"""Documents do not drift: snippets run, tables and layout match the code, the command reference is the help."""

from __future__ import annotations

import re
import runpy
import shlex
import sqlite3
from pathlib import Path

import click
import pytest

from blackbox_lb.bias.document import Bias, Entry
from blackbox_lb.cli import main
from blackbox_lb.providers.profile import load_profile, profile_names
from blackbox_lb.store import RolloutStore
from blackbox_lb.tasks.rewards.reward import REWARDS

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def snippets(language: str) -> list[str]:
    """The README's code blocks of one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL)


def test_the_command_reference_is_the_help() -> None:
    """docs/cli.md and what shells complete are what docs/generate.py writes."""
    generate = runpy.run_path(str(ROOT / "docs" / "generate.py"))
    remedy = "run: uv run python docs/generate.py"
    assert (ROOT / "docs" / "cli.md").read_text(encoding="utf-8") == generate["reference"](), remedy
    description = ROOT / "blackbox_lb" / "cli" / "commands.json"
    assert description.read_text(encoding="utf-8") == generate["description"](), remedy


def test_python_snippets_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each runs in a folder with a bias file."""
    entry = Entry(id=1, text=" a", bias=1.0)
    bias = Bias(provider="vllm", model="m", tokenizer="t", reward="length", estimator="ips", entries=(entry,))
    bias.save(tmp_path / "bias.json")
    monkeypatch.chdir(tmp_path)
    assert snippets("python")
    for snippet in snippets("python"):
        exec(compile(snippet, "README.md", "exec"), {})


def test_toml_snippets_are_profiles(tmp_path: Path) -> None:
    """Each loads as a user's own profile, and the one of a foreign host is the one that the tests send requests with."""
    for snippet in snippets("toml"):
        path = tmp_path / "mine.toml"
        path.write_text(snippet)
        assert load_profile(str(path)).name not in profile_names()
    assert (ROOT / "tests" / "unit" / "data" / "together.toml").read_text() in snippets("toml")


def test_every_blb_command_line_parses() -> None:
    """Options of the README's command lines exist, with values of the right kind."""
    lines = [
        line for block in snippets("console") for line in block.splitlines() if line.startswith("$ ") and "blb " in line
    ]
    assert len(lines) >= 4
    for line in lines:
        words = shlex.split(line.split("blb ", 1)[1], comments=True)
        command = main.get_command(click.Context(main), words[0])
        assert command is not None, line
        command.make_context(words[0], words[1:], parent=click.Context(main, **main.context_settings))


def test_the_store_tables_are_documented() -> None:
    """Every table and column of the schema stands in the README's table."""
    store = RolloutStore(":memory:")
    tables = store._db.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    for (table,) in tables:
        (row,) = [line for line in README.splitlines() if line.startswith(f"| `{table}` |")]
        columns = [column[1] for column in store._db.execute(f"PRAGMA table_info({table})")]
        assert re.findall(r"`(\w+)`", row) == [table, *columns]
    store.close()


def test_providers_and_rewards_are_documented() -> None:
    """Each has its row."""
    for name in profile_names():
        assert f"| `{name}` |" in README
    for name in REWARDS:
        assert f"`{name}`" in README


def test_the_layout_is_true() -> None:
    """Every path of the README's layout exists, and every module stands in it."""
    (layout,) = re.findall(r"^```\n(providers/.*?)^```", README, flags=re.DOTALL | re.MULTILINE)
    named = set(re.findall(r"\b(\w+\.py|\w+/)", layout))
    for path in (ROOT / "blackbox_lb").iterdir():
        if path.name.startswith("_") or (path.is_file() and path.suffix != ".py"):
            continue
        assert (f"{path.name}/" if path.is_dir() else path.name) in named, path
    folders = {"bench/", "providers/", "cassettes/", "blackbox_lb/", "tests/"}
    for name in named - folders:
        assert (ROOT / "blackbox_lb" / name).exists(), name


def test_pins_are_the_same_for_uv_and_pip() -> None:
    """constraints.txt and uv's constraints in pyproject.toml list the same versions, without any address."""
    pins = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    project = (ROOT / "pyproject.toml").read_text()
    assert re.findall(r'^  "([\w.\-]+==[^"]+)",$', project, flags=re.MULTILINE) == pins
    assert "://" not in "\n".join(pins)


def test_a_schema_comment_is_kept_in_the_file(tmp_path: Path) -> None:
    """The SQL in the file itself explains its columns to whoever opens it with sqlite3."""
    RolloutStore(tmp_path / "s.db").close()
    db = sqlite3.connect(tmp_path / "s.db")
    (sql,) = db.execute("SELECT sql FROM sqlite_master WHERE name = 'completions'").fetchone()
    db.close()
    assert "see blackbox_lb.store.packing" in sql
