"""A process of its own that compares mathematical expressions, so that an endless one can be ended
from any thread.

Run as a script: each line on stdin is JSON, [[accepted answers], text]; each line on stdout is
true, false, or the answer that is no mathematics. A comparison that takes more than 10 seconds of
processor time ends the process. math-verify's own time limit is off: it uses signals that only a
main thread gets and that do not interrupt a long multiplication
(https://github.com/huggingface/Math-Verify).

An answer or a completion without marks is LaTeX first, and then all of it: math-verify by itself
takes the first number of a text without marks, so that ``2\\sqrt{3}`` would equal 2.

math-verify compares numbers to six decimals, and to 1e-15 where none is a decimal, whatever their
size, and no setting of it is relative. So its function for two numbers is replaced by
``_equal_numbers``.
"""

import importlib
import json
import logging
import re
import signal
import sys
import unicodedata
from collections.abc import Callable
from decimal import Decimal
from functools import lru_cache, partial
from typing import Any

SECONDS = 10
"""Of processor time, so that a busy machine changes no verdict. Comparing homework answers takes
milliseconds.
"""
DECIMALS = 5e-7
"""Half a unit of the sixth decimal, by which a decimal may differ from a number of 0.01 or more."""
SMALL = 0.01
"""Below it the difference may be the same share of the number, so that five digits count."""
NOISE = 1e-12
"""Share of a number by which arithmetic in double precision may miss it."""
EXACT = 1e-30
"""The same share where there is no decimal, computed with as many digits as it takes."""
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
_UPRIGHT = re.compile(
    r"(\\[A-Za-z]+)?"
    r"(?:\\(?:mathrm|mathit|text|operatorname)\s*\{\s*([ei])\s*\}|\{\s*\\(?:rm|it)\s+([ei])\s*\})"
)
_ROOT = re.compile(r"\\sqrt\s*\(([^()]*)\)")
_EXPONENT = re.compile(r"(?<![\w.\\])(\d+\.\d+e[-+]?\d+|\d+e[-+]\d\d+)(?![\w.])", re.IGNORECASE)
_SEPARATORS = {0x066B: ".", 0x066C: ","}
"""The decimal and the thousands separator of Arabic."""


def _plain_characters(text: str) -> str:
    """A text with the digits of any script, full-width signs, upright e and i, roots of a bracket
    and exponents as Python writes them (1.6e-19) as LaTeX for a computer has them.
    """
    characters = [
        unicodedata.normalize("NFKC", char) if "\uff01" <= char <= "\uff5e" else char
        for char in text.translate(_SEPARATORS)
    ]
    digits = [str(unicodedata.decimal(char)) if char.isdecimal() else char for char in characters]
    text = _UPRIGHT.sub(_as_italic, "".join(digits))
    text = _ROOT.sub(r"\\sqrt{\1}", text)
    return _EXPONENT.sub(_as_power, text)


def _as_italic(match: re.Match[str]) -> str:
    letter = match[2] or match[3]
    if match[1]:  # a command ends at the space
        return f"{match[1]} {letter}"
    return letter


def _as_power(match: re.Match[str]) -> str:
    mantissa, _, exponent = match[0].lower().partition("e")
    return rf"{mantissa} \times 10^{{{int(exponent)}}}"


@lru_cache(maxsize=4096)
def _accepted(answer: str) -> tuple[Any, ...]:
    """The values of an accepted answer; none where it is no mathematics."""
    parse = importlib.import_module("math_verify").parse
    text = _plain_characters(answer.strip())
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
    """The values in what math-verify parsed, with the number i for its letter.

    math-verify takes i for a variable, and all variables for real ones where it finds no i.
    """
    sympy = importlib.import_module("sympy")
    values = []
    for value in parsed:
        if isinstance(value, str):
            continue
        variables = {symbol: sympy.Symbol(symbol.name, real=True) for symbol in value.free_symbols}
        is_complex = any(symbol.name == "i" for symbol in variables)
        if is_complex:
            variables |= {symbol: sympy.I for symbol in variables if symbol.name == "i"}
            value = value.xreplace(variables)
        values.append(value)
    return tuple(values)


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
    # The last expression alone: where it cannot be read, a number in it is not the answer.
    return list(_values(library.parse(text, parsing_timeout=0, extraction_mode="first_match")))


def _equal_numbers(
    verified: Callable[..., bool], gold: Any, candidate: Any, *precisions: int
) -> bool:
    """Whether two expressions are equal by size, in place of math-verify's ``sympy_numeric_eq``.

    Args:
        verified: that function, for matrices, and for expressions with a variable once they are
            divided by the smallest coefficient of ``gold``.
        gold: of the accepted answer.
        candidate: of the completion.
        precisions: further arguments of ``verified``.
    """
    if not (hasattr(gold, "is_number") and hasattr(candidate, "is_number")):
        return verified(gold, candidate, *precisions)
    if gold.is_number and candidate.is_number:
        return any(
            _is_close(number, reading)
            for number in _readings(gold)
            for reading in _readings(candidate)
        )
    coefficients = gold.doit().as_coefficients_dict().values()
    sizes = [abs(coefficient) for coefficient in coefficients if coefficient != 0]
    smallest = min(sizes, default=1)
    return verified(gold / smallest, candidate / smallest, *precisions)


def _readings(number: Any) -> list[Any]:
    """A number; of a percentage also the number before the sign, because 6 is accepted for 6 %."""
    readings = [number.doit()]
    of_hundred = importlib.import_module("math_verify.grader").get_pct_val(number)
    if of_hundred is not None:
        readings.append(of_hundred.doit())
    return readings


def _is_close(gold: Any, candidate: Any) -> bool:
    """Whether two numbers are equal: exactly, or as far as their decimals tell.

    A decimal may differ from a number by ``DECIMALS``, from one below ``SMALL`` by that share of
    it, and two decimals by no more than half a unit of the last place of the shorter one.
    """
    sympy = importlib.import_module("sympy")
    difference = gold - candidate
    if not (gold.has(sympy.Float) or candidate.has(sympy.Float)):
        if difference.is_Rational:
            return bool(difference == 0)
        if gold == 0:
            return bool(candidate.equals(0))
        return bool(abs(sympy.N(candidate / gold - 1)) <= EXACT)
    size = abs(sympy.N(gold))
    tolerance = DECIMALS * min(1, size / SMALL)
    if gold.is_Float and candidate.is_Float:
        tolerance = min(tolerance, max(_half_a_unit(gold), _half_a_unit(candidate)))
    tolerance = max(tolerance * (1 + 1e-6), NOISE * size)
    return bool(abs(sympy.N(difference)) <= tolerance)


def _half_a_unit(decimal: Any) -> float:
    """Half a unit of the last place of a decimal that is written out."""
    exponent = Decimal(repr(float(decimal))).as_tuple().exponent
    return 0.5 * 10.0 ** int(exponent)


def _correct(answers: list[str], text: str) -> bool | str:
    library = importlib.import_module("math_verify")
    text = _plain_characters(text)
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
    grader: Any = importlib.import_module("math_verify.grader")
    grader.sympy_numeric_eq = partial(_equal_numbers, grader.sympy_numeric_eq)
    timer = getattr(signal, "setitimer", None)  # Windows has none: no limit there
    for line in sys.stdin:
        if timer is not None:
            timer(signal.ITIMER_VIRTUAL, SECONDS)
        answers, text = json.loads(line)
        sys.stdout.write(json.dumps(_correct(answers, text)) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
