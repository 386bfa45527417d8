"""From stored completions to what estimators read: examples, their completions and a reward become ``Rollouts``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from blackbox_lb.errors import NoLogprobs
from blackbox_lb.estimate.rollouts import Rollouts
from blackbox_lb.store import RolloutStore
from blackbox_lb.tasks import Reward
from blackbox_lb.types import NO_TOKEN, Completion, Example

__all__ = ["Training", "columns", "training_set"]


@dataclass(frozen=True, slots=True)
class Training:
    """Scored rollouts, and how many completions were left out because the provider did not list all of their tokens."""

    rollouts: Rollouts
    incomplete: int


def training_set(
    store: RolloutStore, examples: Sequence[Example], keys: Sequence[Sequence[str]], reward: Reward
) -> Training:
    """Score the completions ``keys[p]`` of ``examples[p]``. A completion that two equal prompts share counts once.

    Raises:
        NoLogprobs: no completion has a complete list of tokens with alternatives.
    """
    owner = {key: p for p, row in enumerate(keys) for key in row}
    kept = {
        key: completion for key, completion in zip(owner, store.completions(owner), strict=True) if completion.whole
    }
    if not any(completion.n_tokens for completion in kept.values()):
        raise NoLogprobs(
            f"none of {len(owner)} completions has a complete list of token logprobs; choose a model or server that gives them"
        )
    prompts = [owner[key] for key in kept]
    rewards = [reward.score(examples[p], completion) for p, completion in zip(prompts, kept.values(), strict=True)]
    return Training(columns(kept, prompts, rewards), len(owner) - len(kept))


def columns(completions: dict[str, Completion], prompts: Sequence[int], rewards: Sequence[float]) -> Rollouts:
    """Completions by key, with the number of the prompt and the reward in nats of each, laid end to end."""
    each = list(completions.values())
    width = max((completion.top_ids.shape[1] for completion in each), default=0)
    return Rollouts(
        keys=tuple(completions),
        prompts=np.array(prompts, dtype=np.int64),
        rewards=np.array(rewards, dtype=np.float64),
        lengths=np.array([completion.n_tokens for completion in each], dtype=np.int64),
        token_ids=np.concatenate([completion.token_ids for completion in each]),
        logprobs=np.concatenate([completion.logprobs for completion in each]),
        top_ids=np.concatenate([_padded(completion.top_ids, width, NO_TOKEN) for completion in each]),
        top_logprobs=np.concatenate([_padded(completion.top_logprobs, width, -np.inf) for completion in each]),
    )


def _padded(table: npt.NDArray[Any], width: int, fill: float) -> npt.NDArray[Any]:
    return np.pad(table, ((0, 0), (0, width - table.shape[1])), constant_values=fill)
