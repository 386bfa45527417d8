"""EvalPlan: all settings of an evaluation."""

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
    """The settings of an evaluation. ``samples``: completions a prompt and policy. ``labels``: None
    where the task is no decision.

    ``effect``: the difference of the reward for a sample size. ``prices``: None where not known.
    """

    settings: tuple[Setting, ...] = (SAMPLED, GREEDY)
    alternatives: tuple[Alternative, ...] = ()
    samples: int = 6
    effect: float | None = None
    prices: Prices | None = None
    labels: Labels | None = None
