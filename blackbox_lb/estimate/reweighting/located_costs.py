"""What a bias changes of a reward that is a sum over positions, from completions that the base
model drew: nothing more is sampled, and every bias is seen on the same completions.

Each position of a drawn completion weighs by how much likelier the bias makes its token there, as
if what came before it stayed the same. The estimate leaves out what the bias changes before a
position, and the length of completions; it serves to order biases, and fresh completions decide.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from blackbox_lb.errors import InputError
from blackbox_lb.estimate.inputs.checks import Vector, positive
from blackbox_lb.estimate.inputs.rollouts import Rollouts
from blackbox_lb.types import NO_TOKEN


@dataclass(frozen=True, slots=True, eq=False)
class LocatedCosts:
    """The positions that add to the reward of completions of the base model at one temperature.

    Index letters: ``n`` completions, ``c`` positions with a cost, ``k`` listed tokens.

    Attributes:
        temperature: at which the completions were drawn.
        prompts: (n,) the prompt of each completion.
        completion_of: (c,) the completion of each position.
        costs: (c,) what each adds to the reward.
        sampled: (c,) the token there.
        listed: (c, k) ids of the listed tokens, -1 for none.
        log_shares: (c, k) their log probabilities at the temperature, the listed tokens and all
            others together being 1.
        rest: (c,) the probability of all others.
    """

    temperature: float
    prompts: npt.NDArray[np.int64]
    completion_of: npt.NDArray[np.int64]
    costs: Vector
    sampled: npt.NDArray[np.int64]
    listed: npt.NDArray[np.int64]
    log_shares: Vector
    rest: Vector

    @classmethod
    def of(cls, rollouts: Rollouts, temperature: float) -> Self:
        """Those of ``rollouts``, which the base model drew at ``temperature``.

        The unlisted tokens of a position are taken to be as likely as the least likely listed one
        each: at a temperature below 1 they are less than that together.

        Raises:
            InputError: the rollouts have no costs, or the temperature is not above 0.
        """
        positive("temperature", temperature)
        if rollouts.costs is None:
            raise InputError("the reward of these rollouts is no sum over positions")
        places = np.flatnonzero(rollouts.costs)
        logprobs = rollouts.top_logprobs[places].astype(np.float64)
        is_listed = np.isfinite(logprobs)
        listed = np.where(is_listed, rollouts.top_ids[places], NO_TOKEN).astype(np.int64)
        unlisted = np.clip(1.0 - np.exp(logprobs).sum(axis=1), 0.0, 1.0)
        least = np.where(is_listed, logprobs, 0.0).min(axis=1, initial=0.0)
        log_rest = np.log(np.maximum(unlisted, 1e-300)) + least * (1.0 / temperature - 1.0)
        scaled = logprobs / temperature
        total = np.logaddexp.reduce(np.column_stack([scaled, log_rest]), axis=1)
        return cls(
            temperature,
            rollouts.prompts,
            np.asarray(rollouts.rollout_of[places], np.int64),
            rollouts.costs[places],
            rollouts.token_ids[places].astype(np.int64),
            listed,
            scaled - total[:, None],
            np.exp(log_rest - total),
        )

    def change(self, bias: Mapping[int, float]) -> Vector:
        """(n,) the expected change of each completion's reward under ``bias``, token id -> nats."""
        ids = np.array(sorted(bias), dtype=np.int64)
        nats = np.array([bias[token] for token in ids.tolist()]) / self.temperature
        shifted = self.log_shares + _values(self.listed, ids, nats)
        normaliser = np.exp(shifted).sum(axis=1) + self.rest
        ratio = np.exp(_values(self.sampled, ids, nats)) / normaliser
        change = np.zeros(len(self.prompts))
        np.add.at(change, self.completion_of, self.costs * (ratio - 1.0))
        return change


def _values(tokens: npt.NDArray[np.int64], ids: npt.NDArray[np.int64], nats: Vector) -> Vector:
    """The nats of each of ``tokens``, 0 for those that are not among the sorted ``ids``."""
    if not ids.size:
        return np.zeros(tokens.shape)
    places = np.minimum(np.searchsorted(ids, tokens), len(ids) - 1)
    return np.where(ids[places] == tokens, nats[places], 0.0)
