"""Options that several commands share, as decorators: model, task, sampling, spending, output."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, get_args

import click

from blackbox_lb.api.drift import ON_DRIFT
from blackbox_lb.cli.completers import known, reward_names, task_names
from blackbox_lb.cli.grouped import HelpGroup, LateChoice, option
from blackbox_lb.providers.names import profile_names

F = TypeVar("F", bound=Callable[..., Any])
TOP_LOGPROBS = 20
POSITIONS = 200
"""Of --full-vocab: they tell a mean over positions to about 7 % of the spread between positions, and take a few minutes on a small
server."""
STORE = "rollouts.db"
"""The rollout store inside a run's folder."""


def _endpoints() -> tuple[str, ...]:
    from blackbox_lb.types import Endpoint

    return get_args(Endpoint)


def _together(*options: Callable[[Any], Any]) -> Callable[[F], F]:
    def decorate(function: F) -> F:
        for each in reversed(options):
            function = each(function)
        return function

    return decorate


def count_option(name: str, default: Callable[[], int], text: str, group: HelpGroup) -> Callable[[F], F]:
    """An option that counts completions, from 1; ``default`` is called when it is shown or used."""
    return option(group, name, type=click.IntRange(1), default=default, show_default=True, help=text)


def model_options(provider: str | None = "local") -> Callable[[F], F]:
    """Which model to call, and where; ``provider``: the default, None for that of a bias."""
    return _together(
        option(
            HelpGroup.FIRST,
            "--provider",
            shell_complete=known(profile_names),
            default=provider,
            show_default=provider or "the bias's own",
            help=f"{', '.join(profile_names())}, or a path to your own TOML.",
        ),
        option(
            HelpGroup.FIRST,
            "--model",
            help="Model name; for local a .gguf path or a hub name. [default: the server's only model]",
        ),
        option(HelpGroup.FIRST, "--base-url", help="Address of the API, with its /v1. [default: the provider's]"),
        option(
            HelpGroup.MODEL,
            "--endpoint",
            type=LateChoice(_endpoints),
            help="Where to collect. [default: the provider's first]",
        ),
        option(
            HelpGroup.MODEL,
            "--tokenizer",
            help="Vocabulary, where the provider tells no token ids: o200k_base, cl100k_base, a tokenizer.json or .gguf file. "
            "[default: by the model's name]",
        ),
        option(
            HelpGroup.MODEL,
            "--concurrency",
            type=click.IntRange(1),
            help="Requests in flight. [default: the provider's number, and more while that is faster]",
        ),
    )


def task_options(*, reward: bool = True) -> Callable[[F], F]:
    """Prompts, answers and the reward; without ``reward`` none is asked for."""
    return _together(
        option(
            HelpGroup.FIRST,
            "--task",
            shell_complete=known(task_names),
            help="A built-in task: capitals; or lm-eval:NAME, a task of lm-evaluation-harness.",
        ),
        option(
            HelpGroup.FIRST,
            "--data",
            type=click.Path(path_type=Path),
            help="JSONL, CSV or Parquet with prompt (or messages) and answer; a folder; or hf:OWNER/NAME[/CONFIG][@SPLIT].",
        ),
        option(
            HelpGroup.TASK,
            "--prompt-column",
            default="prompt",
            show_default=True,
            help="Column of --data with the prompt.",
        ),
        option(
            HelpGroup.TASK,
            "--answer-column",
            default="answer",
            show_default=True,
            help="Column with the accepted answers.",
        ),
        option(
            HelpGroup.TASK,
            "--messages-column",
            default="messages",
            show_default=True,
            help="Column with chat messages.",
        ),
        option(
            HelpGroup.TASK,
            "--prompt-template",
            help='Prompt put together from columns: "Question: {question} Answer:".',
        ),
        option(
            HelpGroup.TASK,
            "--validation-data",
            type=click.Path(path_type=Path),
            help="Prompts to choose on. [default: part of --data]",
        ),
        option(
            HelpGroup.TASK,
            "--test-data",
            type=click.Path(path_type=Path),
            help="Prompts to judge on. [default: part of --data]",
        ),
        option(
            HelpGroup.TASK,
            "--validation-limit",
            type=click.IntRange(1),
            help="Use only the first N validation prompts.",
        ),
        option(HelpGroup.TASK, "--test-limit", type=click.IntRange(1), help="Use only the first N test prompts."),
        option(
            HelpGroup.TASK,
            "--data-dir",
            type=click.Path(path_type=Path),
            help="Folder with lm-eval:NAME's data, a file a split: train.jsonl, test.jsonl. [default: the hub]",
        ),
        option(
            HelpGroup.TASK,
            "--num-fewshot",
            type=click.IntRange(0),
            help="Examples before each question. [default: lm-eval's]",
        ),
        option(
            HelpGroup.TASK, "--filter", help="Filter of lm-eval:NAME that extracts the answer. [default: its first]"
        ),
        option(
            HelpGroup.TASK, "--metric", help="Metric of lm-eval:NAME that says what is correct. [default: its first]"
        ),
        option(
            HelpGroup.TASK,
            "--validation-size",
            type=click.IntRange(1),
            help="Documents of lm-eval:NAME sampled from train to choose on. [default: 20 %, at most 500]",
        ),
        option(
            HelpGroup.FIRST,
            "--reward",
            shell_complete=known(reward_names),
            required=reward,
            hidden=not reward,
            help="exact-match, contains, regex:PATTERN, json-schema:FILE, accuracy, log-accuracy, length, correct-and-short, "
            "accuracy-gated-length, accuracy-minus-length, module:function, https://HOST/PATH, or judge:FILE.toml.",
        ),
        option(
            HelpGroup.TASK,
            "--correct",
            hidden=not reward,
            help="What counts as correct: exact-match, contains, math or regex:PATTERN. [default: the task's]",
        ),
    )


