"""What an arm may be other than completions under a request: decisions that are made in this program, and a bias of its own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from blackbox_lb.rollouts.judging.trials import Trials
from blackbox_lb.types import Example

OwnBias: TypeAlias = Callable[[Trials], Awaitable[tuple[Mapping[int, float], int]]]
"""Makes a bias (token id -> nats), and says how many tokens a completion under it needs at most."""


@dataclass(frozen=True, slots=True)
class Decided:
    """labels: (p,) the number of the label that was decided for each test prompt, -1 for none. prompt_tokens, completion_tokens:
    means over the test prompts of what one decision pays for; what was paid for learning is not in them.
    """

    labels: tuple[int, ...]
    prompt_tokens: float = 0.0
    completion_tokens: float = 0.0


class Decision(Protocol):
    """A way to decide for a label without drawing an answer."""

    def lists(self) -> Sequence[Example]:
        """The prompts whose first list it reads, one token each."""
        ...

    async def decide(self, trials: Trials) -> Decided:
        """A decision for each test prompt; nothing that it learns comes from the answers of these."""
        ...
