"""Drift: a change of what answers stops the run with both values; a run is not resumed under other
settings unawares.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from blackbox_lb.api.drift import DriftWatch
from blackbox_lb.jobs.records.run_file import FILE
from blackbox_lb.providers.profile import load_profile
from blackbox_lb.store import RolloutStore
from blackbox_lb.types import Completion
from tests.support.commands import asking, blb, options
from tests.support.exact import ExactModel, ExactServer
from tests.support.questions import write_rows

pytestmark = pytest.mark.usefixtures("quick_retries")
MODEL = ExactModel(12, 8, end=True, prompts=4)
CHANGES_AT = 10


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Thirty questions, ten of them to learn from."""
    path = tmp_path / "data.jsonl"
    splits = ["train"] * 10 + ["validation"] * 10 + ["test"] * 10
    rows = (
        {"prompt": f"question {n}", "answer": "a", "split": split} for n, split in enumerate(splits)
    )
    write_rows(path, rows)
    return path


@pytest.fixture
def collect(data: Path, tmp_path: Path) -> Callable[..., Result]:
    """``blb collect`` of 20 completions from a server, one at a time."""

    def run(server: ExactServer, *more: object) -> Result:
        where = asking(server, out=tmp_path / "run", data=data)
        task = options(reward="length", samples_per_prompt=2, concurrency=1)
        given = [str(each) for each in more]
        limit = [] if "--max-tokens" in given else ["--max-tokens", "8"]
        return blb("collect", *where, *task, *limit, *given)

    return run


def changed(number: int, answer: Any) -> Any:
    """Another model answers from the eleventh completion on."""
    return {**answer, "model": "exact-2"} if number >= CHANGES_AT else answer


def record(tmp_path: Path) -> Any:
    """run.json."""
    return json.loads((tmp_path / "run" / FILE).read_text())


def keys_by_model(tmp_path: Path) -> dict[str, int]:
    """Model in the settings of the requests -> completions stored."""
    with RolloutStore(tmp_path / "run" / "rollouts.db") as store:
        return {
            settings["model"]: len(store.keys(name)) for name, settings in store.requests().items()
        }


def test_another_one_answers(collect: Callable[..., Result], tmp_path: Path) -> None:
    """It stops with both names; what the first answered is kept, what the other did is apart, and
    noting it is a choice.
    """
    both = "the model that answers changed from 'exact' to 'exact-2'"
    with ExactServer(MODEL, faults=changed) as server:
        result = collect(server)
        assert result.exit_code == 2
        assert both in result.stderr
        assert "--on-drift note" in result.stderr
        assert sorted(keys_by_model(tmp_path).values()) == [1, CHANGES_AT]
        assert keys_by_model(tmp_path)["exact"] == CHANGES_AT
        assert record(tmp_path)["runs"]["collect"]["stopped_by"] == "Drifted"
        assert collect(server).exit_code == 2, "the other one still answers"
        noted = collect(server, "--on-drift", "note")
        assert noted.exit_code == 0, noted.output
        assert f"{both}: noted" in noted.stderr
    assert keys_by_model(tmp_path)["exact"] == 20


def test_another_one_answers_the_next_day(collect: Callable[..., Result], tmp_path: Path) -> None:
    """A finished run that is extended knows who answered it."""
    with ExactServer(MODEL) as server:
        assert collect(server).exit_code == 0
    assert record(tmp_path)["answered"][0]["models"] == {"exact": 20}
    with ExactServer(MODEL, faults=lambda number, answer: {**answer, "model": "exact-2"}) as server:
        result = collect(server, "--samples-per-prompt", 3)
    assert result.exit_code == 2
    assert "from 'exact' to 'exact-2'" in result.stderr


