"""A file is replaced whole or not at all."""

import os
from pathlib import Path

import pytest

from blackbox_lb.api.local.engine import resolve_model
from blackbox_lb.errors import InputError
from blackbox_lb.safety.files import expanded, replacing, write_whole
from tests.support.errors import raises_naming


def test_the_new_file_takes_the_place_of_the_old_one(tmp_path: Path) -> None:
    """The old content stands until the body has ended, and nothing else stays in the folder."""
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with replacing(path) as draft:
        draft.write_bytes(b"new")
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"
    write_whole(path, b"newer")
    assert [(each.name, each.read_bytes()) for each in tmp_path.iterdir()] == [("file", b"newer")]


def test_a_body_that_fails_leaves_the_old_file_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error in the body, no draft at its end, and a full disk: the draft goes, and the old file
    stays.
    """
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with pytest.raises(RuntimeError):
        _fail(path)
    with pytest.raises(FileNotFoundError), replacing(path):
        pass

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with raises_naming(OSError, "28"):
        write_whole(path, b"new")
    assert [(each.name, each.read_bytes()) for each in tmp_path.iterdir()] == [("file", b"old")]


def _fail(path: Path) -> None:
    with replacing(path) as draft:
        draft.write_bytes(b"ha")
        raise RuntimeError


def test_a_draft_may_have_a_name_of_its_own(tmp_path: Path) -> None:
    """Some readers go by the end of the name."""
    with replacing(tmp_path / "mine.toml", ".mine.new.toml") as draft:
        assert draft == tmp_path / ".mine.new.toml"
        draft.write_bytes(b"")
    assert [each.name for each in tmp_path.iterdir()] == ["mine.toml"]


def test_a_home_that_is_not_known_stays_as_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a shell; the file is then not found, and said to be so."""
    monkeypatch.setenv("HOME", str(tmp_path))
    assert expanded("~/file") == tmp_path / "file"
    assert expanded("~nobody-has-this-name/file") == Path("~nobody-has-this-name/file")
    with pytest.raises(InputError):
        resolve_model("~nobody-has-this-name/model.gguf")
