"""The command line: providers, and what is refused before it is paid for."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.commands import asking, blb, options, refused
from tests.support.exact import ExactModel, ExactServer
from tests.support.questions import questions, write_rows


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Thirty questions in three splits."""
    return write_rows(tmp_path / "data.jsonl", questions(12, 6, 12, answer="a"))


@pytest.fixture
def server() -> Iterator[ExactServer]:
    """An exact model with an end token, so that some completions are shorter than others."""
    with ExactServer(ExactModel(12, 8, end=True, prompts=4, sharpness=0.7)) as running:
        yield running


@pytest.fixture
def call(data: Path, server: ExactServer, tmp_path: Path) -> Callable[..., tuple[object, ...]]:
    """Arguments of a small run against the exact model."""

    def arguments(*more: object) -> tuple[object, ...]:
        where = asking(server, data=data, out=tmp_path / "run", reward="length")
        return (*where, *options(max_tokens=8, top_logprobs=5), "--quiet", *more)

    return arguments


def test_providers() -> None:
    """The overview names every profile, the detail is its file and what that extends, and JSON is
    JSON.
    """
    overview = blb("providers").output
    assert all(name in overview for name in ("llamacpp", "local", "vllm"))
    (decides,) = (line.split() for line in overview.splitlines() if "typesafe" in line)
    assert decides == ["typesafe", "TYPESAFE_API_KEY", "decisions", "none", "recorded", "traffic"]
    detail = blb("providers", "vllm").output
    assert "replaces the last" in detail
    assert 'grade = "L"' in detail
    local = blb("providers", "local").output
    assert 'name = "llamacpp"' in local.partition("as in llamacpp")[2]
    assert json.loads(blb("providers", "vllm", "--json").stdout)[0]["bias"]["entries"] == 1024


@pytest.mark.parametrize(
    ("command", "more", "profile", "sentence"),
    [
        ("fit", (), "ask_logprobs = 'no'", "no logprobs on its chat endpoint"),
        ("collect", (), "ask_logprobs = 'no'", "no logprobs on its chat endpoint"),
        ("fit", ("--learn-from", "unlabelled", "--labels", "a,b"), "ask_logprobs = 'no'", "chat"),
        ("fit", ("--top-logprobs", 0), "", "--top-logprobs 0 asks for none"),
        ("collect", ("--top-logprobs", 0), "", "--top-logprobs 0 asks for none"),
    ],
)
def test_completions_without_logprobs_are_not_paid_for(
    call: Callable[..., tuple[object, ...]],
    server: ExactServer,
    tmp_path: Path,
    command: str,
    more: tuple[object, ...],
    profile: str,
    sentence: str,
) -> None:
    """An endpoint that gives none, or an option that asks for none, is refused first."""
    own = tmp_path / "own.toml"
    own.write_text(f'extends = "llamacpp"\nname = "own"\n[endpoints.chat]\n{profile}\n')
    said = refused(command, *call("--provider", own, "--endpoint", "chat", *more))
    assert sentence in " ".join(said.split())
    assert not any(path.endswith("completions") for path, _ in server.calls)
