"""What a person sees: progress with tokens a second and time left, remarks, tables. Everything but results goes to stderr."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import click
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from blackbox_lb.bias import Finding, Scalar, Verdict, printable
from blackbox_lb.collect import Watcher
from blackbox_lb.progress import Reporter, Silent
from blackbox_lb.types import Completion

__all__ = ["Terminal", "findings_list", "print_json", "print_table", "reporter", "settings_text", "verdict_table"]


class Terminal:
    """A reporter on stderr."""

    def __init__(self) -> None:
        self._console = Console(stderr=True, highlight=False)

    @contextmanager
    def stage(self, title: str, completions: int) -> Iterator[Watcher]:
        """A progress bar of new completions; gone when the stage had nothing to ask for."""
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=self._console) as progress:
            bar = progress.add_task(title, total=completions, rate="")
            tokens = 0

            def watch(completion: Completion) -> None:
                nonlocal tokens
                tokens += completion.n_tokens
                elapsed = progress.tasks[0].elapsed or 0.0
                rate = f"{tokens / elapsed:.0f} tokens/s" if elapsed > 1 else ""
                progress.update(bar, advance=1, rate=rate)

            yield watch
            done = progress.tasks[0]
            if done.completed < completions:
                progress.update(bar, completed=completions, rate=f"{completions - int(done.completed)} were stored")

    def remark(self, text: str) -> None:
        """One sentence."""
        self._console.print(text, markup=False)


def reporter(options: Mapping[str, Any]) -> Reporter:
    """A Terminal, or nobody with --quiet."""
    return Silent() if options["quiet"] else Terminal()


def print_json(value: Any) -> None:
    """One JSON document on stdout."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=False, default=str))


FILE_WIDTH = 200
"""Columns of a table that goes into a file or a pipe."""


def print_table(title: str, header: Iterable[str], rows: Iterable[Iterable[str]], *, left: int = 1) -> None:
    """A table on stdout; the first ``left`` columns are text, the others numbers."""
    table = Table(
        title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False
    )
    for place, name in enumerate(header):
        table.add_column(name, justify="left" if place < left else "right", overflow="fold")
    for row in rows:
        table.add_row(*(_plain(cell) for cell in row))
    screen = Console(highlight=False)
    if not screen.is_terminal:  # a file has no edge: rows stay whole
        screen = Console(highlight=False, width=FILE_WIDTH)
    screen.print(table)


def _plain(cell: str) -> Text:
    """A cell as it is: brackets in a token are not markup."""
    return Text(cell)


SMALLEST_P = 0.001
"""Smaller ones are printed as this: the bootstrap resolves no finer."""


def _numbers(row: Verdict) -> tuple[str, str, str, str]:
    """Base, biased, difference and interval: two decimals, or three digits where the row is too small or too large for them."""
    largest = max(map(abs, (row.base, row.biased, row.difference, row.low, row.high)))
    form = ".2f" if largest == 0 or 0.1 <= largest < 100_000 else ".3g"
    low, high = f"{row.low:+{form}}", f"{row.high:+{form}}"
    return f"{row.base:{form}}", f"{row.biased:{form}}", f"{row.difference:+{form}}", f"{low} to {high}"


def verdict_table(verdicts: Iterable[Verdict]) -> None:
    """Base against biased, one row a setting and metric; p is adjusted for the number of rows."""
    print_table(
        "Test prompts, base against biased",
        ("setting", "metric", "base", "biased", "diff", "95 % interval", "p", "verdict"),
        (
            (
                row.setting.replace("temperature ", "T = "),
                printable(row.metric),
                *_numbers(row),
                f"{row.p:.3f}" if row.p >= SMALLEST_P else f"<{SMALLEST_P:g}",
                row.verdict,
            )
            for row in verdicts
        ),
        left=2,
    )


def settings_text(settings: Mapping[str, Scalar]) -> str:
    """The settings of an estimator that are set, safe to print."""
    told = ((name, value) for name, value in settings.items() if value is not None)
    return printable(
        ", ".join(f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}" for name, value in told)
    )


def findings_list(findings: Iterable[Finding], *, everything: bool = False) -> None:
    """What was found out about the fit: the first finding, the test's, all that are a reason to worry, or ``everything``."""
    rows = list(findings)
    if rows:
        click.echo(
            "Checks of the fit (FAIL: a reason why the bias may not help; INCONCLUSIVE: too little data to tell):"
        )
    for rank, each in enumerate(rows):
        if everything or rank == 0 or each.word == "FAIL" or each.code == "test":
            remedy = f"; {each.remedy}" if each.remedy and each.word != "PASS" else ""
            click.echo(f"{each.word:12} {printable(each.code)}: {printable(each.sentence)}{printable(remedy)}")
