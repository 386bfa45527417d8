"""A store with completions of an exact model for the training prompts of a task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from blackbox_lb.store import RolloutStore
from blackbox_lb.tasks import Task
from blackbox_lb.types import Completion
from tests.support.exact import ExactModel

SAMPLING = {"temperature": 1.0, "top_logprobs": 8, "max_tokens": 5, "stop": []}
SETTINGS: dict[str, Any] = {"provider": "vllm", "bias": {}, "sampling": SAMPLING}
"""Settings of requests for completions of the base model at temperature 1."""


def text_completion(text: str, tokens: int = 3) -> Completion:
    """A completion of which text and length matter."""
    none = np.zeros((tokens, 0))
    ids, logprobs = np.zeros(tokens, np.int32), np.zeros(tokens, np.float32)
    return Completion(text, "stop", ids, logprobs, none.astype(np.int32), none.astype(np.float32))


def token_completion(
    text: str, ids: Sequence[int], logprobs: Sequence[float] = (), generated: int | None = None
) -> Completion:
    """A completion of these tokens, each alone in its list; logprobs: nats, 0 each if not given."""
    tokens = np.array(ids, np.int32)
    values = np.array(logprobs or [0.0] * len(tokens), np.float32)
    lists = (tokens[:, None], values[:, None])
    return Completion(text, "stop", tokens, values, *lists, generated=generated)


def store_completions(
    path: Path, task: Task, model: ExactModel, each: int = 2, settings: Mapping[str, Any] = SETTINGS
) -> None:
    """Store ``each`` completions of every training prompt, as if requested with ``settings``."""
    with RolloutStore(path) as store:
        for number, example in enumerate(task.train):
            drawn = model.rollouts(each, lambda *_: 0.0, 50 + number, top=8)
            for sample in range(each):
                one = drawn.take([sample])
                completion = Completion(
                    text="word " * len(one.token_ids),
                    finish_reason="stop",
                    token_ids=one.token_ids,
                    logprobs=one.logprobs,
                    top_ids=one.top_ids,
                    top_logprobs=one.top_logprobs,
                )
                store.add(settings, example.prompt, sample, completion)
