"""A process of its own that compares mathematical expressions, so that an endless one can be ended
from any thread.

Run as a script: each line on stdin is JSON, [[accepted answers], text]; each line on stdout is
true, false, or the answer that is no mathematics. A comparison that takes more than 10 seconds of
processor time ends the process. math-verify's own time limit is off: it uses signals that only a
main thread gets and that do not interrupt a long multiplication
(https://github.com/huggingface/Math-Verify).

An answer or a completion without marks is LaTeX first, and then all of it: math-verify by itself
takes the first number of a text without marks, so that ``2\\sqrt{3}`` would equal 2.
"""

import importlib
import json
import logging
import re
import signal
import sys
from functools import lru_cache
from typing import Any

SECONDS = 10
"""Of processor time, so that a busy machine changes no verdict. Comparing homework answers takes
milliseconds.
"""
NUMBER = r"[-+]?(?:\d{1,3}(?:[ ,]\d{3})+|\d+)?(?:\.\d+)?"
_NUMBER_IN_GROUPS = re.compile(r"[-+]?\d{1,3}(?:[ ,]\d{3})+(?:\.\d+)?")
_MIXED_NUMBER = re.compile(r"(?<![\d.,}])(\d+) (\d+)/(\d+)(?![\d.,])")
_UNIT_WITH_POWER = re.compile(
    r"(?<=\d)(?:\s+m|\s*(?:mm|cm|dm|km|in|ft|yd|mi|m(?=[23²³])))(?:\^?\{?[23]\}?|[²³])$"
)
_QUANTITY = re.compile(rf"[€£¥₹]?\s*{NUMBER}\s*(?:[€£¥₹]|[^\W\d_]+(?:\s+[^\W\d_]+)*)?")
_ARITHMETIC = re.compile(r"[\d.,\s+*/^()×÷-]+")
_MULTIPLIERS = re.compile(
    r"\b(?:hundred|thousand|million|billion|trillion|dozen|third|quarter|hal(?:f|ve))s?\b",
    re.IGNORECASE,
)
_WORD = re.compile(r"(?<![\\A-Za-z\d])[A-Za-z]{3,}(?![A-Za-z])|[A-Za-z]{2,}\s+[A-Za-z]{2,}")
_COMMAND = re.compile(r"\\(?:begin|end)\{\w+\}|\\[A-Za-z]+")
_NO_WORDS = re.compile("sin|cos|tan|cot|sec|csc|log|exp|max|min|gcd|lcm|det|deg|mod|abc|xyz")
_DELIMITED = re.compile(
    r"\$+([^$]+)\$+|\\\((.+)\\\)|\\\[(.+)\\\]|\\boxed\s*\{((?:(?!\\boxed).)+)\}", re.DOTALL
)
_MARK = re.compile(r"(?<!\\)\$[^$]+(?<!\\)\$|\\\(|\\\[|\\boxed|\\fbox")
_ANSWER_LINE = re.compile(r"(?:####|(?i:\banswer\s*(?:is|:|=)))[ \t:]*([^\n]*)")


@lru_cache(maxsize=4096)
def _accepted(answer: str) -> tuple[Any, ...]:
    """The values of an accepted answer; none where it is no mathematics."""
    parse = importlib.import_module("math_verify").parse
    text = answer.strip()
    delimited = _DELIMITED.fullmatch(text)
    if delimited is not None:
        text = next(group for group in delimited.groups() if group is not None).strip()
    if _ANSWER_LINE.search(text):  # a worked solution
        return _values(_given(text))
    if _MARK.search(text):
        return _values(parse(text, parsing_timeout=0))
    return _whole(text) or _plain(text)


def _whole(text: str) -> tuple[Any, ...]:
    """The values of a text that is one LaTeX expression from its first to its last character."""
    library = importlib.import_module("math_verify")
    text = text.strip().rstrip(".;:").rstrip()
    if _NUMBER_IN_GROUPS.fullmatch(text):
        text = text.replace(" ", "").replace(",", "")
    text = _UNIT_WITH_POWER.sub("", text)
    text = _MIXED_NUMBER.sub(r"\1\\frac{\2}{\3}", text)
    dollars = re.sub(r"(?<!\\)\$", "", text).replace("\n", " ")
    config = library.LatexExtractionConfig(boxed_match_priority=-1)
    parsed = library.parse(
        f"${dollars}$", [config], parsing_timeout=0, extraction_mode="first_match"
    )
    if not parsed or _is_prose(str(parsed[-1])):
        return ()
    return _values(parsed)


def _plain(text: str) -> tuple[Any, ...]:
    """The value of a number with or without a unit, or of an arithmetic expression."""
    library = importlib.import_module("math_verify")
    is_quantity = _QUANTITY.fullmatch(text) is not None and not _MULTIPLIERS.search(text)
    if not is_quantity and _ARITHMETIC.fullmatch(text) is None:
        return ()
    return _values(library.parse(text, [library.ExprExtractionConfig()], parsing_timeout=0))


def _is_prose(latex: str) -> bool:
    """Whether words stand in an expression, which LaTeX reads as products of letters."""
    words = [match[0] for match in _WORD.finditer(_COMMAND.sub(" ", latex))]
    return not all(_NO_WORDS.fullmatch(word) for word in words)


def _values(parsed: list[Any]) -> tuple[Any, ...]:
    return tuple(item for item in parsed if not isinstance(item, str))


def _given(text: str) -> list[Any]:
    """The values that a completion gives: of its box, else of the line with its answer where that
    is one expression without marks, else of the last expression that math-verify finds.
    """
    library = importlib.import_module("math_verify")
    if r"\boxed" not in text and r"\fbox" not in text:
        named = _ANSWER_LINE.findall(text)
        lines = [line for line in text.splitlines() if line.strip()]
        line = (named or lines or [""])[-1].strip().strip("*").strip()
        is_marked = _MARK.search(line) is not None or line.startswith(("- ", "* ", "+ "))
        if not is_marked and re.search(r"[\d\\]", line):
            values = _whole(line)
            if values:
                return list(values)
    return list(library.parse(text, parsing_timeout=0))


def _correct(answers: list[str], text: str) -> bool | str:
    library = importlib.import_module("math_verify")
    for answer in answers:
        if not _accepted(answer):
            return answer
    candidates = _given(text)
    return any(
        library.verify(list(_accepted(answer)), candidates, timeout_seconds=0) for answer in answers
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
