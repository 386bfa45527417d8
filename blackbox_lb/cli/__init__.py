"""The command ``blb``: one file a command, loaded on the call."""

from __future__ import annotations

import copy
import errno
import functools
import gc
import io
import os
import shutil
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from blackbox_lb._version import __version__
from blackbox_lb.cli.commands import COMMANDS, GROUPS, load_command
from blackbox_lb.cli.echo import echo, for_screen, quiet_by_hand
from blackbox_lb.errors import BlbError, Interrupted
from blackbox_lb.safety.printable import suggestion_last

if TYPE_CHECKING:
    from blackbox_lb.cli.settings import SettingsFile

__all__ = ["main"]


NARROWEST = 40
"""Columns that help, conclusions and tables need at least, whatever a terminal says it has."""
HELP = "help"
"""``blb help fit`` is ``blb fit --help``."""
INTERRUPTED = 130
"""The exit code after Ctrl-C: that of a program ended by SIGINT."""

ONE_BLAS_THREAD = ("OPENBLAS_NUM_THREADS", "1")
"""numpy's matrix products are small here, and our own threads divide the positions. Threads of
OpenBLAS wait for each other actively: beside a busy engine on two cores the inverse of a matrix of
300 took 160 ms with two of them and 5 ms with one.
"""
YOUNG_OBJECTS = 100_000
"""Objects made before garbage is looked for. With Python's 700 a fit of short answers spends a
tenth of its time looking through modules and vocabulary, and finds next to nothing.
"""


class Commands(click.Group):
    """Imports a command when it is called, so that ``blb --help`` answers at once; prints our
    errors as one sentence.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, imported now."""
        if cmd_name in COMMANDS:
            return load_command(cmd_name)
        return None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The commands by what they are for, without importing any."""
        for heading, commands in GROUPS.items():
            with formatter.section(heading):
                formatter.write_dl(list(commands.items()))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command, with the values in blb.toml as the defaults of its options."""
        if args[0] == HELP and not ctx.resilient_parsing:
            if len(args) == 1:
                echo(ctx.get_help())
                ctx.exit()
            args = [*args[1:], "--help"]
        if not args[0].startswith("-") and args[0] not in COMMANDS and not ctx.resilient_parsing:
            from blackbox_lb.safety.printable import did_you_mean, shorten

            hint = did_you_mean(args[0], COMMANDS)
            ctx.fail(f"No such command {shorten(args[0])}{hint or '.'}")
        name, command, rest = super().resolve_command(ctx, args)
        if (
            name is None
            or command is None
            or ctx.resilient_parsing
            or {"-h", "--help", "--help-all"}.intersection(rest)
        ):
            return name, command, rest
        from blackbox_lb.cli.settings import find_settings

        settings = find_settings(ctx.params.get("config"))
        if settings.path is None:
            return name, command, rest
        ctx.default_map = {name: settings.of(name, command, rest)}
        telling = copy.copy(command)
        telling.callback = functools.partial(_run_with, settings, command.callback)
        return name, telling, rest

    def make_context(self, *arguments: Any, **options: Any) -> click.Context:
        """The context of the program itself, of whose options an error is printed as any other."""
        try:
            return super().make_context(*arguments, **options)
        except click.ClickException as error:
            raise _for_screen(error) from error

    def main(self, *arguments: Any, **options: Any) -> Any:
        """Run the program. An error of the system that no command has explained, because it stopped
        the output or hit the limit on open files, is one sentence and exit code 2, too.
        """
        try:
            return super().main(*arguments, **options)
        except OSError as error:
            sentence = _of_the_system(error)
            if sentence is None:
                raise
            _drop_output()
            with suppress(OSError):
                echo(f"Error: {sentence}", err=True)
            sys.exit(2)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; an error of our tree ends it with its sentence and exit code 2, Ctrl-C
        with one and 130.
        """
        from blackbox_lb.safety.secrets import guarded

        os.environ.setdefault(*ONE_BLAS_THREAD)
        gc.set_threshold(YOUNG_OBJECTS)
        _print_anywhere()
        try:
            with guarded():
                return super().invoke(ctx)
        except Interrupted as error:
            echo(f"\n{error}", err=True)
            ctx.exit(INTERRUPTED)
        except BlbError as error:
            echo(f"Error: {suggestion_last(_sentence(error))}", err=True)
            ctx.exit(2)
        except click.MissingParameter as error:
            if error.param is not None and error.param.name == "reward":
                from blackbox_lb.tasks.rewards.registry import spellings

                error.message = f"Name one: {spellings()}; blb rewards says what each does"  # type: ignore[misc]  # final for subclasses, and what is printed
            raise _for_screen(error) from error
        except click.ClickException as error:
            raise _for_screen(error) from error
        except (KeyboardInterrupt, click.Abort) as error:
            if isinstance(error, click.Abort) and not isinstance(
                error.__context__, KeyboardInterrupt
            ):
                raise
            echo(f"\nInterrupted{_what_is_left(ctx, self)}", err=True)
            ctx.exit(INTERRUPTED)


def _for_screen(error: click.ClickException) -> click.ClickException:
    """An error of click with its message as it is printed."""
    begin = "Error: "
    full = f"{begin}{suggestion_last(error.format_message())}"
    message = for_screen(full, err=True).removeprefix(begin)
    if isinstance(error, click.UsageError):
        return click.UsageError(message, error.ctx)
    return click.ClickException(message)


OUTPUT_FAULTS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)
"""Numbers of the system's errors of an output that takes no more."""


