"""The door to the terminal: every text goes through ``shown`` before anybody sees it, and sentences
through ``echo``, which names options where the library names parameters.
"""

from __future__ import annotations

import sys

import click
from click.core import ParameterSource

from blackbox_lb.cli.option_names import with_option_names
from blackbox_lb.safety.printable import legible
from blackbox_lb.safety.secrets import redacted


def shown(text: object) -> str:
    """A text of one or several lines made safe for a terminal.

    Secrets are masked; characters that move the cursor, reverse a line or cannot be seen become
    escapes.
    """
    return legible(redacted(str(text)))


def echo(text: object = "", *, err: bool = False, nl: bool = True) -> None:
    """Print a sentence on stdout, or on stderr, with the names of options."""
    click.echo(shown(with_option_names(str(text))), err=err, nl=nl)


def echo_coloured(text: str, length: int, colour: str | None) -> None:
    """Print a sentence on stdout; on a terminal its first ``length`` characters are bold, in
    ``colour``.
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


def is_terminal() -> bool:
    """Whether somebody is there to answer a question."""
    return sys.stdin.isatty() and sys.stderr.isatty()
