"""The projection and its errors by tau and gamma, in place of a weighting; and the problem of counts
at logged positions.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from blackbox_lb.estimate.inputs.checks import Vector
from blackbox_lb.estimate.inputs.rollouts import Rollouts, weighting
from blackbox_lb.estimate.inputs.sweep import Scale
from blackbox_lb.estimate.next_token.next_token import LoggedPositions, NextToken
from blackbox_lb.estimate.problem import Problem
from blackbox_lb.estimate.projection import projection as projections
from blackbox_lb.estimate.projection import standard_errors as errors
from blackbox_lb.estimate.projection.projection import Fit
from blackbox_lb.estimate.projection.standard_errors import StandardErrors


def problem_of(
    linear: Vector, table: LoggedPositions, weights: Vector | None = None, **options: Any
) -> Problem:
    """The fit to ``linear`` counts (s,) at positions that weigh ``weights`` (m,), 1 each if
    None.
    """
    counted = np.ones(table.n_positions) if weights is None else weights
    return Problem(
        lambda delta: table.potential(delta, counted), linear, float(counted.sum()), **options
    )


def projection(
    rollouts: Rollouts,
    *,
    tau: float = 1.0,
    l2: float = 5.0,
    weights: Scale = "global",
    gamma: float | None = None,
    **options: Any,
) -> Fit:
    """The fit with the weights of this tau; gamma: of rewards to go."""
    position_weights = weighting(tau, weights, gamma).weights(rollouts)
    return projections.projection(rollouts, position_weights, l2=l2, **options)


def standard_errors(
    rollouts: Rollouts,
    next_token: NextToken,
    fit: Fit,
    *,
    tau: float,
    weights: Scale = "global",
    gamma: float | None = None,
    **options: Any,
) -> StandardErrors:
    """Its standard errors."""
    position_weights = weighting(tau, weights, gamma).weights(rollouts)
    return errors.standard_errors(rollouts, next_token, fit, position_weights, **options)
