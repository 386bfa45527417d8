"""Whether a completion is correct: four matchers that compare its text with the accepted answers,
and mathematical equality, computed in a process of its own.

=============== ==================================================================================
exact-match     the whole completion, but for signs around it, equals an accepted answer, both
                normalised
contains        an accepted answer occurs in the completion at word boundaries, both normalised
math            its last mathematical expression (the boxed one, if any) equals an accepted answer,
                all of it, by math-verify; an answer that is a text or a letter is compared as text
regex:PATTERN   ``re.search(PATTERN, completion)`` on the text as it is; ``{answer}`` stands for
                the answers
=============== ==================================================================================
"""

import atexit
import contextlib
import importlib.util
import json
import re
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import IO, cast

from blackbox_lb.errors import DataError, InputError
from blackbox_lb.safety.printable import shorten
from blackbox_lb.tasks.rewards._math_process import SECONDS
from blackbox_lb.tasks.rewards.normalising import decomposed, normalise, pattern
from blackbox_lb.types import Example

_TEXT = re.compile(
    r"\\(?:text(?:bf|it|rm|normal)?|math(?:bf|it|rm)|mbox|operatorname)\s*\{([^{}]*)\}"
)
_DELIMITERS = re.compile(r"\\[()\[\]]|(?<!\\)\$|\\boxed\s*\{(.*)\}", re.DOTALL)
_LETTERS = re.compile(r"\W*[^\W\d_](?:[^\W\d_]|[\s().,;:!?'’\"-])*")
_NUMBER = re.compile(r"[-+]?[0-9]{1,100}(?:\.[0-9]{1,100})?")
"""Numbers that need no parser: most answers of most data."""
_MARKER = re.compile(r"####|\banswer\s*(?:is|:|=)", re.IGNORECASE)
_DOTS = re.compile(r"\\(?:ldots|cdots|dots[cbmio]?)(?![A-Za-z])|\.{3}|…")
_BEFORE = frozenset({"a", "an", "the", "option", "choice"})


@lru_cache(maxsize=4096)
def text_of(answer: str) -> str | None:
    r"""The words of an accepted answer that is a text or a letter; None for any other.

    ``\text{even}`` gives ``even``, and ``\text{(C)}`` gives ``(C)``.
    """
    bare = _bare(answer)
    return bare if _LETTERS.fullmatch(bare) else None


def is_only_text(answer: str) -> bool:
    """Whether a text cannot be a product of variables, as ``xy`` can."""
    text = text_of(answer)
    if text is None:
        return False
    letters = [char for char in text if char.isalpha()]
    return len(letters) == 1 or len(letters) > 3 or _TEXT.search(answer) is not None


def is_sentence(answer: str) -> bool:
    r"""Whether an answer that is no expression can be compared as text, as ``1.5 million`` and
    ``1, 2, \ldots, n`` can.
    """
    text = _DOTS.sub("", answer)
    return re.search(r"[^\W\d_]", text) is not None and not re.search(r"[\\^{}]", text)


def gives_text(answer: str, completion: str) -> bool:
    """Whether a completion gives the words of an accepted answer.

    The last box must hold just them; without a box they follow the last "answer is", "answer:" or
    ####; without that the completion ends in them. A single letter must have its case.
    """
    words = _words(_bare(answer), answer)
    box = _last_box(completion)
    if box is not None:
        return words in (_words(_bare(box), answer), _words(_bare(box.rpartition("=")[2]), answer))
    stretches = _MARKER.split(completion)
    stated = _words(_bare(stretches[-1]), answer)
    if len(stretches) == 1:
        return stated[-len(words) :] == words
    if stated[: len(words)] == words:
        return True
    while stated and stated[0].lower() in _BEFORE:
        stated = stated[1:]
    return stated[: len(words)] == words


def _bare(text: str) -> str:
    """A text without the delimiters of mathematics and the commands for text."""
    text = _DELIMITERS.sub(lambda match: match[1] or "", text.strip())
    return _TEXT.sub(r"\1", text).replace(r"\ ", " ").replace("~", " ").strip()


def _words(text: str, answer: str) -> list[str]:
    """The words of a text, as they are where the answer is a single letter with a case."""
    letters = re.findall(r"[^\W_]", _bare(answer))
    if len(letters) == 1 and letters[0].lower() != letters[0].upper():
        return re.findall(r"[^\W_]+", text)
    if _DOTS.search(answer):
        text = _DOTS.sub(" dots ", text)
    return [word for word in normalise(text).split() if any(map(str.isalnum, word))]


