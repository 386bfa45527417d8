"""The conclusion of a command on the terminal, and the commands that may follow it."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Iterable

import click
from click.core import ParameterSource

from blackbox_lb.cli.echo import echo, echo_coloured
from blackbox_lb.jobs.runs.conclusion import WIDTH, Conclusion

COLOURS = {
    "HELPS": "green",
    "YES": "green",
    "HURTS": "red",
    "NO": "red",
    "NO EVIDENCE": "yellow",
    "PERHAPS": "yellow",
    "BY PROMPT": "yellow",
    "BY GOAL": "yellow",
    "NOT NEEDED": "yellow",
    "UNVERIFIED": "yellow",
    "HOLDS": "green",
    "NOT SHOWN": "yellow",
    "BROKEN": "red",
    "STEADY": "green",
    "DRIFTED": "red",
}
"""Verdict -> its colour on a terminal."""
SAME = (
    *("task", "data", "prompt_column", "answer_column", "messages_column", "prompt_template"),
    *("field", "prefill", "system", "validation_data", "test_data", "reward", "correct"),
    *("thinking", "count", "labels", "decide", "tools", "provider", "model", "base_url"),
    *("endpoint", "tokenizer", "max_tokens", "deploy"),
)
"""Options of the running command that the next one needs, too."""


def print_conclusion(conclusion: Conclusion) -> None:
    """Print the lines on stdout, the verdict in its colour on a terminal."""
    width = min(WIDTH, max(shutil.get_terminal_size((WIDTH, 24)).columns, 40))
    lines = conclusion.lines(width)
    verdict = conclusion.verdict
    echo_coloured(lines[0], len(verdict), COLOURS.get(verdict))
    for line in lines[1:]:
        echo(line)


def command_with_same(command: str, more: Iterable[str] = (), names: Iterable[str] = SAME) -> str:
    """``command`` in shell syntax with the options of the running command's line that it needs,
    then ``more``. Options that blb.toml or the environment gives need no repeating.
    """
    words: list[str] = []
    ctx = click.get_current_context(silent=True)
    param_names = set(names)
    if ctx is not None:
        for param in ctx.command.params:
            if not isinstance(param, click.Option) or param.name not in param_names:
                continue
            if ctx.get_parameter_source(param.name) is ParameterSource.COMMANDLINE:
                words += _spelled(param, ctx.params[param.name])
    return " ".join([command, shlex.join(words), *more]).replace("  ", " ").strip()


def _spelled(option: click.Option, value: object) -> list[str]:
    name = max(option.opts, key=len)
    if option.is_flag:
        if value:
            return [name]
        return []
    values = value if isinstance(value, tuple) else (value,)
    return [word for single in values for word in (name, str(single))]
