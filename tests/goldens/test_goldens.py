"""What must not change while the inside is rebuilt: the numbers and requests of small fits and
evaluations. ``python -m tests.goldens --write`` writes the stored values anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise, permutations
from pathlib import Path
from typing import Any

import pytest

from tests.goldens.__main__ import main
from tests.goldens.facts import FACTS, Left, MissingFact, facts_of
from tests.goldens.play import play
from tests.goldens.requests import Body, request_facts
from tests.goldens.scenes import SCENES
from tests.goldens.values import ABSENT, changes, store, stored, stored_names


@pytest.mark.parametrize("name", SCENES)
def test_nothing_has_moved(name: str, tmp_path: Path) -> None:
    """The numbers of a scene, and the requests that it sends, are the stored ones."""
    moved = changes(stored(name), play(SCENES[name], tmp_path))
    lines = "\n".join(str(change) for change in moved)
    assert not moved, f"{len(moved)} facts; python -m tests.goldens {name}\n{lines}"


def test_every_scene_has_values() -> None:
    """And every file of values has a scene."""
    assert stored_names() == set(SCENES)


def test_a_killed_fit_ends_as_one_that_was_not() -> None:
    """It sends the same requests in all, and leaves the same numbers."""
    assert not changes(stored("samples"), stored("samples-killed"))


@pytest.mark.parametrize("name", SCENES)
def test_no_prompt_is_read_as_another(name: str) -> None:
    """A server that is asked with token ids knows the prompt by them: those of no prompt are the
    beginning of another's, else an answer would depend on which of them came first.
    """
    scene = SCENES[name]
    server = scene.server()
    prompts = {row["prompt"] for row in scene.rows if "prompt" in row}
    ids = sorted(server.tokenize(prompt) for prompt in prompts)
    for first, second in pairwise(ids):
        assert second[: len(first)] != first


def test_the_command_compares_and_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A fact that differs is printed with both values, and fails the comparison until it is
    written.
    """
    monkeypatch.setattr("tests.goldens.values.FOLDER", tmp_path)
    assert main(["check"]) == 1
    assert main(["--write", "check"]) == 0
    facts = stored("check")
    assert main(["check"]) == 0
    capsys.readouterr()
    right = facts["check"]["majority"]
    store("check", {**facts, "check": {**facts["check"], "majority": 0.125}})
    assert main(["check"]) == 1
    assert f"check: majority: 0.125 -> {right!r}" in capsys.readouterr().out
    assert main(["--write", "check"]) == 0
    assert stored("check") == facts


FACT: Mapping[str, Any] = {"mean": 0.25, "count": 3, "word": "HELPS", "is_kept": True}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("mean", 0.2500005),
        ("mean", None),
        ("count", 4),
        ("count", True),
        ("word", "HURTS"),
        ("is_kept", False),
        ("is_kept", 1),
        ("more", 0.0),
    ],
)
def test_what_changed_is_named(field: str, value: Any) -> None:
    """A changed number, count or word and a new field, each with its old and its new value."""
    (change,) = changes({"a": dict(FACT)}, {"a": {**FACT, field: value}})
    assert (change.record, change.field) == ("a", field)
    assert (change.old, change.new) == (FACT.get(field, ABSENT), value)
    assert field in str(change)
    assert repr(value) in str(change)


def test_what_is_missing_is_named() -> None:
    """Whole records, with each of their fields."""
    gone = changes({"a": dict(FACT), "b": dict(FACT)}, {"a": dict(FACT)})
    assert {(change.record, change.field) for change in gone} == {("b", name) for name in FACT}
    assert {change.new for change in gone} == {ABSENT}


def test_last_digits_may_move() -> None:
    """Of fractions, not of counts."""
    assert not changes({"a": {"mean": 0.25}}, {"a": {"mean": 0.25 * (1 + 5e-7)}})
    assert not changes({"a": {"mean": 0.0}}, {"a": {"mean": 5e-10}})
    assert changes({"a": {"count": 10_000_000}}, {"a": {"count": 10_000_001}})


CALLS: list[tuple[str, Body]] = [
    ("/v1/completions", {"prompt": "x", "seed": 1}),
    ("/v1/completions", {"prompt": "x", "seed": 1}),
    ("/v1/completions", {"prompt": "x", "seed": 2, "logit_bias": [[3, 1.5], [1, -2.0]]}),
    ("/tokenize", {"content": "x"}),
]


def test_requests_are_a_bag() -> None:
    """Their order says nothing; another completion, another body, another path or another token
    of a bias does.
    """
    facts = request_facts(CALLS)
    for order in permutations(CALLS):
        assert request_facts(order) == facts
    path, body = CALLS[2]
    others: list[list[tuple[str, Body]]] = [
        [*CALLS, CALLS[0]],
        [*CALLS[:2], (path, {**body, "seed": 3}), CALLS[3]],
        [*CALLS[:2], ("/v1/chat/completions", body), CALLS[3]],
        [*CALLS[:2], (path, {**body, "logit_bias": [[3, 1.5], [2, -2.0]]}), CALLS[3]],
        [*CALLS[:2], (path, {**body, "logit_bias": [[3, 1.5], [1, -2.1]]}), CALLS[3]],
    ]
    for calls in others:
        assert changes(facts, request_facts(calls))


def test_completions_count_as_often_as_they_are_asked_for() -> None:
    """But for a run that was begun twice; what is asked beside them counts once."""
    (completions,) = request_facts(CALLS[:2]).values()
    assert completions["count"] == 2
    assert request_facts(CALLS[:2], distinct=True) == request_facts(CALLS[:1])
    assert request_facts([CALLS[3]] * 2) == request_facts([CALLS[3]])


@pytest.mark.parametrize("name", FACTS)
def test_a_fact_that_is_not_there_is_an_error(name: str, tmp_path: Path) -> None:
    """No reader makes up what a scene did not leave, be it a file or a field."""
    with pytest.raises((MissingFact, LookupError)):
        facts_of([name], Left(tmp_path, []))
    for file in ("bias.json", "result.json", "evaluation.json"):
        (tmp_path / file).write_text("{}")
    with pytest.raises((MissingFact, LookupError)):
        facts_of([name], Left(tmp_path, []))
