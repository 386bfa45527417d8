"""The door to the terminal: every text goes through ``shown`` before anybody sees it, sentences
through ``echo``, which names options where the library names parameters, and output for programs
is one JSON document.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from functools import cache
from typing import Any

import click
from click.core import ParameterSource

from blackbox_lb.safety.printable import legible, wrapped
from blackbox_lb.safety.secrets import redacted

_PARAMETER = re.compile(r"``([a-z][a-z0-9_]*)(?:=([^`]*))?``")


@cache
def option_names() -> frozenset[str]:
    """The parameter behind every option of every command."""
    from blackbox_lb.cli.commands import COMMANDS, load_command

    names = set()
    commands = [load_command(name) for name in COMMANDS]
    while commands:
        command = commands.pop()
        commands += getattr(command, "commands", {}).values()
        for parameter in command.params:
            for option in (*parameter.opts, *parameter.secondary_opts):
                if option.startswith("--"):
                    names.add(option.removeprefix("--").replace("-", "_"))
    return frozenset(names)


def with_option_names(message: str) -> str:
    """``message`` with options in the place of parameters: ``top_logprobs=0`` in double
    backticks becomes --top-logprobs 0. What names no option stays as it is.
    """
    return _PARAMETER.sub(_option, message)


def _option(parameter: re.Match[str]) -> str:
    name, value = parameter.groups()
    if name not in option_names():
        return parameter[0]
    option = f"--{name.replace('_', '-')}"
    if value is None:
        return option
    return f"{option} {value}"


def shown(text: object) -> str:
    """A text of one or several lines made safe for a terminal.

    Secrets are masked; characters that move the cursor, reverse a line or cannot be seen become
    escapes.
    """
    return legible(redacted(str(text)))


def for_screen(text: object, *, err: bool) -> str:
    """A text as ``echo`` prints it: with the names of options, and no line wider than the
    screen.
    """
    return wrapped(shown(with_option_names(str(text))), screen_width(err=err))


def screen_width(*, err: bool = False) -> int | None:
    """Columns of the terminal behind stdout or stderr, or those that COLUMNS gives; None for a file
    or a pipe without, which has no edge.
    """
    stream = sys.stderr if err else sys.stdout
    if stream.isatty() or "COLUMNS" in os.environ:
        return shutil.get_terminal_size().columns
    return None


def echo(text: object = "", *, err: bool = False, nl: bool = True) -> None:
    """Print a sentence on stdout, or on stderr."""
    click.echo(for_screen(text, err=err), err=err, nl=nl)


def echo_laid_out(text: str, length: int = 0, colour: str | None = None) -> None:
    """Print a line that is laid out already on stdout; on a terminal its first ``length``
    characters are bold, in ``colour``.
    """
    safe = shown(with_option_names(text))
    click.echo(click.style(safe[:length], fg=colour, bold=True) + safe[length:])


def echo_linked(text: str, length: int, address: str) -> None:
    """Print a sentence on stdout; on a terminal its first ``length`` characters are a link to
    ``address`` (the control sequence OSC 8).
    """
    from rich.console import Console
    from rich.style import Style
    from rich.text import Text

    line = Text(shown(with_option_names(text)))
    line.stylize(Style(link=address), 0, length)
    Console(highlight=False, emoji=False).print(line, soft_wrap=True)


def echo_code(code: str, *, nl: bool = True) -> None:
    """Print a program on stdout as it is, but for the names of options and characters that act on a
    terminal.
    """
    click.echo(legible(with_option_names(code)), nl=nl)


def quiet_by_hand() -> bool:
    """Whether the command line says ``--quiet``: no file may ask for silence about what it sets."""
    ctx = click.get_current_context(silent=True)
    if ctx is None or not ctx.params.get("quiet"):
        return False
    return ctx.get_parameter_source("quiet") is ParameterSource.COMMANDLINE


def preset_options() -> dict[str, str]:
    """Option -> value, for options of the running command that come from blb.toml or the
    environment, which its command line does not show.
    """
    ctx = click.get_current_context(silent=True)
    if ctx is None:
        return {}
    presets = (ParameterSource.DEFAULT_MAP, ParameterSource.ENVIRONMENT)
    names = [name for name in ctx.params if ctx.get_parameter_source(name) in presets]
    return {name: str(ctx.params[name]) for name in names}


def is_terminal() -> bool:
    """Whether somebody is there to answer a question."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def print_json(value: Any) -> None:
    """Print one JSON document on stdout, with escapes where the terminal cannot print every
    character.
    """
    readable = (sys.stdout.encoding or "").lower().startswith("utf")
    text = json.dumps(value, indent=2, ensure_ascii=not readable, default=str)
    # Characters outside ASCII only stand in strings, where \\u is the same character.
    click.echo(
        "".join(
            character
            if character == "\n" or character.isprintable()
            else json.dumps(character)[1:-1]
            for character in text
        )
    )
