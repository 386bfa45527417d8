"""Pool: completions of several known policies, made into one set that counts like completions of the base.

Index letters: ``n`` completions, ``m`` their positions, ``s`` the support, ``j`` rounds. Values in nats.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from blackbox_lb.errors import InputError
from blackbox_lb.estimate.inputs.checks import Ids, Vector
from blackbox_lb.estimate.inputs.rollouts import Rollouts
from blackbox_lb.estimate.next_token.next_token import NextToken
from blackbox_lb.estimate.next_token.tails import FINEST, ROUNDING, rates
from blackbox_lb.estimate.reweighting.importance import log_mixture_ratios
from blackbox_lb.estimate.reweighting.weight_diagnostics import effective_sample_size

PASSES = 2
"""Passes: the tail unigram and the normalisers need each other, and the second pass moves either by less than sampling error."""


@dataclass(frozen=True, slots=True, eq=False)
class Round:
    """Completions drawn with ``bias`` (token id -> nats; empty: of the base model), exactly as it was sent.

    after: the lists in ``rollouts`` are of the policy with the bias, as SGLang returns them, and not of the base model.
    """

    rollouts: Rollouts
    bias: Mapping[int, float] = field(default_factory=dict)
    after: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Pool:
    """rollouts: of all rounds in order, with the base model's lists and ``log_ratios``; next_token: of these rollouts.

    counts: rollouts of each round. effective_sample_size: of the weights ``exp(log_ratios)``, the pool's worth in completions of
    the base, for an average unrelated to the biases; about that of the unbiased rounds at least.
    """

    rollouts: Rollouts
    next_token: NextToken
    counts: tuple[int, ...]

    @property
    def effective_sample_size(self) -> float:
        """See the class."""
        return effective_sample_size(np.exp(self.rollouts.tilt))

    @property
    def mean_weight(self) -> float:
        """The mean of ``exp(log_ratios)``: 1 in truth, whatever the biases, so a difference beyond noise shows a wrong tail."""
        return float(np.exp(self.rollouts.tilt).mean())

    def positions_of(self, index: int) -> Vector:
        """(m,) 1 at the positions of round ``index``, 0 at the others."""
        owner = np.repeat(np.arange(len(self.counts)), self.counts)
        return np.where(owner[self.rollouts.rollout_of] == index, 1.0, 0.0)


def pool(rounds: Sequence[Round]) -> Pool:
    """Pool all rounds into one set of rollouts. The first must have no bias: it covers the tokens that later policies avoid.

    **Weights.** ``log_ratios`` are those of the balance heuristic over all rounds (see ``log_mixture_ratios``).

    **Lists after the bias.** With ``log pi_delta(y)`` listed, ``log pi_0(y) = log pi_delta(y) - delta(y) + log Z`` where
    ``-log Z = log sum_y pi_delta(y) exp(-delta(y))``; the tail of that sum is spread by the biased policy's rates. Tokens that the
    bias pushed out of the list then belong to the tail.

    **Tail.** A token y has the share ``C(y) / sum_j exp(delta_j(y)) B_j(y)`` of the base's draws outside the lists. C: times
    any round drew it outside a list; B_j: over the positions of round j whose lists miss y, the sum of the unlisted mass over Z.
    It is the rate of Poisson counts C with those exposures, at most 1. The unigram of the unbiased rounds alone would leave a
    token that only a biased round drew without any mass, and the fit would raise it without limit; with weights
    ``Z / exp(delta)`` one draw of a token that the bias suppresses would outweigh all others.

    InputError: no round, a first round with a bias, or a key in two rounds.
    """
    if not rounds or rounds[0].bias or not rounds[0].rollouts.keys:
        raise InputError("the first of the pooled rounds must be drawn without a bias; collect such rollouts first")
    counts = tuple(len(each.rollouts.keys) for each in rounds)
    used = [each for each in rounds if each.rollouts.keys]
    rollouts, table = _one_set(used)
    deltas = [_aligned(table, each.bias) for each in used]
    ratios = log_mixture_ratios(rollouts, table, deltas, [count for count in counts if count])
    return Pool(replace(rollouts, log_ratios=ratios), table, counts)


def _one_set(rounds: Sequence[Round]) -> tuple[Rollouts, NextToken]:
    """All rollouts with the base model's lists, and their table."""
    if not any(each.bias for each in rounds):
        rollouts = Rollouts.join([each.rollouts for each in rounds])
        return rollouts, NextToken.of(rollouts)
    tail = NextToken.of(Rollouts.join([each.rollouts for each in rounds if not each.bias]))
    for _ in range(PASSES):
        rollouts = Rollouts.join([_base_lists(each, tail) for each in rounds])
        table = NextToken.of(rollouts, tail=tail)
        tail = replace(table, unigram=_base_unigram(rollouts, table, rounds))
    return rollouts, NextToken.of(rollouts, tail=tail)


