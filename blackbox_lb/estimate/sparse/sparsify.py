"""Sparse compilation: the few listed values with the policy closest to the learned one on logged
positions.

A provider takes a limited number of entries in a range, perhaps integers; any other token is at 0.
Cutting a bias to its largest entries moves every other token. So the shift and the support are
chosen together, and the listed values are refitted with the rest held at 0, which is a projection
again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from blackbox_lb.errors import InputError
from blackbox_lb.estimate.inputs.checks import Ids, Vector, vector
from blackbox_lb.estimate.next_token.next_token import NextToken
from blackbox_lb.estimate.sparse.support_search import SubsetProblem, best_support, whole_numbers


@dataclass(frozen=True, slots=True, eq=False)
class Sparse:
    """The compiled bias, and its loss.

    token_ids: (k,) sorted. values: (k,) nats, none 0. entries_dropped: learned entries (not 0) that
    are not listed. kl_lost: mean ``KL(pi_learned || pi_compiled)`` over logged positions, nats per
    token. kl_learned: mean ``KL(pi_learned || pi_0)``, the loss of sending nothing. kept: ``1 -
    kl_lost / kl_learned`` (1 if nothing was learned). clipped: listed values at a limit of the
    range. rounded_to_zero: tokens of the support of real values that are 0 as whole numbers; others
    may be listed in their place.
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
    def of(cls, next_token: NextToken, delta: npt.ArrayLike) -> _Target:
        learned = vector("delta", delta, len(next_token.token_ids))
        weights = np.ones(next_token.n_positions)
        log_normaliser, usage = next_token.potential(learned, weights)
        return cls(next_token, learned, weights, usage, log_normaliser)

    def kl(self, values: Vector) -> float:
        """Mean KL(pi_learned || pi_values) in nats per position."""
        potential, _ = self.next_token.potential(values, self.weights)
        total = self.usage @ (self.learned - values) - self.log_normaliser + potential
        return max(float(total / len(self.weights)), 0.0)


def sparsify(
    next_token: NextToken,
    delta: npt.ArrayLike,
    *,
    entries: int | None = None,
    low: float = -100.0,
    high: float = 100.0,
    integers: bool = False,
    forbidden: Iterable[int] = (),
) -> Sparse:
    """Compile ``delta`` (s,) nats for a provider that takes ``entries`` values in [low, high] and
    refuses ``forbidden`` ids.

    entries None is no limit. Support and values minimise the mean ``KL(pi_learned || pi_compiled)``
    together (see ``best_support``); whole numbers come from a search on the same objective that
    begins at the rounded ones. If everything fits (and is whole, where it must be), the learned
    values are returned as they are. InputError: a range without 0, entries below 0.
    """
    _check(entries, low, high)
    if integers:
        low = float(np.ceil(low))
        high = float(np.floor(high))
    target = _Target.of(next_token, delta)
    allowed = ~np.isin(next_token.token_ids, np.fromiter(forbidden, np.int64))
    learned = target.learned
    most = int(allowed.sum()) if entries is None else min(entries, int(allowed.sum()))
    problem = SubsetProblem(
        next_token, target.usage, target.weights, allowed, most, low=low, high=high
    )
    if (
        np.count_nonzero(learned) <= most
        and allowed[learned != 0].all()
        and learned.min() >= low
        and learned.max() <= high
    ):
        values = learned
    elif most == allowed.sum():
        values = problem.fitted(np.flatnonzero(allowed), np.clip(learned, low, high)).values
    else:
        values = best_support(problem).values
    zeros = 0
    if integers and (values != np.rint(values)).any():
        chosen = np.flatnonzero(values)
        values = whole_numbers(problem, values)
        zeros = int((values[chosen] == 0).sum())
    return _report(target, values, zeros, low, high)


def against(next_token: NextToken, learned: npt.ArrayLike, sparse: Sparse) -> Sparse:
    """The same entries, with dropped and kl_lost counted against another ``learned`` bias (s,) than
    that of their fit.
    """
    target = _Target.of(next_token, learned)
    values = next_token.align(sparse.token_ids, sparse.values)
    return replace(
        sparse,
        entries_dropped=int(((target.learned != 0) & (values == 0)).sum()),
        kl_lost=target.kl(values),
        kl_learned=target.kl(np.zeros_like(values)),
    )


def kept_share(next_token: NextToken, learned: Vector, values: Vector) -> float:
    """The share of the estimated gain of ``learned`` (s,) that ``values`` (s,) keep, as in
    ``Sparse.kept``.
    """
    return _report(_Target.of(next_token, learned), values, 0, -np.inf, np.inf).kept


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
