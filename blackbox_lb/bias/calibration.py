"""Calibrated probabilities of labels, from one list of next tokens a prompt.

    p(label) = softmax(weight * log p_0(label) + offset(label))

``log p_0(label)`` is the log of the sum of the label's listed tokens in the model's own list, one
weight and an offset a label make it agree with the right answers (Platt 1999; Guo et al. 2017,
"vector scaling" with one weight). Of a decision for or against an opening the second label is
everything that the opening's tokens do not begin. Only the standard library is needed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated

from pydantic import Field, model_validator

from blackbox_lb.bias.records import Count, Finite, Name, Row, Share, TokenId

LEAST_SHARE = 1e-12
"""Probability of a label at least: its logarithm stays finite."""


class LabelTokens(Row):
    """A label, the tokens that begin it and no other label, and its offset in nats.

    A label without tokens is everything that the tokens of the others do not begin.
    """

    label: Name
    token_ids: tuple[TokenId, ...]
    offset: Finite


class Calibration(Row):
    """The calibration of a decision.

    Attributes:
        labels: in the order of the task's.
        weight: of the model's log-probabilities.
        prompts: training prompts that it was learned from.
        error: expected calibration error on the validation prompts, from 0 to 1; None without one.
    """

    labels: Annotated[tuple[LabelTokens, ...], Field(min_length=2)]
    weight: Finite
    prompts: Count
    error: Share | None = None

    @model_validator(mode="after")
    def _each_label_once(self) -> Calibration:
        if len({label.label for label in self.labels}) < len(self.labels):
            raise ValueError("a label is listed twice")
        if sum(not label.token_ids for label in self.labels) > 1:
            raise ValueError("two labels have no tokens, so that nothing tells them apart")
        return self

    def label_begun_by(self, token: int) -> str | None:
        """The label that a token begins; None where it begins none of them."""
        everything_else = None
        for label in self.labels:
            if token in label.token_ids:
                return label.label
            if not label.token_ids:
                everything_else = label.label
        return everything_else

    def probabilities(self, listed: Mapping[int, float]) -> dict[str, float] | None:
        """Label -> its calibrated probability, or None where the list holds no label.

        listed: token id -> nats, the model's list at the place of the answer.
        """
        scores = label_scores(listed, [label.token_ids for label in self.labels])
        if scores is None:
            return None
        logits = [
            self.weight * score + label.offset
            for score, label in zip(scores, self.labels, strict=True)
        ]
        largest = max(logits)
        odds = [math.exp(logit - largest) for logit in logits]
        total = math.fsum(odds)
        return {label.label: part / total for label, part in zip(self.labels, odds, strict=True)}


def label_scores(
    listed: Mapping[int, float], labels: Sequence[tuple[int, ...]]
) -> list[float] | None:
    """The log-probability of each label in nats, by its listed tokens; the least listed one for a
    label that the list misses. None where it misses all of them.

    A label without tokens has what the listed tokens of the others leave.
    """
    sums = [
        math.fsum(math.exp(listed[token]) for token in token_ids if token in listed)
        for token_ids in labels
    ]
    if not listed or (not any(sums) and all(labels)):
        return None
    least = min(listed.values())
    remainder = math.log(max(1 - math.fsum(sums), LEAST_SHARE))
    scores = []
    for token_ids, share in zip(labels, sums, strict=True):
        if not token_ids:
            scores.append(remainder)
        elif share > 0:
            scores.append(math.log(share))
        else:
            scores.append(least)
    return scores
