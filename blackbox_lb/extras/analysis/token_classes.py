"""Surface: the class of a token by its text alone, and the other tokens with nearly the same
spelling.
"""

import re
import unicodedata
from collections.abc import Iterator

SPECIAL = re.compile(
    r"<\|[^|]*\|>|</?s>|<(bos|eos|pad|unk|mask|start_of_turn|end_of_turn)>|\[(BOS|EOS|PAD|UNK|MASK|/?INST)\]"
)
INSIDE_WORDS = "'’-"


def surface_class(raw: bytes | None, text: str, *, special: bool = False) -> str:
    """The class of a token with the bytes ``raw`` (None: not known) and the text ``text``.

    special: stands for no text, or is written like such a token (``<|im_end|>``). not known:
    without bytes and text. part of a character: bytes that are no UTF-8. whitespace: nothing else.
    digits: nothing else but whitespace. other script: holds a letter that is not Latin. LaTeX:
    holds a backslash or a dollar sign. punctuation: holds no letter and no digit. code: letters
    with digits or symbols, apostrophes and hyphens aside. The rest are letters: word start after
    whitespace, capitalised where the first is a capital, else fragment.
    """
    if special or SPECIAL.fullmatch(text.strip()):
        return "special"
    if not text:
        return "not known"
    if raw is not None and not _is_utf8(raw):
        return "part of a character"
    core = text.strip()
    if not core:
        return "whitespace"
    if all(each.isdecimal() for each in core):
        return "digits"
    return _written(text, core)


def _written(text: str, core: str) -> str:
    letters = [each for each in core if each.isalpha()]
    if any(not unicodedata.name(letter, "").startswith("LATIN") for letter in letters):
        return "other script"
    if "\\" in core or "$" in core:
        return "LaTeX"
    if not any(each.isalnum() for each in core):
        return "punctuation"
    if not all(
        each.isalpha() or each in INSIDE_WORDS or unicodedata.combining(each) for each in core
    ):
        return "code"
    if text[0].isspace():
        return "word start"
    return "capitalised" if core[0].isupper() else "fragment"


def _is_utf8(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


def nearly_equal(text: str) -> Iterator[tuple[str, str]]:
    """(relation, key) pairs, the closest relation first: two texts are related where they share
    one.

    space: equal but for whitespace around them. case: equal then but for capitals. repetition: one
    symbol, repeated (``$``, `` $$``). whitespace: both are nothing else.
    """
    core = text.strip()
    if not core:
        if text:
            yield "whitespace", ""
        return
    yield "space", core
    if core[0].isalpha():
        yield "case", core.casefold()
    if len(set(core)) == 1 and not core[0].isalnum():
        yield "repetition", core[0]