def test_the_tokenizer_changes(
    collect: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is asked again at the end of a stage; the run stops with both fingerprints, and is not
    resumed without --restart.
    """
    with ExactServer(MODEL) as server:
        calls = 0

        def other(path: str, body: dict[str, Any]) -> Any:
            nonlocal calls
            answer = post(path, body)
            if path == "/tokenize" and isinstance(answer, dict):
                calls += 1
                return answer if calls == 1 else {"tokens": list(reversed(answer["tokens"]))}
            return answer

        post = server.post
        monkeypatch.setattr(server, "post", other)
        result = collect(server)
        assert result.exit_code == 2, result.output
        found = re.search(
            r"the tokenizer of exact changed from (\S+) to (\S+) while", result.stderr
        )
        assert found is not None, result.stderr
        assert found[1] != found[2]
        assert keys_by_model(tmp_path) == {"exact": 20}
        monkeypatch.setattr(server, "post", post)
        refused = collect(server)
        assert refused.exit_code == 2
        assert "its last completions may be of either" in refused.stderr
        assert collect(server, "--restart").exit_code == 0


def test_a_run_that_was_not_finished_keeps_its_settings(
    collect: Callable[..., Result], tmp_path: Path
) -> None:
    """Every difference is listed and nothing is sent; --restart goes on, nothing stored is lost or
    mixed.
    """
    with ExactServer(MODEL) as server:
        assert collect(server, "--max-requests", 7).exit_code == 2
        sent = len(server.requests)
        refused = collect(server, "--max-tokens", 5, "--top-logprobs", 3)
        assert refused.exit_code == 2
        assert (
            "was not finished and had other settings: max_tokens 8 -> 5; top_logprobs 20 -> 3;"
            in refused.stderr
        )
        assert all(path == "/tokenize" for path, _ in server.calls[sent:])
        again = collect(server, "--max-tokens", 5, "--top-logprobs", 3, "--restart")
        assert again.exit_code == 0, again.output
        done = collect(server)
        assert done.exit_code == 0, done.output
        assert sum(path.endswith("/completions") for path, _ in server.calls) == 40


def test_a_finished_run_may_have_other_settings(
    collect: Callable[..., Result], tmp_path: Path
) -> None:
    """As before there was a record of it; what needed no request is finished, too."""
    with ExactServer(MODEL) as server:
        assert collect(server).exit_code == 0
        assert collect(server, "--max-tokens", 5).exit_code == 0
        assert collect(server, "--max-tokens", 6, "--max-requests", 19).exit_code == 2
        assert collect(server, "--max-tokens", 6).exit_code == 0
        assert collect(server).exit_code == 0
    assert record(tmp_path)["runs"]["collect"]["finished"] is True


def test_a_reward_that_teaches_nothing_is_an_end(data: Path, tmp_path: Path) -> None:
    """A fit whose input was wrong has ended: its remedy, other prompts or another limit, is not
    refused.
    """
    with ExactServer(MODEL) as server:
        where = asking(server, out=tmp_path / "run", data=data, reward="regex:never ever")
        fit = ["fit", *where, *options(samples_per_prompt=2)]
        nothing = blb(*fit, "--max-tokens", "8")
        assert nothing.exit_code == 2, nothing.output
        again = blb(*fit, "--max-tokens", "5")
        assert "was not finished" not in again.stderr


@pytest.fixture
def command(data: Path, tmp_path: Path) -> Callable[..., Result]:
    """``blb fit`` or ``blb eval`` of little in the same folder."""

    def run(name: str, server: ExactServer, reward: str, *more: object) -> Result:
        where = asking(server, out=tmp_path / "run", data=data, reward=reward, max_tokens=8)
        return blb(name, *where, *options(deploy="greedy", test_limit=10), "--quiet", *more)

    return run


@pytest.mark.parametrize(
    ("name", "files"),
    [
        ("fit", {"result.json", "bias.json", "learned.json", "report.html", "evaluation.json"}),
        ("eval", {"evaluation.json", "report.html"}),
    ],
)
def test_results_about_something_else_are_not_replaced(
    command: Callable[..., Result], tmp_path: Path, name: str, files: set[str]
) -> None:
    """Another reward is refused before a completion is asked for; with --restart the old results
    and their page move into a folder; the same run is repeated as ever.
    """
    folder, small = tmp_path / "run", ["--samples-per-prompt", 4] if name == "fit" else []
    with ExactServer(MODEL) as server:
        first = command(name, server, "length", *small)
        assert first.exit_code == 0, first.output
        for extra in ("report.html", "evaluation.json"):
            if not (folder / extra).exists():
                (folder / extra).write_text("{}")
        before = {path.name: path.read_bytes() for path in folder.iterdir() if path.name in files}
        assert before.keys() == files
        sent = len(server.calls)
        refused = command(name, server, "accuracy", *small)
        assert refused.exit_code == 2
        for part in (str(folder), "'length' -> 'accuracy'", "--restart"):
            assert part in refused.stderr
        assert not any("completions" in path for path, _ in server.calls[sent:])
        assert {file: (folder / file).read_bytes() for file in files} == before
        repeated = command(name, server, "length", *small)
        assert repeated.exit_code == 0, repeated.output
        assert "report.html" in repeated.stdout, "the page is of the results before"
        assert not any("completions" in path for path, _ in server.calls[sent:])
        before = {file: (folder / file).read_bytes() for file in files}
        (folder / "replaced-2").mkdir()  # of an earlier one that was replaced, and removed since
        other = command(name, server, "accuracy", *small, "--restart")
        assert other.exit_code == 0, other.output
        assert {
            path.name: path.read_bytes() for path in (folder / "replaced-1").iterdir()
        } == before
        assert not (folder / "report.html").exists()
        assert command(name, server, "accuracy", *small).exit_code == 0
        assert command(name, server, "length", *small).exit_code == 2


HOLD = """
import sys, time
from pathlib import Path
from blackbox_lb.jobs.records.run_record import work_in
with work_in(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


def test_two_commands_in_one_folder(
    command: Callable[..., Result], collect: Callable[..., Result], tmp_path: Path
) -> None:
    """The second one is refused, with the folder's name, before it asks for a completion; a killed
    one is in nobody's way.
    """
    (tmp_path / "run").mkdir()
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path / "run")], stdout=subprocess.PIPE, text=True
    )
    with holder, ExactServer(MODEL) as server:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        for refused in (collect(server), command("eval", server, "length")):
            assert refused.exit_code == 2
            assert f"at work in {tmp_path / 'run'}" in refused.stderr
        assert not any("completions" in path for path, _ in server.calls)
        holder.kill()
        holder.wait()
        assert collect(server).exit_code == 0


