"""The table of estimators: the one place with their names. It loads an estimator only on
request.
"""

from __future__ import annotations

import math
import pkgutil
from typing import TYPE_CHECKING

from blackbox_lb.errors import InputError
from blackbox_lb.estimate.inputs.sweep import ANSWERS_L2, DEFAULT_L2, Sweep

if TYPE_CHECKING:
    from blackbox_lb.estimate.choice.estimator import Estimator
    from blackbox_lb.estimate.inputs.recipe import Unobserved

ROWS = {
    "projection": "blackbox_lb.estimate.choice.projected:PROJECTION",
    "ips": "blackbox_lb.estimate.choice.counted:IPS_OF_TOKENS",
    "ratio": "blackbox_lb.estimate.choice.counted:RATIO_OF_TOKENS",
}
"""Name, as users and bias files spell it -> module and object, an ``Estimator``."""

PAID_L2 = 3
"""Candidates of one tau whose samples the default strengths of l2 share in the race on the
validation prompts. In simulated races of five with the means and spreads of stock words in stories,
the chosen one was .18 below the best with the samples of three, and .12 with those of five;
cross-validation alone was 1.7 below it."""


def estimator(name: str) -> Estimator:
    """Return the estimator of this name. Raises InputError: the table has none."""
    if name not in ROWS:
        raise InputError(f"estimator {name!r} is unknown; choose {', '.join(ROWS)}")
    found: Estimator = pkgutil.resolve_name(ROWS[name])
    return found


def estimators(sweep: Sweep) -> dict[str, Estimator]:
    """The estimators of a sweep, by name, in its order."""
    return {name: estimator(name) for name in sweep.estimators}


def most_candidates(sweep: Sweep) -> int:
    """Most biases of a sweep; cross-validation of l2 proposes two."""
    return _combinations(sweep, sum(2 if value == "cv" else 1 for value in sweep.l2))


def paid_candidates(sweep: Sweep) -> int:
    """Candidates whose samples the race of a sweep may draw: all of them, except that the default
    strengths of l2 share those of ``PAID_L2``.
    """
    if sweep.l2 in (DEFAULT_L2, ANSWERS_L2):
        return _combinations(sweep, PAID_L2)
    return most_candidates(sweep)


def _combinations(sweep: Sweep, strengths: int) -> int:
    """Biases of a sweep where l2 stands for so many strengths."""
    biases = 0
    for row in estimators(sweep).values():
        sizes = [
            strengths if field == "l2" else len(getattr(sweep, field)) for field in row.facts.swept
        ]
        biases += len(sweep.tau) * math.prod(sizes)
    return biases


def rule(sweep: Sweep) -> Unobserved | None:
    """``sweep.unobserved`` where an estimator reads the probabilities of sampled tokens, else
    None.
    """
    read = any(each.facts.reads_propensities for each in estimators(sweep).values())
    return sweep.unobserved if read else None
