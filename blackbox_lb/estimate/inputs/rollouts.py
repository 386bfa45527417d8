"""Rollouts in columns: the data of every estimator.

Index letters: ``n`` rollouts, ``m`` all their token positions laid end to end, ``k`` listed
alternatives.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from blackbox_lb.errors import InputError
from blackbox_lb.types import NO_TOKEN

PER_ROLLOUT = ("prompts", "rewards", "lengths", "shares", "answer_sets", "origins")
PER_POSITION = ("token_ids", "logprobs", "top_ids", "top_logprobs", "bounded", "costs")

BASE = 0
"""The origin of a completion that the base model drew."""
NOT_KNOWN = -1
"""The origin of a completion of which nobody knows the policy."""


@dataclass(frozen=True, slots=True)
class BiasedPolicy:
    """The base model with a logit bias at temperature 1; bias: pairs of a token id and nats."""

    bias: tuple[tuple[int, float], ...]

    @classmethod
    def of(cls, bias: Mapping[int, float]) -> BiasedPolicy:
        """From token id -> nats."""
        return cls(tuple(sorted(bias.items())))

    @property
    def token_ids(self) -> npt.NDArray[np.int64]:
        """(k,) sorted."""
        return np.array([token for token, _ in self.bias], dtype=np.int64)

    @property
    def values(self) -> npt.NDArray[np.float64]:
        """(k,) nats."""
        return np.array([value for _, value in self.bias], dtype=np.float64)


@dataclass(frozen=True, slots=True, eq=False)
class Rollouts:
    """N scored completions, drawn from the untruncated base model at temperature 1, or from a known
    policy beside it.

    keys: N unique strings, one a rollout (the content-hash keys of the store). prompts: (n,) the
    prompt of each. rewards: (n,) in nats, -inf allowed, NaN and +inf refused. lengths: (n,) token
    positions of each. token_ids, logprobs: (m,), the sampled tokens and their logprobs under the
    policy that sampled them. top_ids, top_logprobs: (m, k) of the base model, sorted from most
    likely, padded with -1 and -inf; -2 is a listed token without an id. bounded: (m,), True where
    the provider gave no logprob: ``logprobs`` then holds an upper bound. None where all were given.
    shares: (n,) weights of given answers, which nobody drew; the spellings of one answer share the
    weight of their prompt. NaN for a drawn completion, whose weight comes from its reward. None:
    all were drawn.
    answer_sets: (n,) the number of the answer that each given answer spells, from 0, where a prompt
    has several answers with weights of their own: spellings of one share its weight. None: all
    given answers of a prompt spell one. It says nothing of drawn completions.
    costs: (m,) what each position adds to the reward, in nats, where the reward is a sum over
    positions; None where it is no such sum.
    origins: (n,) the policy that drew each completion: 0 the base model, k the k-th of
    ``policies``, -1 not known. None: the base model drew all. It says nothing of given answers.
    policies: the other policies.
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
    shares: npt.NDArray[np.float64] | None = None
    costs: npt.NDArray[np.float64] | None = None
    origins: npt.NDArray[np.int64] | None = None
    policies: tuple[BiasedPolicy, ...] = ()
    answer_sets: npt.NDArray[np.int64] | None = None

    def __post_init__(self) -> None:
        n = len(self.keys)
        m = int(self.lengths.sum())
        if len(set(self.keys)) != n:
            raise InputError("rollout keys repeat; each rollout may be counted once")
        if self.prompts.shape != (n,) or self.rewards.shape != (n,) or self.lengths.shape != (n,):
            raise InputError(
                f"prompts, rewards and lengths must have shape ({n},), one value a rollout"
            )
        if self.token_ids.shape != (m,) or self.logprobs.shape != (m,):
            raise InputError(f"token_ids and logprobs must have shape ({m},), the sum of lengths")
        if self.top_ids.shape != self.top_logprobs.shape or self.top_ids.shape[:1] != (m,):
            raise InputError(f"top_ids and top_logprobs must have one shape ({m}, k)")
        if self.bounded is not None and (
            self.bounded.shape != (m,) or self.bounded.dtype != np.bool_
        ):
            raise InputError(f"bounded must be {m} booleans, one a token position")
        if self.shares is not None and (self.shares.shape != (n,) or (self.shares < 0).any()):
            raise InputError(f"shares must be {n} numbers from 0, NaN for a drawn completion")
        if self.answer_sets is not None and (
            self.answer_sets.shape != (n,) or (self.answer_sets < 0).any()
        ):
            raise InputError(f"answer_sets must be {n} numbers from 0, one a rollout")
        if self.costs is not None and (
            self.costs.shape != (m,) or not np.isfinite(self.costs).all()
        ):
            raise InputError(f"costs must be {m} finite numbers, one a token position")
        if self.origins is not None and (
            self.origins.shape != (n,)
            or not np.isin(self.origins, np.arange(NOT_KNOWN, len(self.policies) + 1)).all()
        ):
            raise InputError(
                f"origins must be {n} numbers from {NOT_KNOWN} to {len(self.policies)}, the number"
                " of other policies"
            )
        bad = np.flatnonzero(np.isnan(self.rewards) | (self.rewards == np.inf))
        if bad.size:
            raise InputError(
                f"reward of rollout {bad[0]} ({self.keys[bad[0]]}) is {self.rewards[bad[0]]};"
                " rewards must be finite or -inf"
            )

    @property
    def rollout_of(self) -> npt.NDArray[np.int64]:
        """(m,) the rollout of each position."""
        return np.repeat(np.arange(len(self.keys)), self.lengths)

    @property
    def is_bounded(self) -> npt.NDArray[np.bool_]:
        """(m,) whether only an upper bound of the sampled token's logprob is known."""
        if self.bounded is None:
            return np.zeros(len(self.token_ids), dtype=np.bool_)
        return self.bounded

    @property
    def _shares(self) -> npt.NDArray[np.float64]:
        if self.shares is None:
            return np.full(len(self.keys), np.nan)
        return self.shares

    @property
    def _answer_sets(self) -> npt.NDArray[np.int64]:
        if self.answer_sets is None:
            return np.zeros(len(self.keys), np.int64)
        return self.answer_sets

    @property
    def weighed_together(self) -> npt.NDArray[np.int64]:
        """(n,) the number of the prompt and answer of each rollout: given answers of one number are
        spellings that share its weight.
        """
        width = int(self._answer_sets.max(initial=0)) + 1
        return self.prompts * width + self._answer_sets

    @property
    def given(self) -> npt.NDArray[np.bool_]:
        """(n,) whether each rollout is a given answer."""
        if self.shares is None:
            return np.zeros(len(self.keys), np.bool_)
        return ~np.isnan(self.shares)

    @property
    def policy_is_known(self) -> npt.NDArray[np.bool_]:
        """(n,) whether a known policy drew each; False for a given answer."""
        is_sampled = ~self.given
        return is_sampled if self.origins is None else is_sampled & (self.origins != NOT_KNOWN)

    def summed(self, values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """(n,) the sum of ``values`` (m,) over each rollout's positions."""
        filled = self.lengths > 0
        totals = np.zeros(len(self.keys))
        if filled.any():
            starts = (np.cumsum(self.lengths) - self.lengths)[filled]
            totals[filled] = np.add.reduceat(values, starts)
        return totals

    def take(self, chosen: npt.ArrayLike) -> Self:
        """The rollouts at the indices ``chosen`` (or where it is True), in that order."""
        where = np.asarray(chosen)
        picked = np.arange(len(self.keys))[where if where.size else np.zeros(0, np.int64)]
        ends = np.cumsum(self.lengths)
        sizes = self.lengths[picked]
        starts = np.cumsum(sizes) - sizes
        at = np.repeat(ends[picked] - sizes - starts, sizes) + np.arange(int(sizes.sum()))
        return self._part([self.keys[row] for row in picked], picked, at)

    def _part(self, keys: Sequence[str], rows: Any, at: Any) -> Self:
        """The rollouts ``rows`` with the positions ``at``; slices of them are views."""
        places = dict.fromkeys(PER_ROLLOUT, rows) | dict.fromkeys(PER_POSITION, at)
        columns = {
            name: column[place]
            for name, place in places.items()
            if (column := getattr(self, name)) is not None
        }
        return replace(self, keys=tuple(keys), **columns)

    def at(self, positions: npt.NDArray[np.bool_]) -> Self:
        """The same rollouts with those of their ``positions`` (m,) alone; some may have none
        left. They have no ``costs``: what is earned at the other positions would be missing.
        """
        names = ("token_ids", "logprobs", "top_ids", "top_logprobs")
        bounded = None
        if self.bounded is not None:
            bounded = self.bounded[positions]
        return replace(
            self,
            lengths=np.bincount(self.rollout_of[positions], minlength=len(self.keys)),
            bounded=bounded,
            costs=None,
            **{name: getattr(self, name)[positions] for name in names},
        )

    def with_positions(
        self, positions: npt.NDArray[np.bool_]
    ) -> tuple[npt.NDArray[np.int64], Self]:
        """The indices (k,) of the rollouts that have some of the ``positions`` (m,), and these
        rollouts with those positions alone.
        """
        is_kept = np.zeros(len(self.keys), np.bool_)
        is_kept[self.rollout_of[positions]] = True
        rollouts = self.take(is_kept).at(positions[is_kept[self.rollout_of]])
        return np.flatnonzero(is_kept), rollouts

    def without_lists(self) -> Self:
        """The same rollouts, with the sampled token alone at each position."""
        none = np.zeros((len(self.token_ids), 0))
        return replace(self, top_ids=none.astype(np.int32), top_logprobs=none.astype(np.float32))

    def blocks(self, positions: int) -> Iterator[Self]:
        """Views of consecutive rollouts, each with at most so many positions, or one rollout with
        more.
        """
        ends = np.cumsum(self.lengths)
        first = 0
        n = len(self.keys)
        while first < n:
            before = int(ends[first] - self.lengths[first])
            last = max(first + 1, int(np.searchsorted(ends, before + positions, side="right")))
            rows = slice(first, last)
            at = slice(before, int(ends[last - 1]))
            yield self._part(self.keys[rows], rows, at)
            first = last

    @classmethod
    def join(cls, parts: Sequence[Rollouts]) -> Rollouts:
        """All rollouts of ``parts``, in order; shorter lists are padded. They have ``costs`` if all
        of them have. Raises InputError if a key repeats, or no parts.
        """
        if not parts:
            raise InputError("no rollouts to join; give at least one part")
        width = max(part.top_ids.shape[1] for part in parts)
        shared = any(part.shares is not None for part in parts)
        costs = [part.costs for part in parts if part.costs is not None]
        policies = tuple(dict.fromkeys(policy for part in parts for policy in part.policies))
        all_shares = None
        if shared:
            all_shares = np.concatenate([part._shares for part in parts])
        all_costs = None
        if len(costs) == len(parts):
            all_costs = np.concatenate(costs)
        origins = None
        if any(part.origins is not None for part in parts):
            origins = np.concatenate([part._origins_among(policies) for part in parts])
        answer_sets = None
        if any(part.answer_sets is not None for part in parts):
            answer_sets = np.concatenate([part._answer_sets for part in parts])
        return Rollouts(
            keys=tuple(key for part in parts for key in part.keys),
            prompts=np.concatenate([part.prompts for part in parts]),
            rewards=np.concatenate([part.rewards for part in parts]),
            lengths=np.concatenate([part.lengths for part in parts]),
            token_ids=np.concatenate([part.token_ids for part in parts]),
            logprobs=np.concatenate([part.logprobs for part in parts]),
            top_ids=np.concatenate([padded(part.top_ids, width, NO_TOKEN) for part in parts]),
            top_logprobs=np.concatenate(
                [padded(part.top_logprobs, width, -np.inf) for part in parts]
            ),
            bounded=np.concatenate([part.is_bounded for part in parts]),
            shares=all_shares,
            costs=all_costs,
            origins=origins,
            policies=policies,
            answer_sets=answer_sets,
        )

    def _origins_among(self, policies: Sequence[BiasedPolicy]) -> npt.NDArray[np.int64]:
        """(n,) ``origins`` where ``policies`` are numbered from 1."""
        if self.origins is None:
            return np.full(len(self.keys), BASE)
        numbers = [BASE, *(1 + policies.index(policy) for policy in self.policies), NOT_KNOWN]
        return np.array(numbers, dtype=np.int64)[self.origins]


def padded(table: npt.NDArray[Any], width: int, fill: float) -> npt.NDArray[Any]:
    """``table`` (m, k) filled up with columns of ``fill`` to ``width``."""
    return np.pad(table, ((0, 0), (0, width - table.shape[1])), constant_values=fill)
