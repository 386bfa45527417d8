"""``blb fit --question``: decisions of endpoints, read, mended and judged."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blackbox_lb.bias.document import Bias
from tests.support.commands import blb, options, refusal
from tests.support.deciding import DecidingServer
from tests.support.printed import ended_well
from tests.support.questions import write_rows
from tests.support.tickets import (
    NAMES,
    OFFSETS,
    QUESTION,
    fit,
    rows_of,
    says,
    says_both,
    write_tickets,
    write_two_questions,
)


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Made-up keys of the hosts."""
    monkeypatch.setenv("TYPESAFE_API_KEY", "made-up")
    monkeypatch.setenv("OPENAI_API_KEY", "made-up")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """300 rows and a question file."""
    return write_tickets(tmp_path_factory.mktemp("decisions"), 300)


def test_offsets_and_slope_of_an_endpoint_are_found_and_help(data: Path, tmp_path: Path) -> None:
    """A second run asks for nothing."""
    with DecidingServer(says) as server:
        result = fit(data, server, tmp_path / "run", objective="log-loss")
        asked = len(server.requests)
        again = fit(data, server, tmp_path / "run", objective="log-loss")
        assert len(server.requests) == asked == 330  # 30 of them with the options in reverse
    assert result.exit_code == again.exit_code == 0, result.output
    assert result.output.splitlines()[0] == again.output.splitlines()[0]
    assert result.output.startswith("HELPS")
    [question] = Bias.load(tmp_path / "run" / "bias.json").decisions
    logits = np.array(question.slope) * np.array(question.center) + question.offsets
    learned = logits - logits.mean()
    expected = -2 * (OFFSETS - OFFSETS.mean())
    assert question.slope == pytest.approx(2.0, abs=0.5)
    assert learned == pytest.approx(expected, abs=1.0)
    rows = {row.metric: row for row in Bias.load(tmp_path / "run" / "bias.json").verdict}
    assert rows["accuracy"].verdict == rows["log loss"].verdict == "HELPS"
    assert rows["log loss"].biased < 0.8 * rows["log loss"].base


def test_two_decimals_are_counted_and_cost_little(data: Path, tmp_path: Path) -> None:
    with DecidingServer(says, decimals=2) as server:
        where = {"provider": "typesafe", "objective": "log-loss"}
        result = ended_well(fit(data, server, tmp_path / "run", **where))
    [question] = Bias.load(tmp_path / "run" / "bias.json").decisions
    assert question.decimals == 2
    assert 0 < question.floored < 0.5
    assert "% of the probabilities are below what is shown" in result.output
    assert result.output.startswith("HELPS")


def test_refusals_are_no_labels_and_are_counted(data: Path, tmp_path: Path) -> None:
    refused_states = [f"ticket {place}" for place in range(0, 300, 10)]
    with DecidingServer(says, refused=refused_states, model="gpt-6-luna") as server:
        luna = {"provider": "openai", "model": "gpt-6-luna"}
        result = ended_well(fit(data, server, tmp_path / "run", **luna))
    assert "30 rows came back as refusals" in result.output


def test_several_questions_share_a_request(tmp_path: Path) -> None:
    data = write_two_questions(tmp_path, "danger")
    with DecidingServer(says_both) as server:
        result = ended_well(fit(data, server, tmp_path / "run"))
        assert len(server.requests) == 60 + 30
        assert set(server.requests[0]["questions"]) == {"team", "danger"}
    names = [row.question.id for row in Bias.load(tmp_path / "run" / "bias.json").decisions]
    assert names == ["team", "danger"]
    assert "of danger" in result.output


def test_choices_are_listed_in_reverse_together(tmp_path: Path) -> None:
    """What is announced is what is asked for."""
    rows = [
        {"prompt": row["prompt"], "a": row["answer"], "b": row["answer"]} for row in rows_of(60)
    ]
    (tmp_path / "team.json").write_text(json.dumps({"a": QUESTION, "b": QUESTION}))
    data = write_rows(tmp_path / "rows.jsonl", rows)
    with DecidingServer(says) as server:
        where = options(provider="ollama", base_url=server.base_url, model="decider-1", data=data)
        more = options(question=tmp_path / "team.json", reward="accuracy", out=tmp_path / "run")
        result = ended_well(blb("fit", *where, *more))
        assert len(server.requests) == 60 + 30
    assert "about 90 requests" in result.stderr
    assert "different ones" not in result.stderr


def test_settings_of_a_bias_on_tokens_are_refused(data: Path, tmp_path: Path) -> None:
    """They would change nothing."""
    with DecidingServer(says) as server:
        for name, value in (("entries", 3), ("estimator", "ips"), ("l2", 0.3), ("phases", "first")):
            refusal_of_it = refusal(fit(data, server, tmp_path / "run", **{name: value}))
            assert f"--{name}" in refusal_of_it
        ended_well(fit(data, server, tmp_path / "run", estimator="projection"))