@pytest.mark.parametrize("text", ["{", "[]", '{"runs": 3}', "[" * 100_000])
def test_a_record_that_is_none(collect: Callable[..., Result], tmp_path: Path, text: str) -> None:
    """One sentence, with the remedy."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / FILE).write_text(text)
    with ExactServer(MODEL) as server:
        result = collect(server)
    assert result.exit_code == 2
    assert f"{FILE}: " in result.stderr
    assert "the completions are in the store" in result.stderr
    assert result.stderr.count("\n") == 1


def completion(model: str, system: str = "", finish: str = "stop") -> Completion:
    """One that says who answered."""
    return replace(Completion.empty(finish, model), fingerprint=system)


def test_a_fleet_has_many_systems() -> None:
    """At OpenAI one name is answered by several systems: they are counted and remarked once each,
    and another name still stops.
    """
    assert load_profile("openai").models.fleet
    assert not load_profile("vllm").models.fleet
    watch = DriftWatch()
    for system in ("fp_1", "fp_2", "fp_1", "", "fp_2"):
        assert watch.seen([completion("gpt", system)], fleet=True) is None
    assert len(watch.notices) == 1
    assert watch.systems == {"fp_1": 2, "fp_2": 2, "": 1}
    assert watch.seen([completion("gpt-2", "fp_1")], fleet=True) is not None
    assert "gpt-2" not in watch.models
    assert DriftWatch("stop").seen([completion("gpt", "fp_1")], fleet=True) is None


def test_what_a_filter_withheld_says_nothing() -> None:
    """Azure answers a filtered prompt with an error, which names no model."""
    watch = DriftWatch()
    assert watch.seen([completion("deployment", finish="content_filter")], fleet=False) is None
    assert watch.seen([completion("gpt")], fleet=False) is None
    assert watch.models == {"gpt": 1}
