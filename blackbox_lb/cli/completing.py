"""Shell completions beyond click's own."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path

import click
from click.shell_completion import CompletionItem

from blackbox_lb.jobs.runs.names import ANALYSIS, EVALUATION, RESULT
from blackbox_lb.providers.packaged import profile_names

NO_BIAS = frozenset({ANALYSIS, EVALUATION, RESULT})
"""Other JSON files of a run's folder."""

Completer = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def known(names: Callable[[], Iterable[str]]) -> Completer:
    """Complete one of ``names``; where none fits, any file."""

    def complete(
        ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        return _fitting(names(), incomplete)

    return complete


def task_names() -> list[str]:
    """The built-in tasks, and the prefixes of other names."""
    from blackbox_lb.tasks.load import BUILT_IN, HARNESS

    return [*BUILT_IN, HARNESS]


def reward_names() -> list[str]:
    """The rewards, each up to the part that differs between users."""
    from blackbox_lb.tasks.rewards.registry import FORMS, FUNCTION

    forms = [form for form in FORMS.values() if form is not FUNCTION]
    return [re.split(r"[A-Z\[]", form.spelling, maxsplit=1)[0] for form in forms]


def bias_files(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete a run, or a bias file here or in the runs below; where none fits, any file."""
    runs = [path.parent for path in Path().glob("runs/*/bias.json")]
    paths = [*Path().glob("*.json"), *runs, *Path().glob("runs/*/*.json")]
    return _fitting(
        sorted(path.as_posix() for path in paths if path.name not in NO_BIAS), incomplete
    )


def _fitting(names: Iterable[str], incomplete: str) -> list[CompletionItem]:
    fit = [CompletionItem(name) for name in names if name.startswith(incomplete)]
    return fit or [CompletionItem(incomplete, type="file")]


COMPLETERS: dict[str, Completer] = {
    "provider": known(profile_names),
    "reward": known(reward_names),
    "task": known(task_names),
}
"""Field -> what completes the words of its option in a shell."""
