"""``blb check`` of a file that mends decisions: drift without answers, errors with some."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.commands import blb, options, refused
from tests.support.deciding import DecidingServer
from tests.support.errors import names
from tests.support.printed import ended_well, printed
from tests.support.questions import write_rows
from tests.support.tickets import NAMES, fit, rows_of, says, write_tickets


@pytest.fixture(scope="module")
def fits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two runs of the same 300 rows: ``plain``, and ``promise`` with errors of at
    most 40 %.
    """
    folder = tmp_path_factory.mktemp("fits")
    data = write_tickets(folder, 300)
    with DecidingServer(says) as server:
        for name, values in (("plain", {}), ("promise", {"objective": "error<=.4"})):
            ended_well(fit(data, server, folder / name, **values))
    return folder


def fresh(folder: Path, number: int, *, answer: str | None = "true", start: int = 300) -> Path:
    """Rows that no fit has seen, with the true answers, others (a wrong option), or none."""
    rows = rows_of(start + number)[start:]
    if answer == "wrong":
        for row in rows:
            row["answer"] = NAMES[(NAMES.index(row["answer"]) + 1) % 3]
    if answer is None:
        rows = [{"prompt": row["prompt"]} for row in rows]
    return write_rows(folder / "fresh.jsonl", rows)


def words(run: Path, data: Path, server: DecidingServer, **values: Any) -> tuple[object, ...]:
    """Of the command."""
    where = {"provider": "ollama", "base_url": server.base_url, "model": "decider-1"}
    given = where | {"data": data, "reward": "accuracy", "out": data.parent / "check"} | values
    return ("check", run / "bias.json", *options(**given), "--quiet")


def checked(run: Path, data: Path, server: DecidingServer, **values: Any) -> dict[str, Any]:
    """What the command prints as JSON."""
    document: dict[str, Any] = printed(blb(*words(run, data, server, **values), "--json"))
    return document


def drifted(state: Any, name: str, names: Sequence[str]) -> Sequence[float]:
    """An endpoint that has come to prefer another option."""
    moved = np.add(says(state, name, names), [0.0, 0.0, 1.5])
    return [float(value) for value in moved]


def test_rows_without_answers_show_drift_or_none(fits: Path, tmp_path: Path) -> None:
    """They are read as the fit read them: a request a row, of the same question."""
    data = fresh(tmp_path, 80, answer=None)
    with DecidingServer(says) as server:
        steady = checked(fits / "plain", data, server)
        assert len(server.requests) == 80
    with DecidingServer(drifted) as server:
        other = checked(fits / "plain", data, server, out=tmp_path / "other")
    assert steady["verdict"] == "STEADY"
    assert steady["questions"][0]["p"] > 0.05
    assert other["verdict"] == "DRIFTED"
    assert other["questions"][0]["p"] < 0.01
    assert other["questions"][0]["moved"][0] in NAMES


def test_rows_with_answers_test_the_promise(fits: Path, tmp_path: Path) -> None:
    """Errors of a fifth keep a promise of two fifths; of more than half they break it; few rows
    show neither, and the number that would is said.
    """
    with DecidingServer(says) as server:
        kept = checked(fits / "promise", fresh(tmp_path, 200), server)
        broken = checked(
            fits / "promise", fresh(tmp_path, 200, answer="wrong"), server, out=tmp_path / "b"
        )
        data = fresh(tmp_path, 20, start=400)
        few = checked(fits / "promise", data, server, out=tmp_path / "c")
        told = blb(*words(fits / "promise", data, server, out=tmp_path / "c")).output
    assert kept["verdict"] == "HOLDS"
    assert broken["verdict"] == "BROKEN"
    assert broken["questions"][0]["errors"]["above"] >= 20
    assert few["verdict"] == "NOT SHOWN"
    assert few["questions"][0]["errors"]["needed"] > 20
    assert "decisions do not show it" in told
    assert told.startswith("NOT SHOWN")


def test_without_a_promise_the_accuracy_of_the_fit_is_tested(fits: Path, tmp_path: Path) -> None:
    """Of the data of the fit only the test rows are asked."""
    with DecidingServer(says) as server:
        check = checked(fits / "plain", fits / "tickets.jsonl", server, out=tmp_path / "own")
        assert len(server.requests) == check["questions"][0]["rows"] < 120
        check = checked(fits / "plain", fresh(tmp_path, 200, answer="wrong"), server)
    errors = check["questions"][0]["errors"]
    assert check["verdict"] == "BROKEN"
    assert not errors["is_promised"]
    assert 0.15 < errors["limit"] < 0.5


def test_another_division_of_the_fit_s_data_is_said(fits: Path, tmp_path: Path) -> None:
    """Its rows are those that the file was learned from."""
    with DecidingServer(says) as server:
        given = words(fits / "plain", fits / "tickets.jsonl", server, out=tmp_path / "check")[:-1]
        told = ended_well(blb(*given, *options(test_limit=5))).stderr
    assert "another division" in told


def test_what_the_file_does_not_hold_for_is_refused(fits: Path, tmp_path: Path) -> None:
    """Another model, another endpoint, and an answer that is no option, which names its line."""
    data = fresh(tmp_path, 20)
    with DecidingServer(says, model="decider-2") as server:
        run = fits / "plain"
        assert names(refused(*words(run, data, server)), "decider-1", "decider-2")
        asked = len(server.requests)
        text = refused(*words(run, data, server, provider="perplexity"))
        assert "fit again" in text or "PERPLEXITY" in text
        rows = [*rows_of(9), {"prompt": "ticket 900", "answer": "sales"}]
        bad = write_rows(tmp_path / "bad.jsonl", rows)
        assert names(refused(*words(run, bad, server)), "sales", "line 10")
        assert len(server.requests) == asked
