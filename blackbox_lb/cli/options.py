"""Options that several commands share: which model, which task, how to sample, how to print."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, TypeVar

import click

from blackbox_lb.connection import connect
from blackbox_lb.profiles import profile_names
from blackbox_lb.session import Session
from blackbox_lb.tasks import Reward, Task, load_task, parse_reward

__all__ = [
    "STORE",
    "load",
    "model_options",
    "output_options",
    "run_folder",
    "sampling_options",
    "session_of",
    "task_options",
]

F = TypeVar("F", bound=Callable[..., Any])
STORE = "rollouts.db"
"""The rollout store inside a run's folder."""


def _together(*options: Callable[[Any], Any]) -> Callable[[F], F]:
    def decorate(function: F) -> F:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


def model_options() -> Callable[[F], F]:
    """Which model to call, and where."""
    return _together(
        click.option(
            "--provider",
            default="local",
            show_default=True,
            help=f"{', '.join(profile_names())}, or a path to your own TOML.",
        ),
        click.option(
            "--model", help="Model name; for local a .gguf path or a hub name. [default: the server's only model]"
        ),
        click.option("--base-url", help="Address of the API, with its /v1. [default: the provider's]"),
        click.option("--endpoint", type=click.Choice(["chat", "completions"]), default="chat", show_default=True),
        click.option("--concurrency", type=click.IntRange(1), help="Requests in flight. [default: the provider's]"),
    )


def task_options() -> Callable[[F], F]:
    """Prompts, answers and the reward."""
    return _together(
        click.option("--task", help="A built-in task: capitals."),
        click.option(
            "--data", type=click.Path(path_type=Path), help="JSONL or CSV with prompt (or messages) and answer."
        ),
        click.option(
            "--validation-data", type=click.Path(path_type=Path), help="Prompts to choose on. [default: part of --data]"
        ),
        click.option(
            "--test-data", type=click.Path(path_type=Path), help="Prompts to judge on. [default: part of --data]"
        ),
        click.option(
            "--reward",
            required=True,
            help="exact-match, contains, regex:PATTERN, length, log-accuracy, correct-and-short, or module:function.",
        ),
        click.option(
            "--correct", help="What counts as correct: exact-match, contains or regex:PATTERN. [default: the task's]"
        ),
    )


def sampling_options() -> Callable[[F], F]:
    """How completions are drawn."""
    return _together(
        click.option(
            "--max-tokens", type=click.IntRange(1), help="Longest completion, in tokens. [default: the task's]"
        ),
        click.option(
            "--top-logprobs", type=click.IntRange(1), default=20, show_default=True, help="Alternatives listed a token."
        ),
        click.option("--seed", type=click.IntRange(0), help="Sent with every request, so that a run can be repeated."),
    )


def output_options() -> Callable[[F], F]:
    """Where results go and how much is said."""
    return _together(
        click.option(
            "--out",
            type=click.Path(path_type=Path),
            help="Folder of the run; running again resumes. [default: runs/TASK]",
        ),
        click.option("--json", "as_json", is_flag=True, help="Print the result as JSON on stdout."),
        click.option("--quiet", is_flag=True, help="No progress and no remarks."),
    )


def load(options: Mapping[str, Any]) -> tuple[Task, Reward, int]:
    """The task that ``task_options`` name, its reward, and the length limit in tokens."""
    reward, correct = options["reward"], options["correct"]
    needs_answer = parse_reward(reward, max_tokens=1, correct=correct or "contains").needs_answer
    loaded = load_task(
        options["task"], options["data"], options["validation_data"], options["test_data"], require_answers=needs_answer
    )
    limit = options["max_tokens"] or loaded.max_tokens
    return loaded, parse_reward(reward, max_tokens=limit, correct=correct or loaded.correct), limit


def run_folder(out: Path | None, task: Task) -> Path:
    """The folder that holds a run's store, bias and result."""
    return out or Path("runs") / task.name


def session_of(options: Mapping[str, Any], max_tokens: int) -> AbstractAsyncContextManager[Session]:
    """The session that ``model_options`` name."""
    return connect(
        options["provider"],
        model=options["model"],
        base_url=options["base_url"],
        endpoint=options["endpoint"],
        concurrency=options["concurrency"],
        max_tokens=max_tokens,
    )
