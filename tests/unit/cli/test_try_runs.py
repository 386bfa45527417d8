"""``blb try``, ``blb runs``, ``blb providers``, ``--dry-run``, ``--rivals``, ``--examples`` and
``--system``, and what is refused before it is paid for.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from blackbox_lb.bias.document import Bias
from blackbox_lb.bias.records import PromptRecord
from blackbox_lb.bias.request_bias import RequestBias
from blackbox_lb.jobs.runs.answers import moved_tokens
from blackbox_lb.types import Completion, Prompt
from tests.support.commands import asking, blb, options, refused
from tests.support.exact import ExactModel, ExactServer
from tests.support.questions import write_questions

MODEL = ExactModel(12, 8, end=True, prompts=4, sharpness=0.7)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """40 rows of prompts."""
    return write_questions(tmp_path_factory.mktemp("data") / "rows.jsonl", 40)


def small_fit(server: ExactServer, data: Path, *more: object) -> tuple[object, ...]:
    """Options of a short run."""
    drawn = options(samples_per_prompt=4, validation_samples=2, test_samples=2)
    return (*asking(server, data=data, reward="length", max_tokens=8, seed=1), *drawn, *more)


@pytest.fixture(scope="module")
def folder(server: ExactServer, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished fit."""
    out = tmp_path_factory.mktemp("runs") / "short"
    result = blb("fit", *small_fit(server, data, "--samples-per-prompt", 8, "--out", out))
    assert result.exit_code == 0, result.output
    return out


def test_try_shows_both_answers(server: ExactServer, folder: Path) -> None:
    """Each prompt has the base's answer and the biased one; prompts come as arguments, or from the
    input, a line each, until its end.
    """
    call = ("try", folder / "bias.json", *asking(server))
    for result in (
        blb(*call, "question 1", "question 2"),
        blb(*call, input="question 1\n\nquestion 3\n"),
    ):
        assert result.exit_code == 0, result.output
        assert result.stdout.count("prompt  question") == 2
        assert result.stdout.count("biased  ") == 2
    (row,) = json.loads(blb(*call, "q " * 200, "--json").stdout)["answers"]
    assert row["base"] != row["biased"] or not Bias.load(folder / "bias.json").entries


