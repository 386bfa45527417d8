"""Selection: the candidates worth fresh samples, their number of samples, and the best one, from
numbers alone.

Index letters: ``x`` prompts. Nothing here samples; the caller asks for the next rung and hands back
its measurements.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import numpy as np

from blackbox_lb.errors import InputError
from blackbox_lb.estimate.choice.outcome import ByPrompt, Outcome
from blackbox_lb.estimate.inputs.checks import positive

Objective: TypeAlias = Literal["reward", "reward-kl", "pareto", "macro-f1"]


@dataclass(frozen=True, slots=True)
class Rung:
    """``candidates`` still in the race, and the ``samples`` a prompt of each at the end of the
    rung.
    """

    candidates: int
    samples: int


def rungs(candidates: int, samples: int, paid: int | None = None) -> tuple[Rung, ...]:
    """Successive halving (Karnin, Koren and Somekh 2013): a plan within a budget of completions.

    Each rung may spend an equal share of what is left of the budget, and keeps earlier samples
    (Jamieson and Talwalkar 2016). With fewer samples than halvings there are fewer rungs, and each
    drops more. A rung without a sample for each of its candidates is left out.

    Args:
        candidates: policies at the start.
        samples: completions a prompt and paid candidate.
        paid: candidates whose samples all of them share; None for all. The budget is ``paid *
            samples`` completions a prompt, and at least one for each candidate.

    Returns:
        The rungs, with fewer candidates and more samples from one to the next.

    Raises:
        InputError: no candidate, or no sample.
    """
    if candidates < 1 or samples < 1:
        raise InputError(
            f"{candidates} candidates with {samples} samples a prompt: there must be at least one"
            " of each"
        )
    if candidates == 1:
        return (Rung(1, samples),)
    count = min(math.ceil(math.log2(candidates)), samples)
    left = samples * min(candidates, candidates if paid is None else paid)
    drawn = 0
    plan: list[Rung] = []
    for number in range(count):
        racing = math.ceil(candidates ** (1 - number / count) - 1e-9)
        more = left // (count - number) // racing
        if number == 0:
            more = max(more, 1)
        if more > 0:
            drawn += more
            left -= more * racing
            plan.append(Rung(racing, drawn))
    return tuple(plan)


def race_cost(plan: Sequence[Rung]) -> int:
    """Completions a prompt that the rungs of ``plan`` draw."""
    cost = 0
    drawn = 0
    for rung in plan:
        cost += rung.candidates * (rung.samples - drawn)
        drawn = rung.samples
    return cost


@dataclass(frozen=True, slots=True)
class Goal:
    """The goal of the choice: a mean difference to the base over the same prompts.

    reward: the reward in the user's own unit. reward-kl: that minus ``tau`` for every nat of
    KL(p_delta || p_0) a completion (the paper, "KL-regularized optimum"). Both read a reward on the
    log scale as its exponential: in nats one completion of reward -inf gives every policy, the base
    too, an expectation of -inf, and the objective would rank nothing. So ``tau`` is a price in
    units of that value, and need not be the tau of any fit. pareto: the fewest tokens among
    candidates that keep the base's accuracy (the paper, section on the experimental setup): they
    lose at most one standard error of the paired difference, as without this margin noise alone
    would exclude half of the candidates that lose nothing. macro-f1: the mean F1 over the labels of
    a decision, of greedy decisions predicted from lists.

    The best candidate wins: to prefer the smallest KL among those within a standard error of it
    (the one-standard-error rule of Breiman et al. 1984) lost between 1 and 60 % of the gain in
    every one of nine simulated sweeps.
    """

    objective: Objective = "reward"
    tau: float = 1.0

    def __post_init__(self) -> None:
        """Raise InputError: an unknown objective, or a price that is not above 0."""
        if self.objective not in get_args(Objective):
            raise InputError(
                f"objective {self.objective!r} is unknown; choose {', '.join(get_args(Objective))}"
            )
        if self.objective == "reward-kl":
            positive("tau", self.tau)

    def gain(self, base: Outcome, outcome: Outcome) -> ByPrompt:
        """The gain over the base, higher being better: in units of the reward, or in tokens saved
        for pareto.
        """
        if self.objective == "pareto":
            return base.tokens.minus(outcome.tokens)
        gain = outcome.reward.minus(base.reward)
        if self.objective == "reward":
            return gain
        return gain.minus(
            ByPrompt(np.full(gain.parts.shape, np.nan)) if outcome.kl is None else outcome.kl,
            self.tau,
        )

    def keeps(self, base: Outcome, outcome: Outcome) -> bool:
        """Whether the constraint holds: for pareto, no more accuracy lost than noise explains; else
        always.
        """
        if self.objective != "pareto":
            return True
        change = self._accuracy(base, outcome)
        error = change.standard_error
        return change.value + (error if math.isfinite(error) else 0.0) >= 0

    def beats(self, base: Outcome, outcome: Outcome) -> bool:
        """Whether the measurements are better than the base's at all."""
        return self.keeps(base, outcome) and self.gain(base, outcome).value > 0

    def ranking(self, base: Outcome, outcomes: Sequence[Outcome]) -> list[int]:
        """Indices of ``outcomes``, the best first, those without a number last; equals stay in the
        order given.
        """

        def place(index: int) -> tuple[bool, bool, float]:
            outcome = outcomes[index]
            kept = self.keeps(base, outcome)
            value = (self.gain(base, outcome) if kept else self._accuracy(base, outcome)).value
            return (math.isnan(value), not kept, -value)

        return sorted(range(len(outcomes)), key=place)

    @staticmethod
    def _accuracy(base: Outcome, outcome: Outcome) -> ByPrompt:
        if base.accuracy is None or outcome.accuracy is None:
            raise InputError(
                "objective 'pareto' needs to know which completions are correct: give every"
                " validation example an answer, or choose 'reward' or 'reward-kl'"
            )
        return outcome.accuracy.minus(base.accuracy)
