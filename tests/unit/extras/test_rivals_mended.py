"""``blb eval`` of a file that mends decisions, beside what one would do instead."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blackbox_lb.extras.report.data import read_run
from blackbox_lb.extras.report.page import render
from blackbox_lb.extras.rivals.reanchor import reanchor_weights
from blackbox_lb.questions.question import parse_questions
from tests.support.commands import asking, blb, options, refused
from tests.support.deciding import DecidingServer
from tests.support.exact import ExactServer
from tests.support.labelled import DECIDER, write_which
from tests.support.questions import write_rows
from tests.support.tickets import QUESTION, fit, rows_of, says, says_both, write_two_questions


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 200 tickets, which lie beside it."""
    folder = tmp_path_factory.mktemp("mended")
    (folder / "team.json").write_text(json.dumps({"team": QUESTION}))
    with DecidingServer(says) as server:
        fitted = fit(write_rows(folder / "tickets.jsonl", rows_of(200)), server, folder / "run")
    assert fitted.exit_code == 0, fitted.output
    return folder / "run"


def evaluating(
    server: DecidingServer, run: Path, out: Path | None = None, data: Path | None = None
) -> Any:
    """The words of ``blb eval`` of the run's file, by default in its own folder on its own rows."""
    where = options(provider="ollama", base_url=server.base_url, model="decider-1")
    rows = data or run.with_name("tickets.jsonl")
    given = options(data=rows, reward="accuracy", out=out or run)
    return ("eval", run / "bias.json", *where, *given, "--quiet")


def test_mending_beside_its_rivals(run: Path) -> None:
    """All from the answers of the fit; the classifier reads texts that tell nothing."""
    with DecidingServer(says) as server:
        result = blb(*evaluating(server, run), "--rivals")
        assert not server.requests
    assert result.exit_code == 0, result.output
    assert "HELPS" in result.output
    evaluation = json.loads((run / "evaluation.json").read_text())
    names = {row["name"] for row in evaluation["policies"]} - {"ReAnchor"}
    assert names == {"base", "run", "temperature", "batch prior", "classifier tfidf"}
    by_name = {row["name"]: row["metrics"] for row in evaluation["policies"]}
    fitted = {row["metric"]: row for row in json.loads((run / "bias.json").read_text())["verdict"]}
    for metric in ("accuracy", "log loss"):
        assert by_name["base"][metric]["mean"] == pytest.approx(fitted[metric]["base"])
        assert by_name["run"][metric]["mean"] == pytest.approx(fitted[metric]["biased"])
    assert by_name["classifier tfidf"]["accuracy"]["mean"] < by_name["run"]["accuracy"]["mean"]
    against = {(row["against"], row["metric"]) for row in evaluation["comparisons"]}
    assert ("temperature", "log loss") in against
    page = render(read_run(run))
    assert "classifier tfidf" in page


@pytest.mark.needs("dspy")
def test_reanchor_is_a_rival_where_it_is_installed() -> None:
    """Its own code finds the weights that undo the offsets of an endpoint, or a threshold."""
    generator = np.random.default_rng(1)
    truth = generator.dirichlet([0.5, 0.5, 0.5], 300)
    answers = np.array([generator.choice(3, p=row) for row in truth])
    told = truth * [8.0, 1.0, 0.5]
    told /= told.sum(axis=1, keepdims=True)
    [team] = parse_questions({"team": QUESTION}, "team.json")
    weights = reanchor_weights(team, told, answers)
    before = float((told.argmax(axis=1) == answers).mean())
    assert float(((told * weights).argmax(axis=1) == answers).mean()) > before + 0.1
    assert weights[0] < weights[1] < weights[2]
    [danger] = parse_questions({"type": "noul"}, "danger.json")
    is_true = answers == 0
    low, high = reanchor_weights(danger, told[:, :1] * [1, -1] + [0, 1], (~is_true).astype(int))
    assert low < high
    right = np.full((100, 2), [0.9, 0.1])
    assert reanchor_weights(danger, right, np.zeros(100, int)).tolist() == [1, 1]


def test_without_rivals_only_the_test_rows_are_read(run: Path, tmp_path: Path) -> None:
    with DecidingServer(says) as server:
        document = json.loads(blb(*evaluating(server, run, tmp_path), "--json").stdout)
        assert len(server.requests) == document["policies"][0]["prompts"] < 100
    assert [row["name"] for row in document["policies"]] == ["base", "run"]


def test_rivals_are_left_out_where_training_rows_have_one_answer(run: Path, tmp_path: Path) -> None:
    """The mended decisions are judged all the same, and nothing is read of the training rows."""
    rows = [{**row, "answer": "repair"} for row in rows_of(60)]
    fresh = write_rows(tmp_path / "one.jsonl", rows)
    with DecidingServer(says) as server:
        result = blb(*evaluating(server, run, tmp_path, fresh), "--rivals")
    assert result.exit_code == 0, result.output
    evaluation = json.loads((tmp_path / "evaluation.json").read_text())
    assert any("rivals are left out" in remark for remark in evaluation["provenance"]["remarks"])
    assert [row["name"] for row in evaluation["policies"]] == ["base", "run"]


def test_one_of_several_questions_is_judged(tmp_path: Path) -> None:
    data = write_two_questions(tmp_path, "danger")
    run = tmp_path / "run"
    with DecidingServer(says_both) as server:
        assert fit(data, server, run).exit_code == 0
        command = evaluating(server, run, data=data)
        assert "danger" in refused(*command)
        assert "dangers" in refused(*command, "--only", "dangers")
        result = blb(*command, "--rivals", "--only", "danger")
    assert result.exit_code == 0, result.output
    evaluation = json.loads((run / "evaluation.json").read_text())
    labels = [row["label"] for row in evaluation["policies"][0]["decisions"]["labels"]]
    assert labels == ["true", "false"]
    render(read_run(run))


def test_the_servers_own_layout_is_the_base(tmp_path: Path) -> None:
    """Where words are mended, letters are what one has without this package, and words as they are
    stand beside it.
    """
    data = write_which(tmp_path)
    run = tmp_path / "run"
    with ExactServer(DECIDER) as server:
        server.texts[3:5] = [" A", " B"]
        given = asking(server, data=data, reward="accuracy", out=run)
        learned = blb(
            "fit", *given, "--question", tmp_path / "which.json", "--layout", "words", "--quiet"
        )
        assert learned.exit_code == 0, learned.output
        result = blb("eval", run / "bias.json", *given, "--quiet", "--json")
    assert result.exit_code == 0, result.output
    names = [row["name"] for row in json.loads(result.stdout)["policies"]]
    assert names == ["base", "run", "words as it is"]


def test_what_is_about_completions_is_refused(run: Path) -> None:
    with DecidingServer(says) as server:
        command, bias, *given = evaluating(server, run)
        assert "--save" in refused(command, bias, *given, "--save")
        assert "--deploy" in refused(command, bias, *given, "--deploy", "temperature=1")
        assert "--rival" in refused(command, bias, *given, "--rival", "prompt:Be right.")
        assert "alone" in refused(command, f"a={bias}", f"b={bias}", *given)
        assert not server.requests
