"""Options that several commands share, as the objects that their actions read: model, task, sampling, spending, output."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from blackbox_lb.api.drift import OnDrift
    from blackbox_lb.types import Endpoint


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """Which model of a provider is called, and how; None stands for the provider's own.

    model: its name; for ``local`` a file or a hub name.
    base_url: address of the API.
    endpoint: where completions are collected.
    tokenizer: the vocabulary, by name or file.
    concurrency: requests in flight.
    """

    model: str | None
    base_url: str | None
    endpoint: Endpoint | None
    tokenizer: str | None
    concurrency: int | None


@dataclass(frozen=True, kw_only=True)
class ModelOptions(ServerOptions):
    """A model with the provider that has it.

    provider: a name, or the path of a TOML.
    """

    provider: str


@dataclass(frozen=True, kw_only=True)
class PromptOptions:
    """Prompts with their answers, and how long a completion may be.

    task: a built-in one, or lm-eval:NAME.
    data, validation_data, test_data: files with prompts and answers.
    prompt_column, answer_column, messages_column: names in those files.
    prompt_template: a prompt with columns in braces.
    validation_limit, test_limit: how many prompts of a split are used.
    data_dir, num_fewshot, filter, metric, validation_size: of lm-eval:NAME.
    max_tokens: longest completion, in tokens; None: the task's.
    """

    task: str | None
    data: Path | None
    validation_data: Path | None
    test_data: Path | None
    prompt_column: str
    answer_column: str
    messages_column: str
    prompt_template: str | None
    validation_limit: int | None
    test_limit: int | None
    data_dir: Path | None
    num_fewshot: int | None
    filter: str | None
    metric: str | None
    validation_size: int | None
    max_tokens: int | None


@dataclass(frozen=True, kw_only=True)
class TaskOptions(PromptOptions):
    """Prompts with what their completions are worth.

    reward: name of a reward, as :func:`parse_reward` reads it.
    correct: what counts as correct; None: the task's.
    """

    reward: str
    correct: str | None


@dataclass(frozen=True, kw_only=True)
class SamplingOptions:
    """How completions are drawn.

    top_logprobs: alternatives listed a token; None: as many as help and the provider lists.
    seed: sent with every request.
    """

    top_logprobs: int | None
    seed: int | None


@dataclass(frozen=True, kw_only=True)
class SpendingOptions:
    """What a command may spend; None: any amount.

    max_requests: requests.
    max_tokens_total: prompt and completion tokens.
    max_cost: US dollars.
    prices: TOML with prices, read before those that come along.
    """

    max_requests: int | None
    max_tokens_total: int | None
    max_cost: float | None
    prices: Path | None


@dataclass(frozen=True, kw_only=True)
class LimitOptions(SpendingOptions):
    """What a command may spend, whether it asks first, and what it does when something changes.

    price: "PROMPT,COMPLETION" in US dollars for a million tokens.
    yes: do not ask before the first request that costs money.
    on_drift: stop or go on when another model or system answers; None: as the provider's profile says.
    restart: go on in ``out`` with other settings.
    """

    price: str | None
    yes: bool
    on_drift: OnDrift | None
    restart: bool


@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """Where results go and how much is said.

    out: the run's folder; None: runs/TASK.
    store: the rollout store; None: the one in ``out``.
    as_json: print the result as JSON.
    quiet: no progress and no remarks.
    """

    out: Path | None
    store: Path | None
    as_json: bool
    quiet: bool


@dataclass(frozen=True, kw_only=True)
class TrialOptions(ModelOptions, SamplingOptions, LimitOptions, OutputOptions):
    """All that drawing completions needs, but for the task."""
