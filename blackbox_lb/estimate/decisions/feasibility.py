"""Feasibility: whether a bias can mend a decision, from the base model's first lists and the right
answers.

A fixed bias adds one number to each label, the same on every prompt. It can correct a margin that
prompts share. Where the lists separate the labels but prompts want corrections of opposite sign,
only a bias that depends on the prompt can help; where the lists do not separate them, none can.
Lists are of the first token; what follows a label, greedy answers that begin with one show.

Index letters: ``p`` prompts, ``l`` labels.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from blackbox_lb.errors import InputError
from blackbox_lb.estimate.decisions.first_lists import FirstLists, begins_right
from blackbox_lb.estimate.decisions.prediction import RocArea, roc_area
from blackbox_lb.estimate.inputs.checks import Bools, Ids, Vector
from blackbox_lb.estimate.label_fit import FREE_SLOPE, label_fit, log_sums
from blackbox_lb.estimate.next_token.sparse_table import dot
from blackbox_lb.estimate.problem import Problem

Answer: TypeAlias = Literal[
    "fixed",
    "not above the commonest",
    "depends on the prompt",
    "already right",
    "not listed",
    "no skill",
]

ENOUGH = 0.95
"""Share of right greedy decisions above which a bias has nothing to correct."""
LISTED = 0.5
"""Least share of the wrong prompts with a listed right answer: below it, lists do not determine the
bias needed.
"""
ONE_SIDED_T = 2.4
"""Standard errors of a paired difference that a gain must exceed: chance alone does so in one of a
hundred checks.
"""
REACH = 1.96
"""Standard errors of a share on either side of it, in its 95 % interval."""
FOLDS = 10
NOBODY = np.array([-2], np.int64)
"""The tokens of a label without a prompt."""
KEPT = 0.9
"""Share of the answers that begin with a label below which only their beginning is predicted."""


@dataclass(frozen=True, slots=True)
class AfterLabel:
    """The greedy answers that begin with a label, right or wrong, tested with that label as the
    right one.

    begun: their number. kept: how many are right as they stand. test: its name. refused: one that
    is not right, "" where all are. remedy: against what follows the label.
    """

    begun: int
    kept: int
    test: str
    refused: str
    remedy: str

    @property
    def harms(self) -> bool:
        """Whether what follows a label makes many answers wrong."""
        return self.kept < KEPT * self.begun

    @property
    def sentence(self) -> str:
        """The end of a sentence. A fit may teach a bias to end answers, or not: the greedy ones are
        of the model without one.
        """
        if not self.begun:
            return (
                "; no greedy answer begins with a label, so that nothing is known of what"
                " follows one"
            )
        if not self.harms:
            return ""
        return (
            f"; but answers must end there, too: {self.test} accepts {self.kept} of {self.begun}"
            f" greedy answers that begin with a label (not {self.refused!r}), and whether a bias"
            f" ends them is not predicted; {self.remedy}"
        )


@dataclass(frozen=True, slots=True, eq=False)
class Feasibility:
    """The findings on p prompts; shares of prompts, and nats.

    answer: the remedy for the decision; "not above the commonest" where a fixed bias would mend
    more than it breaks, and is not shown to be right more often than always saying the commonest
    label. base: share that greedy decoding decides right, or begins right where whole answers were
    not looked at (``whole`` False). predicted: share that a fixed bias would begin right, each
    prompt predicted from the others, with its standard ``error``. repaired, broken: share of the
    wrong prompts that it corrects; share of the right ones that it breaks. margins: (p,) nats by
    which the right answer is behind the greedy one; 0 where it is right, inf where not listed.
    listed: share of the wrong prompts with a listed
    right answer. informed: share that the lists decide right among the labels, with any weight for
    the model's logprobs; ``majority``: share of the commonest label, which always saying it gets
    right; ``commonest``: its number. after: what follows a label, None where that was not looked
    at.
    """

    answer: Answer
    base: float
    predicted: float
    error: float
    repaired: float
    broken: float
    margins: Vector
    listed: float
    informed: float
    majority: float
    commonest: int
    after: AfterLabel | None = None
    whole: bool = True

    @property
    def low(self) -> float:
        """The lower end of the 95 % interval of ``predicted``."""
        return max(self.predicted - REACH * self.error, 0.0)

    @property
    def high(self) -> float:
        """Its upper end."""
        return min(self.predicted + REACH * self.error, 1.0)

    @property
    def sentence(self) -> str:
        behind = self.margins[np.isfinite(self.margins) & (self.margins > 0)]
        margin = ""
        if len(behind):
            margin = (
                f"; right answers are {np.median(behind):.1f} nats behind"
                " (median of the wrong ones)"
            )
        prediction = (
            f"greedy decoding {'is' if self.whole else 'begins'} right on {self.base:.0%} of"
            f" {len(self.margins)} prompts, always saying the commonest label on"
            f" {self.majority:.0%}"
        )
        mends = (
            f"mends {self.repaired:.0%} of the wrong ones and breaks {self.broken:.0%} of the right"
            " ones"
        )
        if self.after is None or not self.after.harms:
            can = "can: predicted {} right"
        else:
            can = "can begin {} of the answers right"
        rest = ""
        if self.after is not None:
            rest = self.after.sentence
        conclusion = {
            "fixed": (
                f"a fixed bias {can.format(f'{self.predicted:.0%}')} (standard error"
                f" {self.error:.0%}), it {mends}{rest}"
            ),
            "not above the commonest": (
                f"a fixed bias is not shown to pay: predicted {self.predicted:.0%} right (standard"
                f" error {self.error:.0%}), and always saying the commonest label is right on"
                f" {self.majority:.0%}{rest}"
            ),
            "depends on the prompt": (
                "only a bias that depends on the prompt can: prompts want corrections of opposite"
                f" sign, and a fixed one {mends}{rest}"
            ),
            "already right": f"no bias is needed: there is little left to mend{rest}",
            "not listed": (
                f"none can be learned: of the wrong prompts only {self.listed:.0%} list the right"
                " answer; ask for more alternatives, or say the labels in the prompt"
            ),
            "no skill": (
                "none can: the model's probabilities separate the labels no better"
                f" ({self.informed:.0%} right) than the commonest label alone"
                f" ({self.majority:.0%})"
            ),
        }[self.answer]
        return f"{conclusion}; {prediction}{margin}"


def feasibility(
    lists: FirstLists, accepted: Sequence[Ids], labels: Ids, right: Bools | None = None
) -> Feasibility:
    """Find out whether a bias can correct these decisions.

    accepted: (p,) the tokens that begin an accepted answer of each. labels: (p,) the number of each
    prompt's label, from 0. right: (p,) whether the greedy answer is right; whether it begins right,
    where None. InputError: fewer than two prompts or labels.
    """
    size = int(labels.max(initial=-1)) + 1
    if len(labels) < 2 or len(np.unique(labels)) < 2:
        raise InputError(
            f"{len(labels)} prompts with {len(np.unique(labels))} labels say nothing of a decision;"
            " give at least two of each"
        )
    numbers = labels.tolist()
    tokens = [
        np.concatenate(
            [ids for ids, label in zip(accepted, numbers, strict=True) if label == number]
            or [NOBODY]
        )
        for number in range(size)
    ]
    logprobs = lists.logprobs.astype(np.float64)
    best = lists.best(tokens)
    is_label = np.isin(lists.ids, np.concatenate(tokens))
    rival = np.where(is_label, -np.inf, logprobs).max(axis=1)
    begins = begins_right(lists.greedy({}), accepted)
    hit = begins if right is None else right
    label_logprobs = best[np.arange(len(labels)), labels]
    margins = np.where(begins, 0.0, logprobs.max(axis=1) - label_logprobs)
    wrong = ~hit
    listed = 1.0
    if wrong.any():
        listed = float(np.isfinite(label_logprobs[wrong]).mean())
    floor = logprobs[np.isfinite(logprobs)].min(initial=0.0)
    scores = np.where(np.isfinite(best), best, floor)
    fixed, informed = _predicted(scores, rival, labels)
    commonest = int(np.bincount(labels).argmax())
    majority = (labels == commonest).astype(np.float64)
    gain = fixed.astype(np.float64) - begins
    answer = _answer(hit, listed, gain, fixed - majority, informed - majority)
    mended = 0.0
    if (~begins).any():
        mended = float(fixed[~begins].mean())
    broken = 0.0
    if begins.any():
        broken = float((~fixed)[begins].mean())
    return Feasibility(
        answer,
        float(hit.mean()),
        float(fixed.mean()),
        float(fixed.std() / np.sqrt(len(fixed))),
        mended,
        broken,
        margins,
        listed,
        float(informed.mean()),
        float(majority.mean()),
        commonest,
        whole=right is not None,
    )


OpeningAnswer: TypeAlias = Literal["shift", "another point", "already right", "no skill"]


@dataclass(frozen=True, slots=True)
class OpeningFeasibility:
    """The findings on p prompts that want an opening or anything else; shares of prompts.

    answer: the remedy. prompts: their number. base: share that greedy decoding decides right.
    predicted: share that one shift of the opening's tokens would decide right, each prompt
    predicted from the others, with its standard ``error``. majority: share of the commoner wish.
    area: under the ROC curve of the model's margins. begun_wanted, begun_unwanted: share that
    begins with the opening, of the prompts that want it and of the others.
    """

    answer: OpeningAnswer
    prompts: int
    base: float
    predicted: float
    error: float
    majority: float
    area: RocArea
    begun_wanted: float
    begun_unwanted: float


def opening_feasibility(lists: FirstLists, tokens: Ids, is_wanted: Bools) -> OpeningFeasibility:
    """Find out whether a shift of ``tokens`` can correct these decisions for or against an opening.

    lists: with each of ``tokens``, which begin the opening. is_wanted: (p,) whether it is.
    InputError: fewer than two prompts, or all want the same.
    """
    ahead = lists.margins(tokens)
    remaining = np.setdiff1d(lists.ids, np.append(tokens, -1))
    accepted = [tokens if begins else remaining for begins in is_wanted.tolist()]
    labels = np.where(is_wanted, 0, 1)
    feasible = feasibility(lists, accepted, labels)
    area = roc_area(ahead, is_wanted)
    answer: OpeningAnswer = "another point"
    if feasible.answer == "already right":
        answer = "already right"
    elif not area.separates:
        answer = "no skill"
    elif feasible.answer == "fixed":
        answer = "shift"
    is_begun = ahead > 0
    return OpeningFeasibility(
        answer,
        len(labels),
        feasible.base,
        feasible.predicted,
        feasible.error,
        feasible.majority,
        area,
        float(is_begun[is_wanted].mean()),
        float(is_begun[~is_wanted].mean()),
    )


def _answer(hit: Bools, listed: float, gain: Vector, above: Vector, more: Vector) -> Answer:
    """gain, above: of a fixed bias over the model and over always the commonest label, (p,); more:
    of the lists with any weight over the latter, (p,).
    """
    if hit.mean() >= ENOUGH:
        return "already right"
    if listed < LISTED:
        return "not listed"
    if _above(gain):
        if _above(above):
            return "fixed"
        return "not above the commonest"
    if _above(more):
        return "depends on the prompt"
    return "no skill"


def _above(difference: Vector) -> bool:
    """Whether a paired difference is above 0 beyond chance."""
    return bool(
        difference.mean() > ONE_SIDED_T * difference.std() / np.sqrt(len(difference))
        and difference.mean() > 0
    )


def _predicted(scores: Vector, rivals: Vector, labels: Ids) -> tuple[Bools, Bools]:
    """(p,) twice: whether a fixed bias, and the lists with any weight, decide right, learned from
    the other folds.
    """
    fold = np.random.default_rng(0).permutation(len(labels)) % min(FOLDS, len(labels))
    fixed = np.zeros(len(labels), np.bool_)
    informed = np.zeros(len(labels), np.bool_)
    for number in range(int(fold.max()) + 1):
        test = fold == number
        train = fold != number
        _, offsets = label_fit(scores[train], labels[train], rivals[train])
        tilted = scores[test] + offsets
        fixed[test] = (tilted.argmax(axis=1) == labels[test]) & (tilted.max(axis=1) > rivals[test])
        slope, weighed = label_fit(scores[train], labels[train], slope=FREE_SLOPE)
        informed[test] = (slope * scores[test] + weighed).argmax(axis=1) == labels[test]
    return fixed, informed


def pulled_shifts(
    scores: Vector, labels: Ids, pull: float, weights: Vector | None = None
) -> Vector:
    """(l,) shifts d of mean 0 that make the likeliest label the right one, pulled to 0: the maximum
    of ``sum_i weights_i log softmax(a (scores + d))_{labels_i} - pull / 2 |d|^2 - log(a)^2 / 2``
    over d and a > 0 (Guo et al. 2017, "vector scaling" with one weight).

    A model that is too sure of its labels has a < 1. Without a, the likeliest shifts would pay for
    its rare grave errors, and decide worse.

    Args:
        scores: (p, l) log-probabilities of the labels.
        labels: (p,) the right ones.
        pull: in labelled prompts.
        weights: (p,) what each prompt counts, 1 if None.
    """
    rows = np.arange(len(labels))
    size = scores.shape[1]
    counts = np.ones(len(labels)) if weights is None else weights

    def loss(x: Vector) -> tuple[float, Vector]:
        scale = np.exp(x[0])
        shifts = x[1:] - x[1:].mean()
        logits = scale * (scores + shifts)
        logs = logits - log_sums(logits)[:, None]
        away = np.exp(logs)
        away[rows, labels] -= 1.0
        away *= counts[:, None]
        by_scale = float((away * logits).sum()) + x[0]
        by_shift = scale * away.sum(axis=0) + pull * shifts
        value = pull / 2 * dot(shifts, shifts) + x[0] ** 2 / 2 - dot(counts, logs[rows, labels])
        return value, np.append(by_scale, by_shift - by_shift.mean())

    # The offsets a d are not linear in log(a) and d, so the counts of right labels are in the loss.
    problem = Problem(
        loss,
        np.zeros(1 + size),
        float(counts.sum()),
        curvature=np.append(counts.sum() + 1, np.full(size, counts.sum() / size + pull)),
    )
    shifts = problem.solve().x[1:]
    return np.asarray(shifts - shifts.mean())