def _last_box(completion: str) -> str | None:
    r"""The content of the last ``\boxed{}`` or ``\fbox{}``, up to its own closing brace."""
    begin = max(completion.rfind(r"\boxed"), completion.rfind(r"\fbox"))
    opening = completion.find("{", begin)
    if begin < 0 or opening < 0:
        return None
    depth = 0
    for position in range(opening, len(completion)):
        if completion[position] == "{":
            depth += 1
        elif completion[position] == "}":
            depth -= 1
            if depth == 0:
                return completion[opening + 1 : position]
    return completion[opening + 1 :]


_WORKER = Path(__file__).with_name("_math_process.py")


def check_installed() -> None:
    """Raise InputError where math-verify is missing."""
    if importlib.util.find_spec("math_verify") is None:
        raise InputError(
            "the matcher 'math' needs math-verify: pip install '.[tasks]' in the checkout, or"
            " choose another"
        )


@lru_cache(maxsize=65_536)
def mathematically_equal(answers: tuple[str, ...], text: str) -> bool:
    """True where ``text`` gives one of ``answers``.

    An accepted answer is a text or a letter, which is compared as text; else LaTeX, all of it; else
    a number, with or without a unit, or an arithmetic expression. Of the text, the last expression
    counts (the boxed one, if any).

    Unparsable text is False; so is, with a warning, a comparison of more than 10 seconds of
    processor time. DataError: an accepted answer is none of these.
    """
    if any(text_of(answer) is not None and gives_text(answer, text) for answer in answers):
        return True
    expressions = [answer for answer in answers if not is_only_text(answer)]
    while expressions:
        verdict = _process.ask(tuple(expressions), text)
        if verdict is None:
            warnings.warn(
                f"math-verify did not compare {shorten(text[-50:])} within {SECONDS} s; it counts"
                " as incorrect",
                stacklevel=2,
            )
            return False
        if isinstance(verdict, bool):
            return verdict
        if not is_sentence(verdict):
            raise DataError(
                f"the accepted answer {shorten(verdict)} is no mathematical expression; correct it,"
                " or choose another matcher"
            )
        if gives_text(verdict, text):
            return True
        expressions.remove(verdict)
    return False


@lru_cache(maxsize=65_536)
def is_readable(answer: str) -> bool:
    """Whether ``mathematically_equal`` can compare with an accepted answer."""
    if _NUMBER.fullmatch(answer) or is_only_text(answer) or is_sentence(answer):
        return True
    return not isinstance(_process.ask((answer,), ""), str)


class _Process:
    """The worker, started at the first question and again after one that took too long."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.process: subprocess.Popen[str] | None = None

    def ask(self, answers: tuple[str, ...], text: str) -> bool | str | None:
        """The worker's answer, or None where it takes too long."""
        with self.lock:
            process = self.process = self.process or _start()
            stdin = cast(IO[str], process.stdin)
            stdout = cast(IO[str], process.stdout)
            try:
                stdin.write(json.dumps([answers, text]) + "\n")
                stdin.flush()
                line = stdout.readline()
            except BrokenPipeError:
                line = ""
            except BaseException:  # its verdict would be read as that of the next question
                process.kill()
                self._end()
                raise
            if line:
                return cast("bool | str", json.loads(line))
            code = self._end()
            if code == -getattr(signal, "SIGVTALRM", 0):
                return None
            raise InputError(
                f"math-verify ended with exit code {code} instead of comparing"
                f" {shorten(text[-50:])}; see what is wrong with {sys.executable} -c 'import"
                " math_verify'"
            )

    def _end(self) -> int | None:
        process = self.process
        self.process = None
        if process is None:
            return None
        with contextlib.suppress(BrokenPipeError):  # a question that nobody reads any more
            cast(IO[str], process.stdin).close()
        cast(IO[str], process.stdout).close()
        return process.wait()

    def close(self) -> None:
        with self.lock:
            if self.process is not None:
                self.process.kill()
            self._end()


