"""Rollouts in columns, the data of every estimator, and the weightings: what every token position
weighs in a fit.

Index letters: ``n`` rollouts, ``m`` all their token positions laid end to end, ``k`` listed
alternatives.

A fit raises a token by the weights of the positions where it was sampled. Where the base model
drew a completion, the sampled token has an expectation, ``E[1{y_t = y}] = pi_0(y | prefix_t)``. So
the part ``b`` of the weights that all positions share need not be counted from samples:

    sum_t w_t 1{y_t = y}   becomes   sum_t (w_t - b) 1{y_t = y} + b sum_t pi_0(y | prefix_t).

Both have the same expectation, and the second has less noise: a control variate, or baseline.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt

from blackbox_lb.errors import InputError
from blackbox_lb.estimate.inputs.checks import Bools, Ids, Vector
from blackbox_lb.estimate.inputs.sweep import Scale, positive
from blackbox_lb.types import NO_TOKEN, POSITIVE_TOLERANCE

PER_ROLLOUT = ("prompts", "rewards", "lengths", "shares", "answer_sets", "drawn_by_base")
PER_POSITION = ("token_ids", "logprobs", "top_ids", "top_logprobs", "bounded")

MOST_TOKENS = 1 << 22
"""Sixteen times the largest vocabulary in use; a table over more is not worth its memory."""
OMITTED: Any = None
"""A column of ``Rollouts`` that is filled with what its docstring says."""


@dataclass(frozen=True, slots=True, eq=False)
class Rollouts:
    """N scored completions, drawn from the untruncated base model at temperature 1.

    keys: N unique strings, one a rollout (the content-hash keys of the store). prompts: (n,) the
    prompt of each. rewards: (n,) in nats, -inf allowed, NaN and +inf refused. lengths: (n,) token
    positions of each. token_ids, logprobs: (m,), the sampled tokens and their logprobs under the
    policy that sampled them. top_ids, top_logprobs: (m, k) of the base model, sorted from most
    likely, padded with -1 and -inf; -2 is a listed token without an id. bounded: (m,), True where
    the provider gave no logprob: ``logprobs`` then holds an upper bound. Omitted: all were given.
    shares: (n,) weights of given answers, which nobody drew; the spellings of one answer share the
    weight of their prompt. NaN for a drawn completion, whose weight comes from its reward. Omitted:
    all were drawn.
    answer_sets: (n,) the number of the answer that each given answer spells, from 0, where a prompt
    has several answers with weights of their own: spellings of one share its weight. Omitted: all
    given answers of a prompt spell one. It says nothing of drawn completions.
    costs: (m,) what each position adds to the reward, in nats, where the reward is a sum over
    positions; None where it is no such sum.
    drawn_by_base: (n,) whether the base model drew each completion, as far as is known. Omitted: it
    drew all. It says nothing of given answers.
    """

    keys: tuple[str, ...]
    prompts: npt.NDArray[np.int64]
    rewards: npt.NDArray[np.float64]
    lengths: npt.NDArray[np.int64]
    token_ids: npt.NDArray[np.int32]
    logprobs: npt.NDArray[np.float32]
    top_ids: npt.NDArray[np.int32]
    top_logprobs: npt.NDArray[np.float32]
    bounded: npt.NDArray[np.bool_] = OMITTED
    shares: npt.NDArray[np.float64] = OMITTED
    costs: npt.NDArray[np.float64] | None = None
    drawn_by_base: npt.NDArray[np.bool_] = OMITTED
    answer_sets: npt.NDArray[np.int64] = OMITTED

    def __post_init__(self) -> None:
        n = len(self.keys)
        m = int(self.lengths.sum())
        for column, size, value in (
            ("bounded", m, False),
            ("shares", n, np.nan),
            ("drawn_by_base", n, True),
            ("answer_sets", n, 0),
        ):
            if getattr(self, column) is None:
                object.__setattr__(self, column, np.full(size, value))
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
        if self.bounded.shape != (m,) or self.bounded.dtype != np.bool_:
            raise InputError(f"bounded must be {m} booleans, one a token position")
        if self.shares.shape != (n,) or (self.shares < 0).any():
            raise InputError(f"shares must be {n} numbers from 0, NaN for a drawn completion")
        if self.answer_sets.shape != (n,) or (self.answer_sets < 0).any():
            raise InputError(f"answer_sets must be {n} numbers from 0, one a rollout")
        if self.costs is not None and (
            self.costs.shape != (m,) or not np.isfinite(self.costs).all()
        ):
            raise InputError(f"costs must be {m} finite numbers, one a token position")
        if self.drawn_by_base.shape != (n,) or self.drawn_by_base.dtype != np.bool_:
            raise InputError(f"drawn_by_base must be {n} booleans, one a rollout")
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
    def weighed_together(self) -> npt.NDArray[np.int64]:
        """(n,) the number of the prompt and answer of each rollout: given answers of one number are
        spellings that share its weight.
        """
        width = int(self.answer_sets.max(initial=0)) + 1
        return self.prompts * width + self.answer_sets

    @property
    def given(self) -> npt.NDArray[np.bool_]:
        """(n,) whether each rollout is a given answer."""
        return ~np.isnan(self.shares)

    @property
    def is_of_base(self) -> npt.NDArray[np.bool_]:
        """(n,) whether the base model is known to have drawn each; False for a given answer."""
        return ~self.given & self.drawn_by_base

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
        columns = {name: getattr(self, name)[place] for name, place in places.items()}
        if self.costs is not None:
            columns["costs"] = self.costs[at]
        return replace(self, keys=tuple(keys), **columns)

    def at(self, positions: npt.NDArray[np.bool_]) -> Self:
        """The same rollouts at ``positions`` (m,) alone; some may keep no position. They have no
        ``costs``, which would lack what is earned at the positions left out.
        """
        return replace(
            self,
            lengths=np.bincount(self.rollout_of[positions], minlength=len(self.keys)),
            costs=None,
            **{name: getattr(self, name)[positions] for name in PER_POSITION},
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
        """Views of consecutive rollouts. Each has at most ``positions``, or is one rollout
        with more.
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
        costs = [part.costs for part in parts if part.costs is not None]
        all_costs = None
        if len(costs) == len(parts):
            all_costs = np.concatenate(costs)
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
            bounded=np.concatenate([part.bounded for part in parts]),
            shares=np.concatenate([part.shares for part in parts]),
            costs=all_costs,
            drawn_by_base=np.concatenate([part.drawn_by_base for part in parts]),
            answer_sets=np.concatenate([part.answer_sets for part in parts]),
        )


