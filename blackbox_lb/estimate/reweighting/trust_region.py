"""Trust region: how far one policy may move from the last, measured on what the last one drew.

Index letters: ``m`` positions, ``s`` the support. Values in nats.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy.typing as npt

from blackbox_lb.errors import InputError
from blackbox_lb.estimate.inputs.checks import Vector, positive, vector, weight_vector
from blackbox_lb.estimate.next_token.next_token import NextToken

HALVINGS = 30
"""Bisections of the step: its length is known to a billionth, far below the sampling error of the KL."""


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """delta: (s,) ``old + share (new - old)``, 0 < share <= 1. kl: KL(p_old || p_delta) in nats a completion."""

    delta: Vector
    share: float
    kl: float


def policy_kl(
    next_token: NextToken,
    old: npt.ArrayLike,
    new: npt.ArrayLike,
    *,
    completions: int,
    position_weights: npt.ArrayLike | None = None,
) -> float:
    """KL(p_old || p_new) in nats a completion: ``1/N sum_m w_m KL(pi_old(. | m) || pi_new(. | m))``.

    old, new: (s,) nats. Unbiased where the policy ``old`` drew the ``completions`` whose positions have weight 1 (others 0): the
    chain rule, with each position's divergence summed over the vocabulary instead of read off the token that happened to be
    drawn. position_weights: (m,), 1 each if None. InputError: no completion.
    """
    if completions < 1:
        raise InputError(f"{completions} completions; a divergence is a mean over at least one")
    size = len(next_token.token_ids)
    before, after = vector("old", old, size), vector("new", new, size)
    weights = weight_vector("position_weights", position_weights, next_token.n_positions)
    here, usage = next_token.potential(before, weights)
    there, _ = next_token.potential(after, weights)
    return max(float(there - here - usage @ (after - before)) / completions, 0.0)


def step_within(
    next_token: NextToken,
    old: npt.ArrayLike,
    new: npt.ArrayLike,
    *,
    trust: float,
    completions: int,
    position_weights: npt.ArrayLike | None = None,
) -> Step:
    """The longest step from ``old`` towards ``new`` with ``policy_kl`` at most ``trust`` nats a completion.

    A reweighting from old to new rests on few completions where the divergence is large (Chatterjee and Diaconis, "The sample
    size required in importance sampling", 2018: about exp(KL) are needed for each one), so no policy goes further than the data
    of the last can follow. The divergence is convex along the line and 0 at its start, so bisection finds the step.
    InputError: ``trust`` not above 0.
    """
    positive("trust", trust)
    size = len(next_token.token_ids)
    start, whole = vector("old", old, size), vector("new", new, size) - vector("old", old, size)

    def kl(share: float) -> float:
        return policy_kl(next_token, start, start + share * whole, completions=completions, position_weights=position_weights)

    reached = kl(1.0)
    if reached <= trust:
        return Step(start + whole, 1.0, reached)
    low, high = 0.0, 1.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if kl(middle) <= trust else (low, middle)
    return Step(start + low * whole, low, kl(low))
