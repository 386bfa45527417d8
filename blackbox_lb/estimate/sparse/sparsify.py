"""Sparse compilation: the few listed values with a policy near the learned one on logged positions.

A provider takes a limited number of entries in a range, perhaps integers; any other token is at 0.
Cutting a bias to its largest entries moves every other token, so the listed values are fitted again
with the rest held at 0, which is a projection again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from blackbox_lb.errors import InputError
from blackbox_lb.estimate.inputs.checks import Bools, Ids, Vector, vector, weight_vector
from blackbox_lb.estimate.next_token.next_token import NextToken
from blackbox_lb.estimate.projection.projection import maximise


@dataclass(frozen=True, slots=True, eq=False)
class Sparse:
    """The compiled bias, and its loss.

    token_ids: (k,) sorted. values: (k,) nats, none 0. entries_dropped: learned entries (not 0) that
    are not listed. kl_lost: mean ``KL(pi_learned || pi_compiled)`` over logged positions, nats per
    token. kl_learned: mean ``KL(pi_learned || pi_0)``, the loss of sending nothing. kept: ``1 -
    kl_lost / kl_learned`` (1 if nothing was learned). clipped: listed values at a limit of the
    range. rounded_to_zero: listed real values that are 0 as whole numbers.
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
        """The share of the estimated gain that remains; negative if the compiled bias is worse than
        none.

        The learned policy without a penalty is the m-projection of the target p* onto all biases,
        so that on the logged prefixes ``KL(p* || pi_v) = KL(p* || pi_learned) + KL(pi_learned ||
        pi_v)`` for every bias v (the Pythagorean theorem of information geometry; Csiszar 1975):
        with v = 0 and v = compiled, this is the kept share of ``KL(p* || pi_0) - KL(p* ||
        pi_learned)``, if positions count as they do in the fit. With a penalty the learned policy
        stands in for the target.
        """
        if self.kl_learned > 0:
            return 1.0 - self.kl_lost / self.kl_learned
        return 1.0


@dataclass(frozen=True, slots=True, eq=False)
class _Target:
    """The learned policy on the logged positions: ``KL(pi_learned || pi_v)`` is a concave solver's
    objective in v.
    """

    next_token: NextToken
    learned: Vector
    weights: Vector
    usage: Vector
    log_normaliser: float

    @classmethod
    def of(
        cls, next_token: NextToken, delta: npt.ArrayLike, position_weights: npt.ArrayLike | None
    ) -> _Target:
        learned = vector("delta", delta, len(next_token.token_ids))
        weights = weight_vector("position_weights", position_weights, next_token.n_positions)
        log_normaliser, usage = next_token.potential(learned, weights)
        return cls(next_token, learned, weights, usage, log_normaliser)

    def fitted(self, support: Ids, low: float, high: float) -> Vector:
        """(s,) the values in [low, high] on ``support``, 0 elsewhere, with the least KL."""
        return maximise(
            self.usage,
            self.next_token,
            self.weights,
            support=support,
            start=np.clip(self.learned, low, high),
            low=low,
            high=high,
            max_iterations=300,
        ).delta

    def kl(self, values: Vector) -> float:
        """Mean KL(pi_learned || pi_values) in nats per position."""
        potential, _ = self.next_token.potential(values, self.weights)
        total = self.usage @ (self.learned - values) - self.log_normaliser + potential
        return max(float(total / self.weights.sum()), 0.0)


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
    """Compile ``delta`` (s,) nats for a provider that takes ``entries`` values in [low, high] and
    refuses ``forbidden`` ids.

    The tokens that move the most probability stay, and their values are fitted again for the least
    mean ``KL(pi_learned || pi_compiled)``; whole numbers are the rounded ones, or none at all where
    these are further from the learned policy than the model is. If everything fits (and is whole,
    where it must be), the learned values are returned as they are.

    Args:
        next_token: of logged positions.
        delta: (s,) nats.
        entries: most values, None for any number.
        low, high: the range of a value in nats.
        integers: whether values are whole numbers.
        position_weights: (m,), each position once if None.
        forbidden: ids that may have no value.

    Raises:
        InputError: a range without 0, entries below 0.
    """
    _check(entries, low, high)
    if integers:
        low = float(np.ceil(low))
        high = float(np.floor(high))
    target = _Target.of(next_token, delta, position_weights)
    allowed = ~np.isin(next_token.token_ids, np.fromiter(forbidden, np.int64))
    learned = target.learned
    most = int(allowed.sum()) if entries is None else min(entries, int(allowed.sum()))
    if (
        np.count_nonzero(learned) <= most
        and allowed[learned != 0].all()
        and learned.min() >= low
        and learned.max() <= high
    ):
        values = learned
    elif most == allowed.sum():
        values = target.fitted(np.flatnonzero(allowed), low, high)
    else:
        supports = _supports(target, most, allowed)
        values = min((target.fitted(support, low, high) for support in supports), key=target.kl)
    zeros = 0
    if integers:
        rounded = np.rint(values)
        nothing = np.zeros_like(values)
        if target.kl(rounded) > target.kl(nothing):
            rounded = nothing
        zeros = int(((values != 0) & (rounded == 0)).sum())
        values = rounded
    return _report(target, values, zeros, low, high)


