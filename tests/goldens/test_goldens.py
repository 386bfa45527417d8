"""Numbers and requests of small fits and evaluations stay what they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.goldens.compare import VALUES, differences, load
from tests.goldens.facts import Facts
from tests.goldens.scenes import SCENES, facts_of


@pytest.mark.parametrize("name", SCENES)
def test_a_scene_has_its_numbers_and_requests(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a scene computes and asks for is what is stored."""
    monkeypatch.chdir(tmp_path)
    assert differences(load(name), facts_of(name, tmp_path)) == []


def test_every_stored_scene_is_played() -> None:
    """Each file of facts has a scene, and each scene its file."""
    assert {path.stem for path in VALUES.glob("*.json")} == set(SCENES)


def test_each_kind_of_difference_is_named() -> None:
    """A changed number, word, or truth value, a missing fact and a new one; a millionth is none."""
    stored: Facts = {"a": 1.0, "b": 2.0, "c": "HELPS", "d": 4, "e": 0.0, "f": None, "g": True}
    same: Facts = {**stored, "a": 1.0 + 1e-7, "e": 1e-12}
    assert differences(stored, same) == []
    changed: Facts = {"a": 1.00001, "c": "HURTS", "d": 5, "e": 1e-6, "f": 0.0, "g": 1, "h": 1}
    assert [line.partition(":")[0] for line in differences(stored, changed)] == list("abcdefgh")
