"""The end of a hosted model is said where the model is used: by commands on stderr, by ``apply`` in
the log.
"""

from __future__ import annotations

import datetime as dt
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import openai
import pytest

from blackbox_lb import Bias, apply
from blackbox_lb.bias.records import Entry
from tests.encodings import register_encoding
from tests.support.commands import blb
from tests.support.exact import ExactModel, ExactServer
from tests.support.gateway import RulesGateway
from tests.support.questions import write_questions

KEY = "sk-gateway-0123456789abcdefghijklmnop"
MODEL = ExactModel(40, 8, end=True, prompts=4, sharpness=0.7)


def on(day: str) -> Any:
    """A module ``datetime`` in which it is that day."""

    class Today(dt.date):
        @classmethod
        def today(cls) -> Any:
            return dt.date.fromisoformat(day)

    return SimpleNamespace(date=Today)


def collect(folder: Path, provider: str, model: str) -> list[str]:
    """A command that draws a few completions."""
    data = write_questions(folder / "data.jsonl", 9)
    command = ["collect", "--provider", provider, "--model", model, "--data", str(data)]
    command += ["--reward", "length", "--max-tokens", "4", "--samples-per-prompt", "1"]
    return [*command, "--out", str(folder / "run")]


@pytest.mark.parametrize(
    ("day", "options", "times"),
    [
        ("2026-10-15", [], 0),
        ("2026-10-16", [], 1),
        ("2026-12-01", ["--quiet"], 0),
    ],
)
def test_a_command_says_it_once(
    day: str, options: list[str], times: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On stderr, within 90 days and after; not where the command line asks for silence."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setattr("blackbox_lb.cli.keys.dt", on(day))
    with ExactServer(MODEL) as server, RulesGateway("openai", server, key=KEY) as gateway:
        register_encoding(monkeypatch, "ending", server.texts, 39)
        command = collect(tmp_path, "openai", "gpt-4o-mini")
        command += ["--base-url", gateway.base_url, "--tokenizer", "ending"]
        result = blb(*command, *options)
    assert result.exit_code == 0, result.output
    assert result.stderr.count("gpt-4o-mini end") == times
    assert "gpt-4o-mini end" not in result.stdout
    if times:
        assert "2027-01-14" in result.stderr
        assert "--hosts NAME" in result.stderr
        assert "in 90 days" in result.stderr
        assert "gpt-6-luna" in result.stderr, "the successor, which takes no bias"


@pytest.mark.parametrize("model", ["gpt-4o-mini-2024-07-18", "acme-1"])
def test_the_model_behind_a_deployment_is_told_by_its_answers(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The deployment's own name says nothing of it."""
    monkeypatch.setenv("AZURE_OPENAI_API_KEY", KEY)
    monkeypatch.setattr("blackbox_lb.cli.keys.dt", on("2026-11-25"))

    def named(_: int, answer: dict[str, Any]) -> dict[str, Any]:
        return {**answer, "model": model}

    with ExactServer(MODEL, faults=named) as server:
        register_encoding(monkeypatch, "behind", server.texts, 39)
        profile = tmp_path / "mine.toml"
        profile.write_text(
            f'extends = "azure"\n[connection]\nbase_url = "{server.base_url}"\nbase_path = ""\n'
            "[sampling]\nn = 1\nshares_prompt = false\n"
        )
        command = [*collect(tmp_path, str(profile), "prod"), "--tokenizer", "behind"]
        result = blb(*command)
    assert result.exit_code == 0, result.output
    assert ("gpt-4o-mini-2024-07-18 ended on 2026-10-01" in result.stderr) is (model != "acme-1")


@pytest.mark.parametrize(
    ("provider", "day", "records"),
    [("openai", "2026-10-15", 0), ("openai", "2026-10-16", 1), ("llamacpp", "2026-10-16", 0)],
)
def test_apply_says_it_in_the_log(
    provider: str,
    day: str,
    records: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A warning for the bias's own provider, and none for a model that is no host's."""
    monkeypatch.setattr("blackbox_lb.deploy.request_policy.dt", on(day))
    bias = Bias(
        provider=provider,
        model="gpt-4o-mini",
        tokenizer="probe-sha256:aa",
        reward="exact-match",
        estimator="projection",
        entries=(Entry(id=5, bias=1.0),),
    )
    with caplog.at_level(logging.WARNING, "blackbox_lb.deploy.request_policy"):
        apply(openai.OpenAI(api_key="k", base_url="http://127.0.0.1:9/v1"), bias)
    messages = [record.getMessage() for record in caplog.records]
    assert len([message for message in messages if "2027-01-14" in message]) == records
