"""Mending probabilities over options: one slope and an offset an option, learned from few answers.

    p_mended = softmax(slope * (v + center) + offsets),   v = log p in nats

``center`` reads no answer: it is 0, or minus the mean of v over rows, which divides out what the
reader says of every row alike ("batch prior", after Zhou et al. 2023, "Batch Calibration"). Slope
and offsets maximise

    sum_i log p_mended(answer_i) - l2_slope / 2 (slope - 1)^2 - l2_offsets / 2 |offsets|^2,

the ``Problem`` of the house (Platt 1999 and Guo et al. 2017 without a penalty). The slope's own
square is penalised, and not its logarithm's, so that the problem stays concave; the slope is
bounded above 0, so that it alone never changes the largest option. Options of a score are in an
order: there the squares are those of the second differences of neighbours, and a tenth of those of
the offsets themselves.

Index letters: ``n`` rows, ``c`` options.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from blackbox_lb.errors import InputError
from blackbox_lb.estimate.goal_offsets import best_offsets
from blackbox_lb.estimate.inputs.checks import Bools, Ids, Vector
from blackbox_lb.estimate.label_fit import SlopePull, label_fits, log_sums, softmax

MendingName: TypeAlias = Literal[
    "as it is",
    "temperature",
    "batch prior",
    "slope and offsets",
    "slope and offsets from the batch prior",
    "offsets for the goal",
]
MendingGoal: TypeAlias = Literal["accuracy", "log loss"]
Learns: TypeAlias = Literal["nothing", "slope", "slope and offsets", "goal"]
"""What of a mending the answers teach; "goal": offsets by the worth of decisions, then a slope."""

FEWEST_ANSWERS = 5
"""Answers below which nothing is learned: there is not one for each fold."""
FOLDS = 5
SLOPE_L2 = (0.3, 3.0, 30.0)
OFFSETS_L2 = (0.1, 0.5, 2.0, 8.0)
"""Strengths that cross-validation chooses among, in answered rows."""
USUAL_STRENGTHS = (3.0, 2.0)
"""Of the slope and of the offsets, for few answers."""
FEW = 20
"""Answers below which cross-validation cannot choose strengths, nor tell a standard error: with ten
of them the usual strengths had a log loss that was .04 to .1 lower."""
SIMPLER = 0.5
"""Standard errors of a paired difference in log loss that a simpler way may lose."""
SURER = 1.0
"""Standard errors of a paired difference in worth by which a way must win to be taken for it: by
the worth alone the choice made fewer right decisions than by the log loss."""
LEAST_SLOPE = 0.01
SHORTFALL = 1e-9
"""Nats a row that a mending may miss: offsets are then right to about a ten-thousandth."""
LEVEL_SHARE = 0.1
"""Weight of the offsets' own squares beside those of their second differences: it keeps a tilt of
all levels finite.
"""


@dataclass(frozen=True, slots=True, eq=False)
class Mending:
    """``softmax(slope * (v + center) + offsets)``.

    Attributes:
        slope: above 0.
        center: (c,) nats, sum 0.
        offsets: (c,) nats.
    """

    slope: float
    center: Vector
    offsets: Vector

    def probabilities(self, logprobs: Vector) -> Vector:
        """(n, c) mended ones of ``logprobs`` (n, c) in nats."""
        logits = self.slope * (logprobs + self.center) + self.offsets
        return softmax(logits)


@dataclass(frozen=True, slots=True, eq=False)
class MendingRows:
    """What a reader says of rows, and the right options where they are known.

    Attributes:
        logprobs: (n, c) nats; a value that was printed as 0 stands at its bound.
        answers: (n,) numbers of the right options, -1 without an answer.
        floored: (n, c) whether the value is below the bound that stands for it.
        is_ordered: whether the options are the levels of a score.
    """

    logprobs: Vector
    answers: Ids
    floored: Bools
    is_ordered: bool = False

    def __post_init__(self) -> None:
        """Raise InputError: shapes that do not fit, values that are not finite, no such option."""
        shape = self.logprobs.shape
        if len(shape) != 2 or shape[1] < 2:
            raise InputError(f"``logprobs`` has shape {shape}; give rows of at least two options")
        if self.answers.shape != shape[:1] or self.floored.shape != shape:
            raise InputError(
                f"``answers`` of shape {self.answers.shape} and ``floored`` of shape"
                f" {self.floored.shape} do not fit ``logprobs`` of shape {shape}"
            )
        if not np.isfinite(self.logprobs).all():
            raise InputError(
                "``logprobs`` holds a value that is not finite; put the bound of what was printed"
                " as 0 in its place"
            )
        if len(self.answers) and not -1 <= self.answers.min() <= self.answers.max() < shape[1]:
            raise InputError(
                f"``answers`` holds {self.answers.min()} to {self.answers.max()}; options are"
                f" numbered 0 to {shape[1] - 1}, and -1 says that the answer is unknown"
            )


@dataclass(frozen=True, slots=True)
class CrossValidated:
    """Means over the answered rows, of what was learned without each row's fold.

    Attributes:
        accuracy: share of rows whose likeliest option is right.
        worth: mean worth of the decisions, the accuracy unless worths were given.
        log_loss: nats a row.
    """

    accuracy: float
    worth: float
    log_loss: float


@dataclass(frozen=True, slots=True, eq=False)
class CandidateMending:
    """One way to mend, learned from all answers.

    Attributes:
        name: of it.
        mending: learned from all answers.
        slope_l2, offsets_l2: strengths that cross-validation chose; None where there is none.
        left_out: (n, c) probabilities of each row by what was learned without its fold; those of
            ``mending`` where it has no answer.
        worths, log_losses: (a,) of the answered rows, by ``left_out``.
        scores: their means.
    """

    name: MendingName
    mending: Mending
    slope_l2: float | None
    offsets_l2: float | None
    left_out: Vector
    worths: Vector
    log_losses: Vector
    scores: CrossValidated


@dataclass(frozen=True, slots=True, eq=False)
class ChosenMending:
    """The mending that cross-validation finds best.

    Attributes:
        name: of the candidate.
        mending: learned from all answers.
        scores: name -> cross-validated scores of every candidate.
        left_out: (n, c) probabilities of each row by what was learned without its fold.
    """

    name: MendingName
    mending: Mending
    scores: Mapping[MendingName, CrossValidated]
    left_out: Vector


class Way(NamedTuple):
    """How a candidate is learned: around the batch prior or not, and what the answers teach."""

    name: MendingName
    is_centered: bool
    learns: Learns

    def strengths(self, answers: int) -> list[tuple[float | None, float | None]]:
        """Pairs of strengths of the slope and of the offsets to choose among by so many answers."""
        slopes: tuple[float, ...] = SLOPE_L2
        offsets: tuple[float | None, ...] = OFFSETS_L2
        if answers < FEW:
            slopes = USUAL_STRENGTHS[:1]
            offsets = USUAL_STRENGTHS[1:]
        if self.learns == "nothing":
            return [(None, None)]
        if self.learns != "slope and offsets":
            offsets = (None,)
        return list(itertools.product(slopes, offsets))


WAYS = (
    Way("as it is", is_centered=False, learns="nothing"),
    Way("batch prior", is_centered=True, learns="slope"),
    Way("temperature", is_centered=False, learns="slope"),
    Way("slope and offsets", is_centered=False, learns="slope and offsets"),
    Way("slope and offsets from the batch prior", is_centered=True, learns="slope and offsets"),
    Way("offsets for the goal", is_centered=True, learns="goal"),
)
"""The candidates, the simplest first."""
OF_FEW = ("as it is", "batch prior")
"""Those that few answers choose between."""


def chosen_mending(
    rows: MendingRows, goal: MendingGoal, seed: int = 0, worth: Vector | None = None
) -> ChosenMending:
    """The mending that cross-validation finds best; see ``best_mending``.

    Args:
        rows: with at least five answers, of at least two options.
        goal: "accuracy", which is the mean worth of the decisions, or "log loss".
        seed: of the folds.
        worth: (c, c) worth of each decision (columns) where each option is right (rows), as minus
            a cost; None for 1 where it is right and 0 elsewhere.

    Raises:
        InputError: too few answers, or all of one option.
    """
    candidates = mending_candidates(rows, seed, worth)
    best = best_mending(candidates, goal)
    scores = {candidate.name: candidate.scores for candidate in candidates}
    return ChosenMending(best.name, best.mending, scores, best.left_out)


def best_mending(candidates: Sequence[CandidateMending], goal: MendingGoal) -> CandidateMending:
    """The candidate that cross-validation finds best for the goal.

    For the log loss it is the simplest one that loses at most half a standard error to the one with
    the smallest; offsets for the goal do not take part. For the accuracy it is the same one, unless
    another is worth more by a standard error. Where answers are few they only choose whether the
    rows stay as they are or are read around the batch prior: offsets from ten answers cost more
    than they give.
    """
    if len(candidates[0].log_losses) < FEW:
        safe = [candidate for candidate in candidates if candidate.name in OF_FEW]
        return min(safe, key=lambda candidate: candidate.scores.log_loss)
    likely = [candidate for candidate in candidates if candidate.name != WAYS[-1].name]
    best = min(likely, key=lambda candidate: candidate.scores.log_loss)
    losses = {candidate: candidate.log_losses - best.log_losses for candidate in likely}
    best = next(
        candidate
        for candidate, loss in losses.items()
        if loss.mean() <= SIMPLER * _standard_error(loss)
    )
    if goal == "log loss":
        return best
    gains = {candidate: candidate.worths - best.worths for candidate in candidates}
    surer = [
        candidate
        for candidate, gain in gains.items()
        if gain.mean() > SURER * _standard_error(gain)
    ]
    return max(surer, key=lambda candidate: candidate.scores.worth, default=best)


def _standard_error(values: Vector) -> float:
    return float(values.std(ddof=1) / np.sqrt(len(values)))


def mending_candidates(
    rows: MendingRows, seed: int = 0, worth: Vector | None = None
) -> tuple[CandidateMending, ...]:
    """Every candidate, the simplest first; see ``chosen_mending``."""
    has_answer = rows.answers >= 0
    answers = rows.answers[has_answer]
    count = len(answers)
    if count < FEWEST_ANSWERS:
        raise InputError(
            f"{count} rows have an answer; mending takes at least {FEWEST_ANSWERS}, and about 30"
            " to gain by it"
        )
    if answers.min() == answers.max():
        raise InputError(
            f"all {count} answers are option {answers[0]}; mending takes answers of at least two"
            " options"
        )
    size = rows.logprobs.shape[1]
    if worth is None:
        worth = np.eye(size)
    logprobs = rows.logprobs[has_answer]
    folds = stratified_folds(answers, seed)
    prior = batch_prior(rows.logprobs)
    basis = np.eye(size)
    if rows.is_ordered:
        basis = ordered_basis(size)
    candidates = []
    for way in WAYS:
        center = prior if way.is_centered else np.zeros(size)
        learner = _Learner(way.learns, center, basis, worth)
        candidates.append(_cross_validated(way, learner, rows, logprobs, answers, folds))
    return tuple(candidates)


def batch_prior(logprobs: Vector) -> Vector:
    """(c,) minus the mean of ``logprobs`` (n, c) over rows, with sum 0: it reads no answer."""
    logs = logprobs - log_sums(logprobs)[:, None]
    mean = logs.mean(axis=0)
    return np.asarray(mean.mean() - mean)


def ordered_basis(size: int) -> Vector:
    """(c, c) coordinates of offsets whose squares sum up to those of the second differences of
    neighbouring offsets, and a tenth of those of the offsets.
    """
    differences = np.diff(np.eye(size), n=2, axis=0)
    penalty = differences.T @ differences + LEVEL_SHARE * np.eye(size)
    values, vectors = np.linalg.eigh(penalty)
    return np.asarray((vectors / np.sqrt(values)) @ vectors.T)


def stratified_folds(answers: Ids, seed: int) -> Ids:
    """(a,) the fold of each answered row: each option's rows are dealt to the folds in turn. How
    the options are numbered changes nothing.
    """
    order = np.random.default_rng(seed).permutation(len(answers))
    _, first, option = np.unique(answers[order], return_index=True, return_inverse=True)
    dealt = order[np.argsort(first[option], kind="stable")]
    folds = np.empty(len(answers), np.int64)
    folds[dealt] = np.arange(len(answers)) % FOLDS
    return folds


class _Learner(NamedTuple):
    """Learns a mending from answered rows."""

    learns: Learns
    center: Vector
    basis: Vector
    worth: Vector

    def fit(
        self, logprobs: Vector, answers: Ids, strengths: Sequence[tuple[float | None, float | None]]
    ) -> list[Mending]:
        """A mending for each pair of strengths."""
        size = len(self.center)
        scores = logprobs + self.center
        scores = scores - scores.mean(axis=1, keepdims=True)
        shift = np.zeros(size)
        basis = self.basis
        if self.learns != "slope and offsets":
            basis = np.zeros((size, 0))
        if self.learns == "goal":
            shift = best_offsets(scores, self.worth[answers])
        if self.learns == "nothing":
            return [Mending(1.0, self.center, shift)]
        slope_l2 = np.array([slope for slope, _ in strengths], np.float64)
        offsets_l2 = slope_l2
        if self.learns == "slope and offsets":
            offsets_l2 = np.array([offsets for _, offsets in strengths], np.float64)
        slopes, offsets = label_fits(
            scores + shift,
            answers,
            basis,
            offsets_l2,
            SlopePull(1.0, slope_l2, LEAST_SLOPE),
            shortfall=SHORTFALL,
        )
        return [
            Mending(slope, self.center, row + slope * shift)
            for slope, row in zip(slopes.tolist(), offsets, strict=True)
        ]


def _cross_validated(
    way: Way, learner: _Learner, rows: MendingRows, logprobs: Vector, answers: Ids, folds: Ids
) -> CandidateMending:
    """A candidate at the strengths with the smallest log loss."""
    strengths = way.strengths(len(answers))
    by_strength = np.empty((len(strengths), *logprobs.shape))
    for fold in range(FOLDS):
        is_left_out = folds == fold
        mendings = learner.fit(logprobs[~is_left_out], answers[~is_left_out], strengths)
        for number, mending in enumerate(mendings):
            by_strength[number, is_left_out] = mending.probabilities(logprobs[is_left_out])
    places = np.arange(len(answers))
    losses = -np.log(np.maximum(by_strength[:, places, answers], np.finfo(np.float64).tiny))
    best = int(losses.mean(axis=1).argmin())
    mending = learner.fit(logprobs, answers, [strengths[best]])[0]
    decided = by_strength[best].argmax(axis=1)
    worths = learner.worth[answers, decided]
    left_out = mending.probabilities(rows.logprobs)
    left_out[rows.answers >= 0] = by_strength[best]
    slope_l2, offsets_l2 = strengths[best]
    scores = CrossValidated(
        accuracy=float((decided == answers).mean()),
        worth=float(worths.mean()),
        log_loss=float(losses[best].mean()),
    )
    return CandidateMending(
        name=way.name,
        mending=mending,
        slope_l2=slope_l2,
        offsets_l2=offsets_l2,
        left_out=left_out,
        worths=worths,
        log_losses=losses[best],
        scores=scores,
    )


def changed_by_floors(mending: Mending, rows: MendingRows) -> Bools:
    """(n,) rows whose likeliest option changes to one that was printed as 0: how far below its
    bound it is, nobody knows.
    """
    before = rows.logprobs.argmax(axis=1)
    after = mending.probabilities(rows.logprobs).argmax(axis=1)
    return np.asarray((before != after) & rows.floored[np.arange(len(after)), after])
