"""The projection: the fixed bias closest to the reward-tilted model, by reward-weighted maximum
likelihood.

The best fixed bias for the target ``p* ~ p_0 exp(r / tau)`` (the paper, "KL-regularized optimum")
minimises ``KL(p* || p_delta)``. On logged rollouts that is

    maximise   sum_n w_n sum_t [ delta(y_nt) - log sum_y pi_0(y | x_n, y_n<t) exp(delta(y)) ]
               - l2/2 |delta|^2,

with ``w_n = exp(r_n / tau)`` scaled to mean 1. It is concave and never reads the sampled token's
own probability.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from blackbox_lb.errors import InputError
from blackbox_lb.estimate.inputs.checks import Bools, Ids, Vector, positive
from blackbox_lb.estimate.inputs.recipe import Scale
from blackbox_lb.estimate.inputs.rollouts import Rollouts
from blackbox_lb.estimate.next_token.next_token import NextToken
from blackbox_lb.estimate.next_token.potential import LoggedPositions
from blackbox_lb.estimate.projection.concave_problem import maximise
from blackbox_lb.estimate.reweighting.weight_diagnostics import effective_sample_size


@dataclass(frozen=True, slots=True, eq=False)
class Fit:
    """A learned bias: ``delta`` (s,) in nats at temperature 1 for the sorted ``token_ids`` (s,); 0
    for any other token.

    gain: weighted log-likelihood over delta = 0, nats per weighted token. shortfall: estimated
    distance to the maximum in the same unit; converged: it is below 1e-7. effective_sample_size: of
    the rollout weights. rollouts: their number.
    """

    token_ids: Ids
    delta: Vector
    gain: float
    converged: bool
    shortfall: float
    iterations: int
    effective_sample_size: float
    rollouts: int


def reward_weights(
    rollouts: Rollouts, tau: float, scale: Scale = "global", among: Bools | None = None
) -> Vector:
    """(n,) ``exp(r_n / tau)`` scaled to mean 1 over all rollouts, or within each prompt (the
    paper's Z(x)).

    A prompt whose rollouts all have reward -inf keeps weights 0. Given answers have their
    ``shares``, whatever the rewards of the others. among: (n,) the rollouts that count, all if
    None; the others have weights 0. Raises InputError if all rollouts have reward -inf.
    """
    if scale not in ("global", "prompt"):
        raise InputError(f"weights {scale!r} are unknown; choose 'global' or 'prompt'")
    exponents, prompts = rollouts.rewards / positive("tau", tau), rollouts.prompts
    there = np.ones(len(exponents), np.bool_) if among is None else among
    given, weights = rollouts.given & there, np.zeros(len(exponents))
    drawn = there & ~given
    if rollouts.shares is not None:
        weights[given] = rollouts.shares[given]
    if not given.any() or (exponents[drawn] > -np.inf).any():
        weights[drawn] = _scaled(exponents[drawn], prompts[drawn], scale)
    return weights


def _scaled(exponents: Vector, prompts: Ids, scale: Scale) -> Vector:
    """``exp(exponents)`` over their mean, over all or by prompt."""
    if not (exponents > -np.inf).any():
        raise InputError(
            f"no completion earned a reward: all {len(exponents)} are -inf; collect more rollouts,"
            " allow more tokens, or use a reward that the model sometimes earns"
        )
    groups = (
        np.zeros(len(exponents), np.int64)
        if scale == "global"
        else np.unique(prompts, return_inverse=True)[1]
    )
    highest = np.full(int(groups.max()) + 1, -np.inf)
    np.maximum.at(highest, groups, exponents)
    weights = np.exp(exponents - np.where(np.isfinite(highest), highest, 0.0)[groups])
    totals = np.bincount(groups, weights=weights)
    means = totals / np.bincount(groups)
    return weights / np.where(totals > 0, means, 1.0)[groups]


def projection(
    rollouts: Rollouts,
    *,
    tau: float = 1.0,
    l2: float = 5.0,
    weights: Scale = "global",
    support: npt.ArrayLike | None = None,
    start: Fit | None = None,
    next_token: LoggedPositions | None = None,
) -> Fit:
    """Fit the bias, as in the module docstring.

    tau: strength, in the unit of the rewards; smaller is stronger. l2: a pseudocount-like pull to 0
    in weighted tokens. support: ids that may be nonzero (a sparse refit); all seen tokens if None.
    start: a fit to begin from, on any support. next_token: ``NextToken.of(rollouts)`` if available.
    Raises InputError: bad options, no reward anywhere.
    """
    positive("l2", l2)
    w = reward_weights(rollouts, tau, weights)
    given: LoggedPositions = NextToken.of(rollouts) if next_token is None else next_token
    table = given.named()
    if table.n_positions != len(rollouts.token_ids):
        raise InputError(
            f"next_token has {table.n_positions} positions, the rollouts {len(rollouts.token_ids)}"
        )
    w[rollouts.lengths == 0] = 0.0
    position_weights = np.repeat(w, rollouts.lengths)
    if not position_weights.any():
        raise InputError(
            "no completion with a reward holds a token; raise max_tokens or check the reward"
        )
    chosen = _support(table, support)
    found = maximise(
        table.sampled_counts(position_weights),
        table,
        position_weights,
        l2=l2,
        support=chosen,
        start=None if start is None else table.align(start.token_ids, start.delta),
    )
    return Fit(
        token_ids=table.token_ids,
        delta=found.delta,
        gain=found.value / float(position_weights.sum()),
        converged=found.converged,
        shortfall=found.shortfall,
        iterations=found.iterations,
        effective_sample_size=effective_sample_size(w),
        rollouts=len(w),
    )


def _support(table: LoggedPositions, support: npt.ArrayLike | None) -> Ids | None:
    """Indices of the wanted tokens that were seen."""
    if support is None:
        return None
    wanted = np.unique(np.asarray(support, dtype=np.int64))
    _, indices, _ = np.intersect1d(table.token_ids, wanted, return_indices=True)
    return indices.astype(np.int64)
