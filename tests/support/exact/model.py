"""ExactModel: a known autoregressive softmax, sampled as an inference API would.

Index letters: ``n`` samples, ``t`` positions, ``v`` the vocabulary, ``h`` prefixes.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from blackbox_lb.errors import InputError
from blackbox_lb.estimate.inputs.rollouts import Rollouts

Vector: TypeAlias = npt.NDArray[np.float64]
Ids: TypeAlias = npt.NDArray[np.int64]
RewardOf: TypeAlias = Callable[[tuple[int, ...], int], float]
"""Reward in nats of (token ids of a completion, end token included; prompt number); -inf allowed.
"""

NOTHING = -1
"""Padding after the last token of a sequence, and in lists of alternatives."""


class ExactModel:
    """``vocab_size`` tokens, at most ``horizon`` of them; logits depend on prompt, position and the
    last two tokens.

    With ``end`` the last token id ends a completion. ``unigram`` (v,) is added to all logits, for
    example to make a token rare. ``sharpness`` is the standard deviation of each part of the
    logits, in nats. ``prompts`` are numbered from 0 and equally likely. ``end_sharpness`` is that
    of the end token's logit, ``sharpness`` if None.
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
        end_sharpness: float | None = None,
    ) -> None:
        """Raise InputError unless vocab_size >= 2 and horizon, prompts >= 1, or for an
        ``end_sharpness`` without an end token.
        """
        if vocab_size < 2 or horizon < 1 or prompts < 1:
            raise InputError(
                f"vocab_size {vocab_size}, horizon {horizon}, prompts {prompts}: need at least 2"
                " tokens, 1 position, 1 prompt"
            )
        rng = np.random.default_rng(seed)
        self.vocab_size, self.horizon, self.prompts = vocab_size, horizon, prompts
        self.end = vocab_size - 1 if end else None
        self._prompt = sharpness * rng.standard_normal((prompts, vocab_size))
        self._position = sharpness * rng.standard_normal((horizon, vocab_size))
        self._last = sharpness * rng.standard_normal((2, vocab_size, vocab_size))
        self._unigram = (
            np.zeros(vocab_size) if unigram is None else np.asarray(unigram, dtype=np.float64)
        )
        if end_sharpness is not None:
            self._steady(end_sharpness / sharpness)

    def _steady(self, share: float) -> None:
        if self.end is None:
            raise InputError(
                "end_sharpness is for the end token, and this model has none; give end=True"
            )
        for part in (self._prompt, self._position, self._last):
            part[..., self.end] *= share

    def prompt_of(self, text: str) -> int:
        """The number of the prompt that a text stands for: any, and the same in every run."""
        return zlib.crc32(text.encode()) % self.prompts

    def next_logprobs(self, prefixes: Ids, prompts: Ids) -> Vector:
        """(h, v) log pi_0 in nats after ``prefixes`` (h, t) for ``prompts`` (h,); t below the
        horizon.
        """
        return log_softmax(self._logits(prefixes, prompts))

    def _logits(self, prefixes: Ids, prompts: Ids) -> Vector:
        depth = prefixes.shape[1]
        logits = self._unigram + self._prompt[prompts] + self._position[depth]
        for back in range(min(depth, 2)):
            logits = logits + self._last[back, prefixes[:, depth - 1 - back]]
        return np.asarray(logits, dtype=np.float64)

    def logprobs(self, prefix: Sequence[int] = (), prompt: int = 0) -> Vector:
        """(v,) log pi_0 of the next token after one prefix, in nats."""
        row: Vector = self.next_logprobs(
            np.array([prefix], dtype=np.int64).reshape(1, -1), np.array([prompt])
        )[0]
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
        """(n, horizon) completions from ``softmax((logits + delta) / temperature)``, padded with
        -1; temperature 0 is greedy.

        delta: (v,) nats. prompts: one number, or (n,).
        """
        of = np.broadcast_to(np.asarray(prompts, dtype=np.int64), (n,))
        bias = np.zeros(self.vocab_size) if delta is None else np.asarray(delta, dtype=np.float64)
        tokens = np.full((n, self.horizon), NOTHING, dtype=np.int64)
        running = np.arange(n)
        for t in range(self.horizon):
            scores = self.next_logprobs(tokens[running, :t], of[running]) + bias
            if (
                temperature > 0
            ):  # the largest of scores plus Gumbel noise is a draw from their softmax
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
        delta: npt.ArrayLike | None = None,
    ) -> Rollouts:
        """``n`` scored completions at temperature 1, taking the prompts (all if None) in turn.

        top: how many alternatives are listed at each position, the whole vocabulary if None.
        censored: a sampled token that is not listed comes without its logprob, bounded by the least
        listed one, as OpenAI and Azure answer. delta: (v,) nats, the bias that the completions are
        drawn with; the logprobs stay those of the model without it.
        """
        of = np.resize(
            np.arange(self.prompts) if prompts is None else np.array(prompts, dtype=np.int64), n
        )
        tokens = self.sample(n, np.random.default_rng(seed), delta, prompts=of)
        k = self.vocab_size if top is None else min(top, self.vocab_size)
        parts = []
        for t in range(self.horizon):
            rows = np.flatnonzero(tokens[:, t] != NOTHING)
            table = self.next_logprobs(tokens[rows, :t], of[rows])
            parts.append((rows, *_listed(table, tokens[rows, t], k)))
        where, ids, logprobs, top_ids, top_logprobs = (
            np.concatenate(column) for column in zip(*parts, strict=True)
        )
        order = np.argsort(where, kind="stable")
        bounded = censored & ~(top_ids == ids[:, None]).any(axis=1)
        bounds = top_logprobs[:, -1] if k else np.zeros(len(ids))
        lengths: Ids = (tokens != NOTHING).sum(axis=1)
        return Rollouts(
            keys=tuple(f"{seed}/{i:07d}" for i in range(n)),
            prompts=of.astype(np.int64),
            rewards=rewards_of(reward, tokens, lengths, of),
            lengths=lengths,
            token_ids=ids[order].astype(np.int32),
            logprobs=np.where(bounded, bounds, logprobs)[order].astype(np.float32),
            top_ids=top_ids[order].astype(np.int32),
            top_logprobs=top_logprobs[order].astype(np.float32),
            bounded=bounded[order],
        )


