"""Output for people: progress with tokens a second and time left, remarks, tables, the conclusion
of a command. Everything but results goes to stderr.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from blackbox_lb.bias.records import BETTER_PROBABILITIES, NOT_THE_TASK
from blackbox_lb.cli.echo import echo_laid_out, for_screen, screen_width, shown
from blackbox_lb.rollouts.progress import Lines, Outlook, Reporter, Silent
from blackbox_lb.safety.printable import shell_line

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

    from blackbox_lb.jobs.runs.conclusion import Conclusion
    from blackbox_lb.rollouts.progress import Shorter, Watcher
    from blackbox_lb.types import Completion


class Terminal:
    """A reporter on stderr: a moving bar on a terminal, else a line now and then.

    verbose: every step of the work, too, and each stage's end.
    """

    def __init__(self, *, verbose: bool = True) -> None:
        from rich.console import Console

        self._verbose = verbose
        self._outlook = Outlook(self.notice)
        self._console = Console(stderr=True, highlight=False, emoji=False)
        self._moves = sys.stderr.isatty() and not self._console.is_dumb_terminal
        self._progress: Progress | None = None

    @contextmanager
    def stage(self, title: str, completions: int) -> Iterator[Watcher]:
        """Show the progress of new completions; report how many were stored already and so not
        asked for.
        """
        if self._moves:
            with self._bar(title, completions) as watch:
                yield watch
            return
        brief = not self._verbose
        lines = Lines(title, completions, self.notice, outlook=self._outlook, brief=brief)
        yield lines
        lines.end()

    @contextmanager
    def _bar(self, title: str, completions: int) -> Iterator[Watcher]:
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
        )

        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}", markup=False),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}", markup=False),
        )
        self._outlook.start()
        with Progress(*columns, console=self._console, transient=not self._verbose) as progress:
            self._progress = progress
            bar = progress.add_task(shown(title), total=completions, rate="", left="")
            tokens = 0

            def watch(completion: Completion) -> None:
                nonlocal tokens
                tokens += completion.n_tokens
                self._outlook.add(completion)
                elapsed = progress.tasks[0].elapsed or 0.0
                rate = ""
                if elapsed > 1:
                    rate = f"{tokens / elapsed:.0f} tokens/s"
                progress.update(bar, advance=1, rate=rate, left=self._outlook.left)

            yield watch
            self._outlook.stop()
            done = progress.tasks[0]
            if done.completed < completions:
                progress.update(
                    bar,
                    completed=completions,
                    rate=f"{completions - int(done.completed)} were stored",
                )
        self._progress = None

    def confirm(self, question: str) -> None:
        """Ask a question; no ends the command (click.Abort). A moving bar stands still
        meanwhile.
        """
        from blackbox_lb.api.limits.concurrency import asking

        bar = self._progress
        if bar is not None:
            bar.stop()
        with asking():
            click.confirm(for_screen(question, err=True), default=True, abort=True, err=True)
        if bar is not None:
            bar.start()

    def notice(self, text: str) -> None:
        """Print one sentence; in a file it stays one line."""
        self._console.print(for_screen(text, err=True), markup=False, soft_wrap=True)

    def detail(self, text: str) -> None:
        """Print one sentence where everything is asked for."""
        if self._verbose:
            self.notice(text)

    def expect(self, completions: int, prompts: int, tokens: int, shorter: Shorter) -> None:
        """Keep what is to come, to say how long it takes."""
        self._outlook.expect(completions, prompts, tokens, shorter)


def reporter(*, quiet: bool, verbose: bool = True) -> Reporter:
    if quiet:
        return Silent()
    return Terminal(verbose=verbose)


FILE_WIDTH = 200
"""Columns of a table that goes into a file or a pipe, unless COLUMNS says otherwise."""
WIDEST = 10_000
"""Columns in which any table fits: to measure one."""
WHOLE = 24
"""Columns of a text up to which it is a label, which is never broken."""


def print_table(
    title: str,
    header: Iterable[str],
    rows: Iterable[Iterable[str]],
    *,
    text_columns: Collection[int] = (0,),
) -> None:
    """Print a table on stdout; ``text_columns`` are the places of text, the others are numbers.

    A number or a label is never broken; prose wraps between words. Where the columns do not fit
    that way, each row becomes a block of ``name: value`` lines.
    """
    from rich import box
    from rich.cells import cell_len
    from rich.measure import Measurement
    from rich.table import Table
    from rich.text import Text

    names = list(header)
    cells = [[shown(cell) for cell in row] for row in rows]
    screen = _screen()
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for place, name in enumerate(names):
        texts = [name, *(row[place] for row in cells)]
        if place in text_columns:
            table.add_column(Text(name), overflow="fold", min_width=_least_width(texts))
        else:
            # Rich measures words, and would break a number with its interval.
            widest = max(cell_len(text) for text in texts)
            table.add_column(Text(name), justify="right", no_wrap=True, min_width=widest)
    for row in cells:
        # A Text is literal: brackets in a token are no markup.
        table.add_row(*(Text(cell) for cell in row))
    screen.print(Text(shown(title), style="bold"))
    unlimited = screen.options.update(max_width=WIDEST)
    if Measurement.get(screen, unlimited, table).minimum <= screen.width:
        screen.print(table)
    else:
        _print_blocks(screen, names, cells)


def _least_width(texts: Iterable[str]) -> int:
    """Columns in which a column of texts breaks no word, and no text of up to ``WHOLE`` columns."""
    from rich.cells import cell_len

    least = 0
    for text in texts:
        length = cell_len(text)
        if length > WHOLE:
            words = (cell_len(word) for word in text.split())
            length = max(WHOLE, min(max(words, default=0), length))
        least = max(least, length)
    return least


def _screen() -> Console:
    """The console for tables; a file has no edge, so rows stay whole there, colours or not."""
    from rich.console import Console

    return Console(highlight=False, emoji=False, width=screen_width() or FILE_WIDTH)


def _print_blocks(screen: Console, names: list[str], rows: list[list[str]]) -> None:
    from rich.text import Text

    for row in rows:
        screen.print()
        for name, cell in zip(names, row, strict=True):
            if cell:
                screen.print(Text(f"{name}: {cell}"))
    screen.print()


COLOURS = {
    "HELPS": "green",
    NOT_THE_TASK: "yellow",
    BETTER_PROBABILITIES: "green",
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


def print_conclusion(conclusion: Conclusion) -> None:
    """Print the lines on stdout, the verdict in its colour on a terminal."""
    from blackbox_lb.jobs.runs.conclusion import WIDTH

    width = min(WIDTH, shutil.get_terminal_size((WIDTH, 24)).columns)
    lines = conclusion.lines(width)
    verdict = conclusion.verdict
    echo_laid_out(lines[0], len(verdict), COLOURS.get(verdict))
    for line in lines[1:]:
        echo_laid_out(line)


def command_with_same(
    command: Sequence[object], more: Iterable[str] = (), names: Iterable[str] | None = None
) -> str:
    """The words of ``command`` in shell syntax with those options of the running command's line
    that it needs, then ``more``. Options that blb.toml or the environment gives need no repeating,
    but a file that the line names is named again.

    names: of the options that it needs; None for those on the task, the model and the judging.
    """
    from blackbox_lb.jobs.plan.shared import DecisionSettings, ModelSettings, TaskSettings

    program, *rest = command
    words: list[str] = []
    ctx = click.get_current_context(silent=True)
    if names is None:
        names = {"deploy", "test_samples", "seed"}.union(
            TaskSettings.model_fields, DecisionSettings.model_fields, ModelSettings.model_fields
        )
        names.remove("concurrency")
    param_names = set(names)
    if ctx is not None:
        root = ctx.find_root()
        if root.get_parameter_source("config") is ParameterSource.COMMANDLINE:
            rest = ["--config", root.params["config"], *rest]
        for param in ctx.command.params:
            if not isinstance(param, click.Option) or param.name not in param_names:
                continue
            if ctx.get_parameter_source(param.name) is ParameterSource.COMMANDLINE:
                words += _spelled(param, ctx.params[param.name])
    return shell_line(program, *rest, *words, *more)


def _spelled(option: click.Option, value: object) -> list[str]:
    name = max(option.opts, key=len)
    if option.is_flag:
        if value:
            return [name]
        return []
    values = value if isinstance(value, tuple) else (value,)
    return [word for single in values for word in (name, str(single))]
