"""Every block of code in README.md and docs/ is run, parsed or says why not; the site builds,
without a network. ``test_commands`` runs every line of ``blb``.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click
import pytest

from blackbox_lb.cli import main
from blackbox_lb.cli.commands import COMMANDS
from blackbox_lb.cli.settings import SettingsFile
from blackbox_lb.providers.prices import find_prices
from blackbox_lb.tasks import load_task
from tests.support.exact import ExactModel
from tests.support.proxy_upstream import bias
from tests.support.questions import write_rows
from tests.support.stored import store_completions

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
NOT_RUN = 4
"""Blocks that say why they cannot run here. One more needs a reason that a reviewer reads."""
LANGUAGES = {"bash", "console", "ini", "js", "json", "python", "text", "toml", "yaml"}


@dataclass(frozen=True)
class Block:
    """A block of code; ``excused``: it says why it is not run."""

    page: str
    language: str
    code: str
    excused: bool


def blocks() -> list[Block]:
    """Every fenced block."""
    pattern = re.compile(
        r"(<!-- not run here: [^>]+ -->\n)?^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL
    )
    return [
        Block(page.name, match[2], match[3], bool(match[1]))
        for page in PAGES
        for match in pattern.finditer(page.read_text(encoding="utf-8"))
    ]


def of(language: str) -> list[Block]:
    """The blocks of one language that are run."""
    return [block for block in blocks() if block.language == language and not block.excused]


PROGRAM = "python.md"
"""The page whose blocks are one program, which fits: tests/live/test_python_page.py runs it."""


def snippets() -> list[Block]:
    """The blocks of Python that stand alone."""
    return [block for block in of("python") if block.page != PROGRAM]


def command_of(words: Sequence[str]) -> click.Command:
    """The command of a line of ``blb``."""
    command = main.get_command(click.Context(main), words[0])
    assert command is not None, words
    return command


def parse(words: Sequence[str]) -> None:
    """``blb`` reads the line; only files and addresses could still be wrong."""
    above = click.Context(main, **main.context_settings)
    command_of(words).make_context(words[0], list(words[1:]), parent=above)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with the files that the pages name."""
    for place in (tmp_path, *(tmp_path / "runs" / name for name in ("train", "hosted"))):
        place.mkdir(parents=True, exist_ok=True)
        bias().save(place / "bias.json")
    rows = [{"prompt": f"question {n}", "answer": "a"} for n in range(60)]
    task = load_task(data=write_rows(tmp_path / "train.jsonl", rows))
    store_completions(tmp_path / "runs" / "train" / "rollouts.db", task, ExactModel(9, 4, end=True))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_block_names_its_language_and_few_are_excused() -> None:
    """A block in another language would be checked by nobody."""
    found = blocks()
    assert {block.language for block in found} <= LANGUAGES
    assert sum(block.excused for block in found) == NOT_RUN


@pytest.mark.parametrize("block", snippets(), ids=lambda block: block.page)
def test_python_blocks_run(block: Block, folder: Path) -> None:
    """Each, in a folder with a bias file and a run."""
    exec(compile(block.code, block.page, "exec"), {})


def test_toml_blocks_are_settings_or_prices(tmp_path: Path) -> None:
    """Each is a table of prices, or a blb.toml: every command takes what it says. Profiles: see
    test_docs.
    """
    found = [block for block in of("toml") if block.page not in ("README.md", "providers.md")]
    assert found
    for block in found:
        if "[[price]]" in block.code:
            (tmp_path / "prices.toml").write_text(block.code)
            (row,) = tomllib.loads(block.code)["price"]
            assert find_prices(row["provider"], row["models"][0], tmp_path / "prices.toml")
            continue
        settings = SettingsFile(ROOT / "blb.toml", tomllib.loads(block.code))
        for name in COMMANDS:
            settings.of(name, command_of([name]))


def test_json_blocks_parse() -> None:
    """Line by line, as JSONL."""
    for block in of("json"):
        assert [json.loads(line) for line in block.code.splitlines()]


def test_shell_blocks_have_no_syntax_error() -> None:
    """bash reads every command of the pages."""
    scripts = [block.code for block in of("bash")]
    for block in of("console"):
        typed = re.findall(r"^\$ ((?:.*\\\n)*.*)$", block.code, flags=re.MULTILINE)
        assert typed, block
        scripts.append("\n".join(typed))
    for script in scripts:
        subprocess.run(["bash", "-n"], input=script, text=True, check=True)


@pytest.mark.skipif(shutil.which("node") is None, reason="there is no node here")
def test_javascript_blocks_have_no_syntax_error(tmp_path: Path) -> None:
    """node reads them as modules."""
    for block in of("js"):
        (tmp_path / "block.mjs").write_text(block.code)
        subprocess.run(["node", "--check", tmp_path / "block.mjs"], check=True)


def test_the_site_builds_and_needs_no_network(tmp_path: Path) -> None:
    """mkdocs --strict finds no broken link, and no page loads a script, style or font from
    elsewhere.
    """
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    words = ("-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir")
    command = [sys.executable, *words, str(tmp_path)]
    built = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stderr
    pages = list(tmp_path.rglob("index.html"))
    assert len(pages) >= len(PAGES)
    for page in pages:
        assert not re.findall(
            r"<(?:script|link|img|iframe)[^>]+(?:src|href)=\"?https?://", page.read_text("utf-8")
        )
