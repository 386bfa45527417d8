"""ExactModel: a known autoregressive softmax, sampled as an inference API would.

Index letters: ``n`` samples, ``t`` positions, ``v`` the vocabulary, ``h`` prefixes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from scipy.special import log_softmax

from blackbox_lb.errors import InputError
from blackbox_lb.estimate.rollouts import Rollouts

__all__ = ["NOTHING", "ExactModel", "RewardOf", "trim"]

Vector: TypeAlias = npt.NDArray[np.float64]
Ids: TypeAlias = npt.NDArray[np.int64]
RewardOf: TypeAlias = Callable[[tuple[int, ...], int], float]
"""Reward in nats of (token ids of a completion, end token included; prompt number); -inf allowed."""

NOTHING = -1
"""Padding after the last token of a sequence, and in lists of alternatives."""


class ExactModel:
    """``vocab_size`` tokens, at most ``horizon`` of them; logits depend on prompt, position and the last two tokens.

    With ``end`` the last token id ends a completion. ``unigram`` (v,) is added to all logits, for example to make a
    token rare. ``sharpness`` is the standard deviation of each part of the logits, in nats. ``prompts`` are numbered
    from 0 and equally likely.
    """

    def __init__(
        self,
        vocab_size: int,
        horizon: int,
        *,
        seed: int = 0,
        end: bool = False,
        prompts: int = 1,
        sharpness: float = 1.0,
        unigram: npt.ArrayLike | None = None,
    ) -> None:
        """InputError unless vocab_size >= 2 and horizon, prompts >= 1."""
        if vocab_size < 2 or horizon < 1 or prompts < 1:
            raise InputError(
                f"vocab_size {vocab_size}, horizon {horizon}, prompts {prompts}: need at least 2 tokens, 1 position, 1 prompt"
            )
        rng = np.random.default_rng(seed)
        self.vocab_size, self.horizon, self.prompts = vocab_size, horizon, prompts
        self.end = vocab_size - 1 if end else None
        self._prompt = sharpness * rng.standard_normal((prompts, vocab_size))
        self._position = sharpness * rng.standard_normal((horizon, vocab_size))
        self._last = sharpness * rng.standard_normal((2, vocab_size, vocab_size))
        self._unigram = np.zeros(vocab_size) if unigram is None else np.asarray(unigram, dtype=np.float64)

    def next_logprobs(self, prefixes: Ids, prompts: Ids) -> Vector:
        """(h, v) log pi_0 in nats after ``prefixes`` (h, t) for ``prompts`` (h,); t below the horizon."""
        depth = prefixes.shape[1]
        logits = self._unigram + self._prompt[prompts] + self._position[depth]
        for back in range(min(depth, 2)):
            logits = logits + self._last[back, prefixes[:, depth - 1 - back]]
        table: Vector = log_softmax(logits, axis=1)
        return table

    def logprobs(self, prefix: Sequence[int] = (), prompt: int = 0) -> Vector:
        """(v,) log pi_0 of the next token after one prefix, in nats."""
        row: Vector = self.next_logprobs(np.array([prefix], dtype=np.int64).reshape(1, -1), np.array([prompt]))[0]
        return row

    def sample(
        self,
        n: int,
        rng: np.random.Generator,
        delta: npt.ArrayLike | None = None,
        temperature: float = 1.0,
        *,
        prompts: npt.ArrayLike = 0,
    ) -> Ids:
        """(n, horizon) completions from ``softmax((logits + delta) / temperature)``, padded with -1; temperature 0 is greedy.

        delta: (v,) nats. prompts: one number, or (n,).
        """
        of = np.broadcast_to(np.asarray(prompts, dtype=np.int64), (n,))
        bias = np.zeros(self.vocab_size) if delta is None else np.asarray(delta, dtype=np.float64)
        tokens = np.full((n, self.horizon), NOTHING, dtype=np.int64)
        running = np.arange(n)
        for t in range(self.horizon):
            scores = self.next_logprobs(tokens[running, :t], of[running]) + bias
            if temperature > 0:  # the largest of scores plus Gumbel noise is a draw from their softmax
                scores = scores / temperature + rng.gumbel(size=scores.shape)
            tokens[running, t] = scores.argmax(axis=1)
            if self.end is not None:
                running = running[tokens[running, t] != self.end]
        return tokens

    def rollouts(
        self,
        n: int,
        reward: RewardOf,
        seed: int,
        *,
        top: int | None = None,
        censored: bool = False,
        prompts: Sequence[int] | None = None,
    ) -> Rollouts:
        """``n`` scored completions at temperature 1, taking the prompts (all if None) in turn.

        top: how many alternatives are listed at each position, the whole vocabulary if None. censored: a sampled token that is
        not listed comes without its logprob, bounded by the least listed one, as OpenAI and Azure answer.
        """
        of = np.resize(np.arange(self.prompts) if prompts is None else np.array(prompts, dtype=np.int64), n)
        tokens = self.sample(n, np.random.default_rng(seed), prompts=of)
        lengths = (tokens != NOTHING).sum(axis=1)
        table = np.stack([self._logged(tokens, of, t) for t in range(self.horizon)], axis=1)
        flat, ids = table[tokens != NOTHING], tokens[tokens != NOTHING]
        k = self.vocab_size if top is None else min(top, self.vocab_size)
        listed = np.argsort(-flat, axis=1, kind="stable")[:, :k]
        logprobs, top_logprobs = (np.take_along_axis(flat, some, axis=1) for some in (ids[:, None], listed))
        bounded = censored & ~(listed == ids[:, None]).any(axis=1)
        bounds = top_logprobs[:, -1] if k else np.zeros(len(ids))
        return Rollouts(
            keys=tuple(f"{seed}/{i:07d}" for i in range(n)),
            prompts=of.astype(np.int64),
            rewards=np.array([reward(trim(row), int(p)) for row, p in zip(tokens, of, strict=True)], dtype=np.float64),
            lengths=lengths.astype(np.int64),
            token_ids=ids.astype(np.int32),
            logprobs=np.where(bounded, bounds, logprobs[:, 0]).astype(np.float32),
            top_ids=listed.astype(np.int32),
            top_logprobs=top_logprobs.astype(np.float32),
            bounded=bounded,
        )

    def _logged(self, tokens: Ids, prompts: Ids, t: int) -> Vector:
        """(n, v) logprobs at position t; rows of completions that have ended are 0 and are not read."""
        table = np.zeros((len(tokens), self.vocab_size))
        running = tokens[:, t] != NOTHING
        table[running] = self.next_logprobs(tokens[running, :t], prompts[running])
        return table


def trim(row: Ids) -> tuple[int, ...]:
    """The tokens of one padded row."""
    return tuple(row[row != NOTHING].tolist())
