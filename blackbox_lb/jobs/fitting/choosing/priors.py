"""What is known of tokens beside the training completions: from rules, and from the labels."""

from collections.abc import Iterator, Sequence

import numpy as np

from blackbox_lb.bias.calibration import Calibration, LabelTokens, label_scores
from blackbox_lb.estimate.choice.candidates import Candidate, CompileLimits
from blackbox_lb.estimate.decisions.feasibility import label_fit, pulled_shifts
from blackbox_lb.estimate.decisions.prediction import FirstLists
from blackbox_lb.estimate.decisions.scores import expected_calibration_error
from blackbox_lb.estimate.inputs.checks import Ids, Vector
from blackbox_lb.estimate.inputs.prior import Prior
from blackbox_lb.estimate.next_token.next_token import NextToken
from blackbox_lb.jobs.fitting.given_answers import AnswersToLearn
from blackbox_lb.rollouts.answers.given_answers import AnswerStarts, listed_tokens, lists_with
from blackbox_lb.tasks.sets.labels import Labels
from blackbox_lb.types import Completion

FEWEST = 2
"""Labels that the training prompts must have at least."""


def calibration_of(
    labels: Labels, tokens: Sequence[Ids], training: AnswerStarts, validation: AnswerStarts
) -> Calibration | None:
    """The calibration of a decision; None where the lists hold fewer than two labels.

    Args:
        labels: of the task.
        tokens: (l,) those that begin each label and no other.
        training: the first positions that it is learned from.
        validation: those that tell its error.
    """
    token_ids = [tuple(ids.tolist()) for ids in tokens]
    scores = []
    numbers = []
    for example, completion in zip(training.examples, training.whole, strict=True):
        number = labels.of(example)
        score = label_scores(listed_tokens(completion), token_ids)
        if number is not None and score is not None:
            scores.append(score)
            numbers.append(number)
    if len(set(numbers)) < FEWEST:
        return None
    weight, offsets = label_fit(
        np.array(scores, np.float64), np.array(numbers, np.int64), weighed=True
    )
    rows = [
        LabelTokens(label=name, token_ids=ids, offset=offset)
        for name, ids, offset in zip(labels.names, token_ids, offsets.tolist(), strict=True)
    ]
    calibration = Calibration(labels=tuple(rows), weight=weight, prompts=len(numbers))
    return calibration.replacing(error=_error(calibration, labels, validation))


def _error(calibration: Calibration, labels: Labels, validation: AnswerStarts) -> float | None:
    """The expected calibration error on these prompts; None without one."""
    confidence = []
    is_right = []
    for example, completion in zip(validation.examples, validation.whole, strict=True):
        number = labels.of(example)
        probabilities = calibration.probabilities(listed_tokens(completion))
        if number is None or probabilities is None:
            continue
        decided = max(probabilities, key=lambda label: probabilities[label])
        confidence.append(probabilities[decided])
        is_right.append(decided == labels.names[number])
    if confidence:
        return expected_calibration_error(confidence, is_right)
    return None


BATCH = "batch calibration"
ANSWERED = "calibration by the answers"
LABELS_ONLY = "labels only"
LIFTS = (0.0, 2.0, 5.0, 10.0)
"""Nats of a shift that all labels share, over everything else that the model may say."""
PULLS = (100.0, 30.0, 10.0)
"""Strengths of the pull to the calibration, in weighted tokens. It has read the answers already: a
weak pull would count them twice."""
STANDING_PULL = 30.0
"""The one that stands: from 10 to 100 labels of three public tasks the others decided no better on
the whole, and a few labelled prompts cannot tell them apart."""


