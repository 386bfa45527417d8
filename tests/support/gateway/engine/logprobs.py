"""Positions: the logprobs of one generated token, as the engine gave them and as a provider would
report them.

Index letters: ``k`` listed tokens of one position, ``v`` the vocabulary. All logprobs are in nats.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from tests.support.exact.model import log_softmax

__all__ = ["EnginePosition", "Ids", "Vector", "propensity", "quantised", "tilted"]

Ids: TypeAlias = npt.NDArray[np.int64]
Vector: TypeAlias = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class EnginePosition:
    """The sampled token ``id`` with its ``logprob``; ``ids``, ``logprobs`` (k,): what is listed,
    from most likely.

    ``raw``: the bytes that the engine printed for the sampled token.
    """

    id: int
    logprob: float
    ids: Ids
    logprobs: Vector
    raw: bytes = b""

    def top(self, k: int) -> list[tuple[int, float]]:
        """The ``k`` most likely of the list."""
        return list(zip(self.ids[:k].tolist(), self.logprobs[:k].tolist(), strict=True))

    def rank(self) -> int:
        """How many listed tokens are more likely than the sampled one; the length of the list where
        it is not listed.
        """
        return int(np.flatnonzero(self.ids == self.id)[0]) if self.id in self.ids else len(self.ids)


def tilted(position: EnginePosition, bias: Mapping[int, float]) -> EnginePosition:
    """The logprobs of softmax(logits + bias); exact where the whole vocabulary (v) is listed."""
    scores = position.logprobs + _deltas(position.ids, bias)
    return _sorted(position, log_softmax(scores))


def propensity(
    position: EnginePosition, bias: Mapping[int, float], sampling: Mapping[str, float]
) -> float:
    """The logprob of the sampled token under what it was drawn from, -inf where that cannot draw
    it.

    The order is llama.cpp's: bias, top_k, top_p, min_p, temperature. The whole vocabulary must be
    listed.
    """
    changed = tilted(position, bias)
    kept = len(changed.ids)
    if sampling["top_k"] > 0:
        kept = min(kept, int(sampling["top_k"]))
    shares = np.exp(log_softmax(changed.logprobs[:kept]))
    if sampling["top_p"] < 1:
        shares = shares[: 1 + int(np.searchsorted(np.cumsum(shares), sampling["top_p"]))]
    kept = int((shares >= sampling["min_p"] * shares[0]).sum())
    if changed.rank() >= kept:
        return float("-inf")
    if sampling["temperature"] <= 0:
        return 0.0 if changed.rank() == 0 else float("-inf")
    return float(log_softmax(changed.logprobs[:kept] / sampling["temperature"])[changed.rank()])


def quantised(position: EnginePosition, quantum: float) -> EnginePosition:
    """With gaps to the likeliest rounded to multiples of ``quantum`` nats.

    The listed mass stays what it was, so that the list remains part of a distribution.
    """
    # The sampled token keeps its place where it is not listed.
    scores = np.append(position.logprobs, position.logprob)
    most = scores[:-1].max()
    scores = most + quantum * np.round((scores - most) / quantum)
    lost = _log_total(position.logprobs) - _log_total(scores[:-1])
    scores = np.minimum(scores + lost, 0.0)
    changed = _sorted(position, scores[:-1])
    if position.id in position.ids:
        return changed
    return replace(changed, logprob=float(scores[-1]))


def _log_total(logprobs: Vector) -> float:
    """The logarithm of the listed mass: scipy's takes longer than all else of an answer."""
    most = logprobs.max()
    return float(most + np.log(np.exp(logprobs - most).sum()))


def _sorted(position: EnginePosition, logprobs: Vector) -> EnginePosition:
    order = np.argsort(-logprobs, kind="stable")
    at = np.flatnonzero(position.ids == position.id)
    own = float(logprobs[at[0]]) if len(at) else position.logprob
    return replace(position, logprob=own, ids=position.ids[order], logprobs=logprobs[order])


def _deltas(ids: Ids, bias: Mapping[int, float]) -> Vector:
    return np.array([bias.get(token, 0.0) for token in ids.tolist()])
