"""The spelling in which words are compared: without case, accents and punctuation."""

import re
import unicodedata
from functools import lru_cache

_APOSTROPHES = "'`´‘’‛′ʹʻʼʽʾʿˈ"
_REWRITTEN = str.maketrans(
    dict.fromkeys(_APOSTROPHES, "")
    | {
        "ø": "o",
        "ł": "l",
        "đ": "d",
        "ħ": "h",
        "ı": "i",
        "æ": "ae",
        "œ": "oe",
        "−": "-",
    }  # NFKD leaves these whole
)
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_INITIALS = re.compile(r"(?<=\b[^\W\d_])\.(?=[^\W\d_]\b)")
# Han, kana and Hangul, Thai, Lao, Myanmar, Khmer: scripts that put no space (or a particle) between
# words.
_UNSPACED = re.compile(
    "[\u3041-\u30ff\u3400-\u9fff\uf900-\ufaff\uac00-\ud7a3\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\U00020000-\U0003ffff]"
)


def normalise(text: str) -> str:
    """Words of ``text`` in one spelling: NFKD without accents, casefolded, apostrophes dropped,
    other punctuation a space.

    Numbers stay numbers: ``1,234`` is ``1234``, while the point of ``3.5`` and the sign of ``-5``
    are kept. Initials close up (``D.C.`` is ``dc``). Each letter of a script written without spaces
    is a word, so that ``contains`` works there too. Applying it twice changes nothing. The time
    grows with the length of the text.
    """
    bare = unicodedata.normalize("NFC", "".join(map(_folded, text)))
    bare = _INITIALS.sub("", _THOUSANDS.sub("", bare))
    return " ".join("".join(_spaced(bare, index) for index in range(len(bare))).split())


@lru_cache(maxsize=65_536)
def _folded(char: str) -> str:
    """One character without case and accents: NFKD, casefolded, without combining marks.

    Character by character, because NFKD of a whole text sorts each run of combining marks in
    quadratic time. The marks are dropped, so that their order does not matter.
    """
    folded = unicodedata.normalize("NFKD", char.translate(_REWRITTEN))
    folded = unicodedata.normalize("NFKD", folded.casefold())
    letters = (letter for letter in folded if not unicodedata.combining(letter))
    return "".join(letters).translate(_REWRITTEN)


def _spaced(text: str, index: int) -> str:
    char = text[index]
    before = text[index - 1] if index else ""
    after = text[index + 1 : index + 2]
    if _in_word(char):
        if _UNSPACED.match(char) and not char.isdecimal():
            return f" {char} "
        return char
    point = char == "." and before.isdecimal() and after.isdecimal()
    sign = char == "-" and after.isdecimal() and before != "-" and not _in_word(before)
    if point or sign:
        return char
    return " "


def _in_word(char: str) -> bool:
    return char.isalnum() or (char != "" and unicodedata.category(char).startswith("M"))
