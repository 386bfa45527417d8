"""Whether a completion is correct: four matchers that compare its text with the accepted answers.

=============== ==================================================================================
exact-match     the whole completion equals an accepted answer, both normalised
contains        an accepted answer occurs in the completion at word boundaries, both normalised
math            its last mathematical expression (the boxed one, if any) equals an accepted answer,
                all of it, by math-verify; an answer that is a text or a letter is compared as text
regex:PATTERN   ``re.search(PATTERN, completion)`` on the text as it is; ``{answer}`` stands for
                the answers
=============== ==================================================================================
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache

from blackbox_lb.errors import DataError, InputError
from blackbox_lb.safety.printable import shorten
from blackbox_lb.tasks.rewards.math_equality import check_installed, mathematically_equal
from blackbox_lb.tasks.rewards.normalising import normalise
from blackbox_lb.types import Example

__all__ = ["Matcher", "normalise", "parse_matcher"]

_ANSWER = "{answer}"


def _key(text: str) -> str:
    # An answer of symbols only ("+") normalises to nothing, which every text would contain; it is
    # compared as it is.
    return normalise(text) or " ".join(text.casefold().split())


def _equals(answers: tuple[str, ...], text: str) -> bool:
    key = _key(text)
    return any(_key(answer) == key for answer in answers)


def _contains(answers: tuple[str, ...], text: str) -> bool:
    words = f" {normalise(text)} "
    for answer in answers:
        key = normalise(answer)
        if key and f" {key} " in words:
            return True
        if not key and answer in text:
            return True
    return False


@dataclass(frozen=True, slots=True)
class Matcher:
    """One test of a completion's correctness; call it with the example and the completion's text.

    ``spec``: the argument of :func:`parse_matcher`; ``needs_answer``: False for a regex without
    ``{answer}``. ``test``: called with the accepted answers and the text; ``judge``, if given,
    instead of it with the whole example and the text.
    """

    spec: str
    needs_answer: bool
    test: Callable[[tuple[str, ...], str], bool] = field(repr=False, compare=False, default=_equals)
    judge: Callable[[Example, str], bool] | None = field(repr=False, compare=False, default=None)

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
        return Matcher(spec, needs_answer=True, test=mathematically_equal)
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
