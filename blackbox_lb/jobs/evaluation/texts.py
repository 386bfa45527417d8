"""What the texts of a policy are like beside their reward: length, hits of phrases, tokens drawn
for each that is delivered, likelihood under the base, repetition.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from blackbox_lb.bias.phrases import PhraseList
from blackbox_lb.jobs.evaluation.document import TextFigure, TextFigures
from blackbox_lb.rollouts.judging.verdict import Array, bootstrap
from blackbox_lb.tasks.rewards.forms.avoid import hits_for_words, words_of
from blackbox_lb.types import Completion

GRAM = 3
"""Words in a row whose repetition is counted."""


def repeated_share(text: str) -> float:
    """The share of a text's ``GRAM`` words in a row that occurred in it before, 0 to 1; 0 where it
    has fewer words.

    1 less distinct over all: seq-rep-n of Welleck et al. 2020, "Neural Text Generation with
    Unlikelihood Training", section 6.1, over words in lower case in place of tokens.
    """
    words = words_of(text)
    rows = [tuple(words[start : start + GRAM]) for start in range(len(words) - GRAM + 1)]
    if not rows:
        return 0.0
    return 1 - len(set(rows)) / len(rows)


def mean_logprob(completion: Completion) -> float | None:
    """The mean logprob of the delivered tokens, in nats, of those with a logprob of their own; None
    where none has one.
    """
    logprobs = completion.logprobs
    if completion.bounded is not None:
        logprobs = logprobs[~completion.bounded]
    if not len(logprobs):
        return None
    return float(logprobs.mean())


@dataclass(slots=True)
class TextReader:
    """Reads the figures of the texts of one policy, prompt by prompt.

    Args:
        phrases: whose hits are counted; None where the reward has them.
        steps_back: whether tokens were drawn and thrown away.
        tells_logprobs: whether the logprobs are those of the base behind the same prompt.
    """

    phrases: PhraseList | None
    steps_back: bool
    tells_logprobs: bool
    _rows: dict[str, list[Array]] = field(default_factory=dict, init=False)

    def read(self, answers: Sequence[tuple[Sequence[Completion], Completion]]) -> None:
        """The answers of the next prompt, each behind the completions that it was drawn by."""
        rows: dict[str, list[float]] = {
            "words": [],
            "tokens": [],
            "logprob": [],
            "repeated": [],
        }
        if self.phrases is not None:
            rows["hits"] = []
        for group, answer in answers:
            rows["words"].append(float(len(words_of(answer.text))))
            rows["tokens"].append(self._tokens(group, answer))
            rows["repeated"].append(repeated_share(answer.text))
            logprob = None
            if self.tells_logprobs:
                logprob = mean_logprob(answer)
            rows["logprob"].append(np.nan if logprob is None else logprob)
            if self.phrases is not None:
                rows["hits"].append(hits_for_words(self.phrases, answer.text))
        for name, values in rows.items():
            self._rows.setdefault(name, []).append(np.array(values, float))

    def _tokens(self, group: Sequence[Completion], answer: Completion) -> float:
        """Tokens drawn for each that is delivered, NaN where none is. What is not thrown away is
        not: a provider may count an end that it does not list.
        """
        delivered = len(answer.token_ids)
        if not delivered:
            return np.nan
        counts = [len(completion.token_ids) for completion in group]
        if self.steps_back:
            counts = [completion.n_tokens for completion in group]
        return sum(counts) / delivered

    def values(self, hits: Sequence[Array] | None = None) -> dict[str, tuple[Array, ...]]:
        """Figure -> (x,) of (answers,) of each prompt, NaN where it is not known. hits: those of
        the reward.
        """
        figures = {name: tuple(rows) for name, rows in self._rows.items()}
        if hits is not None:
            figures["hits"] = tuple(hits)
        return figures


def text_figures(
    values: Mapping[str, Sequence[Array]], base: Mapping[str, Sequence[Array]] | None
) -> TextFigures:
    """The record of a policy's figures; ``base``: those of the base, None of the base itself."""
    figures: dict[str, TextFigure | None] = {}
    for name, rows in values.items():
        against = None
        if base is not None:
            against = base[name]
        figures[name] = _figure(rows, against)
    return TextFigures(**figures)


def _figure(rows: Sequence[Array], base: Sequence[Array] | None) -> TextFigure | None:
    means = _means(rows)
    if np.isnan(means).all():
        return None
    figure = TextFigure(mean=float(np.nanmean(means)))
    if base is None:
        return figure
    gaps = means - _means(base)
    gaps = gaps[~np.isnan(gaps)]
    if not len(gaps):
        return figure
    interval = bootstrap(gaps)
    return figure.replacing(difference=float(gaps.mean()), low=interval.low, high=interval.high)


def _means(rows: Sequence[Array]) -> Array:
    """(x,) the mean of what is known of each prompt, NaN where nothing is."""
    measured = [row[~np.isnan(row)] for row in rows]
    return np.array([row.mean() if row.size else np.nan for row in measured])
