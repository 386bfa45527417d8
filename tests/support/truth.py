"""Exact: what is true of an ExactModel under a reward, by enumeration of every sequence.

Index letters: ``t`` positions, ``v`` the vocabulary, ``h`` prefixes, ``s`` complete sequences.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import log_softmax, logsumexp

from blackbox_lb.errors import InputError
from tests.support.exact.model import NOTHING, ExactModel, Ids, RewardOf, Vector, rewards_of

MOST_SEQUENCES = 2_000_000


@dataclass(frozen=True, slots=True, eq=False)
class _Level:
    """Every running prefix of t tokens. child, leaf: (h, v), the prefix or the sequence that a
    token leads to, or -1.
    """

    logprobs: Vector
    child: Ids
    leaf: Ids


class Exact:
    """Exact quantities of a model under a reward, from all its sequences.

    sequences: (s, horizon) padded with -1. lengths, prompts, rewards: (s,). base: (s,) log
    probability of prompt and sequence under the base model, so that ``exp(base)`` sums to 1.
    """

    def __init__(self, model: ExactModel, reward: RewardOf) -> None:
        """InputError if there would be more than two million sequences."""
        size = model.prompts * model.vocab_size**model.horizon
        if size > MOST_SEQUENCES:
            raise InputError(
                f"up to {size} sequences; at most {MOST_SEQUENCES} are enumerated: take a smaller"
                " model"
            )
        self.model = model
        self._levels: list[_Level] = []
        self.sequences, self.prompts = self._enumerate()
        self.lengths: Ids = (self.sequences != NOTHING).sum(axis=1)
        self.rewards = rewards_of(reward, self.sequences, self.lengths, self.prompts)
        self._all = np.concatenate([level.logprobs for level in self._levels])
        self.base, self._reach = self._forward(None)

    def _enumerate(self) -> tuple[Ids, Ids]:
        model = self.model
        prefixes, of = np.zeros((model.prompts, 0), dtype=np.int64), np.arange(model.prompts)
        done: list[Ids] = []
        owners: list[Ids] = []
        for t in range(model.horizon):
            shape = (len(prefixes), model.vocab_size)
            ends = np.full(shape, t == model.horizon - 1)
            if model.end is not None:
                ends[:, model.end] = True
            number, leaf = np.full(shape, -1), np.full(shape, -1)
            number[~ends] = np.arange((~ends).sum())
            leaf[ends] = sum(len(block) for block in done) + np.arange(ends.sum())
            self._levels.append(_Level(model.next_logprobs(prefixes, of), number, leaf))
            grown = np.concatenate(
                (
                    np.repeat(prefixes, shape[1], axis=0),
                    np.tile(np.arange(shape[1]), shape[0])[:, None],
                ),
                1,
            )
            owner, over = np.repeat(of, shape[1]), ends.reshape(-1)
            padding = ((0, 0), (0, model.horizon - t - 1))
            done.append(np.pad(grown[over], padding, constant_values=NOTHING))
            owners.append(owner[over])
            prefixes, of = grown[~over], owner[~over]
        return np.concatenate(done), np.concatenate(owners)

    def probabilities(self, delta: npt.ArrayLike | None = None) -> Vector:
        """(s,) probability of prompt and sequence under pi_delta; sums to 1."""
        return np.exp(self._forward(delta)[0])

    def expected_reward(self, delta: npt.ArrayLike | None = None) -> float:
        """E[r] under pi_delta at temperature 1; -inf if any reward is."""
        return float(self.probabilities(delta) @ self.rewards)

    def expectation(self, values: Vector, delta: npt.ArrayLike | None = None) -> float:
        """E[values] under pi_delta, for ``values`` (s,) of each sequence."""
        return float(self.probabilities(delta) @ values)

    def kl(self, delta: npt.ArrayLike) -> float:
        """``KL(p_delta || p_0)`` per sequence in nats, averaged over prompts."""
        tilted = self._forward(delta)[0]
        return float(np.exp(tilted) @ (tilted - self.base))

    def z_avg(self, tau: float = 1.0) -> Vector:
        """(v,) the soft value of inserting each token, as defined in
        ``estimate.statistics.Statistics``.

        Without an end token this is the paper's Z_avg (equation Z-avg); with one, the version for
        completions that stop.
        """
        value = np.exp(self.rewards / tau) / self.lengths
        total, above = np.zeros(self.model.vocab_size), np.zeros(0)
        for level, reach in zip(reversed(self._levels), reversed(self._reach), strict=True):
            after = _gather(level, above, value)
            total += np.exp(reach) @ after
            above = (np.exp(level.logprobs) * after).sum(axis=1)
        return total

    def objective(
        self, delta: npt.ArrayLike, tau: float = 1.0, *, per_prompt: bool = False, l2: float = 0.0
    ) -> float:
        """``E_0[w sum_t log pi_delta / pi_0] - l2/2 |delta|^2`` with ``w = exp(r / tau)`` scaled to
        mean 1 (by prompt or over all).

        It is the limit of the projection's objective per rollout, so ``l2`` here is the estimator's
        over its N.
        """
        return self._objective(
            np.asarray(delta, dtype=np.float64), self._flow(tau, per_prompt), l2
        )[0]

    def kl_to_target(
        self, delta: npt.ArrayLike, tau: float = 1.0, *, per_prompt: bool = False
    ) -> float:
        """``KL(p* || p_delta)`` per sequence in nats, where ``p* ~ p_0 exp(r / tau)``."""
        w = self._weights(tau, per_prompt)
        target = np.exp(self.base) * w
        entropy = target[w > 0] @ np.log(w[w > 0])
        return float(entropy - self.objective(delta, tau, per_prompt=per_prompt))

    def optimum(
        self,
        tau: float = 1.0,
        *,
        per_prompt: bool = False,
        l2: float = 1e-4,
        steps: int = 20_000,
        tolerance: float = 1e-9,
    ) -> Vector:
        """(v,) the maximiser of ``objective`` by gradient ascent with momentum, to gradient norm
        ``tolerance``.
        """
        flow = self._flow(tau, per_prompt)
        # The Hessian of a log normaliser is at most 1/2 (the paper, appendix "Softmax-KL bound").
        rate = 1 / (flow.sum() / 2 + l2)
        delta, ahead, momentum = (
            np.zeros(self.model.vocab_size),
            np.zeros(self.model.vocab_size),
            1.0,
        )
        for _ in range(steps):
            _, gradient = self._objective(ahead, flow, l2)
            if float(np.linalg.norm(gradient)) < tolerance:
                return ahead
            moved = ahead + rate * gradient
            faster = (1 + np.sqrt(1 + 4 * momentum**2)) / 2
            if gradient @ (moved - delta) < 0:  # momentum overshot: start it again
                faster, momentum = 1.0, 1.0
            ahead = moved + (momentum - 1) / faster * (moved - delta)
            delta, momentum = moved, faster
        return ahead

    def _forward(self, delta: npt.ArrayLike | None) -> tuple[Vector, list[Vector]]:
        """(s,) log probability of each sequence, and (h,) of each prefix at each level, under
        pi_delta.
        """
        bias = (
            np.zeros(self.model.vocab_size)
            if delta is None
            else np.asarray(delta, dtype=np.float64)
        )
        reach = [np.full(self.model.prompts, -np.log(self.model.prompts))]
        total = np.zeros(len(self.sequences))
        for level in self._levels:
            joint = reach[-1][:, None] + log_softmax(level.logprobs + bias, axis=1)
            total[level.leaf[level.leaf >= 0]] = joint[level.leaf >= 0]
            reach.append(joint[level.child >= 0])
        return total, reach[:-1]

    def _weights(self, tau: float, per_prompt: bool) -> Vector:
        weights = np.exp(self.rewards / tau)
        mass = np.exp(self.base) * weights
        if per_prompt:
            means = np.bincount(self.prompts, weights=mass) * self.model.prompts
            return np.asarray(weights / np.where(means > 0, means, 1.0)[self.prompts])
        return np.asarray(weights / mass.sum())

    def _flow(self, tau: float, per_prompt: bool) -> Vector:
        """(h, v) weighted probability of each prefix followed by each token."""
        value, above = np.exp(self.base) * self._weights(tau, per_prompt), np.zeros(0)
        flows: list[Vector] = []
        for level in reversed(self._levels):
            flows.append(_gather(level, above, value))
            above = flows[-1].sum(axis=1)
        return np.concatenate(flows[::-1])

    def _objective(self, delta: Vector, flow: Vector, l2: float) -> tuple[float, Vector]:
        tilted = self._all + delta
        normaliser = logsumexp(tilted, axis=1)
        mass, linear = flow.sum(axis=1), flow.sum(axis=0)
        value = linear @ delta - mass @ normaliser - l2 / 2 * (delta @ delta)
        return float(value), linear - mass @ np.exp(tilted - normaliser[:, None]) - l2 * delta


def _gather(level: _Level, above: Vector, value: Vector) -> Vector:
    """(h, v) what follows each token: the value of a sequence that it ends, else the aggregate of
    its prefix.
    """
    out = np.zeros(level.leaf.shape)
    out[level.leaf >= 0] = value[level.leaf[level.leaf >= 0]]
    out[level.child >= 0] = above[level.child[level.child >= 0]]
    return out
