"""What a completion is worth: rewards in nats, by name or from the user's own function.

A reward may be minus infinity (the completion is never imitated) but neither NaN nor plus infinity. Rewards that are logarithms
are reported as what they are the logarithm of: ``correct-and-short`` is read as correct x T/len, not as its logarithm.
T is the token limit and len the tokens of the completion, as the provider counts them, never below 1
(log-accuracy, length and accuracy gated compression: the paper, section on rewards).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from blackbox_lb.errors import InputError
from blackbox_lb.tasks.matching import Matcher, parse_matcher
from blackbox_lb.tasks.text import shorten
from blackbox_lb.tasks.user_function import load_function
from blackbox_lb.types import Completion, Example

__all__ = ["REWARDS", "Reward", "parse_reward"]

REWARDS = {
    "exact-match": "1 if the whole completion is an accepted answer, else 0",
    "contains": "1 if an accepted answer occurs in the completion as whole words, else 0",
    "regex:PATTERN": "1 if the pattern is found in the completion, else 0; {answer} in it stands for the accepted answers",
    "length": "ln(T/len): shorter is better",
    "log-accuracy": "0 if correct, else minus infinity: imitate correct completions only",
    "correct-and-short": "ln(1{correct} T/len): the shorter among the correct, minus infinity if wrong",
    "module:function": "your own: function(example, completion) -> nats, from the working directory or an installed package",
}
"""Every form of a reward, with its meaning in one line."""


@dataclass(frozen=True, slots=True)
class Reward:
    """One way to score completions.

    ``scale`` is "log" where ``exp(score)`` is what a user reads and "linear" where the score is; ``label`` names what is read.
    ``needs_answer`` is True where an example without answers cannot be scored. ``matcher`` decides the accuracy beside it.
    """

    name: str
    spec: str
    label: str
    scale: Literal["linear", "log"]
    needs_answer: bool
    max_tokens: int
    matcher: Matcher
    function: Callable[[Example, Completion], float] = field(repr=False, compare=False)

    def score(self, example: Example, completion: Completion) -> float:
        """Nats, possibly -inf. DataError: no answer where one is needed; InputError: the user's function failed."""
        return self.function(example, completion)

    def correct(self, example: Example, completion: Completion) -> bool | None:
        """Whether the completion is correct, or None where the example has no answer to tell by."""
        if self.matcher.needs_answer and not example.answers:
            return None
        return self.matcher(example, completion.text)

    def value(self, reward: float) -> float:
        """What is reported for a reward in nats: exp(reward) on the log scale (0 for -inf), itself on the linear one."""
        if self.scale == "linear":
            return reward
        try:
            return math.exp(reward)
        except OverflowError as error:
            raise InputError(
                f"reward {reward} nats of {self.name} has no finite exponential; it must be below 709"
            ) from error


def parse_reward(spec: str, *, max_tokens: int, correct: str = "contains") -> Reward:
    """The reward that ``spec`` names (see REWARDS); ``max_tokens`` is T, in tokens.

    What stands before the first colon decides: ``regex:`` takes the rest as a pattern, anything else is a module with the
    function after the colon. So a module called ``regex`` must be wrapped in one of another name.
    ``correct`` says what counts as correct where the reward does not say it itself: exact-match, contains or regex:PATTERN.
    InputError: unknown name, broken pattern, a function that cannot be imported or called with two arguments.
    """
    if max_tokens < 1:
        raise InputError(f"max_tokens is {max_tokens}; rewards compare lengths with it, so it must be at least 1 token")
    matcher = parse_matcher(correct)
    if spec in ("exact-match", "contains") or spec.startswith("regex:"):
        return _match_reward(spec, max_tokens)
    if spec == "length":
        return Reward(spec, spec, "T/len", "log", False, max_tokens, matcher, _length(max_tokens))
    if spec == "log-accuracy":
        return _gated(spec, "accuracy", max_tokens, matcher, lambda _example, _completion: 0.0)
    if spec == "correct-and-short":
        return _gated(spec, "correct x T/len", max_tokens, matcher, _length(max_tokens))
    module, colon, attribute = spec.partition(":")
    if colon and _is_dotted(module) and _is_dotted(attribute):
        return Reward(spec, spec, spec, "linear", False, max_tokens, matcher, load_function(module, attribute))
    raise InputError(f"unknown reward {shorten(spec)}; the rewards are\n{_listing()}")


def _is_dotted(name: str) -> bool:
    return all(part.isidentifier() for part in name.split("."))


def _listing() -> str:
    width = max(map(len, REWARDS))
    return "\n".join(f"  {name:<{width}}  {meaning}" for name, meaning in REWARDS.items())


def _match_reward(spec: str, max_tokens: int) -> Reward:
    matcher = parse_matcher(spec)
    name = spec.partition(":")[0]
    label = f"matches {shorten(spec.removeprefix('regex:'))}" if name == "regex" else name

    def matches(example: Example, completion: Completion) -> float:
        return float(matcher(example, completion.text))

    return Reward(name, spec, label, "linear", matcher.needs_answer, max_tokens, matcher, matches)


def _length(max_tokens: int) -> Callable[[Example, Completion], float]:
    return lambda _example, completion: math.log(max_tokens / max(completion.n_tokens, 1))


def _gated(
    spec: str, label: str, max_tokens: int, matcher: Matcher, inner: Callable[[Example, Completion], float]
) -> Reward:
    def gated(example: Example, completion: Completion) -> float:
        return inner(example, completion) if matcher(example, completion.text) else -math.inf

    return Reward(spec, spec, label, "log", matcher.needs_answer, max_tokens, matcher, gated)
