"""What every step of a fit reads: the model, the data, the plan and the provider's limits."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from blackbox_lb.bias.limits import most_entries
from blackbox_lb.estimate.choice.candidates import CompileLimits
from blackbox_lb.jobs.plan.plan import Plan
from blackbox_lb.rollouts.judging.trials import Trials
from blackbox_lb.tasks import Task
from blackbox_lb.types import Example


@dataclass(frozen=True, slots=True)
class FitJob:
    """A fit.

    Attributes:
        trials: the model under test, with the keys that this fit alone used.
        task: prompts in splits.
        plan: the settings of the fit.
        limits: the provider's on a bias, and the plan's.
    """

    trials: Trials
    task: Task
    plan: Plan
    limits: CompileLimits

    @classmethod
    def of(cls, trials: Trials, task: Task, plan: Plan) -> FitJob:
        """That of a plan. Raises ProfileError: the provider takes no bias."""
        session = trials.session
        rules = session.profile.bias
        limits = CompileLimits(
            most_entries(session.profile, plan.most_entries),
            rules.low,
            rules.high,
            plan.integers or not rules.fractions,
            session.highest_id,
        )
        return cls(replace(trials, used=set()), task, plan, limits)

    @property
    def examples(self) -> tuple[Example, ...]:
        """The training prompts that count."""
        return self.task.train[: self.plan.limit]

    def announce(self, sentences: Iterable[str]) -> None:
        """Report the notices of the plan, then ``sentences``."""
        for sentence in (*self.plan.notices, *sentences):
            self.trials.report.notice(sentence)
