"""The surface class of a token, by its text alone."""

import re
import unicodedata

SPECIAL = re.compile(
    r"<\|[^|]*\|>|</?s>|<(bos|eos|pad|unk|mask|start_of_turn|end_of_turn)>|\[(BOS|EOS|PAD|UNK|MASK|/?INST)\]"
)
"""How chat templates and tokenizers write tokens that stand for no text."""
INSIDE_WORDS = "'’-"
"""Characters of words that are no letters."""


def surface_class(raw: bytes | None, text: str, *, special: bool = False) -> str:
    """The first of these classes that fits a token.

    special: stands for no text, or is written like such a token (``<|im_end|>``).
    not known: has no text.
    part of a character: its bytes are no UTF-8.
    whitespace: has nothing but whitespace.
    digits: has nothing but digits and whitespace around them.
    other script: has a letter that is not Latin.
    LaTeX: has a backslash or a dollar sign.
    punctuation: has no letter and no digit.
    code: letters with digits or symbols, apostrophes and hyphens aside.
    word start: letters after whitespace.
    capitalised: letters, the first one a capital.
    fragment: other letters.

    Args:
        raw: the bytes of the token; None where not known.
        text: its text.
        special: whether it stands for no text.
    """
    if special or SPECIAL.fullmatch(text.strip()):
        return "special"
    if not text:
        return "not known"
    if raw is not None and raw.decode("utf-8", "ignore").encode() != raw:
        return "part of a character"
    core = text.strip()
    if not core:
        return "whitespace"
    if core.isdecimal():
        return "digits"
    letters = [character for character in core if character.isalpha()]
    if any(not unicodedata.name(letter, "").startswith("LATIN") for letter in letters):
        return "other script"
    if "\\" in core or "$" in core:
        return "LaTeX"
    if not any(character.isalnum() for character in core):
        return "punctuation"
    for character in core:
        if not (
            character.isalpha() or character in INSIDE_WORDS or unicodedata.combining(character)
        ):
            return "code"
    if text[0].isspace():
        return "word start"
    if core[0].isupper():
        return "capitalised"
    return "fragment"
