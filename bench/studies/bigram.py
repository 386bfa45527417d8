"""Exact expectations for a vocabulary of thousands: a model whose next token depends on prompt,
position and the last token alone.

Sequences need not be enumerated: rewards that ask whether a completion holds a wanted token, and
how long it is, follow from the distribution of (last token, wanted token seen) position by
position, which two matrix products carry forward.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tests.support.exact import ExactModel

__all__ = ["Bigram", "Bools", "Exactly", "Vector"]

Vector = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Exactly:
    """mass: (p, 2, horizon) probability that a completion of prompt p holds no (0) or a (1) wanted
    token and has t + 1 tokens.
    """

    mass: Vector

    def mean(self, value: Callable[[bool, int], float]) -> float:
        """E[value(holds a wanted token, tokens)], prompts being equally likely."""
        table = [
            [value(bool(wanted), t + 1) for t in range(self.mass.shape[2])] for wanted in range(2)
        ]
        return float((self.mass * np.array(table)).sum() / len(self.mass))


class Bigram(ExactModel):
    """An ``ExactModel`` with an end token that has forgotten the token before the last; the same
    arguments otherwise.
    """

    def __init__(
        self,
        vocab_size: int,
        horizon: int,
        *,
        seed: int,
        prompts: int,
        sharpness: float,
        unigram: Vector,
        end: float,
    ) -> None:
        """``end`` nats is how much each part of the context moves the end token."""
        super().__init__(
            vocab_size,
            horizon,
            seed=seed,
            end=True,
            prompts=prompts,
            sharpness=sharpness,
            unigram=unigram,
            end_sharpness=end,
        )
        self._last[1] = 0.0
        self._after = np.exp(self._last[0])

    def exactly(self, delta: npt.ArrayLike, wanted: Bools, prompts: npt.ArrayLike) -> Exactly:
        """The exact outcome of the policy biased by ``delta`` (v,) nats on ``prompts`` (p,) with
        ``wanted`` tokens (p, v).

        The end token is not wanted, whatever ``wanted`` says.
        """
        of = np.asarray(prompts, dtype=np.int64)
        bias = self._unigram + np.asarray(delta, dtype=np.float64)
        mass = np.zeros((len(of), 2, self.horizon))
        seen = np.zeros((2, len(of), self.vocab_size))
        for t in range(self.horizon):
            logits = bias + self._prompt[of] + self._position[t]
            step = np.exp(logits - logits.max(axis=1, keepdims=True))
            if t == 0:
                seen[0] = step / step.sum(axis=1, keepdims=True)
            else:
                share = seen / (step @ self._after.T)
                seen = (share.reshape(-1, self.vocab_size) @ self._after).reshape(seen.shape) * step
            ended = slice(None) if t == self.horizon - 1 else slice(-1, None)
            seen[1, :, :-1] += np.where(wanted, seen[0], 0.0)[:, :-1]
            seen[0, :, :-1][wanted[:, :-1]] = 0.0
            mass[:, :, t] = seen[:, :, ended].sum(axis=2).T
            seen[:, :, ended] = 0.0
        return Exactly(mass)
