"""The rows of a bias file: its entries, and the records of sampling, censoring, calibration,
compile, findings and verdict.

A calibration turns one list of next tokens a prompt into probabilities of labels:

    p(label) = softmax(weight * log p_0(label) + offset(label))

``log p_0(label)`` is the log of the sum of the label's listed tokens in the model's own list, one
weight and an offset a label make it agree with the right answers (Platt 1999; Guo et al. 2017,
"vector scaling" with one weight). Of a decision for or against an opening the second label is
everything that the opening's tokens do not begin. Only the standard library is needed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

from pydantic import Field, Strict, model_validator

from blackbox_lb.records import Count, Finite, Flag, Name, Row, Scalar, Share, TokenId
from blackbox_lb.safety.printable import printable


def settings_text(settings: Mapping[str, Scalar]) -> str:
    """The settings of an estimator that are set, as a sentence part; not safe to print."""
    parts = []
    for name, value in settings.items():
        text = f"{value:g}" if isinstance(value, float) else str(value)
        if value is not None:
            parts.append(text if text.startswith(name) else f"{name} {text}")
    return ", ".join(parts)


class Entry(Row):
    """One biased token: its id, its bytes in hexadecimal, its readable text, its bias in nats.

    ``error``: standard error of the bias in nats, None where the estimator gives none. ``seen``:
    times the token was sampled in training.
    """

    id: TokenId
    bytes: Annotated[str, Field(pattern=r"^([0-9a-f]{2})*$")] | None = None
    text: str | None = None
    bias: Finite
    error: Annotated[Finite, Field(ge=0)] | None = None
    seen: Count = 0

    @property
    def readable(self) -> str:
        """The token in printable form: its text, else its bytes, else its id."""
        if self.text:
            return printable(self.text)
        if self.bytes:
            return f"<bytes {self.bytes}>"
        return f"<token {self.id}>"


class SamplingRecord(Row):
    """How the training completions were drawn, at temperature 1 from the untruncated distribution;
    both limits count tokens.
    """

    max_tokens: Annotated[int, Strict(), Field(ge=1)]
    top_logprobs: Count
    endpoint: Literal["chat", "completions", "responses"]


class PromptRecord(Row):
    """How the prompts of a fit were made of its data.

    template: with columns in braces; None where the data hold whole prompts. system: the system
    message before each; None without one, or where the data have their own.
    """

    template: str | None = None
    system: str | None = None

    @property
    def sentence(self) -> str:
        """What stood around each prompt: a tool that sends something else asks another question."""
        parts = {"the template": self.template, "the system message": self.system}
        named = " and ".join(
            f"{name} {printable(repr(text))}" for name, text in parts.items() if text is not None
        )
        return f"The fit asked with {named}."


class Compiled(Row, extra="ignore"):
    """The loss of the sparse compile; fields that earlier versions wrote besides are left out.

    entries_limit: most entries allowed, None for no limit. kl_lost_nats_per_token: KL between the
    learned and the compiled policy on logged prefixes. kept_share: 1 less that loss as a share of
    the KL between the learned policy and the base. clipped, rounded, dropped: entries at a limit of
    the range, entries that became 0 as integers, learned entries not sent.
    """

    entries_limit: Count | None = None
    integers: Flag = False
    kl_lost_nats_per_token: Finite | None = None
    kept_share: Share | None = None
    clipped: Count = 0
    rounded: Count = 0
    dropped: Count = 0


LEVEL = 0.05
"""The chance, over all rows of one verdict together, that a bias without effect gets the verdict
HELPS or HURTS.
"""

NOT_THE_TASK = "NOT SHOWN TO PAY"
"""The word for a bias that is better than no bias, and not shown to be better than always saying
the commonest label.
"""
BETTER_PROBABILITIES = "BETTER PROBABILITIES"
"""The word where the log loss of decisions is shown to fall, and their accuracy is not shown to
change.
"""
WORDS = ("HURTS", "HELPS", NOT_THE_TASK, BETTER_PROBABILITIES, "NO EVIDENCE")
"""Words of a judged bias; of several settings the first of these counts."""

LONGEST_LABEL = 24
"""Characters of a label that a sentence shows."""


class Commonest(Row):
    """Always answering the commonest label, beside the biased model, on the same test prompts.

    label: the commonest right label of the test prompts. share: of the prompts that have it, which
    always answering it gets right. accuracy: share of right decisions of the biased model.
    is_beaten: whether the biased model is shown to be right more often (an exact sign test at 5 %
    over the prompts where the two differ).
    """

    label: Name
    share: Share
    accuracy: Share
    is_beaten: Flag

    @property
    def always(self) -> str:
        """Always answering it, as a policy."""
        label = printable(self.label)
        if len(label) > LONGEST_LABEL:
            label = f"{label[: LONGEST_LABEL - 1]}…"
        return f'always saying "{label}"'


_CLAUSES = {
    "HELPS": "better than {}",
    "NO EVIDENCE": "not shown to be better than {}",
    "HURTS": "worse than {}",
}


class Verdict(Row):
    """One metric at one sampling setting, base against biased, on fresh completions of unseen
    prompts.

    ``difference``: biased - base in the metric's own unit. ``low``, ``high``: its 95 % interval.
    ``p``: the chance of so large a difference without any effect, adjusted for the rows judged with
    it. ``n_base``, ``n_biased``: completions; ``cut_base``, ``cut_biased``: shares of these that
    the limit of tokens cut. ``commonest``: of a decision between labels, where the metric is about
    right answers; None elsewhere, and in files of earlier versions.
    """

    setting: Annotated[str, Field(pattern=r"^(greedy|temperature \d+(\.\d+)?)$")]
    metric: Name
    base: Finite
    biased: Finite
    difference: Finite
    low: Finite
    high: Finite
    p: Share
    n_prompts: Count
    n_base: Count
    n_biased: Count
    better: Literal["higher", "lower"]
    verdict: Literal["HELPS", "NO EVIDENCE", "HURTS"]
    cut_base: Share = 0.0
    cut_biased: Share = 0.0
    commonest: Commonest | None = None

    @property
    def word(self) -> str:
        """The verdict for a reader: ``NOT_THE_TASK`` where the base is beaten and the commonest
        label is not.
        """
        if self.verdict == "HELPS" and self.commonest is not None and not self.commonest.is_beaten:
            return NOT_THE_TASK
        return self.verdict

    def clause(self, without: str = "without the bias") -> str:
        """What the verdict says, after "it is": against the base, which ``without`` names, and
        against always saying the commonest label.
        """
        text = _CLAUSES[self.verdict].format(without)
        if self.commonest is None or self.verdict == "HURTS":
            return text
        rival = f"{self.commonest.always} ({100 * self.commonest.share:.0f} %)"
        if self.word == "HELPS":
            return f"{text} and than {rival}"
        if self.word == "NO EVIDENCE":
            return text if self.commonest.is_beaten else f"{text}, nor than {rival}"
        shown = "shown to be " if self.commonest.accuracy > self.commonest.share else ""
        return f"{text}; not {shown}better than {rival}"

    @model_validator(mode="after")
    def _consistent(self) -> Verdict:
        if self.low > self.high:
            raise ValueError(
                f"the interval of {self.metric} runs from {self.low} down to {self.high}; low must"
                " not exceed high"
            )
        size = max(abs(self.base), abs(self.biased))
        if abs(self.biased - self.base - self.difference) > 1e-6 * max(size, 1.0):
            raise ValueError(
                f"the difference of {self.metric} is {self.difference:g} between"
                f" {self.base:g} and {self.biased:g}; it must be biased less base"
            )
        if self.verdict != "NO EVIDENCE" and self.p > LEVEL:
            raise ValueError(
                f"{self.metric} has the verdict {self.verdict} with p = {self.p:g}; above"
                f" {LEVEL:g} there is NO EVIDENCE"
            )
        is_better = (self.difference > 0) == (self.better == "higher")
        if self.verdict != "NO EVIDENCE" and is_better != (self.verdict == "HELPS"):
            raise ValueError(
                f"{self.metric} has the verdict {self.verdict} for a difference of"
                f" {self.difference:g}, of which {self.better} is better"
            )
        return self


class Comparison(Verdict, extra="ignore"):
    """One metric of ``policy`` less that of ``against``, paired by prompt: a row of ``blb eval``.
    Fields that earlier versions wrote besides are left out.

    ``base`` and ``biased`` are the means of ``against`` and of ``policy``, and ``verdict`` is of
    ``policy``. ``p`` is adjusted for all comparisons of its ``family`` (Holm): each bias against
    the base is "primary", or where there is no bias each alternative; all others are "secondary".
    The intervals and ``p_sign``, of an exact sign test over the prompts where the two differ, are
    not adjusted.
    ``low``, ``high``: the percentile bootstrap expanded for few prompts; ``percentile_low``,
    ``percentile_high``: the paper's own, not expanded. ``sd``: of the differences between prompts.
    ``needed``: prompts that would show a difference of this size with 80 % power in a family of as
    many comparisons, None where it is 0.
    """

    policy: Name
    against: Name
    percentile_low: Finite
    percentile_high: Finite
    p_sign: Share
    sd: Annotated[Finite, Field(ge=0)]
    needed: Count | None = None
    family: Literal["primary", "secondary"] = "primary"

    @property
    def as_verdict(self) -> Verdict:
        """The row as a bias file holds it."""
        return Verdict(**{name: getattr(self, name) for name in Verdict.model_fields})


def overall(rows: Sequence[Verdict]) -> str:
    """The word for all settings together: one that hurts goes before one that helps."""
    words = {row.word for row in rows}
    return next((word for word in WORDS if word in words), "UNVERIFIED")


def headline(rows: Sequence[Verdict], without: str = "without the bias") -> tuple[str, str]:
    """The verdict on a bias in one word and one sentence, as every output gives it.

    rows: of the verdict; the first metric counts, which is the reward, or the accuracy of each of
    several questions. without: the base, as the sentence names it.

    Returns ``UNVERIFIED`` and "" without rows.
    """
    rewards = [row for row in rows if _same_measure(row.metric, rows[0].metric)]
    word = overall(rewards)
    rest = [row for row in rows if row not in rewards]
    losses = [row for row in rest if row.metric.startswith("log loss")]
    if word == "NO EVIDENCE" and overall(losses) == "HELPS":
        word = BETTER_PROBABILITIES
    groups: dict[tuple[str, str], list[str]] = {}
    for row in sorted(rewards, key=lambda row: row.word != word):
        groups.setdefault((printable(row.metric), row.clause(without)), []).append(row.setting)
    parts = [
        f"{metric} ({', '.join(settings)}) is {clause}"
        for (metric, clause), settings in groups.items()
    ]
    sides = {"HURTS": "worse"}
    if word in ("NO EVIDENCE", BETTER_PROBABILITIES):
        sides["HELPS"] = "only better"
    for verdict, side in sides.items():
        names = dict.fromkeys(printable(row.metric) for row in rest if row.verdict == verdict)
        if names:
            parts.append(f"{side}: {', '.join(names)}")
    return word, "; ".join(parts)


def _same_measure(metric: str, reward: str) -> bool:
    """Whether a metric is the reward's, or another question's accuracy beside it."""
    return metric == reward or (metric.startswith("accuracy of ") and reward.startswith("accuracy"))


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
        shares = softmax(logits)
        return {label.label: share for label, share in zip(self.labels, shares, strict=True)}


def softmax(logits: Sequence[float]) -> tuple[float, ...]:
    """The probabilities in proportion to the exponentials of ``logits``."""
    largest = max(logits)
    odds = [math.exp(logit - largest) for logit in logits]
    total = math.fsum(odds)
    return tuple(part / total for part in odds)


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