def sampling_options() -> Callable[[F], F]:
    """How completions are drawn."""
    return _together(
        option(
            HelpGroup.FIRST,
            "--max-tokens",
            type=click.IntRange(1),
            help="Longest completion, in tokens. [default: the task's]",
        ),
        option(
            HelpGroup.SAMPLING,
            "--top-logprobs",
            type=click.IntRange(0),
            help=f"Alternatives listed a token, 0 for no logprobs at all. [default: {TOP_LOGPROBS}, or the provider's limit]",
        ),
        option(
            HelpGroup.SAMPLING,
            "--seed",
            type=click.IntRange(0),
            help="Sent with every request, so that a run can be repeated.",
        ),
    )


def output_options() -> Callable[[F], F]:
    """Where results go and how much is said."""
    return _together(
        option(
            HelpGroup.FIRST,
            "--out",
            type=click.Path(path_type=Path),
            help="Folder of the run; running again resumes. [default: runs/TASK]",
        ),
        option(
            HelpGroup.OUTPUT,
            "--store",
            type=click.Path(path_type=Path),
            help="Rollout store. [default: rollouts.db in --out]",
        ),
        option(HelpGroup.OUTPUT, "--json", "as_json", is_flag=True, help="Print the result as JSON on stdout."),
        option(HelpGroup.OUTPUT, "--quiet", is_flag=True, help="No progress and no remarks."),
    )


def rollouts_option() -> Callable[[F], F]:
    """Stores and exports that are read beside the run's own."""
    return option(
        HelpGroup.TASK,
        "--rollouts",
        multiple=True,
        metavar="SOURCE",
        help="Rollouts collected elsewhere, which are read and not asked for again: a store, an export's folder, or the URL of one "
        "(s3://bucket/folder); * stands for several. Can be given several times.",
    )


def spending_options() -> Callable[[F], F]:
    """What the command may spend."""
    return _together(
        option(
            HelpGroup.LIMITS,
            "--max-requests",
            type=click.IntRange(1),
            help="Stop before one more request would be sent.",
        ),
        option(
            HelpGroup.LIMITS,
            "--max-tokens-total",
            type=click.IntRange(1),
            help="Stop before prompts and completions together could pass so many tokens.",
        ),
        option(
            HelpGroup.FIRST,
            "--max-cost",
            type=click.FloatRange(0, min_open=True),
            metavar="USD",
            help="Stop before the price could pass so many US dollars.",
        ),
        option(
            HelpGroup.LIMITS,
            "--prices",
            type=click.Path(path_type=Path),
            help="TOML with prices of your own, which go before those that come along.",
        ),
    )


def limit_options() -> Callable[[F], F]:
    """What the command may spend, whether it asks first, and what it does when something changes."""
    return _together(
        spending_options(),
        option(
            HelpGroup.LIMITS, "--price", help="PROMPT,COMPLETION in US dollars for a million tokens, as in 0.15,0.60."
        ),
        option(
            HelpGroup.LIMITS,
            "--yes",
            is_flag=True,
            help="Do not ask on a terminal before the first request that costs money.",
        ),
        option(
            HelpGroup.LIMITS,
            "--on-drift",
            type=click.Choice(ON_DRIFT),
            help="Stop when another model or system answers, or note it and go on. [default: stop; systems of a provider "
            "with many: note]",
        ),
        option(
            HelpGroup.LIMITS,
            "--restart",
            is_flag=True,
            help="Go on in --out with other settings than those of a run that was not finished.",
        ),
    )
