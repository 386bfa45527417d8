"""Calibrated probabilities of labels, from one list of next tokens a prompt.

    p(label) = softmax(weight * log p_0(label) + offset(label))

``log p_0(label)`` is the log of the sum of the label's listed tokens in the model's own list, one
weight and an offset a label make it agree with the right answers (Platt 1999; Guo et al. 2017,
"vector scaling" with one weight). Only the standard library is needed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated

from pydantic import Field, model_validator

from blackbox_lb.bias.records import Count, Finite, Name, Row, Share, TokenId


class LabelTokens(Row):
    """A label, the tokens that begin it and no other label, and its offset in nats."""

    label: Name
    token_ids: Annotated[tuple[TokenId, ...], Field(min_length=1)]
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
        return self

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


def label_scores(listed: Mapping[int, float], labels: list[tuple[int, ...]]) -> list[float] | None:
    """The log-probability of each label in nats, by its listed tokens; the least listed one for a
    label that the list misses. None where it misses all of them.
    """
    sums = [
        math.fsum(math.exp(listed[token]) for token in token_ids if token in listed)
        for token_ids in labels
    ]
    if not any(sums):
        return None
    least = min(listed.values())
    return [math.log(part) if part > 0 else least for part in sums]
