"""Reliability: the part of a learned bias that other prompts would reproduce, and the number of
prompts for enough of it.

Tokens have their usage ``u(y)`` as weights, the mean probability of y at a position, because a
difference ``d`` between two biases is worth ``1/2 sum_y u(y) (d(y) - mean d)^2`` nats of KL a
position to second order.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from blackbox_lb.estimate.inputs.rollouts import Rollouts
from blackbox_lb.estimate.inputs.thresholds import RELIABILITY, SMALL_KL
from blackbox_lb.estimate.projection.standard_errors import StandardErrors
from blackbox_lb.records import Word


@dataclass(frozen=True, slots=True)
class Precision:
    """A learned bias against its noise, both in nats of KL a completion of mean length.

    signal: the part of the bias's distance to the base that is not noise, at least 0. noise: its
    distance to the bias from endless prompts. prompts, completions: of the fit.
    """

    signal: float
    noise: float
    prompts: int
    completions: int

    @classmethod
    def of(cls, errors: StandardErrors, rollouts: Rollouts) -> Precision:
        """The precision of a fit to ``rollouts`` with these standard errors."""
        tokens = len(rollouts.token_ids) / len(rollouts.keys)
        prompts = len(np.unique(rollouts.prompts))
        return cls(
            tokens / 2 * errors.signal, tokens / 2 * errors.noise, prompts, len(rollouts.keys)
        )

    @property
    def reliability(self) -> float:
        """``signal / (signal + noise)``; 0 where there is neither."""
        total = self.signal + self.noise
        return self.signal / total if total > 0 else 0.0

    @property
    def most(self) -> float:
        """An upper bound of the distance to the base of the bias from endless prompts, in nats:
        signal plus noise plus twice the error that the noise causes in the signal.

        That error is ``noise sqrt(2 / k)`` of k equally noisy values, at most the noise where there
        are two.
        """
        return self.signal + 3 * self.noise

    @property
    def flat(self) -> bool:
        """Whether the bias is surely about 0: too little to move the reward by a small effect."""
        return self.most <= SMALL_KL

    @property
    def word(self) -> Word:
        return RELIABILITY.judge(self.reliability)

    def prompts_needed(self, reliability: float = RELIABILITY.good) -> int:
        """The number of prompts, with as many completions each, for this reliability: noise falls
        as 1 / prompts.

        A signal below SMALL_KL counts as SMALL_KL: a smaller one is not worth finding.
        """
        odds = reliability / (1 - reliability)
        return math.ceil(self.prompts * self.noise / max(self.signal, SMALL_KL) * odds)
