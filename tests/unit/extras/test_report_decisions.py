"""The report of a run that mends decisions."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path

import pytest

from blackbox_lb.extras.report.data import read_run
from blackbox_lb.extras.report.page import render, write_report
from tests.support.commands import blb
from tests.support.deciding import DecidingServer
from tests.support.questions import write_rows
from tests.support.tickets import QUESTION, fit, rows_of, says, says_both, write_two_questions


def text_of(page: str) -> str:
    """What a reader sees of the page, in one line."""
    bare = re.sub(r"<(script|style).*?</\1>", " ", page, flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", bare)).split())


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with one question."""
    folder = tmp_path_factory.mktemp("decisions")
    (folder / "team.json").write_text(json.dumps({"team": QUESTION}))
    data = write_rows(folder / "tickets.jsonl", rows_of(150))
    with DecidingServer(says) as server:
        result = fit(data, server, folder / "run")
    assert result.exit_code == 0, result.output
    return folder / "run"


def test_the_page_shows_what_mending_does(run: Path) -> None:
    """Both pictures with their words and numbers, what was tried, what else mends, and the rows
    whose decision changes; and no tokens, no divergence and no strength, which only a logit bias
    has.
    """
    page = render(read_run(run))
    text = text_of(page)
    result = read_run(run).result
    assert result is not None
    [question] = result.decided
    assert "Accuracy (greedy) is better than without mending" in text
    assert "read by systemone, mended by the average of 5 ways, most of it " in text
    assert 'aria-label="Share of right decisions against the probability' in page
    assert 'aria-label="Share of wrong decisions against the share of answered rows' in page
    for row in question.tried:
        shares = f"{100 * row.weight:.1f} % {100 * row.accuracy:.1f} %"
        assert f"{row.mending} {shares} {row.log_loss:.3f}" in text
    assert "against temperature alone and the batch prior" in text
    assert f"{question.changed_rows} of {question.test_rows} test rows change" in text
    changed = question.changed[0]
    assert changed.place in text
    assert changed.state in text
    for group in question.reliability:
        assert f"{100 * group.confidence:.1f} % {100 * group.accuracy:.1f} %" in text

    for phrase in ("What the bias does to words", "How strong", "nats of KL", "biased token"):
        assert phrase not in text, phrase
    assert "completions with 0 tokens" not in text


def test_the_command_writes_pictures(run: Path, tmp_path: Path) -> None:
    """One of each kind for the only question."""
    answer = blb("report", run, "--out", tmp_path / "page.html", "--plots", tmp_path / "plots")
    assert answer.exit_code == 0, answer.output
    written = {path.stem for path in (tmp_path / "plots").iterdir()}
    assert written == {"confusion", "reliability", "coverage"}


def test_each_of_several_questions_has_its_part(tmp_path: Path) -> None:
    """Names of questions that are hostile stay text, and no element has the name of another."""
    hostile = "<b>danger</b>"
    data = write_two_questions(tmp_path, hostile)
    with DecidingServer(says_both) as server:
        result = fit(data, server, tmp_path / "run")
    assert result.exit_code == 0, result.output
    report = write_report(tmp_path / "run", None, tmp_path / "plots")
    page = report.page.read_text(encoding="utf-8")
    assert hostile not in page
    assert "accuracy of team" in text_of(page)
    ids = re.findall(r' id="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    assert {path.stem for path in report.plots} >= {"reliability", "reliability-2", "coverage-2"}


def test_a_run_without_its_result_still_says_what_it_is(run: Path, tmp_path: Path) -> None:
    (tmp_path / "bias.json").write_bytes((run / "bias.json").read_bytes())
    text = text_of(render(read_run(tmp_path)))
    assert "Report on decisions" in text
    assert "result.json is not in the folder" in text
