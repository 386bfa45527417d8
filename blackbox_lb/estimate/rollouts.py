"""Rollouts in columns: what every estimator reads.

Index letters: ``n`` rollouts, ``m`` all their token positions laid end to end, ``k`` listed alternatives.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from blackbox_lb.errors import InputError

__all__ = ["Rollouts"]


@dataclass(frozen=True, slots=True, eq=False)
class Rollouts:
    """N scored completions, drawn from the untruncated base model at temperature 1.

    keys: N unique strings, one a rollout (the content-hash keys of the store). prompts: (n,) which prompt each answers.
    rewards: (n,) in nats, -inf allowed, NaN and +inf refused. lengths: (n,) token positions of each.
    token_ids, logprobs: (m,), the sampled tokens and their logprobs under the policy that sampled them. top_ids, top_logprobs:
    (m, k) of the base model, sorted from most likely, padded with -1 and -inf; -2 is a listed token without an id.
    bounded: (m,), True where the provider gave no logprob: ``logprobs`` then holds an upper bound. None where all were given.
    """

    keys: tuple[str, ...]
    prompts: npt.NDArray[np.int64]
    rewards: npt.NDArray[np.float64]
    lengths: npt.NDArray[np.int64]
    token_ids: npt.NDArray[np.int32]
    logprobs: npt.NDArray[np.float32]
    top_ids: npt.NDArray[np.int32]
    top_logprobs: npt.NDArray[np.float32]
    bounded: npt.NDArray[np.bool_] | None = None

    def __post_init__(self) -> None:
        n, m = len(self.keys), int(self.lengths.sum())
        if len(set(self.keys)) != n:
            raise InputError("rollout keys repeat; each rollout may be counted once")
        if self.prompts.shape != (n,) or self.rewards.shape != (n,) or self.lengths.shape != (n,):
            raise InputError(f"prompts, rewards and lengths must have shape ({n},), one value a rollout")
        if self.token_ids.shape != (m,) or self.logprobs.shape != (m,):
            raise InputError(f"token_ids and logprobs must have shape ({m},), the sum of lengths")
        if self.top_ids.shape != self.top_logprobs.shape or self.top_ids.shape[:1] != (m,):
            raise InputError(f"top_ids and top_logprobs must have one shape ({m}, k)")
        if self.bounded is not None and (self.bounded.shape != (m,) or self.bounded.dtype != np.bool_):
            raise InputError(f"bounded must be {m} booleans, one a token position")
        bad = np.flatnonzero(np.isnan(self.rewards) | (self.rewards == np.inf))
        if bad.size:
            raise InputError(
                f"reward of rollout {bad[0]} ({self.keys[bad[0]]}) is {self.rewards[bad[0]]}; rewards must be finite or -inf"
            )

    @property
    def rollout_of(self) -> npt.NDArray[np.int64]:
        """(m,) the rollout that each position belongs to."""
        return np.repeat(np.arange(len(self.keys)), self.lengths)

    @property
    def is_bounded(self) -> npt.NDArray[np.bool_]:
        """(m,) where only an upper bound of the sampled token's logprob is known."""
        return np.zeros(len(self.token_ids), dtype=np.bool_) if self.bounded is None else self.bounded
