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
    """1 where a completion passes ``matcher``, else 0."""

    label: str = field()
    needs_answer: bool = field()
    matcher: Matcher = field(compare=False)

    def score(self, example: Example, completion: Completion) -> Score:
        """See ``Reward``."""
        return Score(float(self.matcher(example, completion.text)))


def _match(spec: str, argument: str) -> Match:
    matcher = parse_matcher(f"{spec}{argument}")
    label = f"matches {shorten(argument)}" if argument else spec
    return Match(label=label, needs_answer=matcher.needs_answer, matcher=matcher)


FORMS = (
    Form(
        "exact-match",
        "1 if the whole completion is an accepted answer, else 0",
        partial(_match, "exact-match"),
        judges=lambda argument: True,
    ),
    Form(
        "contains",
        "1 if an accepted answer occurs in the completion as whole words, else 0",
        partial(_match, "contains"),
        judges=lambda argument: True,
    ),
    Form(
        "regex",
        "1 if the pattern is found in the completion, else 0; {answer} in it stands for the"
        " accepted answers",
        partial(_match, PATTERN),
        takes="PATTERN",
        judges=lambda argument: parse_matcher(f"{PATTERN}{argument}").needs_answer,
    ),
)