def batch_calibration(lists: Sequence[FirstLists], tokens: Sequence[Ids]) -> Prior | None:
    """The mean answer of the model over prompts, divided out (Zhou et al. 2023, "Batch
    Calibration"): every label's tokens are shifted by minus the log of the label's mean
    probability. It reads no answer. A label's probability is that of its likeliest token: greedy
    decoding decides between tokens, and a label of many spellings loses what they share out.

    Args:
        lists: those at the place of the answer, of prompts with and without a known answer, with
            all tokens of the labels (see ``lists_with``): a label that a list leaves out is not
            impossible.
        tokens: (l,) those that begin each label.

    Returns:
        The prior with a shift of mean 0 over the labels, and a lift that all of them share and that
        costs no penalty. None where no list holds every label's probability.
    """
    parts = [part.share_of_likeliest(tokens) for part in lists if len(part.ids)]
    shares = np.concatenate([np.zeros((0, len(tokens))), *parts])
    shares = shares[~np.isnan(shares).any(axis=1)]
    if not len(shares):
        return None
    shifts = -np.log(np.maximum(shares.mean(axis=0), LEAST_SHARE))
    shifts -= shifts.mean()
    means = {
        token: shift
        for ids, shift in zip(tokens, shifts.tolist(), strict=True)
        for token in ids.tolist()
    }
    return Prior.of(BATCH, means, np.concatenate(list(tokens)), PULLS, STANDING_PULL)


LEAST_SHARE = 1e-6
"""Mean probability of a label, at least."""
ANSWERS_PULL = 30.0
"""Labelled prompts that batch calibration counts for where answers move it: with few it stays, and
with hundreds the answers decide."""


def answered_calibration(
    prior: Prior,
    answered: FirstLists,
    numbers: Ids,
    tokens: Sequence[Ids],
    weights: Vector | None = None,
) -> Prior:
    """Batch calibration, moved to where it decides the answered prompts right.

    Args:
        prior: the batch calibration.
        answered: lists at the place of the answer, with all tokens of the labels.
        numbers: (p,) the right label of each list, -1 where it has none.
        tokens: (l,) those that begin each label.
        weights: (p,) what each prompt counts, all alike if None.
    """
    shares = answered.share_of_likeliest(tokens)
    is_usable = ~np.isnan(shares).any(axis=1) & (numbers >= 0)
    means = dict(zip(prior.token_ids.tolist(), prior.means.tolist(), strict=True))
    of_label = np.array([means.get(int(ids[0]), 0.0) for ids in tokens])
    scores = np.log(np.maximum(shares[is_usable], LEAST_SHARE)) + of_label
    counts = None
    if weights is not None:
        counts = weights[is_usable]
    shifts = of_label + pulled_shifts(scores, numbers[is_usable], ANSWERS_PULL, counts)
    moved = {
        token: shift
        for ids, shift in zip(tokens, shifts.tolist(), strict=True)
        for token in ids.tolist()
    }
    return Prior.of(ANSWERED, moved, prior.lifted, PULLS, STANDING_PULL)


def label_priors(
    answers: AnswersToLearn, labels: Labels, others: Sequence[Sequence[Completion]]
) -> tuple[Prior, ...]:
    """The calibration by the answers, and batch calibration; none where two labels begin alike or
    no list holds every label.

    others: first tokens of more prompts, of which no answer is read.
    """
    tokens = answers.label_tokens
    if tokens is None:
        return ()
    ids = answers.every_label_token
    answered = lists_with(answers.first.whole, ids)
    batch = batch_calibration([answered, *(lists_with(part, ids) for part in others)], tokens)
    if batch is None:
        return ()
    numbers = [labels.of(example) for example in answers.first.examples]
    known = np.array([-1 if number is None else number for number in numbers], np.int64)
    return (answered_calibration(batch, answered, known, tokens, answers.weights), batch)


def calibrations(
    priors: Sequence[Prior], next_token: NextToken, limits: CompileLimits
) -> Iterator[Candidate]:
    """Each calibration itself, and the labels without any, with each of ``LIFTS`` on all labels."""
    is_label = np.isin(next_token.token_ids, np.concatenate([prior.lifted for prior in priors]))
    by_name = {prior.name: next_token.align(prior.token_ids, prior.means) for prior in priors}
    by_name[LABELS_ONLY] = np.zeros(len(next_token.token_ids))
    for name, values in by_name.items():
        for lift in LIFTS:
            sent: Vector = np.clip(values + lift * is_label, limits.low, limits.high)
            if not sent.any():
                continue
            yield Candidate.of_vector(
                sent,
                next_token,
                limits,
                estimator="calibration",
                settings={"calibration": name, "lift": lift},
                origin=f"{name} with a lift of {lift:g} nats" if lift else name,
            )
