"""Sparse compilation: the few listed values whose policy is closest to the learned one on logged positions.

A provider takes a limited number of entries in a range, perhaps integers; what is not listed is 0. Cutting a bias to its
largest entries moves every other token. So the shift and the support are chosen together, and the listed values are
refitted with the rest held at 0, which is a projection again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from blackbox_lb.errors import InputError
from blackbox_lb.estimate.checks import Bools, Ids, Vector, vector, weight_vector
from blackbox_lb.estimate.integers import integer_search
from blackbox_lb.estimate.normaliser import NextToken
from blackbox_lb.estimate.solver import maximise

__all__ = ["Sparse", "above", "against", "sparsify", "support_by_usage"]


@dataclass(frozen=True, slots=True, eq=False)
class Sparse:
    """What a provider is sent, and what that cost.

    token_ids: (k,) sorted. values: (k,) nats, none 0. entries_dropped: learned entries (not 0) that are not listed.
    kl_lost: mean ``KL(pi_learned || pi_compiled)`` over logged positions, nats per token. kl_learned: mean
    ``KL(pi_learned || pi_0)``, what sending nothing would lose. kept: ``1 - kl_lost / kl_learned`` (1 if nothing was
    learned). clipped: listed values that lie on the limit of the range. rounded_to_zero: entries of the chosen support
    whose best integer is 0, so that they are not listed.
    """

    token_ids: Ids
    values: Vector
    entries_dropped: int
    kl_lost: float
    kl_learned: float
    clipped: int
    rounded_to_zero: int

    @property
    def entries(self) -> int:
        """k."""
        return len(self.token_ids)

    @property
    def kept(self) -> float:
        """The share of the learned change that arrives; negative if the compiled bias is worse than none."""
        return 1.0 - self.kl_lost / self.kl_learned if self.kl_learned > 0 else 1.0


@dataclass(frozen=True, slots=True, eq=False)
class _Target:
    """The learned policy on the logged positions: ``KL(pi_learned || pi_v)`` is a concave solver's objective in v."""

    next_token: NextToken
    learned: Vector
    weights: Vector
    usage: Vector
    log_normaliser: float

    @classmethod
    def of(cls, next_token: NextToken, delta: npt.ArrayLike, position_weights: npt.ArrayLike | None) -> _Target:
        learned = vector("delta", delta, len(next_token.token_ids))
        weights = weight_vector("position_weights", position_weights, next_token.n_positions)
        log_normaliser, usage = next_token.potential(learned, weights)
        return cls(next_token, learned, weights, usage, log_normaliser)

    def kl(self, values: Vector) -> float:
        """Mean KL(pi_learned || pi_values) in nats per position."""
        potential, _ = self.next_token.potential(values, self.weights)
        total = self.usage @ (self.learned - values) - self.log_normaliser + potential
        return max(float(total / self.weights.sum()), 0.0)


def support_by_usage(
    next_token: NextToken,
    delta: npt.ArrayLike,
    entries: int,
    *,
    position_weights: npt.ArrayLike | None = None,
    forbidden: Iterable[int] = (),
) -> Ids:
    """At most ``entries`` token ids, sorted: the largest (change of usage) x (delta - shift).

    delta: (s,) nats on ``next_token.token_ids``. The score is the token's term of the divergence
    ``KL(pi_learned || pi_0) + KL(pi_0 || pi_learned) = sum_y (usage_learned - usage_base)(y) (delta(y) - shift)``, close to
    usage x (delta - shift)^2 for small biases: an entry matters where it suppresses a common token and where it raises a
    rare one. The shift is the mean log normaliser: a token biased by just that much keeps its usage and may be left out.
    """
    target = _Target.of(next_token, delta, position_weights)
    chosen, _ = _choose(target, entries, _banned(next_token, forbidden))
    return next_token.token_ids[chosen]


