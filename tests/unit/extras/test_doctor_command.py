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
from tests.support.commands import blb, refusal
from tests.support.exact import ExactModel, ExactServer
from tests.support.exact.llamacpp_answers import RefusedRequest
from tests.support.exact.server import Answer
from tests.support.questions import questions, write_rows

ROWS = questions(8, 4, 8, answer="a")


@pytest.fixture
def server() -> Iterator[ExactServer]:
    """An exact model with an end token."""
    with ExactServer(ExactModel(26, 16, end=True, prompts=8, sharpness=0.9)) as running:
        yield running


def doctor(server: ExactServer | str, *arguments: object) -> Result:
    """The command against a llama.cpp-like server, one request at a time, so that it repeats
    exactly.
    """
    address = server if isinstance(server, str) else server.base_url
    where = ["doctor", "--provider", "llamacpp", "--base-url", address, "--concurrency", "1"]
    return blb(*where, *arguments)


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
    assert said.startswith("llama.cpp server: at most 119 requests and ")
    counts = re.findall(r"(\d+)/119 requests, about \d+ (?:s|min) left", said)
    assert counts == sorted(counts, key=int)
    assert len(counts) > 50
    assert re.search(r"^  neutral sampling +CONFIRMED neutral$", said, flags=re.MULTILINE)
    for word in ("logprobs.meaning", "bias.entries", "neutral", "CONFIRMED", "0 contradicted"):
        assert word in result.stdout
    assert "CONTRADICTED" not in result.stdout


class Leaving(ExactServer):
    """A key that is refused after 40 requests."""

    def post(self, path: str, body: dict[str, Any]) -> Answer:
        """Refuses, as an API does whose credit or key ends."""
        if len(self.calls) > 40:
            raise RefusedRequest(401, "the key has expired")
        return super().post(path, body)


def test_what_ends_it_in_the_middle_comes_after_the_table(tmp_path: Path) -> None:
    """What was established until then is printed and not saved; the error ends the command."""
    with Leaving(ExactModel(26, 16, end=True, prompts=8, sharpness=0.9)) as server:
        result = doctor(server, "--save", tmp_path / "mine.toml")
        assert result.exit_code == 2, result.output
        assert "CONFIRMED" in result.stdout
        assert "did not reach its end" in result.stderr
        assert "401" in result.stderr
        assert not (tmp_path / "mine.toml").exists()
        server.calls.clear()
        document = json.loads(doctor(server, "--json").stdout)
    assert "401" in document["ended"]
    assert document["findings"]


@pytest.mark.skipif(os.name == "nt", reason="no SIGINT to send")
def test_ctrl_c_prints_what_is_established(
    server: ExactServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table of the finished stages, one line on how far it came, and exit code 130."""
    requests = 0

    def interrupt(number: int, answer: dict[str, Any]) -> dict[str, Any]:
        nonlocal requests
        requests += 1
        if requests == 40:
            os.kill(os.getpid(), signal.SIGINT)
        return answer

    server.faults = interrupt
    result = doctor(server)
    assert result.exit_code == 130, result.output
    assert "CONFIRMED" in result.stdout
    assert re.search(r"Interrupted after \d+ of 119 requests", result.stderr)
    assert "Traceback" not in result.output


def test_json(server: ExactServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """One document: every finding with its row, claim, status, evidence and true value; and the
    costs. With --quiet no stage says anything.
    """
    monkeypatch.setattr("blackbox_lb.cli.commands.doctor.EVERY", 0.0)
    result = doctor(server, "--json", "--quiet")
    assert "requests," not in result.stderr.partition("\n")[2]
    document = json.loads(result.stdout)
    assert document["contradicted"] == 0
    assert document["saved"] is None
    assert document["model"] == "exact"
    assert 0 < document["requests"] < 120
    assert document["completion_tokens"] > 0
    assert {"row", "claim", "status", "evidence", "found"} == set(document["findings"][0])


def test_a_contradiction_is_exit_code_1_and_is_saved_right(tmp_path: Path) -> None:
    """Of a server with a limit the saved profile tells it, a second self-test is clean, and a fit
    keeps within it.
    """
    path, data = tmp_path / "mine.toml", tmp_path / "data.jsonl"
    write_rows(data, ROWS)
    fit = (
        f"fit --provider {path} --data {data} --reward length --max-tokens 8 --quiet --out"
        f" {tmp_path / 'run'} --entries 10 "
    )
    fit += "--samples-per-prompt 4 --validation-samples 2 --test-samples 2"
    with Narrow(ExactModel(26, 16, end=True, prompts=8, sharpness=0.9)) as server:
        first = doctor(server, "--save", path)
        assert first.exit_code == 1, first.output
        assert "CONTRADICTED" in first.stdout
        assert load_profile(str(path)).bias.entries == 10
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


def test_a_profile_that_cannot_be_written_is_exit_code_2(
    server: ExactServer, tmp_path: Path
) -> None:
    """The findings were paid for and are printed; also where something is contradicted."""
    path = tmp_path / "mine.toml"
    (tmp_path / ".mine.new.toml").mkdir()
    result = doctor(server, "--save", path)
    assert result.exit_code == 2, result.output
    assert "0 contradicted" in result.stdout
    assert "cannot write" in result.stderr
    with Narrow(ExactModel(26, 16, end=True, prompts=8, sharpness=0.9)) as narrow:
        result = doctor(narrow, "--save", path)
    assert result.exit_code == 2, result.output
    assert "CONTRADICTED" in result.stdout


def test_an_address_that_was_given_is_saved_to_stay(
    server: ExactServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The variable of the provider it extends does not send the next run elsewhere."""
    path = tmp_path / "mine.toml"
    assert doctor(server, "--save", path).exit_code == 0
    monkeypatch.setenv("LLAMACPP_BASE_URL", "http://127.0.0.1:9/v1")
    again = blb("doctor", "--provider", path, "--concurrency", "1", "--quiet")
    assert again.exit_code == 0, again.output


def test_what_can_be_refused_is_refused_before_the_question(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A missing key, a model that cannot be adapted, none named and an endpoint that does not
    exist: nobody is asked for a yes.
    """
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    ask = ["doctor", "--provider", "openai", "--model"]
    assert "set the environment variable OPENAI_API_KEY" in refusal(blb(*ask, "gpt-4o"))
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    for arguments, word in (
        ([*ask, "o3"], "cannot be adapted"),
        ([*ask, "gpt-4o", "--endpoint", "responses"], "no responses endpoint"),
        (["doctor", "--provider", "fireworks"], "name the model or deployment with --model"),
    ):
        said = refusal(blb(*arguments))
        assert word in said
        assert "--yes" not in said


def test_nothing_answers() -> None:
    """The address that did not answer is named."""
    assert "no answer from http://127.0.0.1:9" in refusal(doctor("http://127.0.0.1:9/v1"))


def test_money_is_not_spent_unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a key is needed and nobody is there to say yes, nothing is sent, and the remedy is
    named.
    """
    monkeypatch.setenv("FIREWORKS_API_KEY", "k")
    said = refusal(blb("doctor", "--provider", "fireworks", "--model", "a/b"))
    assert "--yes" in said


def test_a_server_without_logprobs(server: ExactServer) -> None:
    """Nothing can be checked: exit code 2 and the reason."""

    def silent(number: int, answer: dict[str, Any]) -> dict[str, Any]:
        answer["choices"][0]["logprobs"] = None
        return answer

    server.faults = silent
    assert "no logprobs" in refusal(doctor(server))
