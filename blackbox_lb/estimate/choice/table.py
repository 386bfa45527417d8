"""The table of estimators: the one place with their names. It loads an estimator only on
request.
"""

from __future__ import annotations

import math
import pkgutil
from typing import TYPE_CHECKING

from blackbox_lb.errors import InputError
from blackbox_lb.estimate.inputs.sweep import CREDIT_L2, Sweep

if TYPE_CHECKING:
    from blackbox_lb.estimate.choice.estimator import Estimator, EstimatorFacts
    from blackbox_lb.estimate.inputs.sweep import Unobserved

ROWS = {
    "projection": "blackbox_lb.estimate.choice.estimator:PROJECTION",
    "ips": "blackbox_lb.estimate.choice.estimator:IPS_OF_TOKENS",
}
"""Name, as users and bias files spell it -> module and object, an ``Estimator``."""


def estimator(name: str) -> Estimator:
    """Return the estimator of this name. Raises InputError: the table has none."""
    if name not in ROWS:
        raise InputError(f"estimator {name!r} is unknown; choose {', '.join(ROWS)}")
    instance: Estimator = pkgutil.resolve_name(ROWS[name])
    return instance


def facts_of(name: str) -> EstimatorFacts:
    """The facts on an estimator; those of one that reads nothing where no estimator made the bias,
    as for a rule, a boost or a sum.
    """
    if name in ROWS:
        return estimator(name).facts
    from blackbox_lb.estimate.choice.estimator import EstimatorFacts

    return EstimatorFacts()


def estimators(sweep: Sweep) -> dict[str, Estimator]:
    """The estimators of a sweep, by name, in its order."""
    return {name: estimator(name) for name in sweep.estimators}


def most_candidates(sweep: Sweep, *, has_costs: bool = False) -> int:
    """Most biases of a sweep.

    has_costs: whether the reward is a sum over positions, so that rewards to go are tried, too.
    """
    credited = len(CREDIT_L2) if sweep.l2_is_default else len(sweep.l2)
    biases = 0
    for row in estimators(sweep).values():
        sizes = [len(getattr(sweep, field)) for field in row.facts.swept]
        biases += len(sweep.tau) * math.prod(sizes)
        if has_costs and "l2" in row.facts.swept:
            biases += len(sweep.tau) * len(sweep.gamma) * credited
    return biases


def rule(sweep: Sweep) -> Unobserved | None:
    """``sweep.unobserved`` where an estimator reads the probabilities of sampled tokens, else
    None.
    """
    read = any(entry.facts.reads_propensities for entry in estimators(sweep).values())
    if read:
        return sweep.unobserved
    return None