@pytest.fixture(scope="module")
def templated(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bias file of a fit with a template and a system message."""
    path = tmp_path_factory.mktemp("templated") / "bias.json"
    made = PromptRecord(template="Ticket: {ticket_text!s}\nTeam:", system="Be short.")
    Bias.load(folder).replacing(prompts=made).save(path)
    return path


@pytest.mark.parametrize(
    ("more", "sent"),
    [
        ((), [("system", "Be short."), ("user", "Ticket: hello\nTeam:")]),
        (("--raw",), [("user", "hello")]),
        (("--system", "S"), [("system", "S"), ("user", "Ticket: hello\nTeam:")]),
        (("--raw", "--system", "S"), [("system", "S"), ("user", "hello")]),
    ],
)
def test_try_asks_as_the_fit_did(
    server: ExactServer, templated: Path, more: tuple[str, ...], sent: list[tuple[str, str]]
) -> None:
    """The prompt fills the template of the fit, after its system message, and that is said."""
    before = len(server.requests)
    result = blb("try", templated, "hello", *asking(server), *more)
    assert result.exit_code == 0, result.output
    messages = [body["messages"] for body in server.requests[before:] if "messages" in body]
    assert messages
    for asked in messages[-2:]:
        assert [(message["role"], message["content"]) for message in asked] == sent
    assert ("template 'Ticket: {ticket_text!s}" in result.stderr) is ("--raw" not in more)


@pytest.mark.parametrize("template", ["{a} and {b}", "no column"])
def test_a_template_that_one_text_does_not_fill_is_refused(
    server: ExactServer, templated: Path, tmp_path: Path, template: str
) -> None:
    """Before a request, with the way out."""
    path = tmp_path / "b.json"
    Bias.load(templated).replacing(prompts=PromptRecord(template=template)).save(path)
    before = len(server.requests)
    assert "--raw" in refused("try", path, "hello", *asking(server))
    assert len(server.requests) == before


def test_a_fit_records_how_it_made_its_prompts(
    server: ExactServer, data: Path, tmp_path: Path
) -> None:
    """Every request has the system message and the template; the bias file says so, and goes where
    the bias goes.
    """
    before = len(server.requests)
    template = ("--prompt-template", "Q: {prompt}", "--system", "S", "--out", tmp_path)
    result = blb("fit", *small_fit(server, data, *template))
    assert result.exit_code == 0, result.output
    assert Bias.load(tmp_path).prompts == PromptRecord(template="Q: {prompt}", system="S")
    sent = [body["messages"] for body in server.requests[before:] if "messages" in body]
    assert {(first["role"], first["content"]) for first, _ in sent} == {("system", "S")}
    assert all(second["content"].startswith("Q: question") for _, second in sent)


def test_a_run_and_its_bias_file_are_one_argument(
    folder: Path, server: ExactServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every command that reads a bias takes either, and the newest run where none is given."""
    monkeypatch.chdir(folder.parent.parent)
    (folder.parent.parent / "runs").unlink(missing_ok=True)
    (folder.parent.parent / "runs").symlink_to(folder.parent)
    commands: list[tuple[str, ...]] = [
        ("show",),
        ("export", "--format", "json"),
        ("try", "one two " * 50, *asking(server)),
        ("compile", "--entries", "2", "--out", "compiled.json"),
    ]
    for name, *rest in commands:
        outputs = []
        for given in ((), ("runs/short",), ("runs/short/bias.json",)):
            result = blb(name, *given, *rest)
            assert result.exit_code == 0, (name, given, result.output)
            assert ("newest run: runs/short" in result.stderr) is (not given)
            outputs.append(result.stdout)
        assert len(set(outputs)) == 1, name
    assert blb("runs", "runs/short/bias.json").stdout.startswith("1 run")
    assert "Did you mean runs/short?" in refused("show", "runs/shor")


@pytest.mark.needs("matplotlib")
@pytest.mark.parametrize("opens", [True, False])
def test_the_report_is_opened(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, opens: bool
) -> None:
    """--open shows the page, and says where it is where no browser starts."""
    pages: list[str] = []

    def open_page(page: str) -> bool:
        pages.append(page)
        return opens

    monkeypatch.setattr("webbrowser.open", open_page)
    out = tmp_path / "page.html"
    result = blb("report", folder / "bias.json", "--out", out, "--open")
    assert result.exit_code == 0, result.output
    assert pages == [out.resolve().as_uri()]
    assert ("no browser could be started" in result.stderr) is not opens


def test_the_moved_tokens_are_found_in_the_text() -> None:
    """A token below the least bias is not moved; nor is any where the bytes of several tokens are
    others than the text.
    """
    bias, asked = RequestBias({0: 2.0, 1: 0.001, 3: -1.0}), Prompt.user("Where?")

    def moved(tokens: list[str], text: str) -> list[tuple[str, float]]:
        raw = {number: token.encode() for number, token in enumerate(tokens)}
        ids = np.arange(len(tokens), dtype=np.int32)
        drawn = replace(Completion.empty("stop"), text=text, token_ids=ids, token_bytes=raw)
        places = moved_tokens(drawn, raw, bias, asked)
        return [(text[place.start : place.end], place.bias) for place in places]

    words = ["Asia", ".", " It", " is"]
    assert moved(words, "Asia. It is") == [("Asia", 2.0), (" is", -1.0)]
    assert moved(["A", "si", "a"], "Europe") == []


def test_the_newest_run_is_found_by_its_date(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever was copied last. A result that was written before that date is not read."""
    monkeypatch.chdir(tmp_path)
    result = json.loads((folder / "result.json").read_text())
    dates = {"old": "2026-01-01", "new": "2026-03-01", "copied": "2026-02-01", "damaged": ""}
    for name, date in dates.items():
        shutil.copytree(folder, tmp_path / "runs" / name)
        result["provenance"]["date"] = f"{date}T00:00:00+00:00"
        text = json.dumps(result) if date else "{"
        (tmp_path / "runs" / name / "result.json").write_text(text)
    os.utime(tmp_path / "runs" / "damaged" / "result.json", (0, 0))
    shown = blb("show")
    assert "newest run: runs/new" in shown.stderr, shown.output
    os.utime(tmp_path / "runs" / "damaged" / "result.json")
    assert "runs/damaged/result.json" in refused("show")


def test_runs_lists_finished_fits(folder: Path, tmp_path: Path) -> None:
    """The newest first, by their own files; other folders are none; two names stand side by side,
    and so does a fit that was not judged. A damaged record of a run leaves out the cost alone, a
    damaged result its run.
    """
    rows = json.loads(blb("runs", folder.parent, "--json").stdout)["runs"]
    assert [row["folder"] for row in rows] == [str(folder)]
    assert rows[0]["metric"] == "T/len"
    assert rows[0]["entries"] == len(Bias.load(folder / "bias.json").entries)
    listed = blb("runs", folder.parent).stdout
    assert str(folder.name) in listed
    assert "1 run\n" in listed
    assert len(json.loads(blb("runs", folder, folder, "--json").stdout)["runs"]) == 2
    assert blb("runs", tmp_path).exit_code == 0
    refused("runs", tmp_path / "none")
    result = json.loads((folder / "result.json").read_text())
    (tmp_path / "result.json").write_text(json.dumps({**result, "verdict": []}))
    assert "UNVERIFIED" in blb("runs", tmp_path).stdout
    (tmp_path / "run.json").write_text("{")
    (row,) = json.loads(blb("runs", tmp_path, "--json").stdout)["runs"]
    assert (row["verdict"], row["dollars"]) == ("UNVERIFIED", None)
    (tmp_path / "result.json").write_text('{"verdict": [{}]}')
    assert "result.json" in refused("runs", tmp_path)
    shutil.copytree(folder, tmp_path / "whole")
    incomplete = blb("runs", tmp_path)
    assert "1 run\n" in incomplete.stdout
    assert "left out: " in incomplete.stderr


def test_a_dry_run_asks_nothing(
    server: ExactServer, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Splits, requests and dollars, without a folder, a store or a request; what a fit refuses is
    refused.
    """
    monkeypatch.chdir(tmp_path)
    before = len(server.requests)
    words = small_fit(server, data, "--dry-run", "--price", "1,2", "--json")
    document = json.loads(blb("fit", *words).stdout)
    assert len(server.requests) == before
    assert not list(tmp_path.iterdir())
    assert document["requests"] > 0
    assert document["most_dollars"] > 0
    assert "to judge" in document["understood"]
    task = options(provider="vllm", task="continents", reward="accuracy")
    said = blb("fit", *task, "--dry-run")
    assert said.exit_code == 0, said.output
    assert "Africa" in said.stdout
    for change, fact in (
        ({"base_url": "http://127.0.0.1:9/v1/chat/completions"}, "/chat/completions"),
        ({"provider": "openai", "model": "gpt-4.1"}, "nobody has proven"),
    ):
        task = options(**{"provider": "vllm", "task": "continents", "reward": "accuracy"} | change)
        assert fact in refused("fit", *task, "--dry-run")


def test_rivals_and_a_bias_are_one_sorted_table(
    server: ExactServer, data: Path, folder: Path
) -> None:
    """One row a policy, the highest reward first, a legend for the instruction, and a conclusion
    of at most 12 lines. Of a reward that no instruction asks for that is said.
    """
    judged = options(max_tokens=8, seed=1, out=folder, test_samples=2)
    command = ("eval", folder / "bias.json", *asking(server, data=data), *judged, "--rivals")
    result = blb(*command, *options(reward="length", deploy="temperature=1"))
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    first = next(place for place, line in enumerate(lines) if line.lstrip().startswith("policy"))
    legend = next(place for place, line in enumerate(lines) if line.startswith("prompt 1:"))
    rows = [line.split() for line in lines[first + 2 : legend] if line.strip()]
    evaluation = json.loads((folder / "evaluation.json").read_text())
    assert len(rows) == len(evaluation["policies"]) == 6
    rewards = [
        float(next(word for word in row if word.replace(".", "").isdigit() and "." in word))
        for row in rows
        if row[0] != "T"
    ]
    assert rewards == sorted(rewards, reverse=True)
    conclusion = lines[legend + 1 :]
    assert conclusion[0].startswith(("HELPS", "HURTS", "NO EVIDENCE"))
    assert len(conclusion) <= 12 + 4
    assert len(lines) <= 40
    other = blb(*command, *options(reward="regex:a", deploy="greedy"))
    assert "give yours with --rival prompt:TEXT" in " ".join(other.stderr.split())


def test_score_shows_the_best_and_the_worst(data: Path, folder: Path) -> None:
    """So many of each, of different prompts."""
    result = blb("score", folder, "--data", data, "--reward", "length", "--examples", 3)
    assert result.exit_code == 0, result.output
    assert result.stdout.count("best  ") == result.stdout.count("worst  ") == 3
    lines = [line.split() for line in result.stdout.splitlines()]
    best, worst = (
        [float(words[1].rstrip(",")) for words in lines if words[:1] == [kind]]
        for kind in ("best", "worst")
    )
    assert min(best) > max(worst)


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
    server: ExactServer,
    data: Path,
    tmp_path: Path,
    command: str,
    more: tuple[object, ...],
    profile: str,
    sentence: str,
) -> None:
    """An endpoint that gives none, or an option that asks for none, is refused first."""
    own = tmp_path / "own.toml"
    own.write_text(f'extends = "llamacpp"\nname = "own"\n[endpoints.chat]\n{profile}\n')
    where = options(provider=own, base_url=server.base_url, endpoint="chat")
    task = options(data=data, reward="length", max_tokens=8, out=tmp_path / "run")
    since = len(server.calls)
    assert sentence in refused(command, *where, *task, "--quiet", *more)
    assert not any(path.endswith("completions") for path, _ in server.calls[since:])