def most_moved(next_token: NextToken, delta: Vector) -> Ids:
    """(s,) indices into the support, the tokens of which ``delta`` (s,) nats moves the most
    probability first: the mean of a token's use with and without the bias, times its nats.
    """
    moved = _use(next_token, delta) * np.abs(delta)
    return np.lexsort((-np.abs(delta), -moved))


def _use(next_token: NextToken, delta: Vector, weights: Vector | None = None) -> Vector:
    """(s,) the mean of each token's expected number without and with ``delta`` (s,) nats."""
    before = next_token.expected(np.zeros(len(delta)), weights)
    return np.asarray((before + next_token.expected(delta, weights)) / 2)


def _supports(target: _Target, most: int, allowed: Bools) -> list[Ids]:
    """The tokens that move the most probability by the learned values, and by these less what all
    tokens share: a bias that lifts all common tokens alike is no bias on them, but one on the rest.
    """
    learned = target.learned
    use = _use(target.next_token, learned, target.weights)
    shared = float(use @ learned / use.sum())
    supports = []
    for nats in (learned, learned - shared):
        moved = np.where(allowed, use * np.abs(nats), 0.0)
        order = np.lexsort((-np.abs(nats), -moved))[:most]
        supports.append(np.sort(order[moved[order] > 0]))
    return supports


def against(next_token: NextToken, learned: npt.ArrayLike, sparse: Sparse) -> Sparse:
    """The same entries, with dropped and kl_lost counted against another ``learned`` bias (s,) than
    that of their fit.
    """
    target = _Target.of(
        next_token,
        vector("learned", learned, len(next_token.token_ids)),
        np.ones(next_token.n_positions),
    )
    values = next_token.align(sparse.token_ids, sparse.values)
    return replace(
        sparse,
        entries_dropped=int(((target.learned != 0) & (values == 0)).sum()),
        kl_lost=target.kl(values),
        kl_learned=target.kl(np.zeros_like(values)),
    )


def above(next_token: NextToken, highest_id: int | None) -> Ids:
    """The ids of the support above ``highest_id``, which a provider with such a limit refuses; none
    where it is None.
    """
    if highest_id is not None:
        return next_token.token_ids[next_token.token_ids > highest_id]
    return np.zeros(0, np.int64)


def _check(entries: int | None, low: float, high: float) -> None:
    if entries is not None and entries < 0:
        raise InputError(f"entries is {entries}; a provider takes 0 or more")
    if not low <= 0 <= high:
        raise InputError(
            f"the range [{low}, {high}] does not hold 0, the bias of a token that is not listed"
        )


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