def padded(table: npt.NDArray[Any], width: int, fill: float) -> npt.NDArray[Any]:
    """``table`` (m, k) filled up with columns of ``fill`` to ``width``."""
    return np.pad(table, ((0, 0), (0, width - table.shape[1])), constant_values=fill)


@dataclass(frozen=True, slots=True, eq=False)
class PositionWeights:
    """The weights of a fit.

    Attributes:
        values: (m,) the weight of each position, at least 0.
        baseline: (m,) the part of each weight that is counted by expectation; 0 where the base
            model is not known to have drawn the completion.
        scale: the set over which the weights have mean 1.
    """

    values: Vector
    baseline: Vector
    scale: Scale

    def of_rollouts(self, rollouts: Rollouts) -> Vector:
        """(n,) the mean weight of each rollout's positions; 0 for one without a position."""
        totals = rollouts.summed(self.values)
        lengths = rollouts.lengths
        return np.divide(totals, lengths, out=np.zeros(len(totals)), where=lengths > 0)


class Weighting(Protocol):
    """A rule that weighs the positions of rollouts. Two of them can be added."""

    def __add__(self, other: Weighting) -> Weighting:
        return SumOfWeightings((self, other))

    def weights(self, rollouts: Rollouts) -> PositionWeights:
        """The weights of ``rollouts``, scored completions and given answers.

        Raises:
            InputError: a setting out of range, or no completion earned a reward.
        """


