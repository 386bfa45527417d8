"""Selection: the candidates worth fresh samples, their number of samples, and the best one, from
numbers alone.

Index letters: ``x`` prompts. Nothing here samples; the caller asks for the next rung and hands back
its measurements.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Literal, TypeAlias, get_args

import numpy as np

from blackbox_lb.errors import InputError
from blackbox_lb.estimate.inputs.checks import Vector


@dataclass(frozen=True, slots=True, eq=False)
class ByPrompt:
    """A mean over prompts that remembers its parts, so that the error of a difference is that of
    the paired difference.

    ``parts``: (x,) one number a prompt whose mean is the estimate: the mean of its completions, or
    a linearisation of a ratio. NaN where a prompt has no completion.
    """

    parts: Vector

    @property
    def value(self) -> float:
        """The mean of the parts; NaN where there is none."""
        parts = self.parts[~np.isnan(self.parts)]
        if parts.size:
            return float(parts.mean())
        return math.nan

    @property
    def standard_error(self) -> float:
        """Standard error of the value, prompts being independent of each other; infinite with fewer
        than two.
        """
        parts = self.parts[~np.isnan(self.parts)]
        if parts.size > 1:
            return float(parts.std(ddof=1) / math.sqrt(parts.size))
        return math.inf

    def minus(self, other: ByPrompt) -> ByPrompt:
        """``self - other``, over the prompts that both have."""
        return ByPrompt(self.parts - other.parts)


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """Results of a policy on a set of prompts.

    reward: in the user's own unit. tokens: of a completion. accuracy: 0 to 1, None where no right
    answer is known.
    """

    reward: ByPrompt
    tokens: ByPrompt
    accuracy: ByPrompt | None


Objective: TypeAlias = Literal[
    "reward",
    "pareto",
    "accuracy",
    "balanced",
    "cost",
    "recall@precision",
    "precision@recall",
    "rate",
]
MEASURES: dict[Objective, Literal["precision", "recall", "rate"]] = {
    "recall@precision": "precision",
    "precision@recall": "recall",
    "rate": "rate",
}
"""Objectives that promise something of fresh prompts, and what."""
OF_DECISIONS: frozenset[Objective] = frozenset(["accuracy", "balanced", "cost", *MEASURES])
"""Objectives of greedy decisions between labels, predicted from lists."""
Costs: TypeAlias = Mapping[str, Mapping[str, float]]
"""Right label -> decided label -> cost, above 0."""

LEAST_PROMPTS = 8
"""Prompts on which a candidate is seen at least before it can be dropped."""


@dataclass(frozen=True, slots=True)
class Rung:
    """``candidates`` still in the race, and the ``samples`` of each on each of ``prompts`` prompts
    at the end of the rung.
    """

    candidates: int
    samples: int
    prompts: int


def rungs(candidates: int, budget: float, prompts: int) -> tuple[Rung, ...]:
    """Successive halving (Karnin, Koren and Somekh 2013): a plan within a budget of completions.

    Each rung may spend an equal share of what is left of the budget, and keeps earlier samples
    (Jamieson and Talwalkar 2016). A rung without a sample for each of its candidates is left out.
    Where the budget has no sample of every prompt for every candidate, the first rung shows all of
    them on some of the prompts, for half of the budget.

    Args:
        candidates: policies at the start.
        budget: completions a prompt, of all candidates together. Two candidates get a sample of
            every prompt in any case.
        prompts: on which they are compared.

    Returns:
        The rungs, with fewer candidates and more samples from one to the next.

    Raises:
        InputError: no candidate, no prompt, or a budget that is not above 0.
    """
    if candidates < 1 or prompts < 1 or not budget > 0:
        raise InputError(
            f"{candidates} candidates on {prompts} prompts with {budget:g} completions a prompt:"
            " there must be some of each"
        )
    if candidates == 1:
        return (Rung(1, max(math.floor(budget), 1), prompts),)
    plan: list[Rung] = []
    remaining = float(budget)
    first = candidates
    prompts_shown = max(math.floor(prompts * budget / 2 / candidates), LEAST_PROMPTS)
    if candidates > max(budget, 2) and prompts_shown < prompts:
        plan.append(Rung(candidates, 1, prompts_shown))
        remaining -= candidates * prompts_shown / prompts
        first = min(max(math.floor(remaining), 2), candidates - 1)
    samples = 0
    count = max(math.ceil(math.log2(first)), 1)
    for number in range(count):
        racing = max(math.ceil(first ** (1 - number / count) - 1e-9), 2)
        more = math.floor(remaining / (count - number) / racing + 1e-9)
        if number == 0:
            more = max(more, 1)
        if more > 0:
            samples += more
            remaining -= more * racing
            plan.append(Rung(racing, samples, prompts))
    return tuple(plan)


def race_cost(plan: Sequence[Rung], cost: Callable[[int], int]) -> int:
    """Completions that the rungs of ``plan`` draw, over all of their prompts.

    A later rung keeps what an earlier one drew, so each candidate costs what it has drawn when it
    is dropped.

    Args:
        plan: of ``rungs``.
        cost: completions a prompt for a policy with so many samples.
    """
    total = 0
    for rung, following in zip_longest(plan, plan[1:]):
        survivors = 0
        if following is not None:
            survivors = following.candidates
        dropped = rung.candidates - survivors
        total += dropped * rung.prompts * cost(rung.samples)
    return total


@dataclass(frozen=True, slots=True)
class Goal:
    """The goal of the choice: a mean difference to the base over the same prompts.

    reward: the reward in the user's own unit, one on the log scale as its exponential: in nats one
    completion of reward -inf gives every policy, the base too, an expectation of -inf, and the
    objective would rank nothing. pareto: the fewest tokens among candidates that keep the base's
    accuracy (the paper, section on the experimental setup): they lose at most one standard error
    of the paired difference, as without this margin noise alone would exclude half of the
    candidates that lose nothing.

    All others are of greedy decisions predicted from lists. accuracy: the share of right decisions.
    balanced: the mean recall over the labels. cost: less mean cost by ``costs``. recall@precision:
    the largest recall of the label ``positive`` with a precision of at least ``level``;
    precision@recall: the mirror image; rate: decide for it as often as possible, at most for a
    share ``level`` of the prompts. These three choose a point and no candidate. With ``positive``,
    accuracy, balanced and cost choose a point, too.

    The best candidate wins: to prefer the smallest KL among those within a standard error of it
    (the one-standard-error rule of Breiman et al. 1984) lost between 1 and 60 % of the gain in
    every one of nine simulated sweeps.
    """

    objective: Objective = "reward"
    level: float | None = None
    positive: str | None = None
    costs: Costs | None = None

    def __post_init__(self) -> None:
        """Raise InputError: an unknown objective; a level, a positive label or costs that the
        objective needs and lacks, or has no use for.
        """
        if self.objective not in get_args(Objective):
            raise InputError(
                f"objective {self.objective!r} is unknown; choose {', '.join(get_args(Objective))}"
            )
        name = self.objective
        if self.is_promise != (self.level is not None):
            raise InputError(
                f"``objective={name}`` {'needs' if self.is_promise else 'takes no'} level; give"
                " it as in recall@precision=.95, precision@recall=.9 or rate=.2"
            )
        if self.level is not None and not 0 < self.level < 1:
            raise InputError(
                f"``objective={self.spec}`` has no share between 0 and 1; give one as in {name}=.9"
            )
        if self.is_promise and self.positive is None:
            raise InputError(
                f"``objective={self.spec}`` is about one label; name it with ``positive``"
            )
        if self.positive is not None and name not in OF_DECISIONS:
            raise InputError(
                f"``positive={self.positive}`` has no meaning for ``objective={name}``; choose"
                " accuracy, balanced, cost:FILE, recall@precision=.95, precision@recall=.9 or"
                " rate=.2"
            )
        if (name == "cost") != (self.costs is not None):
            raise InputError(
                f"``objective={name}`` {'needs' if name == 'cost' else 'takes no'} costs of"
                " decisions; give their file as in ``objective=cost:costs.json``"
            )

    @property
    def is_promise(self) -> bool:
        """Whether the goal is a point with a promise on fresh prompts."""
        return self.objective in MEASURES

    @property
    def spec(self) -> str:
        """The objective with its level."""
        if self.level is None:
            return self.objective
        return f"{self.objective}={self.level:g}"

    def gain(self, base: Outcome, outcome: Outcome) -> ByPrompt:
        """The gain over the base, higher being better: in units of the reward, or in tokens saved
        for pareto.
        """
        if self.objective == "pareto":
            return base.tokens.minus(outcome.tokens)
        return outcome.reward.minus(base.reward)

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
            is_within = self.keeps(base, outcome)
            value = (self.gain(base, outcome) if is_within else self._accuracy(base, outcome)).value
            return (math.isnan(value), not is_within, -value)

        return sorted(range(len(outcomes)), key=place)

    @staticmethod
    def _accuracy(base: Outcome, outcome: Outcome) -> ByPrompt:
        if base.accuracy is None or outcome.accuracy is None:
            raise InputError(
                "objective 'pareto' needs to know which completions are correct: give every"
                " validation example an answer, or choose 'reward'"
            )
        return outcome.accuracy.minus(base.accuracy)
