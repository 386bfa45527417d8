"""The file of ``blb eval``: every policy, every comparison, and their result in words.

A policy is a bias or none, an instruction or none, and sampling settings; see ``arms``. All are
tried on the same prompts.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AllowInfNan, BaseModel

from blackbox_lb.bias.records import Comparison
from blackbox_lb.records import Decisions, SharesOfGroup

Number = Annotated[float, AllowInfNan(False)]
MOST_SHOWN = 200
"""Test prompts whose completions a result file holds side by side."""


class ResultPart(BaseModel, frozen=True, extra="forbid"):
    """Base of all parts of a result file: frozen, without unknown fields."""


class Mean(ResultPart):
    """A mean over prompts and its 95 % percentile bootstrap interval, unpaired (the paper, appendix
    on bootstrap intervals).
    """

    mean: Number
    low: Number
    high: Number


class PolicyResult(ResultPart):
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
    ``shots``: messages with examples before the prompt. ``decisions``: the labels chosen, None
    where the task has no labels. ``shares``: the labels drawn beside the wanted shares, of all
    prompts and then of each group, where the reward compares these.
    """

    name: str
    bias: str | None
    entries: int
    setting: str
    temperature: Number
    max_tokens: int
    instruction: str | None = None
    best_of: int = 1
    kind: Literal["completions", "decisions"] = "completions"
    shots: int = 0
    prompts: int
    completions: int
    left_out: int = 0
    cut: Number = 0.0
    metrics: dict[str, Mean]
    prompt_tokens: Number
    completion_tokens: Number
    cost: Number | None = None
    decisions: Decisions | None = None
    shares: tuple[SharesOfGroup, ...] = ()


class RewardPlace(ResultPart):
    """A place in a completion and the part of the reward that is earned there: ``start`` and
    ``end`` in characters of its text, ``amount`` in nats.
    """

    start: int
    end: int
    amount: Number


class BiasedToken(ResultPart):
    """A token of a completion that the shown bias moves: ``start`` and ``end`` in characters of its
    text, ``bias`` in nats.
    """

    start: int
    end: int
    bias: Number


class PolicyCompletion(ResultPart):
    """One completion of a policy. ``correct`` is None where no right answer is known, ``reward``
    where only all completions together have one; ``finish_reason`` is the provider's.

    ``spans``: where the reward is earned, none where it is no sum over places. ``moved``: the
    tokens that the policy's bias moves, for a policy without one those that the first bias would
    move.
    """

    policy: str
    text: str
    tokens: int
    correct: bool | None
    reward: Number | None
    finish_reason: str
    spans: tuple[RewardPlace, ...] = ()
    moved: tuple[BiasedToken, ...] = ()


class ShownPrompt(ResultPart):
    """One test prompt with the completions of several policies side by side."""

    id: str
    prompt: str
    answers: tuple[str, ...]
    completions: tuple[PolicyCompletion, ...]


class ShownAnswers(ResultPart):
    """Test prompts with both answers at ``setting``; ``prompts``: how many have both."""

    setting: str
    prompts: int
    shown: tuple[ShownPrompt, ...]


class Evaluation(ResultPart):
    """The result of ``blb eval``.

    ``summary``: sentences for the reader, the most important first; ``notes``: the methods behind
    the numbers.
    ``label``: the name of the reward among the metrics. ``effect``: the requested difference of the
    reward.
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
    summary: tuple[str, ...]
    notes: tuple[str, ...] = ()
    effect: Number | None = None
    examples: tuple[ShownPrompt, ...] = ()
    provenance: dict[str, Any]