def sparsify(
    next_token: NextToken,
    delta: npt.ArrayLike,
    *,
    entries: int | None = None,
    low: float = -100.0,
    high: float = 100.0,
    integers: bool = False,
    position_weights: npt.ArrayLike | None = None,
    forbidden: Iterable[int] = (),
) -> Sparse:
    """Compile ``delta`` (s,) nats for a provider that takes ``entries`` values in [low, high] and refuses ``forbidden`` ids.

    entries None is no limit. position_weights: (m,), each position once if None. The listed values minimise the mean
    ``KL(pi_learned || pi_compiled)``; integers come from rounding followed by coordinate search on the same objective.
    If everything fits, the learned values are returned as they are. InputError: a range that does not hold 0.
    """
    _check_range(low, high)
    if integers:
        low, high = float(np.ceil(low)), float(np.floor(high))
    target = _Target.of(next_token, delta, position_weights)
    banned, nonzero = _banned(next_token, forbidden), target.learned != 0
    if (entries is None or int(nonzero.sum()) <= entries) and not (banned & nonzero).any():
        chosen, shift = np.flatnonzero(nonzero), 0.0
    else:
        chosen, shift = _choose(target, len(banned) if entries is None else entries, banned)
    values = _refit(target, chosen, shift, low, high)
    zeros = 0
    if integers:
        values = integer_search(next_token, target.weights, target.usage, values, chosen, low, high)
        zeros = int((values[chosen] == 0).sum())
    return _report(target, values, zeros, low, high)


def against(next_token: NextToken, learned: npt.ArrayLike, sparse: Sparse) -> Sparse:
    """The same entries, with dropped and kl_lost counted against another ``learned`` bias (s,) than they were fitted to."""
    target = _Target.of(
        next_token, vector("learned", learned, len(next_token.token_ids)), np.ones(next_token.n_positions)
    )
    values = next_token.align(sparse.token_ids, sparse.values)
    return replace(
        sparse,
        entries_dropped=int(((target.learned != 0) & (values == 0)).sum()),
        kl_lost=target.kl(values),
        kl_learned=target.kl(np.zeros_like(values)),
    )


def above(next_token: NextToken, highest_id: int | None) -> Ids:
    """The ids of the support above ``highest_id``, which a provider with such a limit refuses; none where it is None."""
    return next_token.token_ids[next_token.token_ids > highest_id] if highest_id is not None else np.zeros(0, np.int64)


def _banned(next_token: NextToken, forbidden: Iterable[int]) -> Bools:
    return np.isin(next_token.token_ids, np.fromiter(forbidden, np.int64))


def _check_range(low: float, high: float) -> None:
    if not low <= 0 <= high:
        raise InputError(f"the range [{low}, {high}] does not hold 0, the bias of a token that is not listed")


def _report(target: _Target, values: Vector, zeros: int, low: float, high: float) -> Sparse:
    listed = np.flatnonzero(values)
    return Sparse(
        token_ids=target.next_token.token_ids[listed],
        values=values[listed],
        entries_dropped=int(((target.learned != 0) & (values == 0)).sum()),
        kl_lost=target.kl(values),
        kl_learned=target.kl(np.zeros_like(values)),
        clipped=int(((values[listed] <= low) | (values[listed] >= high)).sum()),
        rounded_to_zero=zeros,
    )


def _choose(target: _Target, entries: int, banned: Bools) -> tuple[Ids, float]:
    """Indices of the support, and the shift that puts the unlisted tokens at 0."""
    if entries < 0:
        raise InputError(f"entries is {entries}; a provider takes 0 or more")
    shift = target.log_normaliser / float(target.weights.sum())
    change = target.usage - target.next_token.expected(np.zeros_like(target.learned), target.weights)
    score = np.where(banned, 0.0, change * (target.learned - shift))
    ranked = np.argsort(-score, kind="stable")[:entries]
    return np.sort(
        ranked[score[ranked] != 0]
    ), shift  # one below 0 is no reason to leave a token out where there is room


def _refit(target: _Target, chosen: Ids, shift: float, low: float, high: float) -> Vector:
    """The values on ``chosen`` closest to the learned policy; the cut itself where that is already the best."""
    cut = np.zeros_like(target.learned)
    cut[chosen] = np.clip(target.learned[chosen] - shift, low, high)
    if np.array_equal(cut, target.learned):
        return cut
    found = maximise(
        target.usage,
        target.next_token,
        target.weights,
        support=chosen,
        start=cut,
        low=low,
        high=high,
        max_iterations=300,
    )
    return found.delta if target.kl(found.delta) < target.kl(cut) else cut