def _of_the_system(error: OSError) -> str | None:
    """The sentence on an error of the system that reached the top; None for one that is not known
    there.
    """
    from blackbox_lb.safety.files import has_too_many, remedy_for_too_many
    from blackbox_lb.safety.printable import shorten

    if has_too_many(error):
        return f"{error.strerror}; {remedy_for_too_many()}"
    if error.errno == errno.ENAMETOOLONG:
        return f"{shorten(str(error.filename))}: {error.strerror}; give the path of a file"
    if error.errno == errno.ENOENT and error.filename is None:
        return "the working directory is not there any more; go to another"
    # Whatever a command writes into files of its own it explains itself.
    if error.errno in OUTPUT_FAULTS and error.filename is None:
        return f"cannot write the output: {error.strerror}; send it where there is room"
    return None


def _drop_output() -> None:
    """Send what is left of the output nowhere: Python would try to write it once more at its
    end.
    """
    with suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def _sentence(error: BlbError) -> str:
    """The message of an error; its remedy is another one where no more files may be opened."""
    from blackbox_lb.safety.files import has_too_many, remedy_for_too_many

    remedy = remedy_for_too_many()
    if not has_too_many(error) or remedy in str(error):
        return str(error)
    return f"{str(error).partition('; ')[0]}; {remedy}"


def _run_with(
    settings: SettingsFile, callback: Callable[..., Any] | None, /, *arguments: Any, **options: Any
) -> Any:
    """Run the command with a settings file: refuse what that may not set, and print what it set."""
    ctx = click.get_current_context()
    settings.check_found(ctx)
    option_names = [
        max(param.opts, key=len)
        for param in ctx.command.params
        if ctx.get_parameter_source(param.name or "") is click.core.ParameterSource.DEFAULT_MAP
    ]
    if option_names and not quiet_by_hand():
        echo(f"{settings.path} gives {', '.join(option_names)}", err=True)
    if callback:
        return callback(*arguments, **options)
    return None


def _what_is_left(ctx: click.Context, group: Commands) -> str:
    """A sentence on the data that a cut-off command keeps: one with a store resumes."""
    command = group.get_command(ctx, ctx.invoked_subcommand or "")
    resumes = command is not None and {"out", "store"} <= {param.name for param in command.params}
    if resumes:
        return ": what was received is kept, and the same command goes on from there"
    return ""


def _print_anywhere() -> None:
    """Print a character that the terminal's encoding lacks as an escape, instead of ending the
    run; forget a size of the screen that is none, in which tables would vanish, and take one that
    no word fits in for the narrowest that is written for.
    """
    for name in ("COLUMNS", "LINES"):
        size = os.environ.get(name, "")
        if not (size.isascii() and size.isdigit() and size.strip("0")):
            os.environ.pop(name, None)
    if shutil.get_terminal_size().columns < NARROWEST:
        os.environ["COLUMNS"] = str(NARROWEST)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and not stream.encoding.lower().startswith("utf"):
            stream.reconfigure(errors="backslashreplace")


@click.group(
    cls=Commands,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "max_content_width": 110,
        "auto_envvar_prefix": "BLB",
    },
    epilog=(
        "Exit codes: 0 done; 1 not confirmed (doctor), or you said no; 2 an error, said in one"
        " sentence; 130 interrupted by Ctrl-C or SIGTERM."
    ),
)
@click.version_option(__version__, prog_name="blb", allow_from_autoenv=False)
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    help="File with values of options; a named one may set them all. [default: blb.toml here or in"
    " a folder above]",
)
def main(config: Path | None) -> None:
    """Adapt a language model that can only be called through an API.

    blb samples completions with token logprobs from an inference API, scores them with a reward,
    learns one logit-bias vector, and proves on fresh samples whether it helps. Try it without a key
    or a GPU:

        blb fit --provider local --task continents --reward accuracy

    Any option of a command may stand in blb.toml (blb init writes one) or in an environment
    variable such as BLB_FIT_TAU.
    """
