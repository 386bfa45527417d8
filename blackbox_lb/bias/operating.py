"""Operating points of a decision: how many prompts each shift of one label decides for it, with
exact bounds of shares from counts.

All points are one bias with another number added to the tokens of the positive label, so that a
file holds the whole curve as counts on the training and the validation prompts. From these any
point can be picked again with its promise: "at least" and "at most" hold on fresh prompts with 95 %
confidence. Only the standard library is needed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal, TypeAlias, get_args

from pydantic import Field, model_validator

from blackbox_lb.binomial import RISK, binomial_tail, lower_bound, upper_bound
from blackbox_lb.errors import BiasError, InputError
from blackbox_lb.records import Count, Finite, Flag, Name, Row, TokenId

Measure: TypeAlias = Literal["precision", "recall", "rate"]
"""What a point promises: a least precision, a least recall, a largest share of prompts."""
BEST_OF: dict[str, str] = {"precision": "recall", "recall": "precision"}
"""What is largest among the points that keep a promise."""
MOST_POINTS = 100
"""Points of a curve in a file: a percent of the prompts from one to the next."""
NEARLY = 0.85
"""Power of the smallest chance of failure on the training prompts up to which a point may be the
first to be tested. Of 150 draws of 150 prompts each, 9 % found no point with .85, 15 % with 1 or
.67, 29 % with .5; with 400 prompts it is level with 1 and .67."""


def share_of(part: int, total: int) -> float | None:
    """A share; None of nothing."""
    if total:
        return part / total
    return None


class PromptCounts(Row):
    """``positives`` of so many ``prompts`` have the positive label."""

    prompts: Count
    positives: Count


class DecisionCounts(Row):
    """``decided`` prompts for the positive label, ``right`` of which have it."""

    decided: Count
    right: Count

    @model_validator(mode="after")
    def _part_of_the_decided(self) -> DecisionCounts:
        if self.right > self.decided:
            raise ValueError(f"{self.right} right decisions of only {self.decided}")
        return self


class OperatingPoint(Row):
    """One point of the curve.

    Attributes:
        shift: nats that the tokens of the positive label get beside the learned bias.
        training: decisions on the training prompts, which order the points before they are tested.
        validation: decisions on the validation prompts, which choose.
    """

    shift: Finite
    training: DecisionCounts
    validation: DecisionCounts


class CheckedPoint(Row):
    """The chosen point on fresh prompts: counts of those with a label, and of their decisions."""

    prompts: PromptCounts
    decisions: DecisionCounts


class OperatingCurve(Row):
    """The curve of a decision for or against one label.

    Attributes:
        positive: the label that is decided for or against.
        token_ids: the tokens that begin it; a point adds its shift to each of them.
        goal: what the point was chosen by, as in "recall@precision=0.95".
        shift: of the chosen point, which the entries of the file hold already.
        integers: whether the shifts are whole numbers, as the provider takes them.
        auc: area under the ROC curve of the model without a bias, with its 95 % interval.
        training, validation: the prompts behind the counts.
        points: by shift, the smallest first.
        checked: the chosen point on test prompts, None where it was not judged.
    """

    positive: Name
    token_ids: Annotated[tuple[TokenId, ...], Field(min_length=1)]
    goal: Name
    shift: Finite
    integers: Flag = False
    auc: Finite
    auc_low: Finite
    auc_high: Finite
    training: PromptCounts
    validation: PromptCounts
    points: Annotated[tuple[OperatingPoint, ...], Field(min_length=1, max_length=10_000)]
    checked: CheckedPoint | None = None

    @model_validator(mode="after")
    def _in_order(self) -> OperatingCurve:
        shifts = [point.shift for point in self.points]
        if shifts != sorted(set(shifts)):
            raise ValueError("the points are not in the order of their shifts")
        if self.shift not in shifts:
            raise ValueError(f"the chosen shift {self.shift:g} is none of the points")
        return self

    @property
    def chosen(self) -> OperatingPoint:
        """The point that the entries hold."""
        return next(point for point in self.points if point.shift == self.shift)

    def measured(self, point: OperatingPoint) -> tuple[MeasuredShare, ...]:
        """Precision, recall and rate of a point on the validation prompts, in this order."""
        counts = point.validation
        return (
            MeasuredShare.of("precision", counts.right, counts.decided),
            MeasuredShare.of("recall", counts.right, self.validation.positives),
            MeasuredShare.of("rate", counts.decided, self.validation.prompts),
        )

    @property
    def promise(self) -> Promise | None:
        """What the chosen point promises of fresh prompts; None where it was chosen by another
        goal.
        """
        try:
            promise = Promise.parse(self.goal.rpartition("@")[2])
        except InputError:
            return None
        return promise if promise.goal == self.goal else None

    @property
    def check(self) -> PromiseCheck | None:
        """Whether the test prompts bear the promise out; None where nothing was promised, or
        nothing was judged.
        """
        if self.promise is None or self.checked is None:
            return None
        return PromiseCheck.of(self.promise, self.checked)

    def as_json(self) -> dict[str, Any]:
        """The curve for JSON, with the shares and 95 % intervals of each point."""
        rows = []
        for point in self.points:
            row: dict[str, Any] = point.model_dump()
            for share in self.measured(point):
                row[share.name] = share.as_json()
            row["chosen"] = point.shift == self.shift
            rows.append(row)
        check = self.check
        return {
            **self.model_dump(exclude={"points"}),
            "check": None if check is None else asdict(check),
            "points": rows,
        }

    def at(self, measure: Measure, level: float) -> OperatingPoint:
        """The best point that keeps a promise on fresh prompts with 95 % confidence.

        Args:
            measure: "precision": the largest recall with at least that precision; "recall": the
                largest precision with at least that recall; "rate": the most decisions for the
                label, for at most that share of the prompts.
            level: of the promise, between 0 and 1.

        Raises:
            BiasError: the validation prompts show no point that keeps it.
        """
        promising = promised(self.points, measure, level, self.training, self.validation)
        if not promising:
            raise BiasError(self._missing(measure, level))
        return promising[-1]

    def _missing(self, measure: Measure, level: float) -> str:
        """Why no point keeps a promise, and what would."""
        validation = self.validation
        if measure == "rate":
            needed = math.ceil(math.log(RISK) / math.log1p(-level))
            evidence = f"{validation.prompts} validation prompts"
        else:
            needed = math.ceil(math.log(RISK) / math.log(level))
            evidence = f"{validation.positives} of {validation.prompts} validation prompts have it"
        limit = "at most" if measure == "rate" else "at least"
        return (
            f"no point for the label {self.positive!r} is shown to have a {measure} of {limit}"
            f" {level:g} with 95 % confidence ({evidence}; it takes at least {needed} without an"
            f" error); choose another level, or give more ``validation_data``{self._best(measure)}"
        )

    def _best(self, measure: Measure) -> str:
        """The point with the best bound, as the end of a sentence."""
        bounds = [bound_of(point, measure, self.validation) for point in self.points]
        if measure == "rate":
            return f"; the smallest bound of any point is {min(bounds):.2f}"
        return f"; the largest bound of any point is {max(bounds):.2f}"


def promised(
    points: Sequence[OperatingPoint],
    measure: Measure,
    level: float,
    training: PromptCounts,
    validation: PromptCounts,
) -> list[OperatingPoint]:
    """The points that keep a promise with 95 % confidence, the best one last.

    The points are tested one after the other until one fails, in an order that no validation answer
    decides ("fixed sequence testing", Angelopoulos et al. 2021, "Learn then Test"): so many tests
    have together the risk of one. Recall and rate rise with the shift, so they begin where the
    promise is easiest to keep; precision begins at the smallest shift that the training prompts
    find nearly as likely to keep it as the likeliest one, and goes on to larger shifts.

    Args:
        points: by shift, the smallest first.
        measure, level: see ``OperatingCurve.at``.
        training, validation: the prompts behind the counts.
    """
    ordered = list(points)
    if measure == "recall":
        ordered.reverse()
    if measure == "precision":
        chances = [failure_chance(point.training, measure, level, training) for point in ordered]
        bar = min(chances) ** NEARLY
        start = next(place for place, chance in enumerate(chances) if chance <= bar)
        ordered = ordered[start:]
    promising = []
    for point in ordered:
        if failure_chance(point.validation, measure, level, validation) > RISK:
            break
        promising.append(point)
    if measure == "recall":
        promising.sort(key=lambda point: (share_of_right(point.validation), -point.shift))
    return promising


def share_of_right(counts: DecisionCounts) -> float:
    """The precision; 0 without a decision."""
    return share_of(counts.right, counts.decided) or 0.0


def failure_chance(
    counts: DecisionCounts, measure: Measure, level: float, prompts: PromptCounts
) -> float:
    """The p-value of "the promise does not hold" (exact, binomial)."""
    if measure == "precision":
        return binomial_tail(counts.right, counts.decided, level)
    if measure == "recall":
        return binomial_tail(counts.right, prompts.positives, level)
    return binomial_tail(prompts.prompts - counts.decided, prompts.prompts, 1 - level)


def bound_of(point: OperatingPoint, measure: Measure, prompts: PromptCounts) -> float:
    """The one-sided 95 % bound of a point on its own: lower, and upper for the rate."""
    counts = point.validation
    if measure == "precision":
        return lower_bound(counts.right, counts.decided)
    if measure == "recall":
        return lower_bound(counts.right, prompts.positives)
    return upper_bound(counts.decided, prompts.prompts)


@dataclass(frozen=True, slots=True)
class Promise:
    """A measure and its level, as in precision=.9."""

    measure: Measure
    level: float

    def __post_init__(self) -> None:
        """Raise InputError: a level outside (0, 1)."""
        if not 0 < self.level < 1:
            raise InputError(
                f"{self.measure}={self.level:g} is no share between 0 and 1; give one as in"
                f" {self.measure}=.9"
            )

    @property
    def goal(self) -> str:
        """The goal of a fit that would have chosen this point."""
        if self.measure == "rate":
            return f"rate={self.level:g}"
        return f"{BEST_OF[self.measure]}@{self.measure}={self.level:g}"

    @classmethod
    def of(cls, name: str, level: float) -> Promise:
        """That of the measure ``name``. Raises InputError: there is none, or no such share."""
        for measure in get_args(Measure):
            if name == measure:
                return cls(measure, level)
        raise InputError(
            f"{name!r} is no measure of an operating point; give {', '.join(get_args(Measure))}"
        )

    @classmethod
    def parse(cls, text: str) -> Promise:
        """Read "precision=.9". Raises InputError: no such measure, or no number."""
        name, _, number = text.partition("=")
        try:
            level = float(number)
        except ValueError:
            raise InputError(
                f"{text!r} is no operating point; give precision, recall or rate with a share, as"
                " in precision=.9"
            ) from None
        return cls.of(name.strip(), level)


@dataclass(frozen=True, slots=True)
class MeasuredShare:
    """A share with its two-sided 95 % interval; ``value`` is None of nothing."""

    name: Measure
    value: float | None
    low: float
    high: float

    @classmethod
    def of(cls, name: Measure, part: int, total: int) -> MeasuredShare:
        """``part`` of ``total`` (Clopper and Pearson 1934)."""
        low = lower_bound(part, total, RISK / 2)
        high = upper_bound(part, total, RISK / 2)
        return cls(name, share_of(part, total), low, high)

    def as_json(self) -> dict[str, float | None]:
        """The numbers."""
        return {"value": self.value, "low": self.low, "high": self.high}

    @property
    def text(self) -> str:
        """The share and its interval."""
        if self.value is None:
            return "-"
        return f"{self.value:.2f} ({self.low:.2f} to {self.high:.2f})"


@dataclass(frozen=True, slots=True)
class PromiseCheck:
    """A promise on test prompts.

    Attributes:
        measure, level: what was promised.
        value: the share on the test prompts, None of nothing.
        bound: its one-sided 95 % bound: lower for "at least", upper for "at most".
        word: HOLDS where the bound keeps the promise; BROKEN where the test prompts contradict it
            with 95 % confidence; else NOT SHOWN.
        prompts: the test prompts.
        needed: test prompts that would show it, if they were decided as these; None where these
            keep the promise already, or do not keep it themselves.
    """

    measure: Measure
    level: float
    value: float | None
    bound: float
    word: Literal["HOLDS", "NOT SHOWN", "BROKEN"]
    prompts: int = 0
    needed: int | None = None

    @classmethod
    def of(cls, promise: Promise, checked: CheckedPoint) -> PromiseCheck:
        """That of ``promise`` on these counts."""
        counts = checked.decisions
        prompts = checked.prompts
        part, total = {
            "precision": (counts.right, counts.decided),
            "recall": (counts.right, prompts.positives),
            "rate": (counts.decided, prompts.prompts),
        }[promise.measure]
        value = share_of(part, total)
        if promise.measure == "rate":
            bound = upper_bound(part, total)
            is_shown = bound <= promise.level
            is_broken = lower_bound(part, total) > promise.level
        else:
            bound = lower_bound(part, total)
            is_shown = bound >= promise.level
            is_broken = upper_bound(part, total) < promise.level
        word: Literal["HOLDS", "NOT SHOWN", "BROKEN"] = "NOT SHOWN"
        if is_shown:
            word = "HOLDS"
        if is_broken:
            word = "BROKEN"
        times = None
        if word == "NOT SHOWN":
            times = _times_needed(promise, part, total)
        needed = None
        if times is not None:
            needed = times * prompts.prompts
        return cls(promise.measure, promise.level, value, bound, word, prompts.prompts, needed)

    @property
    def shortage(self) -> str:
        """Why the promise is not shown, and what would show it; "" where it is, or is broken."""
        if self.word != "NOT SHOWN":
            return ""
        sentence = f"{self.prompts} test prompts do not show it"
        if self.needed is not None:
            return f"{sentence}; about {self.needed:,}, decided as these, would"
        if self.value is None:
            return f"{sentence}, since none of them counts for the {self.measure}"
        return f"{sentence}, and the {self.measure} on them does not keep it either"

    @property
    def sentence(self) -> str:
        """The check in words."""
        limit = "at most" if self.measure == "rate" else "at least"
        value = "none"
        if self.value is not None:
            value = f"{self.value:.2f}"
        return (
            f"{self.measure} {limit} {self.level:g}: {value} on unseen prompts (95 %: {limit}"
            f" {self.bound:.2f})"
        )


MOST_TIMES = 1000
"""Times the test prompts up to which a number of them is looked for that would show a promise."""


def _times_needed(promise: Promise, part: int, total: int) -> int | None:
    """The smallest multiple of ``part`` of ``total`` whose one-sided bound keeps a promise; None
    where none does.
    """
    if promise.measure == "rate":
        kept = total - part
        level = 1 - promise.level
    else:
        kept = part
        level = promise.level
    if kept <= level * total:
        return None
    for times in range(2, MOST_TIMES + 1):
        if binomial_tail(times * kept, times * total, level) <= RISK:
            return times
    return None


def point_sentence(curve: OperatingCurve) -> str:
    """The chosen point in words."""
    shares = ", ".join(f"{share.name} {share.text}" for share in curve.measured(curve.chosen))
    return (
        f"operating point for {curve.positive}, by {curve.goal}: shift {curve.shift:+.2f} nats;"
        f" {shares} on {curve.validation.prompts} validation prompts"
    )
