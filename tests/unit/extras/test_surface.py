"""Surface classes, by example."""

from __future__ import annotations

import pytest

from blackbox_lb.extras.analysis.token_classes import surface_class

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
