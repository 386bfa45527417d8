"""The file of ``blb fit``, result.json: what was tried, chosen and judged.

The records are made where their numbers are. Terminal, report and ``Run`` read them.
"""

from __future__ import annotations

import math
from typing import Any, Literal

from pydantic import Field

from blackbox_lb.bias.records import Comparison, Verdict, settings_text
from blackbox_lb.estimate.choice.table import ROWS
from blackbox_lb.jobs.decisions.document import DecidedQuestion
from blackbox_lb.jobs.evaluation.document import ShownAnswers
from blackbox_lb.records import (
    Censoring,
    Count,
    Decisions,
    Finding,
    Finite,
    Flag,
    Learned,
    Name,
    Row,
    Scalar,
    SharesOfGroup,
)


class Measured(Row, extra="ignore"):
    """Results of a policy on the validation prompts: means over prompts, None where not known.
    Fields that earlier versions wrote besides are left out, here and in ``Validation``.

    reward: in the user's own unit. tokens: of a completion.
    """

    reward: Finite | None = None
    tokens: Finite | None = None
    accuracy: Finite | None = None

    @classmethod
    def of(
        cls,
        reward: float,
        tokens: float = math.nan,
        accuracy: float = math.nan,
    ) -> Measured:
        """From numbers that are NaN where not known."""
        return cls(reward=known(reward), tokens=known(tokens), accuracy=known(accuracy))


class TriedCandidate(Measured):
    """One candidate with its validation numbers.

    ``reward``, ``tokens``, ``accuracy``: means over the settings to deploy with, of ``samples``
    fresh completions a prompt at each (one at greedy). ``status``: "chosen", or where and why it
    was dropped. ``origin``: where it comes from, in words.
    """

    estimator: Name
    settings: dict[str, Scalar]
    entries: Count
    samples: Count = 0
    status: str = ""
    origin: str = ""

    @property
    def name(self) -> str:
        """Its estimator and settings; where it comes from, where no estimator made it."""
        if self.origin and self.estimator not in ROWS:
            return self.origin
        settings = settings_text(self.settings)
        if settings:
            return f"{self.estimator}, {settings}"
        return self.estimator


class Validation(Row, extra="ignore"):
    """What chose: the base, and what was ``tried``, in the order of the sweep. The number of the
    chosen one is too good.
    """

    base: Measured = Measured()
    tried: tuple[TriedCandidate, ...] = ()


class TrainingCounts(Row):
    """The training completions, their tokens, and the completions left out of the fit: those whose
    tokens were not all listed, and those that a content filter stopped.
    """

    rollouts: Count
    tokens: Count
    incomplete: Count
    filtered: Count


class FitUsage(Row):
    """The completions behind a fit, drawn by this run or an earlier one.

    ``prompt_tokens`` counts the prompt once a completion, which is more than its cost where one
    request gives several.
    """

    completions: Count
    prompt_tokens: Count
    completion_tokens: Count


class BothDecisions(Row):
    """Decisions on the test prompts, without the bias and with it."""

    base: Decisions
    biased: Decisions


class BothShares(Row):
    """The labels drawn on the test prompts beside the wanted shares, without the bias and with it:
    of all prompts and then of each group.
    """

    base: tuple[SharesOfGroup, ...]
    biased: tuple[SharesOfGroup, ...]


class FitResult(Row):
    """The result of a fit, without the entries of the bias, which are in bias.json.

    ``status``: the verdict in a word; ``verdict``, ``findings``, ``estimator``, ``chosen`` (its
    settings), ``learned``, ``censoring`` and ``operating`` (with the shares of each point and their
    95 % intervals) are those of bias.json. ``origin``: where the chosen bias comes from, its
    entries, and what came second. ``uncompiled_entries``: learned values before the compile.
    ``kl_nats_per_completion``: from the base, at temperature 1; None where it could not be
    computed, and ``kl_missing`` says why. ``kl_whole``: false where the end token is not listed, or
    those of a stop text, so that it is the KL of the tokens given that the completion goes on,
    which is less than the whole. ``decisions``, ``shares``: setting -> those of the test prompts,
    where there are labels, or wanted shares. ``beside``: a bias that depends on the prompt against
    the fixed one, and against a classifier on the same features, on the test prompts.
    ``by_words``: where nobody said what the bias depends on, one that depends on the words of the
    prompt against the fixed one, predicted from lists on prompts that it is not learned from: it is
    proposed where that HELPS; None where it was not tried. ``decided``: questions whose
    probabilities are mended. ``answers``: of both models to test prompts. ``bias``, ``uncompiled``:
    paths of the files.
    """

    format: Literal["blackbox-lb/result"] = "blackbox-lb/result"
    version: Literal[2] = 2
    status: Name
    origin: str = ""
    verdict: tuple[Verdict, ...] = ()
    findings: tuple[Finding, ...] = ()
    estimator: Name
    chosen: dict[str, Scalar]
    entries: Count
    uncompiled_entries: Count
    kl_nats_per_completion: Finite | None
    kl_missing: str | None
    kl_whole: Flag = True
    learned: Learned | None = None
    validation: Validation = Validation()
    training: TrainingCounts
    censoring: Censoring | None = None
    decisions: dict[str, BothDecisions] = Field(default_factory=dict)
    shares: dict[str, BothShares] = Field(default_factory=dict)
    operating: dict[str, Any] | None = None
    beside: tuple[Comparison, ...] = ()
    by_words: Comparison | None = None
    decided: tuple[DecidedQuestion, ...] = ()
    usage: FitUsage
    answers: ShownAnswers | None = None
    bias: str | None = None
    uncompiled: str | None = None
    provenance: dict[str, Any] = Field(default_factory=dict)

    def __repr__(self) -> str:
        """One line: result.json, or ``as_json``, has every number."""
        return f"<FitResult of {self.bias or 'no file'}: {self.entries:,} entries>"

    @property
    def kl_sentence(self) -> str:
        """The KL in words, or why there is none."""
        if self.kl_nats_per_completion is None:
            return f"KL to the base not computed: {self.kl_missing}"
        if self.kl_whole:
            condition = ""
        else:
            condition = ", given where each completion ends (what ends it is not listed)"
        if self.kl_nats_per_completion == 0 and self.entries:
            return f"KL to the base not distinguishable from 0 with so few completions{condition}"
        nats = f"{self.kl_nats_per_completion:.2f} nats a completion"
        return f"KL to the base {nats} at temperature 1{condition}"


def known(value: float) -> float | None:
    """The value, or None where it is NaN or infinite."""
    if math.isfinite(value):
        return value
    return None
