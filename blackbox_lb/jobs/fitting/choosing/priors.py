"""What is known of tokens beside the training completions: from rules, and from the labels."""

from collections.abc import Iterator, Sequence

import numpy as np

from blackbox_lb.bias.calibration import Calibration, LabelTokens, label_scores
from blackbox_lb.estimate.choice.candidates import Candidate, CompileLimits
from blackbox_lb.estimate.decisions.feasibility import label_fit
from blackbox_lb.estimate.decisions.prediction import FirstLists, expected_calibration_error
from blackbox_lb.estimate.inputs.checks import Ids, Vector
from blackbox_lb.estimate.next_token.next_token import NextToken
from blackbox_lb.estimate.projection.projection import Prior
from blackbox_lb.rollouts.answers.given_answers import (
    AnswerStarts,
    first_lists,
    listed_tokens,
    lists_with,
)
from blackbox_lb.rollouts.judging.trials import Trials
from blackbox_lb.tasks.sets.labels import Labels
from blackbox_lb.types import Example

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
LABELS_ONLY = "labels only"
LIFTS = (0.0, 2.0, 5.0, 10.0)
"""Nats of a shift that all labels share, over everything else that the model may say."""
PULLS = (10.0, 3.0, 1.0)
"""Strengths of the pull to batch calibration, in weighted tokens."""
STANDING_PULL = 3.0
"""The one that stands: with 10 labels it did as well as the best of them on three public tasks, and
from 100 labels on all strengths do as well. A few labelled prompts cannot tell them apart."""


async def unlabelled_lists(
    trials: Trials, examples: Sequence[Example], listed: int | None, tokens: Ids
) -> FirstLists:
    """The lists at the place of the answer of prompts whose answers nobody knows, drawn unless they
    are in the store.

    listed: alternatives of each list, None for as many as help. tokens: of the labels; a list that
    misses one has a bound of its probability.
    """
    completions, _ = await first_lists(trials, examples, "unlabelled", listed)
    return lists_with(completions, tokens)


def batch_calibration(lists: Sequence[FirstLists], tokens: Sequence[Ids]) -> Prior | None:
    """The mean answer of the model over prompts, divided out (Zhou et al. 2023, "Batch
    Calibration"): every label's tokens are shifted by minus the log of the label's mean
    probability. It reads no answer.

    Args:
        lists: those at the place of the answer, of prompts with and without a known answer, with
            all tokens of the labels (see ``lists_with``): a label that a list leaves out is not
            impossible.
        tokens: (l,) those that begin each label.

    Returns:
        The prior with a shift of mean 0 over the labels, and a lift that all of them share and that
        costs no penalty. None where no list holds every label's probability.
    """
    parts = [part.share({}, tokens) for part in lists if len(part.ids)]
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


def calibrations(prior: Prior, next_token: NextToken, limits: CompileLimits) -> Iterator[Candidate]:
    """The calibration itself, and the labels without it, with each of ``LIFTS`` on all labels."""
    is_label = np.isin(next_token.token_ids, prior.lifted)
    shifts = next_token.align(prior.token_ids, prior.means)
    for name, values in ((BATCH, shifts), (LABELS_ONLY, np.zeros(len(shifts)))):
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
