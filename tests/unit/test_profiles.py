"""Provider profiles: rows that are checked, inherited, and refused with the row's name."""

from __future__ import annotations

from pathlib import Path

import pytest

from blackbox_lb.errors import ProfileError
from blackbox_lb.profiles import load_profile, profile_names


def test_the_profiles_that_come_along() -> None:
    """They load, are called as their files, and every piece of evidence says its grade."""
    assert profile_names() == ["llamacpp", "local", "vllm"]
    for name in profile_names():
        profile = load_profile(name)
        assert profile.name == name
        assert profile.evidence


def test_a_profile_of_ones_own_extends_another(tmp_path: Path) -> None:
    """It holds only the rows in which it differs, table by table."""
    path = tmp_path / "mine.toml"
    path.write_text('extends = "vllm"\nname = "mine"\n[bias]\nentries = 50\nfractions = false\n')
    mine, vllm = load_profile(str(path)), load_profile("vllm")
    assert (mine.name, mine.bias.entries, mine.bias.fractions) == ("mine", 50, False)
    assert mine.bias.low == vllm.bias.low
    assert mine.neutral == vllm.neutral


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("name = ", "not valid TOML"),
        ('extends = "vllm"\nname = 3', "row name"),
        ('extends = "vllm"\nname = "x"\nspeed = 9', "row speed"),
        ('extends = "vllm"\nname = "x"\n[bias]\nentries = 0', "row bias.entries"),
        ('extends = "vllm"\nname = "x"\n[logprobs]\nmeaning = "sideways"', "row logprobs.meaning"),
        ('name = "x"', "row title"),
        ('extends = "nobody"', "unknown provider 'nobody'"),
    ],
)
def test_a_broken_profile_is_refused(tmp_path: Path, text: str, sentence: str) -> None:
    """The message names the file and the row."""
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(ProfileError, match=sentence):
        load_profile(str(path))


def test_a_profile_cannot_extend_itself(tmp_path: Path) -> None:
    """A circle is named instead of followed."""
    path = tmp_path / "mine.toml"
    path.write_text(f'extends = "{path.as_posix()}"')
    with pytest.raises(ProfileError, match="extends itself"):
        load_profile(str(path))


@pytest.mark.parametrize(
    ("name", "sentence"), [("opnai", "known: llamacpp, local, vllm"), ("none.toml", "cannot read")]
)
def test_an_unknown_profile_is_refused(name: str, sentence: str) -> None:
    """The known ones are listed, and how to give one's own."""
    with pytest.raises(ProfileError, match=sentence):
        load_profile(name)
