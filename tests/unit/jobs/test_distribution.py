"""``--reward distribution``: answers with wanted shares, from the file to the verdict."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import Result

from blackbox_lb.errors import DataError
from blackbox_lb.store import RolloutStore
from blackbox_lb.tasks import load_task
from blackbox_lb.tasks.records.files import load_examples
from tests.support.commands import asking, blb, options, refusal
from tests.support.exact import ExactModel, ExactServer
from tests.support.printed import ended_well
from tests.support.questions import questions, write_rows

MODEL = ExactModel(
    14, 3, seed=3, prompts=12, unigram=np.where(np.isin(np.arange(14), (1, 2)), 1.0, 0.0), end=True
)
"""Tokens 1 and 2, " b" and " c", are the labels."""


def rows(answer: Any) -> list[dict[str, Any]]:
    """Questions of all splits with these shares."""
    return questions(60, 40, 40, answer=answer)


def run(command: str, server: ExactServer, data: Path, *more: object) -> Result:
    """A command with two tokens a completion."""
    where = asking(server, data=data, max_tokens=2, seed=1)
    return blb(command, *where, "--quiet", *more)


def test_labels_of_several_tokens_are_raced_by_completions(
    server: ExactServer, tmp_path: Path
) -> None:
    """The first token of a longer label does not tell whether the rest follows. The report shows
    the shares of all policies.
    """
    data = write_rows(tmp_path / "data.jsonl", rows({"b d": 1, "c e": 4}))
    few = options(limit=30, validation_limit=20, test_limit=5, test_samples=1)
    words = options(reward="distribution", out=tmp_path / "run")
    result = ended_well(run("fit", server, data, *words, *few, "--json"))
    tried = json.loads(result.stdout)["validation"]["tried"]
    (chosen,) = [candidate for candidate in tried if candidate["status"] == "chosen"]
    assert chosen["samples"] > 0
    rival = (tmp_path / "run" / "bias.json", "--rival", "drawn-label", "--go-on")
    assert run("eval", server, data, *words, *rival, "--test-samples", 1).exit_code == 0
    assert blb("report", tmp_path / "run").exit_code == 0
    page = (tmp_path / "run" / "report.html").read_text()
    assert 'id="shares"' in page
    assert page.count("label drawn in code") >= 3


@pytest.mark.parametrize(
    "answer",
    [
        {"b": -0.1, "c": 1.1},
        {"b": 0, "c": 0},
        {"b": 1},
        {},
        {"b": "half", "c": 1},
        {"b": True, "c": 1},
        {"b": 1e400, "c": 1},
        {"b": 1, "B": 2},
        {"b": 1, " ": 2},
        {"b": 1, "d": 2},
        "b",
        ["b", "c"],
    ],
    ids=str,
)
def test_bad_shares_are_errors_of_their_row(tmp_path: Path, answer: Any) -> None:
    """Shares that are negative, sum to 0, are of one label, no numbers, or of other labels than
    those of the other rows: the error names the row.
    """
    content = rows({"b": 0.2, "c": 0.8})
    content[7]["answer"] = answer
    path = write_rows(tmp_path / "data.jsonl", content)
    with pytest.raises(DataError) as caught:
        load_task(None, path)
    assert "line 8" in str(caught.value)


def test_counts_are_shares_in_every_format(tmp_path: Path) -> None:
    """An object of counts is the same as one of shares, in JSON Lines and as JSON text in CSV, in
    the column that is named. Equal rows count once; other shares for the same prompt are refused.
    """
    lines = tmp_path / "data.jsonl"
    table = tmp_path / "data.csv"
    half = '{"prompt": "p", "counts": {"yes": 3, "no": 1}}\n'
    lines.write_text(half + '{"prompt": "p", "counts": {"yes": 6, "no": 2}}\n')
    table.write_text('prompt,counts\np,"{""yes"": 6, ""no"": 2}"\n')
    for path in (lines, table):
        (example,) = load_examples(path, answer_column="counts")
        assert (example.answers, example.weights) == (("yes", "no"), (0.75, 0.25))
    lines.write_text(half + '{"prompt": "p", "counts": {"yes": 2, "no": 1}}\n')
    with pytest.raises(DataError):
        load_examples(lines, answer_column="counts")


@pytest.mark.parametrize(
    ("command", "more", "named"),
    [
        ("fit", ("--deploy", "greedy"), "greedy"),
        ("eval", ("--deploy", "greedy"), "greedy"),
        ("eval", ("--rival", "temperature:0"), "--rival temperature:0"),
        ("fit", ("--learn-from", "samples"), "--learn-from"),
        ("fit", ("--labels", "b,c"), "--labels"),
        ("fit", ("--objective", "pareto"), "--objective"),
        ("fit", ("--objective", "balanced"), "wanted shares"),
        ("fit", ("--reward", "distribution:town"), "town"),
        ("eval", ("--rival", "few-shot:2"), "--rival few-shot"),
        ("eval", ("--reward", "contains", "--rival", "drawn-label"), "--rival drawn-label"),
        ("collect", (), "blb fit"),
        ("check", (), "blb fit"),
        ("score", (), "distribution"),
    ],
)
def test_what_no_distribution_can_do_is_refused(
    server: ExactServer, tmp_path: Path, command: str, more: tuple[object, ...], named: str
) -> None:
    """A sentence that names the option or the value, exit code 2, and nothing drawn."""
    data = write_rows(tmp_path / "data.jsonl", rows({"b": 0.2, "c": 0.8}))
    out = tmp_path / "run"
    asked = len(server.requests)
    if command == "score":
        out.mkdir()
        RolloutStore(out / "rollouts.db").close()
        result = blb("score", out, "--data", data, "--reward", "distribution")
    else:
        result = run(command, server, data, "--reward", "distribution", "--out", out, *more)
    assert named in refusal(result)
    assert not [body for body in server.requests[asked:] if "max_tokens" in body]


@pytest.mark.parametrize(("answer", "named"), [("b", "line 1"), ({"bb": 1, "bc": 1}, "'bb'")])
def test_answers_that_are_no_shares_of_labels_are_refused(
    server: ExactServer, tmp_path: Path, answer: Any, named: str
) -> None:
    """The reward needs shares, of labels that their first tokens tell apart."""
    data = write_rows(tmp_path / "data.jsonl", rows(answer))
    result = run("fit", server, data, "--reward", "distribution", "--out", tmp_path / "run")
    assert named in refusal(result)
