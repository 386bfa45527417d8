"""EvalPlan: everything that an evaluation is told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from blackbox_lb.rollouts.judging.verdict import GREEDY, SAMPLED, Setting

if TYPE_CHECKING:
    from blackbox_lb.jobs.evaluation.arms import Alternative
    from blackbox_lb.providers.prices import Prices
    from blackbox_lb.tasks.sets.labels import Labels


@dataclass(frozen=True, slots=True)
class EvalPlan:
    """What an evaluation does. ``samples``: completions a prompt and policy. ``labels``: None where the task is no decision.

    ``effect``: a difference of the reward whose sample size is wanted. ``prices``: None where costs are not.
    """

    settings: tuple[Setting, ...] = (SAMPLED, GREEDY)
    alternatives: tuple[Alternative, ...] = ()
    samples: int = 6
    effect: float | None = None
    prices: Prices | None = None
    labels: Labels | None = None
