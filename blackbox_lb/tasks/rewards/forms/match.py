"""Rewards that are 1 where a completion passes a test of correctness, else 0."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

from blackbox_lb.safety.printable import shorten
from blackbox_lb.tasks.rewards.matching import Matcher, parse_matcher
from blackbox_lb.tasks.rewards.reward import Form, Reward, Score
from blackbox_lb.types import Completion, Example

PATTERN = "regex:"


@dataclass(frozen=True, slots=True, kw_only=True)
class Match(Reward):
    """1 where a completion passes ``test``, else 0."""

    test: Matcher = field(compare=False)

    @property
    def label(self) -> str:
        """See ``Reward``."""
        if self.test.spec.startswith(PATTERN):
            return f"matches {shorten(self.test.spec.removeprefix(PATTERN))}"
        return self.test.spec

    @property
    def needs_answer(self) -> bool:
        """See ``Reward``."""
        return self.test.needs_answer

    @property
    def matcher(self) -> Matcher:
        """See ``Reward``."""
        return self.test

    def score(self, example: Example, completion: Completion) -> Score:
        """See ``Reward``."""
        return Score(float(self.test(example, completion.text)))


def _match(spec: str, argument: str) -> Match:
    return Match(test=parse_matcher(f"{spec}{argument}"))


FORMS = (
    Form(
        "exact-match",
        "1 if the whole completion is an accepted answer, else 0",
        partial(_match, "exact-match"),
        judges=lambda argument: True,
        use="a form",
    ),
    Form(
        "contains",
        "1 if an accepted answer occurs in the completion as whole words, else 0",
        partial(_match, "contains"),
        judges=lambda argument: True,
        use="a keyword",
    ),
    Form(
        "regex",
        "1 if the pattern is found in the completion, else 0; {answer} in it stands for the"
        " accepted answers",
        partial(_match, PATTERN),
        takes="PATTERN",
        judges=lambda argument: parse_matcher(f"{PATTERN}{argument}").needs_answer,
        use="a form, a keyword",
    ),
)
