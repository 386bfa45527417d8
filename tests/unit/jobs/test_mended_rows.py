"""A file of mended decisions on other rows: ``Run.decide``, and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import blackbox_lb
from blackbox_lb.errors import BiasError, InputError
from tests.support.commands import asking, blb, options, refused
from tests.support.deciding import DecidingServer
from tests.support.errors import names, raises_naming
from tests.support.exact import ExactServer
from tests.support.labelled import DECIDER, balanced_rows, write_which
from tests.support.printed import ended_well, printed
from tests.support.questions import write_rows
from tests.support.tickets import NAMES, QUESTION, rows_of, says, says_both, write_two_questions

HELLO = {"role": "user", "content": "a"}


def fitted(folder: Path, server: DecidingServer, **values: Any) -> blackbox_lb.Run:
    """A run of 120 rows with both questions, or those of ``question``."""
    data = write_two_questions(folder, "danger", 120)
    settings: dict[str, Any] = {
        "provider": "ollama",
        "base_url": server.base_url,
        "model": "decider-1",
        "question": folder / "team.json",
        "reward": "accuracy",
        "out": folder / "run",
        "quiet": True,
    } | values
    return blackbox_lb.fit(data, **settings)


@pytest.fixture(scope="module")
def shared(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[DecidingServer, blackbox_lb.Run]]:
    """A run with both questions, and its endpoint."""
    with DecidingServer(says_both) as server:
        yield server, fitted(tmp_path_factory.mktemp("shared"), server)


def test_new_states_are_decided_by_the_mended_probabilities(
    shared: tuple[DecidingServer, blackbox_lb.Run],
) -> None:
    """In the order of the prompts, each asked once; a text, a row and a repeated one alike. Rows of
    the fit are not asked again.
    """
    server, run = shared
    before = len(server.requests)
    known = run.decide([f"ticket {place}" for place in range(120)], question="team")
    assert (len(known), len(server.requests)) == (120, before)
    [first, second, again] = run.decide(
        ["ticket 900", {"state": "ticket 901"}, "ticket 900"], question="team"
    )
    assert len(server.requests) == before + 2
    danger = run.decide(["ticket 900", "ticket 901"], question="danger")
    assert len(server.requests) == before + 2, "both questions were in the requests"
    [mended, _] = run.bias.decisions
    logits = np.array(says("ticket 900", "team", NAMES), float)
    logprobs = logits - np.log(np.exp(logits).sum())
    expected = dict(zip(NAMES, mended.probabilities(logprobs.tolist()), strict=True))
    assert first.probabilities == pytest.approx(expected, abs=1e-9)
    assert first.label == max(expected, key=lambda name: expected[name])
    assert first.probability == pytest.approx(max(expected.values()))
    assert not first.abstains
    assert first == again
    assert first != second
    assert [row.label for row in danger] == ["true", "true"]


def test_a_decision_abstains_below_the_cut_of_a_promise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By default; ``abstain_below`` is another cut. A refusal is no label."""
    monkeypatch.setenv("OPENAI_API_KEY", "made-up")
    question = tmp_path / "one.json"
    question.write_text(json.dumps({"team": QUESTION}))
    states = [f"ticket {place}" for place in range(900, 940)]
    with DecidingServer(says_both, refused=["ticket 940"], model="gpt-6-luna") as server:
        luna = {"provider": "openai", "model": "gpt-6-luna"}
        run = fitted(tmp_path, server, question=question, objective="error<=.3", **luna)
        decisions = run.decide(states)
        all_of_them = run.decide(states, abstain_below=1)
        [refused] = run.decide(["ticket 940"])
    [mended] = run.bias.decisions
    assert mended.promise is not None
    cut = mended.promise.cut
    assert [row.abstains for row in decisions] == [row.probability < cut for row in decisions]
    assert all(row.abstains for row in all_of_them)
    assert (refused.label, refused.abstains, refused.probabilities) == (None, True, {})