def _start() -> subprocess.Popen[str]:
    command = [
        sys.executable,
        "-P",
        str(_WORKER),
    ]  # -P: no module beside the script is taken for one of Python's own
    pipe = subprocess.PIPE
    none = subprocess.DEVNULL
    return subprocess.Popen(  # noqa: S603  # our own interpreter and script
        command, stdin=pipe, stdout=pipe, stderr=none, text=True, encoding="utf-8"
    )


_process = _Process()
atexit.register(_process.close)


_ANSWER = "{answer}"


def _equals(answers: tuple[str, ...], text: str) -> bool:
    words = decomposed(text)
    for answer in answers:
        if normalise(answer):
            is_equal = pattern(answer, alone=True).fullmatch(words) is not None
        else:  # punctuation alone, which every text would contain, is compared as it is
            is_equal = answer.split() == text.split()
        if is_equal:
            return True
    return False


def _contains(answers: tuple[str, ...], text: str) -> bool:
    words = decomposed(text)
    for answer in answers:
        if normalise(answer):
            is_found = pattern(answer).search(words) is not None
        else:
            is_found = answer in text
        if is_found:
            return True
    return False


@dataclass(frozen=True, slots=True)
class Matcher:
    """One test of a completion's correctness; call it with the example and the completion's text.

    ``spec``: the argument of :func:`parse_matcher`; ``needs_answer``: False for a regex without
    ``{answer}``. ``test``: called with the accepted answers and the text; ``judge``, if given,
    instead of it with the whole example and the text. ``readable``: whether ``test`` can compare
    with an accepted answer.
    """

    spec: str
    needs_answer: bool
    test: Callable[[tuple[str, ...], str], bool] = field(repr=False, compare=False, default=_equals)
    judge: Callable[[Example, str], bool] | None = field(repr=False, compare=False, default=None)
    readable: Callable[[str], bool] | None = field(repr=False, compare=False, default=None)

    def __call__(self, example: Example, text: str) -> bool:
        """True where ``text`` is correct. Raises DataError where answers are needed and the example
        has none.
        """
        if self.needs_answer and not example.answers:
            raise DataError(
                f"{example.place} has no answer, and {self.spec!r} compares with one; "
                "give it an answer or choose a reward that needs none"
            )
        if self.judge is not None:
            return self.judge(example, text)
        return self.test(example.answers, text)

    def problem(self, example: Example) -> str | None:
        """What keeps completions of ``example`` from being compared with its answers; None where
        nothing does.
        """
        for answer in example.answers:
            if self.readable is not None and not self.readable(answer):
                return f"the accepted answer {shorten(answer)} is no mathematical expression"
        return None


def parse_matcher(spec: str) -> Matcher:
    """Make the matcher ``spec``: exact-match, contains, math or regex:PATTERN. Raises InputError
    for any other.
    """
    if spec == "exact-match":
        return Matcher(spec, needs_answer=True, test=_equals)
    if spec == "contains":
        return Matcher(spec, needs_answer=True, test=_contains)
    if spec == "math":
        check_installed()
        return Matcher(spec, needs_answer=True, test=mathematically_equal, readable=is_readable)
    if spec.startswith("regex:"):
        return _regex_matcher(spec)
    raise InputError(
        f"unknown correctness matcher {shorten(spec)}; use exact-match, contains, math or"
        " regex:PATTERN"
    )


def _regex_matcher(spec: str) -> Matcher:
    pattern = spec.removeprefix("regex:")
    if not pattern:
        raise InputError(
            "'regex:' has no pattern, so everything would match; write regex:PATTERN, for example"
            " regex:^{answer}$"
        )
    try:
        _compiled(pattern, ("answer",))
    except (re.error, RecursionError, OverflowError) as error:
        raise InputError(
            f"regex {shorten(pattern)} is not a valid regular expression: {error}; correct it, the"
            " syntax is that of Python's re module"
        ) from error
    needs_answer = _ANSWER in pattern

    def test(answers: tuple[str, ...], text: str) -> bool:
        if not needs_answer:
            answers = ()
        return _compiled(pattern, answers).search(text) is not None

    return Matcher(spec, needs_answer=needs_answer, test=test)


@lru_cache(maxsize=4096)
def _compiled(pattern: str, answers: tuple[str, ...]) -> re.Pattern[str]:
    accepted = "|".join(re.escape(answer) for answer in answers)
    return re.compile(pattern.replace(_ANSWER, f"(?:{accepted})"))
