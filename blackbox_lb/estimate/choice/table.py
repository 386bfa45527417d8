"""The table of estimators: the one place with their names. It loads an estimator only on
request.
"""

from __future__ import annotations

import pkgutil
from typing import TYPE_CHECKING

from blackbox_lb.errors import InputError

if TYPE_CHECKING:
    from blackbox_lb.estimate.choice.estimator import Estimator
    from blackbox_lb.estimate.inputs.recipe import Unobserved
    from blackbox_lb.estimate.inputs.sweep import Sweep

ROWS = {
    "projection": "blackbox_lb.estimate.choice.projected:PROJECTION",
    "ips": "blackbox_lb.estimate.choice.counted:IPS_OF_TOKENS",
    "ratio": "blackbox_lb.estimate.choice.counted:RATIO_OF_TOKENS",
}
"""Name, as users and bias files spell it -> module and object, an ``Estimator``."""


def estimator(name: str) -> Estimator:
    """Return the estimator of this name. Raises InputError: the table has none."""
    if name not in ROWS:
        raise InputError(f"estimator {name!r} is unknown; choose {', '.join(ROWS)}")
    found: Estimator = pkgutil.resolve_name(ROWS[name])
    return found


def estimators(sweep: Sweep) -> dict[str, Estimator]:
    """The estimators of a sweep, by name, in its order."""
    return {name: estimator(name) for name in sweep.estimators}


def rule(sweep: Sweep) -> Unobserved | None:
    """``sweep.unobserved`` where an estimator reads the probabilities of sampled tokens, else
    None.
    """
    read = any(each.facts.reads_propensities for each in estimators(sweep).values())
    return sweep.unobserved if read else None
