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
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from blackbox_lb.errors import InputError
from blackbox_lb.estimate.inputs.checks import Bools, Ids, Vector
from blackbox_lb.estimate.label_fit import SlopePull, label_fits, log_sums, softmax
from blackbox_lb.estimate.right_decisions import best_offsets

MendingName: TypeAlias = Literal[
    "as it is",
    "temperature",
    "batch prior",
    "slope and offsets",
    "offsets by right decisions",
    "average",
]
Learns: TypeAlias = Literal["nothing", "slope", "slope and offsets", "right decisions"]
"""What of a mending the answers teach; "right decisions": offsets by their number, then a slope."""

FEWEST_ANSWERS = 5
"""Answers below which nothing is learned: there is not one for each fold."""
FOLDS = 5
SLOPE_L2 = (0.3, 3.0, 30.0)
OFFSETS_L2 = (0.1, 0.5, 2.0, 8.0)
"""Strengths that cross-validation chooses among, in answered rows."""
USUAL_STRENGTHS = (3.0, 2.0)
"""Of the slope and of the offsets, for few answers."""
FEW = 20
"""Answers below which cross-validation cannot choose strengths: with ten of them the usual ones had
a log loss that was .04 to .1 lower."""
BELIEF = {"batch prior": 3.0}
"""Weights of ways before any answer, 1 where a way is not named: with thirty answers the batch
prior, which needs none, decided most rows right in most files.
"""
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
        log_loss: nats a row.
    """

    accuracy: float
    log_loss: float


@dataclass(frozen=True, slots=True, eq=False)
class CandidateMending:
    """One way to mend, learned from all answers.

    Attributes:
        name: of it.
        mending: learned from all answers.
        left_out: (n, c) probabilities of each row by what was learned without its fold; those of
            ``mending`` where it has no answer.
        log_losses: (a,) nats of the answered rows, by ``left_out``.
        scores: their means.
    """

    name: MendingName
    mending: Mending
    left_out: Vector
    log_losses: Vector
    scores: CrossValidated


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
    Way("slope and offsets", is_centered=True, learns="slope and offsets"),
    Way("offsets by right decisions", is_centered=True, learns="right decisions"),
)
"""What is averaged, the simplest first."""


def best_mending(candidates: Sequence[CandidateMending], answers: Ids) -> CandidateMending:
    """The average of the candidates, or the first, as it is, where the average has no smaller
    cross-validated log loss.

    The scores of the average are sum_k w_k (slope_k (v + center_k) + offsets_k), with the weights
    of ``candidate_weights``.

    Args:
        candidates: those of ``mending_candidates``.
        answers: (n,) of the rows that they learned from.
    """
    weights = candidate_weights(candidates)
    slope = 0.0
    offsets = np.zeros_like(candidates[0].mending.offsets)
    scores = np.zeros_like(candidates[0].left_out)
    tiny = np.finfo(np.float64).tiny
    for weight, candidate in zip(weights.tolist(), candidates, strict=True):
        mending = candidate.mending
        slope += weight * mending.slope
        offsets += weight * (mending.slope * mending.center + mending.offsets)
        scores += weight * np.log(np.maximum(candidate.left_out, tiny))
    mending = Mending(slope, np.zeros_like(offsets), offsets)
    average = _candidate("average", mending, softmax(scores), answers)
    raw = candidates[0]
    if average.scores.log_loss < raw.scores.log_loss:
        return average
    return raw


def candidate_weights(candidates: Sequence[CandidateMending]) -> Vector:
    """(k,) weights of candidates, of sum 1: in proportion to those before any answer times
    exp(-sqrt(a) loss), for the mean cross-validated log ``loss`` over a answered rows.

    It is the forecaster by exponential weights with a learning rate that falls as 1 / sqrt(a)
    (Cesa-Bianchi and Lugosi 2006, chapter 2): losses of few answers decide little.
    """
    losses = np.array([candidate.scores.log_loss for candidate in candidates])
    answers = len(candidates[0].log_losses)
    beliefs = np.array([BELIEF.get(candidate.name, 1.0) for candidate in candidates])
    logits = np.log(beliefs) - np.sqrt(answers) * losses
    return np.asarray(softmax(logits[None])[0])


def mending_candidates(rows: MendingRows, seed: int = 0) -> tuple[CandidateMending, ...]:
    """Every candidate, the simplest first.

    Args:
        rows: with at least five answers, of at least two options.
        seed: of the folds.

    Raises:
        InputError: too few answers, or all of one option.
    """
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
    folds = stratified_folds(answers, seed)
    prior = batch_prior(rows.logprobs)
    basis = np.eye(size)
    if rows.is_ordered:
        basis = ordered_basis(size)
    candidates = []
    for way in WAYS:
        center = prior if way.is_centered else np.zeros(size)
        learner = _Learner(way.learns, center, basis)
        candidates.append(_cross_validated(way, learner, rows, folds))
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
        if self.learns == "right decisions":
            shift = best_offsets(scores, answers)
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
    way: Way, learner: _Learner, rows: MendingRows, folds: Ids
) -> CandidateMending:
    """A candidate at the strengths with the smallest log loss."""
    has_answer = rows.answers >= 0
    logprobs = rows.logprobs[has_answer]
    answers = rows.answers[has_answer]
    strengths = way.strengths(len(answers))
    by_strength = np.empty((len(strengths), *logprobs.shape))
    for fold in range(FOLDS):
        is_left_out = folds == fold
        mendings = learner.fit(logprobs[~is_left_out], answers[~is_left_out], strengths)
        for number, mending in enumerate(mendings):
            by_strength[number, is_left_out] = mending.probabilities(logprobs[is_left_out])
    losses = [_log_losses(probabilities, answers).mean() for probabilities in by_strength]
    best = int(np.argmin(losses))
    mending = learner.fit(logprobs, answers, [strengths[best]])[0]
    left_out = mending.probabilities(rows.logprobs)
    left_out[has_answer] = by_strength[best]
    return _candidate(way.name, mending, left_out, rows.answers)


def _candidate(
    name: MendingName, mending: Mending, left_out: Vector, answers: Ids
) -> CandidateMending:
    """A candidate with its scores on the rows that have an answer."""
    has_answer = answers >= 0
    probabilities = left_out[has_answer]
    losses = _log_losses(probabilities, answers[has_answer])
    is_right = probabilities.argmax(axis=1) == answers[has_answer]
    scores = CrossValidated(accuracy=float(is_right.mean()), log_loss=float(losses.mean()))
    return CandidateMending(name, mending, left_out, losses, scores)


def _log_losses(probabilities: Vector, answers: Ids) -> Vector:
    """(a,) nats of the right options."""
    right = probabilities[np.arange(len(answers)), answers]
    return np.asarray(-np.log(np.maximum(right, np.finfo(np.float64).tiny)))


def changed_by_floors(mending: Mending, rows: MendingRows) -> Bools:
    """(n,) rows whose likeliest option changes to one that was printed as 0: how far below its
    bound it is, nobody knows.
    """
    before = rows.logprobs.argmax(axis=1)
    after = mending.probabilities(rows.logprobs).argmax(axis=1)
    return np.asarray((before != after) & rows.floored[np.arange(len(after)), after])
