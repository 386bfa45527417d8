"""A biased policy of an ExactModel, judged by fresh completions: for models too large to enumerate.

Index letters: ``h`` completions that run, ``v`` the vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from blackbox_lb.errors import InputError
from tests.support.exact.model import NOTHING, ExactModel, Ids, RewardOf, Vector, rewards_of

BLOCK = 256
"""Completions that are evaluated together: their tables stay in the processor's cache."""


@dataclass(frozen=True, slots=True)
class PolicyEstimate:
    """A biased policy, from its own completions: mean reward, KL to the base and tokens a
    completion, and standard errors.

    ``reward`` and ``kl`` in nats, ``length`` in tokens with the end token. Where any completion's
    reward is -inf, so is ``reward``, and its standard error is NaN.
    """

    reward: float
    kl: float
    length: float
    reward_error: float
    kl_error: float


def estimate_policy(
    model: ExactModel, delta: npt.ArrayLike, reward: RewardOf, n: int, seed: int
) -> PolicyEstimate:
    """Mean reward and KL to the base under the bias ``delta`` (v,) nats, from ``n`` fresh
    completions of all prompts in turn.

    The KL sums, over the positions of each completion, the exact ``KL(pi_delta || pi_0)`` of the
    next token: its mean is that of ``log p_delta - log p_0``, with less variance. InputError: n
    below 2.
    """
    if n < 2:
        raise InputError(f"n is {n}; a mean with its standard error needs at least 2 completions")
    rng, of = np.random.default_rng(seed), np.resize(np.arange(model.prompts), n)
    bias = np.asarray(delta, dtype=np.float64) - np.max(delta)
    blocks = [_walk(model, of[start : start + BLOCK], bias, rng) for start in range(0, n, BLOCK)]
    tokens, kl = (np.concatenate(column) for column in zip(*blocks, strict=True))
    lengths = (tokens != NOTHING).sum(axis=1)
    rewards = rewards_of(reward, tokens, lengths, of)
    root = np.sqrt(n)
    return PolicyEstimate(
        reward=float(rewards.mean()),
        kl=float(kl.mean()),
        length=float(lengths.mean()),
        reward_error=(
            float(rewards.std(ddof=1) / root) if np.isfinite(rewards).all() else float("nan")
        ),
        kl_error=float(kl.std(ddof=1) / root),
    )


def _walk(
    model: ExactModel, prompts: Ids, bias: Vector, rng: np.random.Generator
) -> tuple[Ids, Vector]:
    """(n, horizon) completions under ``bias``, and (n,) their KL to the base in nats."""
    tokens, kl = (
        np.full((len(prompts), model.horizon), NOTHING, dtype=np.int64),
        np.zeros(len(prompts)),
    )
    running = np.arange(len(prompts))
    for t in range(model.horizon):
        logprobs = model.next_logprobs(tokens[running, :t], prompts[running])
        tokens[running, t], step = _biased(logprobs, bias, rng)
        kl[running] += step
        if model.end is not None:
            running = running[tokens[running, t] != model.end]
    return tokens, kl


def _biased(logprobs: Vector, bias: Vector, rng: np.random.Generator) -> tuple[Ids, Vector]:
    """(h,) one token of ``softmax(logprobs + bias)`` for each row, and (h,) its KL to the base; no
    bias is above 0.
    """
    base = np.exp(logprobs - logprobs.max(axis=1, keepdims=True))
    tilted = base * np.exp(bias)
    below = np.cumsum(tilted, axis=1)
    total = below[:, -1]
    drawn = (below < (rng.random(len(logprobs)) * total)[:, None]).sum(axis=1)
    kl = tilted @ bias / total - np.log(total / base.sum(axis=1))
    return np.minimum(drawn, len(bias) - 1), np.maximum(kl, 0.0)
