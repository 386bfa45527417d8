"""The file of ``blb eval``: every policy and every comparison.

A policy is a bias or none, an instruction or none, and sampling settings; see ``policies``. All are
tried on the same prompts.
"""

from __future__ import annotations

from typing import Any, Literal

from blackbox_lb.bias.records import Comparison
from blackbox_lb.records import Count, Decisions, Finite, Flag, Name, Row, SharesOfGroup
from blackbox_lb.types import Span

MOST_SHOWN = 200
"""Test prompts whose completions a result file holds side by side."""


class Mean(Row):
    """A mean over prompts and its 95 % percentile bootstrap interval, unpaired (the paper, appendix
    on bootstrap intervals).
    """

    mean: Finite
    low: Finite
    high: Finite


class TextFigure(Row):
    """A figure of the texts of a policy: its mean over prompts, and the difference from the base,
    paired by prompt, with its 95 % interval, not adjusted for several; None of the base itself, and
    where no prompt tells both.
    """

    mean: Finite
    difference: Finite | None = None
    low: Finite | None = None
    high: Finite | None = None


class TextFigures(Row):
    """What the texts of a policy are like, where phrases are kept out, or the reward counts them.

    ``words`` of a text. ``hits``: of the reward's list for each 100 words, by their weights; where
    the reward has none, of all phrases that a policy keeps out. ``tokens``: drawn for each
    that is delivered. ``logprob``: mean of the delivered tokens under the model without a bias at
    temperature 1, nats; None where the provider does not tell it, or another prompt was sent.
    ``repeated``: share of 3 words in a row that occurred in the text before.
    """

    words: TextFigure | None = None
    hits: TextFigure | None = None
    tokens: TextFigure | None = None
    logprob: TextFigure | None = None
    repeated: TextFigure | None = None


class PolicyResult(Row):
    """One policy and its results on the test prompts.

    ``name``: unique among the policies of one ``setting``. ``temperature``: of its draws.
    ``bias``: the name of the bias, None for the base; ``entries``: its number of tokens.
    ``instruction``: added to the prompt.
    ``best_of``: completions drawn for each answer, the one with the highest mean logprob.
    ``prompts`` have an answer, ``completions`` counts the answers, ``left_out`` those without a
    score.
    ``metrics``: by name: the reward under its label, "accuracy" where it is known, "tokens" (of the
    answer); fewer tokens are better, more of anything else. ``prompt_tokens``,
    ``completion_tokens``: mean tokens paid for one answer, all ``best_of`` completions included.
    ``cost``: US dollars for 1,000 answers; None without prices.
    ``kind``: completions were drawn, or the label of each prompt was decided in this program.
    ``cut``: share of the answers that ``max_tokens`` cut.
    ``phrases``: lines of the list that is kept out by stepping back. ``texts``: what the texts are
    like; None where no phrases are concerned.
    ``shots``: messages with examples before the prompt. ``decisions``: the labels chosen, None
    where the task has no labels. ``shares``: the labels drawn beside the wanted shares, of all
    prompts and then of each group, where the reward compares these.
    """

    name: str
    bias: str | None
    entries: int
    setting: str
    temperature: Finite
    max_tokens: int
    instruction: str | None = None
    best_of: int = 1
    kind: Literal["completions", "decisions"] = "completions"
    shots: int = 0
    prompts: int
    completions: int
    left_out: int = 0
    cut: Finite = 0.0
    metrics: dict[str, Mean]
    prompt_tokens: Finite
    completion_tokens: Finite
    cost: Finite | None = None
    decisions: Decisions | None = None
    shares: tuple[SharesOfGroup, ...] = ()
    phrases: Count = 0
    texts: TextFigures | None = None


class MovedToken(Row):
    """A token of a text that a bias moves: ``start`` and ``end`` in characters of the text,
    ``bias`` in nats.
    """

    start: Count
    end: Count
    bias: Finite


class Answer(Row):
    """One completion of a policy.

    reward: as it is displayed, so exp(nats) of a logarithmic reward; None where all completions
    together have one. correct: None where no right answer is known. tokens: generated, by the
    provider's count. finish_reason: the provider's. spans: where the reward is earned, none where
    it is no sum over places. moved: the tokens that the policy's bias moves, for a policy without
    one those that the first bias would move.
    """

    policy: Name
    text: str
    tokens: Count
    correct: Flag | None
    reward: Finite | None
    finish_reason: str
    spans: tuple[Span, ...] = ()
    moved: tuple[MovedToken, ...] = ()


class ShownPrompt(Row):
    """One test prompt with the completions of several policies side by side."""

    id: str
    prompt: str
    answers: tuple[str, ...]
    completions: tuple[Answer, ...]


class ShownAnswers(Row):
    """Test prompts with both answers at ``setting``; ``prompts``: how many have both."""

    setting: str
    prompts: int
    shown: tuple[ShownPrompt, ...]


class Evaluation(Row, extra="ignore"):
    """The result of ``blb eval``; fields that earlier versions wrote besides are left out.

    ``label``: the name of the reward among the metrics.
    """

    format: Literal["blackbox-lb/evaluation"] = "blackbox-lb/evaluation"
    version: Literal[2] = 2
    provider: str
    model: str
    task: str
    reward: str
    label: str
    policies: tuple[PolicyResult, ...]
    comparisons: tuple[Comparison, ...]
    examples: tuple[ShownPrompt, ...] = ()
    provenance: dict[str, Any]
