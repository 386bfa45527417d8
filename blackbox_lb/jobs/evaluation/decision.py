"""Arms without plain sampling: decisions that are made in this program, and biases of their own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from blackbox_lb.rollouts.judging.trials import Trials
from blackbox_lb.types import Example

OwnBias: TypeAlias = Callable[[Trials], Awaitable[tuple[Mapping[int, float], int]]]
"""Makes a bias (token id -> nats), with the most tokens that a completion under it needs."""


@dataclass(frozen=True, slots=True)
class Decided:
    """labels: (p,) the number of the decided label for each test prompt, -1 for none. prompt_tokens, completion_tokens: means over
    the test prompts of the tokens paid for a decision, without those paid for learning.
    """

    labels: tuple[int, ...]
    prompt_tokens: float = 0.0
    completion_tokens: float = 0.0


class Decision(Protocol):
    """A way to decide for a label without drawing an answer."""

    def lists(self) -> Sequence[Example]:
        """The prompts with a first list to read, one token each."""
        ...

    async def decide(self, trials: Trials) -> Decided:
        """Decide for each test prompt, without learning from the answers of these."""
        ...