@dataclass(frozen=True)
class RewardTilt(Weighting):
    """Every position of a drawn completion weighs ``exp(r / tau)`` of its reward r.

    tau: strength, in the unit of the rewards; smaller is stronger. scale: the weights have mean 1
    over all completions ("global") or over those of each prompt ("prompt", the paper's Z(x)). Given
    answers weigh 0: add ``GivenAnswers()`` to learn from them, too.
    """

    tau: float
    scale: Scale = "global"

    def weights(self, rollouts: Rollouts) -> PositionWeights:
        """See ``Weighting.weights``. A prompt whose completions all have reward -inf weighs 0."""
        exponents = rollouts.rewards / positive("tau", self.tau)
        weights, shared = _with_mean_one(
            exponents, rollouts.prompts, ~rollouts.given, self.scale, rollouts
        )
        baseline = np.where(rollouts.is_of_base, shared, 0.0)
        lengths = rollouts.lengths
        return PositionWeights(
            np.repeat(weights, lengths), np.repeat(baseline, lengths), self.scale
        )


@dataclass(frozen=True)
class RewardToGo(Weighting):
    """A position weighs by the part of the reward that was earned from it on.

    Where the reward is a sum over positions, ``r = sum_t c_t``, the token at t cannot have changed
    what was earned before it. So position t weighs

        exp(sum_{s >= t} gamma^(s - t) c_s / tau),

    scaled to mean 1 over the *positions* of all drawn completions, or of those of each prompt: the
    mean over completions, which ``RewardTilt`` sets to 1, has no counterpart where the weights of
    one completion differ, and with mean 1 over positions l2 stays in weighted tokens.

    tau: strength, in the unit of the rewards. gamma: 0 to 1, the share of an effect that counts one
    position earlier; 1 is the objective of ``RewardTilt`` with less noise, and less than 1 forgets
    far effects. scale: as in ``RewardTilt``.
    """

    tau: float
    gamma: float = 1.0
    scale: Scale = "global"

    def weights(self, rollouts: Rollouts) -> PositionWeights:
        """See ``Weighting.weights``.

        Raises:
            InputError: the reward is no sum over positions, or tau or gamma is out of range.
        """
        tau = positive("tau", self.tau)
        if not 0 <= self.gamma <= 1:
            raise InputError(f"gamma is {self.gamma}; it must be from 0 to 1")
        if rollouts.costs is None:
            raise InputError(
                "the reward is one number for each completion and not a sum over its positions, so"
                " no position has a reward to go; use RewardTilt, or give the rollouts costs"
            )
        of = rollouts.rollout_of
        counted = ~rollouts.given[of]
        to_go = rewards_to_go(rollouts.costs, rollouts.lengths, self.gamma)
        weights, shared = _with_mean_one(
            to_go / tau, rollouts.prompts[of], counted, self.scale, rollouts
        )
        baseline = np.where(rollouts.is_of_base[of], shared, 0.0)
        return PositionWeights(weights, baseline, self.scale)


@dataclass(frozen=True)
class GivenAnswers(Weighting):
    """Given answers have their shares as weights, and no baseline; drawn completions weigh 0."""

    scale: Scale = "global"

    def weights(self, rollouts: Rollouts) -> PositionWeights:
        """See ``Weighting.weights``."""
        is_given = rollouts.given
        weights = np.zeros(len(rollouts.keys))
        weights[is_given] = rollouts.shares[is_given]
        values = np.repeat(weights, rollouts.lengths)
        return PositionWeights(values, np.zeros(len(values)), self.scale)


@dataclass(frozen=True)
class SumOfWeightings(Weighting):
    """The weights of all ``parts`` added up, such as those of drawn completions and of answers."""

    parts: tuple[Weighting, ...]

    def weights(self, rollouts: Rollouts) -> PositionWeights:
        """See ``Weighting.weights``."""
        total = self.parts[0].weights(rollouts)
        for part in self.parts[1:]:
            further = part.weights(rollouts)
            np.add(total.values, further.values, out=total.values)
            np.add(total.baseline, further.baseline, out=total.baseline)
        return total


