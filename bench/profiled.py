"""What ``bench.profile`` runs under py-spy: building the table from a store, or the projection's
iterations, for some seconds.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from bench.projection_scale import Synthetic
from bench.store_speed import received
from blackbox_lb import Prompt, RolloutStore, parse_reward
from blackbox_lb.estimate.inputs.rollouts import Rollouts
from blackbox_lb.estimate.next_token.next_token import NextToken
from blackbox_lb.rollouts.positions import training_set
from blackbox_lb.types import Example
from tests.support.fits import projection

__all__: list[str] = []

SECONDS = 12.0
ANSWERS, SAMPLES, TOKENS, TOP = 4, 40, 1024, 20
POSITIONS = 200_000
SETTINGS = {"provider": "bench", "tokenizer": "bench"}


def prepared_store(folder: Path) -> Callable[[], object]:
    """Reading and scoring 160 completions of 1,024 tokens into the table of next tokens."""
    _, completions = received(TOKENS, TOP, ANSWERS)
    store = RolloutStore(folder / "rollouts.db")
    prompts = [Prompt.user(str(number)) for number in range(ANSWERS)]
    keys = [
        [store.add(SETTINGS, prompt, sample, each) for sample in range(SAMPLES)]
        for prompt, each in zip(prompts, completions, strict=True)
    ]
    examples, reward = (
        [Example(str(p), prompt) for p, prompt in enumerate(prompts)],
        parse_reward("length", max_tokens=TOKENS),
    )
    return partial(training_set, store, examples, keys, reward)


def prepared_rollouts(folder: Path) -> Callable[[], object]:
    """The projection on made-up rollouts whose table is there."""
    made = Synthetic(POSITIONS)
    table = NextToken.gather(made.blocks())
    rollouts = Rollouts.join(made.parts)
    return partial(projection, rollouts, tau=0.5, l2=5.0, next_token=table)


if __name__ == "__main__":
    work = {"table": prepared_store, "projection": prepared_rollouts}[sys.argv[1]](
        Path(sys.argv[2])
    )
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        work()
