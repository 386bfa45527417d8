"""A process of its own that compares mathematical expressions, so that an endless one can be ended
from any thread.

Run as a script: each line on stdin is JSON, [[accepted answers], text]; each line on stdout is
true, false, or the answer that is no mathematics. A comparison that takes more than 10 seconds of
processor time ends the process. math-verify's own time limit is off: it uses signals that only a
main thread gets and that do not interrupt a long multiplication
(https://github.com/huggingface/Math-Verify).
"""

import importlib
import json
import logging
import re
import signal
import sys
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

SECONDS = 10
"""Of processor time, so that a busy machine changes no verdict. Comparing homework answers takes
milliseconds.
"""


MARKS = ("$", r"\(", r"\[", r"\boxed")
"""What marks LaTeX inside a text."""
FINAL = re.compile(r"####[ \t]*([^\n]*\d[^\n]*)")
"""The final answer in GSM8K's solutions, and in those of models that follow them
(https://github.com/openai/grade-school-math).
"""
WRAPPED = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mbox)\s*\{([^{}]*)\}")
LETTER = re.compile(r"\(?([A-Za-z])\)?")
WORDS = re.compile(r"[^\W\d_]{2,}(?:[ '-]+[^\W\d_]+)*\.?")
SPACED_WORD = re.compile(r"(?<!\w)[^\W\d_]{2,}(?!\w)")
COMMAND = re.compile(r"\\[A-Za-z]+")
LONG_WORD = re.compile(r"[^\W\d_]{3,}")
BOX = re.compile(r"\\boxed\s*\{((?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*)\}")


@dataclass(frozen=True, slots=True)
class Accepted:
    """An accepted answer, read once.

    Attributes:
        words: the answer in lower case where it is a text or a letter, "" where it is mathematics.
        letter: whether it is a single letter.
        expressions: what math-verify reads in it: LaTeX, or a plain expression where it is none.
    """

    words: str
    letter: bool
    expressions: tuple[Any, ...]


def _parsed(text: str, *configs: str) -> tuple[Any, ...]:
    """The expressions that math-verify reads in ``text`` with these extraction configurations."""
    library = importlib.import_module("math_verify")
    chosen = [getattr(library, name)() for name in configs]
    parsed = library.parse(text, extraction_config=chosen, parsing_timeout=0)
    return tuple(item for item in parsed if not isinstance(item, str))


@lru_cache(maxsize=4096)
def _accepted(answer: str) -> Accepted:
    """Read an accepted answer: as a text or a letter, else as LaTeX with all of it consumed, else
    as a plain expression. A number cut out of an expression would accept wrong answers.
    """
    bare = answer.strip().strip("$").strip()
    unwrapped = WRAPPED.sub(r"\1", bare).strip()
    letter = LETTER.fullmatch(unwrapped)
    if letter is not None:
        return Accepted(letter[1], True, ())
    is_text = unwrapped != bare or LONG_WORD.search(unwrapped) is not None
    if is_text and WORDS.fullmatch(unwrapped) is not None:
        return Accepted(_in_words(unwrapped), False, ())
    marked = any(mark in answer.replace(r"\$", "") for mark in MARKS)
    latex = _parsed(answer if marked else rf"\boxed{{{bare}}}", "LatexExtractionConfig")
    return Accepted("", False, latex or _parsed(answer, "ExprExtractionConfig"))


def _in_words(text: str) -> str:
    """The words of ``text`` in lower case, with one space between them."""
    return " ".join(re.findall(r"[^\W_]+", WRAPPED.sub(r"\1", text).casefold()))


def _says(text: str, accepted: Accepted) -> bool:
    """Whether a completion gives an answer of words or of one letter: in its last box if it has
    one, as the whole text, or, of words, anywhere as whole words.
    """
    boxes = BOX.findall(text)
    stated = boxes[-1] if boxes else text.strip().strip("$").strip()
    if accepted.letter:
        letter = LETTER.fullmatch(WRAPPED.sub(r"\1", stated).strip(" ."))
        if letter is not None:
            return letter[1] == accepted.words
        return not boxes and _named_letter(text) == accepted.words
    words = _in_words(stated)
    if boxes:
        return words == accepted.words
    return f" {accepted.words} " in f" {words} "


def _named_letter(text: str) -> str | None:
    """The letter that ``text`` names last behind "is", "answer" or "option", if it does."""
    named = re.findall(
        r"(?:\bis|\banswer:?|\boption|\bchoice)\s*:?\s*\$?\(?([A-Za-z])\)?\$?(?![\w'])", text
    )
    return named[-1] if named else None


def _readings(text: str) -> list[list[Any]]:
    """What a completion may state: the last expression in it, as math-verify finds it, and, where
    nothing in it is marked as LaTeX, the whole of it as one LaTeX expression, as in ``(3,4]``. A
    text without words is that expression alone: ``51`` is no reading of ``\\sqrt{51}``.
    """
    library = importlib.import_module("math_verify")
    final = FINAL.findall(text)
    stated = (final[-1] if final else text).strip()
    whole: list[Any] = []
    if not any(mark in stated for mark in MARKS) and "\n" not in stated:
        whole = list(_parsed(rf"\boxed{{{stated}}}", "LatexExtractionConfig"))
    has_words = SPACED_WORD.search(COMMAND.sub(" ", stated)) is not None
    if whole and not has_words:
        return [whole]
    return [reading for reading in (whole, library.parse(stated, parsing_timeout=0)) if reading]


def _correct(answers: list[str], text: str) -> bool | str:
    """Whether ``text`` gives one of ``answers``; or the answer that cannot be read."""
    library = importlib.import_module("math_verify")
    accepted = [_accepted(answer) for answer in answers]
    for answer, row in zip(answers, accepted, strict=True):
        if not row.words and not row.expressions:
            return answer
    if any(row.words and _says(text, row) for row in accepted):
        return True
    expressions = [row.expressions for row in accepted if row.expressions]
    if not expressions:
        return False
    readings = _readings(text)
    return any(
        library.verify(list(row), reading, timeout_seconds=0)
        for row in expressions
        for reading in readings
    )


def main() -> None:
    """Answer until stdin ends."""
    logging.disable(logging.CRITICAL)
    importlib.import_module("math_verify")
    timer = getattr(signal, "setitimer", None)  # Windows has none: no limit there
    for line in sys.stdin:
        if timer is not None:
            timer(signal.ITIMER_VIRTUAL, SECONDS)
        answers, text = json.loads(line)
        sys.stdout.write(json.dumps(_correct(answers, text)) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
