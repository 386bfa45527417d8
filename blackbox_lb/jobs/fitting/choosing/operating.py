"""The operating point of a decision: one label's tokens get another number, by the goal.

The vector is learned and stays; a shift of one label moves the threshold of the decision along one
curve. The whole curve is predicted from first lists, the point is chosen on the validation prompts,
and fresh completions of the test prompts check it.

Index letters: ``p`` prompts, ``c`` points of the curve.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from blackbox_lb.bias.operating import (
    MOST_POINTS,
    CheckedPoint,
    DecisionCounts,
    OperatingCurve,
    OperatingPoint,
    PromptCounts,
)
from blackbox_lb.errors import InputError
from blackbox_lb.estimate.choice.candidates import Candidate, CompileLimits
from blackbox_lb.estimate.choice.goal import MEASURES, Goal
from blackbox_lb.estimate.decisions.first_lists import FirstLists
from blackbox_lb.estimate.decisions.prediction import RocArea, roc_area
from blackbox_lb.estimate.inputs.checks import Bools, Ids, Vector
from blackbox_lb.estimate.next_token.next_token import NextToken
from blackbox_lb.estimate.sparse.sparsify import against
from blackbox_lb.jobs.fitting.choosing.decision_goals import decision_parts, label_number
from blackbox_lb.records import Decisions
from blackbox_lb.rollouts.answers.given_answers import AnswerStarts
from blackbox_lb.tasks.sets.labels import Labels

DIGITS = 4
"""Decimals of a shift in nats."""
BEYOND = 1.0
"""Nats beyond the outermost margin of the first and the last point."""


@dataclass(frozen=True, slots=True, eq=False)
class LabelledLists:
    """Prompts with a label, and their lists at the place of the answer.

    Attributes:
        lists: of the p prompts.
        labels: (p,) the number of the right label.
    """

    lists: FirstLists
    labels: Ids

    @classmethod
    def of(cls, lists: FirstLists, numbers: Ids) -> LabelledLists:
        """Those of ``lists`` whose label ``numbers`` (p,) has no -1."""
        has_label = numbers >= 0
        return cls(lists.only(has_label), numbers[has_label])

    def only(self, rows: Bools) -> Self:
        """Those of the ``rows`` (p,)."""
        return replace(self, lists=self.lists.only(rows), labels=self.labels[rows])


@dataclass(frozen=True, slots=True, eq=False)
class PointChoice:
    """A decision for or against one label, with all that chooses its point.

    Attributes:
        goal: with the name of the positive label.
        labels: of the task; ``positive`` is the number of the positive one.
        label_tokens: (l,) those that begin each label and no other.
        training, validation: the prompts with their lists.
        area: of the model without a bias.
        otherwise: the label of a token that begins none of them, -1 for no label.
        learns_shift_alone: whether nothing but one shift was learned from the training prompts:
            a goal without a promise is then looked for on these and the validation prompts, and
            not on the validation prompts alone.
    """

    goal: Goal
    labels: Labels
    positive: int
    label_tokens: tuple[Ids, ...]
    training: LabelledLists
    validation: LabelledLists
    area: RocArea
    otherwise: int = -1
    learns_shift_alone: bool = False

    @classmethod
    def of(
        cls,
        goal: Goal,
        labels: Labels,
        tokens: Sequence[Ids],
        training: AnswerStarts,
        validation: AnswerStarts,
    ) -> PointChoice:
        """The decision that ``goal`` names.

        Args:
            goal: with a positive label.
            labels: of the task.
            tokens: (l,) those that begin each label and no other.
            training, validation: the first positions of the prompts.
        """
        positive = label_number(labels, goal.positive or "", "positive")
        negatives = [ids for number, ids in enumerate(tokens) if number != positive]
        parts = [
            LabelledLists.of(first.lists, first.labels_of(labels))
            for first in (training, validation)
        ]
        other_ids = np.unique(np.concatenate(negatives))
        scores = []
        for part in parts:
            best = part.lists.best([tokens[positive], other_ids])
            # What a list misses counts as its least listed token.
            best = np.maximum(best, part.lists.least[:, None])
            scores.append(best[:, 0] - best[:, 1])
        is_positive = np.concatenate([part.labels == positive for part in parts])
        area = roc_area(np.concatenate(scores), is_positive)
        return cls(goal, labels, positive, tuple(tokens), parts[0], parts[1], area)

    @property
    def name(self) -> str:
        """Of the positive label."""
        return self.labels.names[self.positive]

    @property
    def tokens(self) -> Ids:
        """Those that begin the positive label, sorted."""
        return np.sort(self.label_tokens[self.positive])

    def check_ranking(self, *, go_on: bool = False) -> str:
        """A sentence on the area under the ROC curve.

        Raises InputError: it is not shown to be above .5, so that no point is better than chance;
        not with ``go_on``.
        """
        prompts = len(self.training.labels) + len(self.validation.labels)
        area = self.area
        sentence = (
            f"the model's lists rank the prompts of the label {self.name!r} with an AUC of"
            f" {area.value:.2f} (95 %: {area.low:.2f} to {area.high:.2f}, {prompts} prompts)"
        )
        if not area.separates and not go_on:
            raise InputError(
                f"declined: {sentence}, which is not shown to be better than chance (.50): a shift"
                " only moves a threshold along this order, and every point would be a coin toss;"
                " ask the question otherwise, take another model, give more training rows, or use"
                " ``go_on``"
            )
        return sentence

    def choose(
        self, candidate: Candidate, next_token: NextToken, limits: CompileLimits
    ) -> tuple[Candidate, OperatingCurve]:
        """The candidate at the point of the goal, and its whole curve.

        Raises BiasError: no point keeps the promise on the validation prompts.
        """
        candidate = _with_room(candidate, self.tokens, next_token, limits)
        curve = self.curve(candidate.logit_bias, limits)
        return self._shifted(candidate, curve.shift, next_token), curve

    def curve(self, bias: Mapping[int, float], limits: CompileLimits) -> OperatingCurve:
        """The curve of the shifts of ``bias`` (token id -> nats), with the point of the goal.

        Raises BiasError: no point keeps the promise on the validation prompts.
        """
        before = self.training.lists.margins(self.tokens, bias)
        chosen_by = self.validation.lists.margins(self.tokens, bias)
        is_positive = self.training.labels == self.positive
        is_chosen_positive = self.validation.labels == self.positive
        shifts = self._shifts(before, bias, limits)
        points = [
            OperatingPoint(
                shift=shift,
                training=decision_counts(before, is_positive, shift),
                validation=decision_counts(chosen_by, is_chosen_positive, shift),
            )
            for shift in shifts
        ]
        curve = OperatingCurve(
            positive=self.name,
            token_ids=tuple(self.tokens.tolist()),
            goal=self.goal.spec,
            shift=points[0].shift,
            integers=limits.integers,
            auc=self.area.value,
            auc_low=self.area.low,
            auc_high=self.area.high,
            training=prompt_counts(is_positive),
            validation=prompt_counts(is_chosen_positive),
            points=tuple(points),
        )
        return curve.replacing(shift=self._best_shift(curve, bias))

    def _shifts(
        self, before: Vector, bias: Mapping[int, float], limits: CompileLimits
    ) -> list[float]:
        """The shifts of the curve in nats, the smallest first: one between any two margins of the
        training prompts, evenly thinned, and none, within the provider's range.
        """
        finite = np.unique(before[np.isfinite(before)])
        if not len(finite):
            finite = np.zeros(1)
        between = (finite[1:] + finite[:-1]) / 2
        thresholds = np.concatenate([[finite[0] - BEYOND], between, [finite[-1] + BEYOND]])
        if len(thresholds) > MOST_POINTS:
            places = np.linspace(0, len(thresholds) - 1, MOST_POINTS).round().astype(np.int64)
            thresholds = thresholds[places]
        values = [bias.get(token, 0.0) for token in self.tokens.tolist()]
        shifts = np.append(-thresholds, 0.0)
        if limits.integers:
            shifts = np.arange(np.floor(shifts.min()), np.ceil(shifts.max()) + 1)
        inside = (shifts + min(values) >= limits.low) & (shifts + max(values) <= limits.high)
        rounded = np.unique(np.round(shifts[inside], DIGITS) + 0.0)
        return [float(shift) for shift in rounded]

    def _best_shift(self, curve: OperatingCurve, bias: Mapping[int, float]) -> float:
        """The shift of the point that the goal chooses."""
        measure = MEASURES.get(self.goal.objective)
        if measure is not None and self.goal.level is not None:
            return curve.at(measure, self.goal.level).shift
        values = [self._value(bias, point.shift) for point in curve.points]
        best = max(values)
        level = [
            point for point, value in zip(curve.points, values, strict=True) if value >= best - 1e-9
        ]
        return min(level, key=lambda point: (abs(point.shift), point.shift)).shift

    def _value(self, bias: Mapping[int, float], shift: float) -> float:
        """What the goal says of the decisions: accuracy, balanced accuracy, less the mean cost."""
        sent = dict(bias)
        for token in self.tokens.tolist():
            sent[token] = bias.get(token, 0.0) + shift
        chosen_on = [self.validation]
        if self.learns_shift_alone:
            chosen_on.append(self.training)
        tokens = np.concatenate([part.lists.greedy(sent) for part in chosen_on])
        wanted = np.concatenate([part.labels for part in chosen_on])
        decided = np.full(len(tokens), self.otherwise, np.int64)
        for number, token_ids in enumerate(self.label_tokens):
            decided[np.isin(tokens, token_ids)] = number
        return float(decision_parts(self.goal, self.labels, wanted, decided).mean())

    def _shifted(self, candidate: Candidate, shift: float, next_token: NextToken) -> Candidate:
        """``candidate`` with ``shift`` nats more on the tokens of the positive label."""
        wide = next_token.with_tokens(np.concatenate([candidate.token_ids, self.tokens]))
        moved = wide.align(self.tokens, np.full(len(self.tokens), shift))
        sent = wide.align(candidate.sparse.token_ids, candidate.sparse.values) + moved
        learned = wide.align(candidate.token_ids, candidate.values) + moved
        listed = np.flatnonzero(sent)
        sparse = replace(
            candidate.sparse,
            token_ids=wide.token_ids[listed],
            values=np.round(sent[listed], DIGITS),
        )
        return replace(
            candidate,
            token_ids=wide.token_ids,
            values=learned,
            sparse=against(wide, learned, sparse),
            settings={**candidate.settings, "shift": shift},
            origin=f"{candidate.origin}, {self.name} by {shift:+.2f} nats for {self.goal.spec}",
        )


def checked_point(curve: OperatingCurve, scores: Decisions) -> CheckedPoint:
    """The chosen point on the decisions of fresh completions."""
    positive = [row.label for row in scores.labels].index(curve.positive)
    return CheckedPoint(
        prompts=PromptCounts(
            prompts=sum(row.count for row in scores.labels),
            positives=scores.labels[positive].count,
        ),
        decisions=DecisionCounts(
            decided=sum(row[positive] for row in scores.confusion),
            right=scores.confusion[positive][positive],
        ),
    )


def prompt_counts(is_positive: Bools) -> PromptCounts:
    """The prompts, and those of the positive label."""
    return PromptCounts(prompts=len(is_positive), positives=int(is_positive.sum()))


def decision_counts(before: Vector, is_positive: Bools, shift: float) -> DecisionCounts:
    """The decisions for the label with ``shift`` nats more than the margins ``before`` (p,)."""
    is_decided = before + shift > 0
    return DecisionCounts(
        decided=int(is_decided.sum()), right=int((is_decided & is_positive).sum())
    )


def _with_room(
    candidate: Candidate, tokens: Ids, next_token: NextToken, limits: CompileLimits
) -> Candidate:
    """``candidate`` with room for an entry for each of ``tokens``: where the provider takes too few
    the smallest other ones go.
    """
    if limits.entries is None:
        return candidate
    is_other = ~np.isin(candidate.sparse.token_ids, tokens)
    most = max(limits.entries - len(tokens), 0)
    surplus = int(is_other.sum()) - most
    if surplus <= 0:
        return candidate
    sizes = np.where(is_other, np.abs(candidate.sparse.values), np.inf)
    positions = np.sort(np.argsort(sizes, kind="stable")[surplus:])
    sparse = replace(
        candidate.sparse,
        token_ids=candidate.sparse.token_ids[positions],
        values=candidate.sparse.values[positions],
    )
    wide = next_token.with_tokens(candidate.token_ids)
    learned = wide.align(candidate.token_ids, candidate.values)
    return replace(candidate, sparse=against(wide, learned, sparse))
