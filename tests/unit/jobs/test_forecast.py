"""The forecast of a command beside what an ``ExactServer`` received."""

from __future__ import annotations

import contextlib
import json
import re
import shlex
from pathlib import Path

import pytest
from click.testing import Result

from tests.goldens.scenes import SCENES
from tests.support.commands import blb
from tests.support.printed import ended_well
from tests.support.questions import write_rows

pytestmark = pytest.mark.usefixtures("quick_retries")


def announced(result: Result) -> int:
    """The requests that a command forecasts when it begins."""
    found = re.search(r"about ([\d,]+) requests", ended_well(result).stderr)
    assert found is not None
    return int(found[1].replace(",", ""))


FITS = (
    *("samples-searched", "answers-searched", "record", "opening"),
    *("shares-by-group", "words", "phases"),
)


@pytest.mark.parametrize("name", [*FITS, "eval-labels-without-bias", "eval-shares", "check"])
def test_a_command_asks_for_what_its_forecast_says(tmp_path: Path, name: str) -> None:
    """Requests within a tenth, of a fit before a server is asked and with one; tokens never more.
    Equal requests of several rivals are counted once, as they are sent once.
    """
    scene = SCENES[name]
    write_rows(tmp_path / "rows.jsonl", scene.rows)
    for file_name, text in scene.files.items():
        (tmp_path / file_name).write_text(text, encoding="utf-8")
    fits = (command for command in scene.commands if command.startswith("fit"))
    words = [*shlex.split(next(fits, scene.commands[0])), "--provider", "llamacpp", "--seed", "1"]
    with scene.server() as server, contextlib.chdir(tmp_path):
        before = json.loads(blb(*words, "--dry-run", "--json").stdout) if name in FITS else None
        assert len(server.completions) == 0
        done = blb(*words, "--base-url", server.base_url)
        received = len(server.completions)
    assert announced(done) == pytest.approx(received, rel=0.1)
    if before is not None:
        assert before["requests"] == pytest.approx(received, rel=0.1)
        usage = json.loads((tmp_path / "run" / "result.json").read_text("utf-8"))["usage"]
        assert before["completions"] == pytest.approx(usage["completions"], rel=0.1)
        assert before["most_completion_tokens"] >= usage["completion_tokens"]
        assert before["most_prompt_tokens"] >= usage["prompt_tokens"]


def test_what_is_stored_is_not_forecast(tmp_path: Path) -> None:
    """After a collection, the forecast of a fit is that of its other steps."""
    scene = SCENES["samples"]
    write_rows(tmp_path / "rows.jsonl", scene.rows)
    shared = "--data rows.jsonl --reward length --max-tokens 8 --top-logprobs 5 --out run"
    words = [*shlex.split(shared), "--provider", "llamacpp", "--seed", "1"]
    with scene.server() as server, contextlib.chdir(tmp_path):
        where = ["--base-url", server.base_url]
        assert blb("collect", *words, *where, "--samples-per-prompt", "10").exit_code == 0
        collected = len(server.completions)
        fitted = blb("fit", *words, *where, "--samples-per-prompt", "10", "--l2", "5")
        received = len(server.completions) - collected
    assert collected == 120
    assert announced(fitted) == received