def test_a_promise_needs_rows_that_teach_beside_those_that_certify(tmp_path: Path) -> None:
    """Too few of them are refused before anything is asked."""
    data = write_tickets(tmp_path, 9)
    with DecidingServer(says) as server:
        text = refusal(fit(data, server, tmp_path / "run", objective="error<=.4"))
        assert "rows that teach" in text
        assert not server.requests


@pytest.mark.parametrize(("every", "ways"), [(2, 2), (30, 1)])
def test_a_way_to_read_counts_for_the_rows_that_it_reads(
    tmp_path: Path, every: int, ways: int
) -> None:
    """The options in one order read all rows, mostly right, and are chosen before both orders,
    which are always right where the reverse one is not refused; where it nearly always is, they are
    left out.
    """
    rows = [{"prompt": f"ticket {number}", "answer": NAMES[number % 3]} for number in range(90)]
    (tmp_path / "team.json").write_text(json.dumps({"team": QUESTION}))
    data = write_rows(tmp_path / "rows.jsonl", rows)

    def mostly_right(state: Any, name: str, names: Sequence[str]) -> Sequence[float]:
        number = int(state.split()[-1])
        is_reversed = tuple(names) != NAMES
        if is_reversed and number % every:
            return ()
        says_wrong = not is_reversed and number % 5 == 0
        said = NAMES[(number + says_wrong) % 3]
        return [(5.0 if is_reversed else 2.0) * (option == said) for option in names]

    with DecidingServer(mostly_right) as server:
        how = {"layout": "both-orders", "objective": "accuracy"}
        ended_well(fit(data, server, tmp_path / "run", **how))
    [decided] = json.loads((tmp_path / "run" / "result.json").read_text())["decided"]
    read = {row["way"]: row["read"] for row in decided["tried"]}
    assert (decided["way"], read["systemone"], len(read)) == ("systemone", 1.0, ways)
    assert all(share < 0.7 for way, share in read.items() if way != "systemone")


def test_a_state_in_json_stays_json(tmp_path: Path) -> None:
    rows = [
        {"state": {"ticket": row["prompt"], "rang": "Köln"}, "answer": row["answer"]}
        for row in rows_of(60)
    ]
    data = write_rows(tmp_path / "rows.jsonl", rows)
    (tmp_path / "team.json").write_text(json.dumps(QUESTION))

    def of_object(state: Any, name: str, names: Sequence[str]) -> Sequence[float]:
        return says(state["ticket"], name, names)

    with DecidingServer(of_object) as server:
        ended_well(fit(data, server, tmp_path / "run"))
        assert server.requests[0]["state"]["rang"] == "Köln"


def test_a_promise_is_certified_or_said_to_be_not_certifiable(data: Path, tmp_path: Path) -> None:
    with DecidingServer(says) as server:
        kept = fit(data, server, tmp_path / "a", objective="error<=.4")
        missed = fit(data, server, tmp_path / "b", objective="error<=.01")
    assert "right in at least 60 % of what it answers" in kept.output
    assert "not certifiable" in missed.output
    [question] = Bias.load(tmp_path / "a" / "bias.json").decisions
    assert question.promise is not None
    assert question.promise.bound <= 0.4


@pytest.mark.parametrize(
    ("question", "answers", "words"),
    [
        ({"type": "choice", "criteria": {}}, ["a"], "options"),
        ({"type": "choice", "criteria": {"Yes": None, "yes ": None}}, ["yes"], "alike"),
        (
            {"type": "choice", "criteria": dict.fromkeys(map(str, range(30)))},
            ["1", "2"],
            "30 options",
        ),
        (QUESTION, ["sales"], "billing"),
        ({"type": "score", "criteria": ["calm", "cross"]}, ["7"], "calm"),
        (QUESTION, ["billing"], "'billing'"),
        (QUESTION, [None], "no row has an answer"),
    ],
    ids=["empty", "alike", "many", "other answer", "other level", "one answer", "no answer"],
)
def test_what_cannot_be_learned_is_refused_before_anything_is_asked(
    question: dict[str, Any], answers: list[str | None], words: str, tmp_path: Path
) -> None:
    """Bad questions, more options than the host takes, and rows that teach nothing."""
    rows: list[dict[str, str]] = []
    for place, answer in zip(range(60), itertools.cycle(answers), strict=False):
        rows.append({"prompt": f"t {place}"} | ({} if answer is None else {"answer": answer}))
    data = write_rows(tmp_path / "rows.jsonl", rows)
    (tmp_path / "team.json").write_text(json.dumps(question))
    with DecidingServer(says) as server:
        assert words in refusal(fit(data, server, tmp_path / "run"))
        assert not server.requests


def test_a_model_that_decides_nothing_is_named_with_the_remedy(tmp_path: Path) -> None:
    """As llama.cpp's server says of an ordinary model."""
    data = write_tickets(tmp_path, 40)
    with DecidingServer(says, faults=dict.fromkeys(range(50), 501)) as server:
        assert "no model that decides" in refusal(fit(data, server, tmp_path / "run"))
