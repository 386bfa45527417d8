"""The projection: the fixed bias closest to the reward-tilted model, by reward-weighted maximum
likelihood.

The best fixed bias for the target ``p* ~ p_0 exp(r / tau)`` (the paper, "KL-regularized optimum")
minimises ``KL(p* || p_delta)``. On logged rollouts that is

    maximise   sum_n w_n sum_t [ delta(y_nt) - log sum_y pi_0(y | x_n, y_n<t) exp(delta(y)) ]
               - l2/2 |delta - center|^2,

with ``w_n = exp(r_n / tau)`` scaled to mean 1. It is concave and never reads the sampled token's
own probability. The part of the weights that all completions share is counted by expectation and
not from samples (``linear_term``), so that equal rewards give a bias of exactly 0. The
center is 0 unless a ``Prior`` says what tokens are worth before any data.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from blackbox_lb.errors import InputError
from blackbox_lb.estimate.inputs.checks import Ids, Vector, positive
from blackbox_lb.estimate.inputs.prior import Prior
from blackbox_lb.estimate.inputs.rollouts import Rollouts
from blackbox_lb.estimate.inputs.weightings import Weighting
from blackbox_lb.estimate.next_token.next_token import NextToken
from blackbox_lb.estimate.next_token.potential import LoggedPositions
from blackbox_lb.estimate.projection.concave_problem import maximise
from blackbox_lb.estimate.projection.linear_term import linear_term
from blackbox_lb.estimate.reweighting.weight_diagnostics import effective_sample_size


@dataclass(frozen=True, slots=True, eq=False)
class Fit:
    """A learned bias: ``delta`` (s,) in nats at temperature 1 for the sorted ``token_ids`` (s,); 0
    for any other token.

    gain: weighted log-likelihood over delta = 0, with the baseline in its linear term, nats per
    weighted token. shortfall: estimated distance to the maximum in the same unit; converged: it is
    below 1e-7. effective_sample_size: of the rollouts' mean weights. rollouts: their number.
    """

    token_ids: Ids
    delta: Vector
    gain: float
    converged: bool
    shortfall: float
    iterations: int
    effective_sample_size: float
    rollouts: int


def projection(
    rollouts: Rollouts,
    rule: Weighting,
    *,
    l2: float,
    support: npt.ArrayLike | None = None,
    start: Fit | None = None,
    next_token: LoggedPositions | None = None,
    prior: Prior | None = None,
) -> Fit:
    """Fit the bias, as in the module docstring, with the weights of ``rule``.

    l2: a pseudocount-like pull to 0 in weighted tokens. support: ids that may be nonzero (a sparse
    refit); all seen tokens if None. start: a fit to begin from, on any support. next_token:
    ``NextToken.of(rollouts)`` if available. prior: what the penalty pulls to, 0 if None; what it
    says of tokens off the support of ``next_token`` is left out. Raises InputError: bad options, no
    reward anywhere.
    """
    positive("l2", l2)
    given: LoggedPositions = NextToken.of(rollouts) if next_token is None else next_token
    table = given.named()
    if table.n_positions != len(rollouts.token_ids):
        raise InputError(
            f"next_token has {table.n_positions} positions, the rollouts {len(rollouts.token_ids)}"
        )
    weights = rule.weights(rollouts)
    if not weights.values.any():
        raise InputError(
            "no completion with a reward holds a token; raise max_tokens or check the reward"
        )
    center = None
    lifted = None
    if prior is not None:
        center = table.align(prior.token_ids, prior.means)
        lifted = _support(table, prior.lifted) if len(prior.lifted) else None
    found = maximise(
        linear_term(rollouts, table, weights),
        table,
        weights.values,
        l2=l2,
        support=_support(table, support),
        start=None if start is None else table.align(start.token_ids, start.delta),
        center=center,
        lifted=lifted,
    )
    return Fit(
        token_ids=table.token_ids,
        delta=found.delta,
        gain=found.value / float(weights.values.sum()),
        converged=found.converged,
        shortfall=found.shortfall,
        iterations=found.iterations,
        effective_sample_size=effective_sample_size(weights.of_rollouts(rollouts)),
        rollouts=len(rollouts.keys),
    )


def _support(table: LoggedPositions, support: npt.ArrayLike | None) -> Ids | None:
    """Indices of the wanted tokens that were seen."""
    if support is None:
        return None
    wanted = np.unique(np.asarray(support, dtype=np.int64))
    _, indices, _ = np.intersect1d(table.token_ids, wanted, return_indices=True)
    return indices.astype(np.int64)