def weighting(tau: float, scale: Scale = "global", gamma: float | None = None) -> Weighting:
    """That of a fit: rewards for what was drawn, and shares for given answers; or, with a
    ``gamma``, rewards to go.
    """
    if gamma is not None:
        return RewardToGo(tau, gamma, scale)
    return RewardTilt(tau, scale) + GivenAnswers(scale)


def rewards_to_go(costs: Vector, lengths: Ids, gamma: float) -> Vector:
    """(m,) ``sum_{s >= t} gamma^(s - t) c_s`` within each rollout, for ``costs`` (m,)."""
    to_go = costs.astype(np.float64)
    ends = np.cumsum(lengths)
    running = np.flatnonzero(lengths > 1)
    for back in range(2, int(lengths.max(initial=0)) + 1):
        running = running[lengths[running] >= back]
        at = ends[running] - back
        to_go[at] += gamma * to_go[at + 1]
    return to_go


def _with_mean_one(
    exponents: Vector, prompts: Ids, counted: Bools, scale: Scale, rollouts: Rollouts
) -> tuple[Vector, Vector]:
    """``exp(exponents)`` over their mean where ``counted``, over all or by prompt, else 0; and that
    mean after scaling, 1, or 0 where every weight is 0.

    exponents, prompts, counted: of one shape, by rollout or by position.
    """
    if scale not in ("global", "prompt"):
        raise InputError(f"weights {scale!r} are unknown; choose 'global' or 'prompt'")
    weights = np.zeros(len(exponents))
    shared = np.zeros(len(exponents))
    values = exponents[counted]
    if not (values > -np.inf).any():
        if rollouts.given.any():
            return weights, shared
        sampled = int(np.count_nonzero(~rollouts.given))
        raise InputError(
            f"no completion earned a reward: all {sampled} are -inf; collect more rollouts, allow"
            " more tokens, or use a reward that the model sometimes earns"
        )
    groups = np.zeros(len(values), np.int64)
    if scale == "prompt":
        groups = np.unique(prompts[counted], return_inverse=True)[1]
    highest = np.full(int(groups.max()) + 1, -math.inf)
    np.maximum.at(highest, groups, values)
    tilted = np.exp(values - np.where(np.isfinite(highest), highest, 0.0)[groups])
    totals = np.bincount(groups, weights=tilted)
    means = totals / np.bincount(groups)
    weights[counted] = tilted / np.where(totals > 0, means, 1.0)[groups]
    shared[counted] = (totals > 0)[groups]
    return weights, shared


def clean_logprobs(
    name: str, logprobs: npt.NDArray[np.float32], rollouts: Rollouts, rows: Ids
) -> Vector:
    """Logprobs as float64 with rounding above 0 clamped; NaN and positive values are refused by
    rollout key.

    logprobs: any shape in nats. rows: the rollout of each value, the same shape.
    """
    values = logprobs.astype(np.float64)
    if values.size and not values.max() <= POSITIVE_TOLERANCE:  # nor is NaN
        corrupt = np.isnan(values) | (values > POSITIVE_TOLERANCE)
        value = values[corrupt][0]
        key = rollouts.keys[int(rows[corrupt][0])]
        raise InputError(
            f"{name} {value} in rollout {key}; a logprob must be a number, at most 0"
            f" ({int(corrupt.sum())} of {values.size} are not): discard this rollout and sample it"
            " again"
        )
    return np.minimum(values, 0.0, out=values)


def sampled_ids(rollouts: Rollouts) -> Ids:
    """(m,) the sampled ids. Raises InputError, naming the rollout: an invalid one."""
    ids = rollouts.token_ids
    if ids.size and not 0 <= int(ids.min()) <= int(ids.max()) < MOST_TOKENS:
        at = int(np.flatnonzero((ids < 0) | (ids >= MOST_TOKENS))[0])
        raise InputError(
            f"token id {ids[at]} in rollout {rollouts.keys[int(rollouts.rollout_of[at])]}; ids of"
            f" sampled tokens go from 0 to {MOST_TOKENS - 1:,}: discard this rollout"
        )
    return ids.astype(np.int64)