def test_what_cannot_be_decided_is_refused(
    shared: tuple[DecidingServer, blackbox_lb.Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A question that is not named where there are several or not known, a cut that is no
    probability, and another model than the file's.
    """
    server, run = shared
    before = len(server.requests)
    for facts, question, cut in (
        (("team", "danger"), None, None),
        (("teem", "team"), "teem", None),
        (("abstain_below",), "team", 2),
    ):
        with raises_naming(InputError, *facts):
            run.decide(["ticket 960"], question=question, abstain_below=cut)
    assert run.decide([], question="team") == ()
    assert len(server.requests) == before
    monkeypatch.setattr(server, "model", "decider-2")
    with raises_naming(BiasError, "decider-1", "decider-2", "fit again"):
        run.decide(["ticket 950"], question="team")


def test_no_reward_is_computed_of_probabilities(
    shared: tuple[DecidingServer, blackbox_lb.Run],
) -> None:
    folder = shared[1].folder
    task = options(data=folder.parent / "rows.jsonl", answer_column="team", reward="accuracy")
    assert names(refused("score", folder, *task), "blb report", "Run.decide")


def test_a_layout_is_put_again_as_in_the_fit(tmp_path: Path) -> None:
    """A model that lists first tokens reads new rows in the layout that was chosen, in ``decide``
    and in ``blb check``; rows of the fit are in its store. Letters are no tokens of this model, so
    that the question is judged by words as it is.
    """
    data = write_which(tmp_path)
    with ExactServer(DECIDER) as server:
        run = blackbox_lb.fit(
            data,
            provider="llamacpp",
            base_url=server.base_url,
            question=tmp_path / "which.json",
            reward="accuracy",
            out=tmp_path / "run",
            quiet=True,
        )
        asked = sum("messages" in body for body in server.requests)
        [known] = run.decide([balanced_rows(DECIDER)[0]["prompt"]])
        assert sum("messages" in body for body in server.requests) == asked
        [fresh, other] = run.decide(["question 900", "question 901"])
        data = write_rows(
            tmp_path / "fresh.jsonl", [{"prompt": f"question {n}"} for n in range(900, 930)]
        )
        where = asking(server, data=data, reward="accuracy", out=tmp_path / "check")
        checked = printed(blb("check", tmp_path / "run" / "bias.json", *where, "--json", "--quiet"))
    [mended] = run.bias.decisions
    assert mended.reading == "words"
    assert run.bias.verdict[0].n_prompts
    for decision in (known, fresh, other):
        assert set(decision.probabilities) == {"b", "c"}
        assert sum(decision.probabilities.values()) == pytest.approx(1.0)
    assert checked["questions"][0]["rows"] == 30


def test_the_system_message_of_the_fit_goes_before_other_rows(tmp_path: Path) -> None:
    """It is part of what was learned; with another one nothing is decided."""

    def after_system(state: Any, name: str, names: Sequence[str]) -> Sequence[float]:
        assert state[0] == {"role": "system", "content": "Be brief."}
        return says_both(state[-1]["content"], name, names)

    with DecidingServer(after_system) as server:
        run = fitted(tmp_path, server, system="Be brief.")
        before = len(server.requests)
        known, fresh = run.decide(["ticket 3", "ticket 900"], question="team")
        assert len(server.requests) == before + 1
        rows = [{"prompt": row["prompt"]} for row in rows_of(30)]
        given = options(
            provider="ollama",
            base_url=server.base_url,
            model="decider-1",
            data=write_rows(tmp_path / "fresh.jsonl", rows),
            reward="accuracy",
            out=tmp_path / "check",
        )
        bias = run.folder / "bias.json"
        ended_well(blb("check", bias, *given, "--quiet"))
        assert "Be brief." in refused("check", bias, *given, "--system", "Be long.")
        with raises_naming(BiasError, "Be brief.", "Be long."):
            run.decide(
                [{"messages": [{"role": "system", "content": "Be long."}, HELLO]}], question="team"
            )
    assert known.label is not None
    assert fresh.label is not None
