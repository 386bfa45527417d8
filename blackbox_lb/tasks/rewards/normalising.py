"""The spelling in which words are compared: without case and punctuation, with signs and marks.

Two answers are the same where ``normalise`` gives the same; an answer stands in a text where its
``pattern`` is found in ``decomposed`` of the text, which also forgives an accent that is left out.
"""

import unicodedata
from functools import lru_cache

import regex

_APOSTROPHES = "'`´‘’‛′ʹʻʼʽʾʿˈ"
_REWRITTEN = str.maketrans(
    dict.fromkeys(_APOSTROPHES, "")
    | {
        "−": "-",
        "⁄": "/",
        "∕": "/",
        "ş": "ș",  # Romanian is often written with the cedillas of Turkish
        "ţ": "ț",
    }
)
"""Signs and letters that are written in several ways."""
_BARRED = str.maketrans(
    {
        "ø": "o\u0338",
        "ł": "l\u0338",
        "đ": "d\u0335",
        "ħ": "h\u0335",
        "ı": "i\u0335",
        "æ": "a\u0335e",
        "œ": "o\u0335e",
    }
)
"""Letters that NFD leaves whole, as a letter with a mark."""
_MOST_MARKS = 30
"""Marks on one letter; longer runs are decoration (the limit of Unicode's stream-safe format, UAX
15), and sorting them takes quadratic time."""
_TOO_MANY_MARKS = regex.compile(rf"\p{{M}}{{{_MOST_MARKS + 1},}}")
_EMPHASIS = regex.compile(
    r"(?<![\p{L}\p{N}*])(\*{1,3})(?=[^\s*])(.{1,100}?)(?<=\S)\1(?![\p{L}\p{N}*])"
)
_THOUSANDS = regex.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_INITIALS = regex.compile(r"(?<=\b\p{L})\.(?=\p{L}\b)")
# Han, kana and Hangul, Thai, Lao, Myanmar, Khmer: scripts that put no space (or a particle) between
# words.
_UNSPACED = (
    r"(?!\p{Nd})[\u3041-\u30ff\u3400-\u9fff\uf900-\ufaff\uac00-\ud7a3\u0e00-\u0eff\u1000-\u109f"
    r"\u1780-\u17ff\U00020000-\U0003ffff]"
)
_SIGN = r"[\p{S}\#%&@/§¶‰‱*]"
_WORD = regex.compile(
    rf"""
    # a letter that stands alone or is repeated, with a minus behind it: A-, BBB-
    (?<![\p{{L}}\p{{N}}\p{{M}}])(\p{{L}})\1{{0,2}}-(?![\p{{L}}\p{{N}}>\-])
    | {_UNSPACED}(?<=[\p{{L}}\p{{N}}])\p{{M}}*
    | (?:(?<![\p{{L}}\p{{N}}\p{{M}}\-])-(?=\p{{Nd}}))?  # -5
      (?:(?!{_UNSPACED})[\p{{L}}\p{{N}}]\p{{M}}*|(?<=\p{{Nd}})\.(?=\p{{Nd}}))+
      (?:(?<=\p{{L}}\p{{M}}*)  # C++, A+, C#, A*
        (?:\+{{2,}}|\+(?![\p{{L}}\p{{N}}])|\#(?!\p{{L}})|\*(?![\p{{L}}\p{{N}}*])))?
    | {_SIGN}
    # at the end of a text, as in "The sign is -."
    | (?<!\S)-(?=(?:(?!{_SIGN})[^\p{{L}}\p{{N}}\-]){{0,5}}\Z)
    """,
    regex.VERBOSE,
)


def normalise(text: str) -> str:
    """The words and signs of ``text`` in one spelling, with a space between them.

    Case, width and the form of composition (NFKC) do not count; nor do apostrophes, punctuation,
    hyphens within words, underscores, and the asterisks of Markdown. Marks and signs do: ``C++`` is
    one word, and so are ``C#``, ``A+``, ``A-`` and ``A*``; any other sign is a word of its own.

    Numbers stay numbers: ``1,234`` is ``1234``, while the point of ``3.5`` and the sign of ``-5``
    are kept. Initials close up (``D.C.`` is ``dc``). Each letter of a script written without spaces
    is a word, so that ``contains`` works there too. Applying it twice changes nothing. The time
    grows with the length of the text.
    """
    bare = _TOO_MANY_MARKS.sub("", text.translate(_REWRITTEN))
    # Canonical caseless matching, definition D146 of the Unicode Standard.
    folded = unicodedata.normalize("NFKD", unicodedata.normalize("NFD", bare).casefold())
    folded = unicodedata.normalize("NFKC", folded.casefold()).translate(_REWRITTEN)
    folded = unicodedata.normalize("NFC", without_emphasis(folded))
    closed = _INITIALS.sub("", _THOUSANDS.sub("", folded))
    return " ".join(word.group() for word in _WORD.finditer(closed))


def without_emphasis(text: str) -> str:
    """A text without the pairs of asterisks by which Markdown emphasises: ``**A***`` is ``A*``."""
    if "*" not in text:  # the two replacements take as long as half of all else
        return text
    for _ in range(2):  # bold within italics
        text = _EMPHASIS.sub(r"\2", text)
    return text


def decomposed(text: str) -> str:
    """``normalise`` with each mark behind its letter, for a ``pattern`` to be found in."""
    return unicodedata.normalize("NFD", normalise(text).translate(_BARRED))


_LETTER = regex.compile(r"(\P{M})(\p{M}*)")


def _takes_accents(letter: str) -> bool:
    """Whether people leave out the marks of a letter: of Latin and Greek, Hebrew and Arabic ones,
    and the dots of the Russian ё. All others, as of kana or Thai, make another letter.
    """
    is_of_script = letter < "\u0400" or "\u0590" <= letter <= "\u06ff" or letter == "е"
    return is_of_script and letter.isalpha()


def without_accents(answer: str) -> str:
    """``decomposed`` of an answer without the marks that a ``pattern`` may ignore."""
    letters = _LETTER.findall(decomposed(answer))
    return "".join(
        letter if _takes_accents(letter) else letter + marks for letter, marks in letters
    )


@lru_cache(maxsize=4096)
def pattern(answer: str, *, accents: bool = False, alone: bool = False) -> regex.Pattern[str]:
    """Compile what finds an answer in ``decomposed`` of a text, as whole words.

    Args:
        answer: it has a word or a sign.
        accents: whether an accent must be there; otherwise it is ignored where one of both letters
            has none: ``o`` is ``ó`` and ``ỏ``, which differ from each other.
        alone: whether the text holds nothing but the answer and signs around it, for ``fullmatch``.
    """
    parts = []
    for letter, marks in _LETTER.findall(decomposed(answer)):
        if accents or not _takes_accents(letter):
            parts.append(regex.escape(letter + marks))
        elif marks:
            parts.append(f"{letter}(?:{marks})?")
        else:
            parts.append(rf"{letter}\p{{M}}*")
    words = "".join(parts)
    if alone:
        return regex.compile(rf"(?:[^\w\s]\p{{M}}* )*{words}(?: [^\w\s]\p{{M}}*)*")
    return regex.compile(rf"(?<!\S){words}(?!\S)")
