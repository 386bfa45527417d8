"""What the tests of Ray share: completions of an exact model in a store, what reads them, and an
engine that loses something.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from blackbox_lb.extras.ray.engine import Cluster
from blackbox_lb.rollouts.reading import Reading, reading_of
from blackbox_lb.store import RolloutStore
from blackbox_lb.tasks import parse_reward
from blackbox_lb.types import Completion, Example, Prompt
from tests.support.exact import ExactModel

__all__ = ["Losing", "keys_of", "stored"]


def stored(folder: Path, bare: Collection[int] = ()) -> tuple[RolloutStore, Reading]:
    """A new store of 120 completions, and what reads them; those of the prompts ``bare`` came
    without their tokens.
    """
    settings = {"model": "m", "tokenizer": "t"}
    model = ExactModel(12, 6, seed=2, end=True, prompts=4, sharpness=0.7)
    examples = [Example(str(p), Prompt.user(str(p))) for p in range(4)]
    drawn = model.rollouts(120, lambda tokens, prompt: 0.0, 3, top=4)
    store = RolloutStore(folder / "rollouts.db")
    keys: list[list[str]] = [[] for _ in examples]
    rows = zip(drawn.prompts.tolist(), np.cumsum(drawn.lengths), drawn.lengths, strict=True)
    for p, end, length in rows:
        at = slice(end - length, end - length if p in bare else end)
        columns = drawn.token_ids[at], drawn.logprobs[at], drawn.top_ids[at], drawn.top_logprobs[at]
        one = Completion("x" * length, "stop", *columns, whole=p not in bare)
        keys[p].append(store.add(settings, examples[p].prompt, len(keys[p]), one))
    return store, reading_of(store, examples, keys, parse_reward("length", max_tokens=6))


def keys_of(what: Reading) -> list[list[str]]:
    """The keys of each example."""
    return [[key for key, p in what.owner.items() if p == n] for n in range(4)]


class Losing(Cluster):
    """Calls ``lose`` before the request ``at``, from 1; never where that is 0."""

    def __init__(self, workers: int, at: int, lose: Callable[[Cluster], None]) -> None:
        super().__init__(workers)
        self.calls, self._at, self._lose = 0, at, lose

    def call(self, method: str, common: Sequence[Any], own: Sequence[Sequence[Any]]) -> list[Any]:
        """As ever, but for the one time."""
        self.calls += 1
        if self.calls == self._at:
            self._lose(self)
        return super().call(method, common, own)
