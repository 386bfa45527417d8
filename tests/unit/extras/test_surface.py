"""Surface classes and near spellings, by example."""

from __future__ import annotations

import pytest

from blackbox_lb.extras.analysis.token_classes import nearly_equal, surface_class

TABLE = {
    "special": ["<|im_end|>", "</s>", "<end_of_turn>", "[INST]"],
    "whitespace": [" ", "\n\n", "\t", "\u00a0"],
    "digits": ["7", " 42", "453", "٣"],
    "other script": [" мир", "中文", "α", " β", "한"],
    "LaTeX": ["\\frac", " $", "$$", "\\", " $\\"],
    "punctuation": [".", " ##", "](", " **", "…", "😀", "`\n"],
    "code": [".sqrt", "](http", "x_1", "_name", "3D", "</div", "e.g"],
    "word start": [" the", " We", " don't", "\nThe", " naïve"],
    "capitalised": ["The", "Final", "TH", "J"],
    "fragment": ["ing", "frac", "'s", "ß"],
}
UNRELATED = [
    ("the", "thing"),
    ("one", "on"),
    ("cat", "dog"),
    ("$", "#"),
    ("<|a|>", " "),
    ("2", "22"),
    ("base", "bass"),
]


@pytest.mark.parametrize(
    ("name", "text"), [(name, text) for name, texts in TABLE.items() for text in texts]
)
def test_surface_classes(name: str, text: str) -> None:
    """Each text belongs to the class that its definition says."""
    assert surface_class(text.encode(), text) == name


def test_what_the_text_does_not_tell() -> None:
    """Half a character is known by its bytes, a special token that is written like a word by the
    vocabulary.
    """
    assert surface_class(b"\xe4\xb8", "\ufffd") == "part of a character"
    assert surface_class(None, "endoftext", special=True) == "special"
    assert surface_class(None, "", special=True) == "special"
    assert surface_class(None, "") == "not known"
    assert surface_class(None, " answer") == "word start"


def related(one: str, other: str) -> str | None:
    """The closest relation of two texts."""
    keys = set(nearly_equal(other))
    return next((key[0] for key in nearly_equal(one) if key in keys), None)


@pytest.mark.parametrize(
    ("one", "other", "relation"),
    [
        (" Answer", "Answer", "space"),
        (" the", "The", "case"),
        ("$", " $", "space"),
        ("$", " $$", "repetition"),
        (" ##", " ###", "repetition"),
        ("\n", " \n\n", "whitespace"),
        ("'s", " 's", "space"),
    ],
)
def test_near_spellings(one: str, other: str, relation: str) -> None:
    """The closest of several relations is found, from either side."""
    assert related(one, other) == related(other, one) == relation


@pytest.mark.parametrize(("one", "other"), UNRELATED)
def test_other_spellings(one: str, other: str) -> None:
    """Words that only look like forms of each other, other symbols and other numbers are not
    related.
    """
    assert related(one, other) is None
