"""``blb doctor``: what it will ask, a table of findings, a profile that a fit can use, and exit
codes that a script can read.
"""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from blackbox_lb.providers.profile import load_profile
from tests.support.commands import asking, blb, refusal, refused
from tests.support.exact import ExactModel, ExactServer
from tests.support.exact.llamacpp_answers import RefusedRequest
from tests.support.exact.server import Answer
from tests.support.questions import questions, write_rows

MODEL = ExactModel(26, 16, end=True, prompts=8, sharpness=0.9)


@pytest.fixture
def server() -> Iterator[ExactServer]:
    """An exact model with an end token."""
    with ExactServer(MODEL) as running:
        yield running


def doctor(server: ExactServer, *arguments: object) -> Result:
    """The command against a llama.cpp-like server, one request at a time, so that it repeats
    exactly.
    """
    return blb("doctor", *asking(server, concurrency=1), *arguments)


class Narrow(ExactServer):
    """No more than 10 entries of a bias."""

    def post(self, path: str, body: dict[str, Any]) -> Answer:
        """Refuses a larger one, as an API does that has a limit."""
        if len(body.get("logit_bias", [])) > 10:
            raise RefusedRequest(400, "too many entries in logit_bias")
        return super().post(path, body)


def test_an_honest_server(server: ExactServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit code 0, the plan on stderr before the first request, counts and the time left while a
    stage runs and its results at its end, and a row a claim.
    """
    monkeypatch.setattr("blackbox_lb.cli.commands.doctor.EVERY", 0.0)
    result = doctor(server)
    assert result.exit_code == 0, result.output
    said = result.stderr
    plan = re.match(r"llama.cpp server: at most 119 requests and ([\d,]+) completion tokens", said)
    assert plan is not None
    asked = [body["max_tokens"] for path, body in server.calls if path.endswith("completions")]
    assert sum(asked) <= int(plan[1].replace(",", ""))
    counts = re.findall(r"(\d+)/119 requests, about \d+ (?:s|min) left", said)
    assert counts == sorted(counts, key=int)
    assert len(counts) > 50
    assert re.search(r"^  neutral sampling +CONFIRMED neutral$", said, flags=re.MULTILINE)
    for word in ("logprobs.meaning", "bias.entries", "neutral", "CONFIRMED", "0 contradicted"):
        assert word in result.stdout
    assert "CONTRADICTED" not in result.stdout


@pytest.mark.parametrize(
    ("interrupted", "code", "said"),
    [
        (False, 2, "401"),
        pytest.param(
            *(True, 130, "Interrupted after"),
            marks=pytest.mark.skipif(os.name == "nt", reason="no SIGINT to send"),
        ),
    ],
    ids=["refused key", "Ctrl-C"],
)
def test_what_is_established_until_it_ends_is_printed(
    server: ExactServer, tmp_path: Path, interrupted: bool, code: int, said: str
) -> None:
    """The table of the finished stages, how far it came, and nothing that is saved."""

    def end(number: int, answer: dict[str, Any]) -> Answer:
        if len(server.calls) < 40:
            return answer
        if interrupted:
            os.kill(os.getpid(), signal.SIGINT)
            return answer
        return 401

    server.faults = end
    result = doctor(server, "--save", tmp_path / "mine.toml")
    assert result.exit_code == code, result.output
    assert "CONFIRMED" in result.stdout
    assert said in result.stderr
    assert "Traceback" not in result.output
    assert not (tmp_path / "mine.toml").exists()
    if not interrupted:
        assert "did not reach its end" in result.stderr
        server.calls.clear()
        document = json.loads(doctor(server, "--json").stdout)
        assert "401" in document["ended"]
        assert document["findings"]


def test_json(server: ExactServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """One document: every finding with its row, claim, status, evidence and true value; and the
    costs. With --quiet no stage says anything.
    """
    monkeypatch.setattr("blackbox_lb.cli.commands.doctor.EVERY", 0.0)
    result = doctor(server, "--json", "--quiet")
    assert "requests," not in result.stderr.partition("\n")[2]
    document = json.loads(result.stdout)
    told = {name: document[name] for name in ("contradicted", "saved", "model")}
    assert told == {"contradicted": 0, "saved": None, "model": "exact"}
    assert 0 < document["requests"] < 120
    assert document["completion_tokens"] > 0
    assert {"row", "claim", "status", "evidence", "found"} == set(document["findings"][0])


def test_a_contradiction_is_exit_code_1_and_is_saved_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a server with a limit the saved profile tells it, a second self-test is clean, and a fit
    keeps within it. The address that was given is saved to stay: a variable of the provider that
    the profile extends does not send the next run elsewhere.
    """
    path = tmp_path / "mine.toml"
    data = write_rows(tmp_path / "data.jsonl", questions(8, 4, 8, answer="a"))
    fit = f"fit --provider {path} --data {data} --reward length --max-tokens 8 --quiet"
    fit += f" --out {tmp_path / 'run'} --entries 10"
    fit += " --samples-per-prompt 4 --validation-samples 2 --test-samples 2"
    with Narrow(MODEL) as server:
        first = doctor(server, "--save", path)
        assert first.exit_code == 1, first.output
        assert "CONTRADICTED" in first.stdout
        assert load_profile(str(path)).bias.entries == 10
        monkeypatch.setenv("LLAMACPP_BASE_URL", "http://127.0.0.1:9/v1")
        again = blb("doctor", "--provider", path, "--concurrency", "1")
        assert again.exit_code == 0, again.output
        fitted = blb(*fit.split())
    assert fitted.exit_code == 0, fitted.output


def test_what_no_profile_cures_is_not_saved(server: ExactServer, tmp_path: Path) -> None:
    """The findings are printed, the reason is told, and no file is written."""
    dialect = server._dialect
    dialect._bias = lambda given: type(dialect)._bias(dialect, None)  # type: ignore[method-assign]
    result = doctor(server, "--save", tmp_path / "mine.toml")
    assert result.exit_code == 1
    assert "no profile was saved" in result.stderr
    assert "ignored" in result.stderr
    assert "CONTRADICTED" in result.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("kind", "said"), [(ExactServer, "0 contradicted"), (Narrow, "CONTRADICTED")]
)
def test_a_profile_that_cannot_be_written_is_exit_code_2(
    tmp_path: Path, kind: type[ExactServer], said: str
) -> None:
    """The findings were paid for and are printed; also where something is contradicted."""
    (tmp_path / ".mine.new.toml").mkdir()
    with kind(MODEL) as server:
        result = doctor(server, "--save", tmp_path / "mine.toml")
    assert result.exit_code == 2, result.output
    assert said in result.stdout
    assert "cannot write" in result.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("openai --model gpt-4o", "set the environment variable OPENAI_API_KEY"),
        ("azure --model o3", "cannot be adapted"),
        ("azure --model gpt-4o --endpoint responses", "no responses endpoint"),
        ("fireworks", "name the model or deployment with --model"),
        ("fireworks --model a/b", "--yes"),
        ("llamacpp --base-url http://127.0.0.1:9/v1", "no answer from http://127.0.0.1:9"),
        ("llamacpp --save mine.json", "mine.json"),
        ("llamacpp --save none/mine.toml", "none"),
        ("own.toml --save own.toml", "--save own.toml"),
    ],
)
def test_what_is_refused_before_anything_is_asked(
    words: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A missing key, a model that cannot be adapted, none named, no such endpoint, no server, and a
    profile that could not be saved; where money would be spent and nobody is there to say yes,
    --yes is named, and only there.
    """
    monkeypatch.chdir(tmp_path)
    Path("own.toml").write_text('extends = "llamacpp"\nname = "own"\n')
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setenv("AZURE_OPENAI_API_KEY", "k")
    monkeypatch.setenv("AZURE_OPENAI_ENDPOINT", "https://mine.openai.azure.com")
    monkeypatch.setenv("FIREWORKS_API_KEY", "k")
    refusal_of = refused("doctor", "--provider", *words.split())
    assert said in refusal_of
    assert ("--yes" in refusal_of) is (said == "--yes")


def test_a_server_without_logprobs(server: ExactServer) -> None:
    """Nothing can be checked: exit code 2 and the reason."""

    def silent(number: int, answer: dict[str, Any]) -> dict[str, Any]:
        answer["choices"][0]["logprobs"] = None
        return answer

    server.faults = silent
    assert "no logprobs" in refusal(doctor(server))
