"""The forecast of a command beside what a server received."""

from __future__ import annotations

import contextlib
import json
import re
import shlex
from pathlib import Path

import pytest

from tests.goldens.scenes import SCENES
from tests.support.commands import blb
from tests.support.exact import ExactServer
from tests.support.questions import write_rows

pytestmark = pytest.mark.usefixtures("quick_retries")


def completion_requests(server: ExactServer) -> int:
    """Completion requests that arrived."""
    return sum(path.endswith("/completions") for path, _ in server.calls)


def close(forecast_requests: int, received: int) -> bool:
    """Whether a forecast is within a tenth."""
    return abs(forecast_requests - received) <= received / 10


@pytest.mark.parametrize(
    "name",
    [
        "samples-searched",
        "answers-searched",
        "record",
        "opening",
        "shares-by-group",
        "words",
        "phases",
    ],
)
def test_a_fit_asks_for_what_its_forecast_says(tmp_path: Path, name: str) -> None:
    """Requests within a tenth, before a server is asked and with one; tokens never more."""
    scene = SCENES[name]
    write_rows(tmp_path / "rows.jsonl", scene.rows)
    for file_name, text in scene.files.items():
        (tmp_path / file_name).write_text(text, encoding="utf-8")
    command = next(command for command in scene.commands if command.startswith("fit"))
    words = [*shlex.split(command), "--provider", "llamacpp", "--seed", "1"]
    with scene.server() as server, contextlib.chdir(tmp_path):
        before = json.loads(blb(*words, "--dry-run", "--json").stdout)
        assert completion_requests(server) == 0
        fitted = blb(*words, "--base-url", server.base_url)
        assert fitted.exit_code == 0, fitted.output
        received = completion_requests(server)
    announced = re.search(r"about ([\d,]+) requests", fitted.stderr)
    assert announced is not None
    assert close(int(announced[1].replace(",", "")), received)
    assert close(before["requests"], received)
    usage = json.loads((tmp_path / "run" / "result.json").read_text("utf-8"))["usage"]
    assert close(before["completions"], usage["completions"])
    assert before["most_completion_tokens"] >= usage["completion_tokens"]
    assert before["most_prompt_tokens"] >= usage["prompt_tokens"]


@pytest.mark.parametrize("name", ["eval-labels-without-bias", "eval-shares", "check"])
def test_evaluations_and_checks_ask_for_what_their_forecasts_say(tmp_path: Path, name: str) -> None:
    """Equal requests of several rivals are counted once, as they are sent once."""
    scene = SCENES[name]
    write_rows(tmp_path / "rows.jsonl", scene.rows)
    for file_name, text in scene.files.items():
        (tmp_path / file_name).write_text(text, encoding="utf-8")
    words = [*shlex.split(scene.commands[0]), "--provider", "llamacpp", "--seed", "1"]
    with scene.server() as server, contextlib.chdir(tmp_path):
        result = blb(*words, "--base-url", server.base_url)
        assert result.exit_code == 0, result.output
        received = completion_requests(server)
    announced = re.search(r"about ([\d,]+) requests", result.stderr)
    assert announced is not None
    assert close(int(announced[1].replace(",", "")), received)


def test_what_is_stored_is_not_forecast(tmp_path: Path) -> None:
    """After a collection, the forecast of a fit is that of its other steps."""
    scene = SCENES["samples"]
    write_rows(tmp_path / "rows.jsonl", scene.rows)
    shared = "--data rows.jsonl --reward length --max-tokens 8 --top-logprobs 5 --out run"
    words = [*shlex.split(shared), "--provider", "llamacpp", "--seed", "1"]
    with scene.server() as server, contextlib.chdir(tmp_path):
        where = ["--base-url", server.base_url]
        assert blb("collect", *words, *where, "--samples-per-prompt", "10").exit_code == 0
        collected = completion_requests(server)
        fitted = blb("fit", *words, *where, "--samples-per-prompt", "10", "--l2", "5")
        assert fitted.exit_code == 0, fitted.output
        received = completion_requests(server) - collected
    announced = re.search(r"about ([\d,]+) requests", fitted.stderr)
    assert announced is not None
    assert collected == 120
    assert int(announced[1].replace(",", "")) == received