def log_softmax(scores: Vector) -> Vector:
    """Over the last axis, in the order of operations of scipy's, which takes six times as long for
    a short row.
    """
    shifted = scores - scores.max(axis=-1, keepdims=True)
    table: Vector = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return table


def _listed(table: Vector, sampled: Ids, k: int) -> tuple[Ids, Vector, Ids, Vector]:
    """The sampled tokens (h,), their logprobs, and ids and logprobs (h, k) of the k likeliest
    tokens, sorted.
    """
    some = (
        np.argpartition(-table, k, axis=1)[:, :k]
        if k < table.shape[1] // 4
        else np.arange(table.shape[1])[None, :]
    )
    some = np.sort(np.broadcast_to(some, (len(table), some.shape[1])), axis=1)
    order = np.argsort(-np.take_along_axis(table, some, axis=1), axis=1, kind="stable")[:, :k]
    listed = np.take_along_axis(some, order, axis=1)
    own = np.take_along_axis(table, sampled[:, None], axis=1)[:, 0]
    return sampled, own, listed, np.take_along_axis(table, listed, axis=1)


def rewards_of(reward: RewardOf, tokens: Ids, lengths: Ids, prompts: Ids) -> Vector:
    """(n,) the reward of each padded row."""
    rows = zip(tokens.tolist(), lengths.tolist(), prompts.tolist(), strict=True)
    return np.array(
        [reward(tuple(row[:length]), prompt) for row, length, prompt in rows], dtype=np.float64
    )