def _base_lists(drawn: Round, tail: NextToken) -> Rollouts:
    """The rollouts of a round with the base model's lists, sorted again; ``tail`` lends the base's unigram."""
    rollouts = drawn.rollouts
    if not (drawn.after and drawn.bias):
        return rollouts
    ids = np.array(sorted(drawn.bias), dtype=np.int64)
    delta = _of_listed(rollouts.top_ids, ids, np.array([drawn.bias[token] for token in ids.tolist()]), 0.0)
    listed = rollouts.top_logprobs.astype(np.float64) - delta
    left = 1 - np.exp(rollouts.top_logprobs.astype(np.float64)).sum(axis=1)
    with np.errstate(divide="ignore"):  # a complete list has no tail: log 0
        rest = np.log(np.where(left < ROUNDING, 0.0, left)) + _log_untilted(rollouts, tail, _aligned(tail, drawn.bias))
    base = listed - np.logaddexp(np.logaddexp.reduce(listed, axis=1), rest)[:, None]
    order = np.argsort(-base, axis=1, kind="stable")
    return replace(
        rollouts,
        top_ids=np.take_along_axis(rollouts.top_ids, order, axis=1),
        top_logprobs=np.take_along_axis(base, order, axis=1).astype(np.float32),
    )


def _log_untilted(rollouts: Rollouts, tail: NextToken, delta: Vector) -> Vector:
    """(m,) log of the mean of exp(-delta) over a position's unlisted tokens, under the biased policy."""
    seen = tail.unigram > 0
    if not seen.any():
        return np.zeros(len(rollouts.token_ids))
    highest, lowest = float(delta[seen].max()), float(delta[seen].min())
    tilted = tail.unigram * np.exp(np.where(seen, delta - highest, 0.0))
    missing, drawn = (
        np.maximum(values.sum() - _of_listed(rollouts.top_ids, tail.token_ids, values, 0.0).sum(axis=1), 0.0)
        for values in (tail.unigram, tilted)
    )
    ratio = np.log(np.maximum(missing, FINEST)) - np.log(np.maximum(drawn, np.finfo(float).tiny)) - highest
    # Differences of nearly equal sums have no digits left; a mean lies between the extremes.
    return np.where(missing > 0, np.clip(ratio, -highest, -lowest), 0.0)


def _base_unigram(rollouts: Rollouts, table: NextToken, rounds: Sequence[Round]) -> Vector:
    """(s,) the share of ``pool``, times the unlisted mass of all positions, so that it is about a count."""
    sizes = [len(each.rollouts.token_ids) for each in rounds]
    drawn = table.sampled_counts(table.sampled_outside) if table.sampled_outside.any() else np.zeros_like(table.unigram)
    expected = np.zeros_like(drawn)
    for each, end in zip(rounds, np.cumsum(sizes), strict=True):
        where = slice(int(end) - len(each.rollouts.token_ids), int(end))
        delta = _aligned(table, each.bias)
        left = table.tail_mass[where] * np.exp(-table.log_normaliser(delta)[where])
        expected += np.exp(delta) * _missed(rollouts.top_ids[where], table.token_ids, left)
    return rates(drawn, expected, float(table.tail_mass.sum()))


def _missed(top_ids: npt.NDArray[np.int32], token_ids: Ids, values: Vector) -> Vector:
    """(s,) the sum of ``values`` (m,) over the positions whose lists miss each token."""
    present = top_ids >= 0
    columns = np.searchsorted(token_ids, top_ids[present])
    listed = np.bincount(columns, weights=np.repeat(values, present.sum(axis=1)), minlength=len(token_ids))
    missed: Vector = np.maximum(values.sum() - listed, 0.0)
    return missed


def _of_listed(top_ids: npt.NDArray[np.int32], token_ids: Ids, values: Vector, other: float) -> Vector:
    """(m, k) the value of each listed token, ``other`` for those without one."""
    if not len(token_ids):
        return np.full(top_ids.shape, other)
    where = np.minimum(np.searchsorted(token_ids, top_ids), len(token_ids) - 1)
    chosen: Vector = np.where(token_ids[where] == top_ids, values[where], other)
    return chosen


def _aligned(table: NextToken, bias: Mapping[int, float]) -> Vector:
    return table.align(list(bias), list(bias.values()))
