"""Progress of long work: stages with a known number of completions, and remarks. Silent without a
listener.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    from blackbox_lb.types import Completion

SMALLEST_P = 0.001
"""Smallest p-value that is displayed: the bootstrap resolves no finer."""


class Reporter(Protocol):
    """A display of progress for a person."""

    def stage(self, title: str, completions: int) -> AbstractContextManager[Watcher]:
        """A stage of at most ``completions`` new completions; call the watcher with each."""

    def notice(self, text: str) -> None:
        """One sentence that the user should read."""


class Silent:
    @contextmanager
    def stage(self, title: str, completions: int) -> Iterator[Watcher]:
        yield lambda completion: None

    def notice(self, text: str) -> None:
        """Ignore the remark."""


def number(value: float, *, decimals: int = 2, sign: bool = False) -> str:
    """A number for display: so many decimals, or three digits where those would be too few or too
    many.

    sign: whether a plus is shown.
    """
    form = ".3g"
    if value == 0 or 0.01 <= abs(value) < 100_000:
        form = f".{decimals}f"
    if sign:
        form = f"+{form}"
    return f"{value:{form}}"


def short(value: float, *, sign: bool = False) -> str:
    """A number for display with three decimals; see ``number``."""
    return number(value, decimals=3, sign=sign)


def chance(p: float) -> str:
    """A p-value for display."""
    if p < SMALLEST_P:
        return f"<{SMALLEST_P:g}"
    return f"{p:.3f}"


class Lines:
    """Progress in lines: a line at every tenth of the stage, at most one in 5 s, at least one
    in 30 s, and one at its end.
    """

    SHORTEST = 5.0
    LONGEST = 30.0

    def __init__(
        self,
        title: str,
        total: int,
        say: Callable[[str], object],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._title = title
        self._total = total
        self._say = say
        self._clock = clock
        self._done = self._tokens = self._tenth = 0
        self._begin = self._said = clock()

    def __call__(self, completion: Completion) -> None:
        self._done += 1
        self._tokens += completion.n_tokens
        tenth = 10 * self._done // max(self._total, 1)
        silent = self._clock() - self._said
        if (silent >= self.SHORTEST and tenth > self._tenth) or silent >= self.LONGEST:
            self._tell(f", {_clock_text(self._left())} left")
            self._tenth = tenth
            self._said = self._clock()

    def end(self) -> None:
        stored = self._total - self._done
        more = ""
        if stored > 0:
            more = f", {stored:,} were stored"
        self._tell(more)

    def _left(self) -> float:
        return (self._clock() - self._begin) / max(self._done, 1) * (self._total - self._done)

    def _tell(self, more: str) -> None:
        spent = self._clock() - self._begin
        rate = ""
        if spent > 1 and self._tokens:
            rate = f", {self._tokens / spent:.0f} tokens/s"
        self._say(
            f"{self._title}: {self._done:,} of {self._total:,} in {_clock_text(spent)}{rate}{more}"
        )


def _clock_text(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a stage is: ``done`` of ``total`` new completions."""

    stage: str
    done: int
    total: int


class Calling:
    """A reporter that calls a function with each step of progress and passes sentences to
    ``say``.
    """

    def __init__(
        self, on_progress: Callable[[Progress], object], say: Callable[[str], object]
    ) -> None:
        self._on_progress = on_progress
        self._say = say

    @contextmanager
    def stage(self, title: str, completions: int) -> Iterator[Watcher]:
        """Call with 0 of ``completions``, then after each one."""
        done = 0
        self._on_progress(Progress(title, done, completions))

        def watch(completion: Completion) -> None:
            nonlocal done
            done += 1
            self._on_progress(Progress(title, done, completions))

        yield watch

    def notice(self, text: str) -> None:
        """Pass the sentence on."""
        self._say(text)


class Printing:
    """A reporter that writes lines with ``say``."""

    def __init__(self, say: Callable[[str], object]) -> None:
        self._say = say

    @contextmanager
    def stage(self, title: str, completions: int) -> Iterator[Watcher]:
        """A line now and then, and one at the end."""
        lines = Lines(title, completions, self._say)
        yield lines
        lines.end()

    def notice(self, text: str) -> None:
        """Write the sentence."""
        self._say(text)


Watcher: TypeAlias = "Callable[[Completion], None]"
"""Called with every completion as it arrives, to show progress."""
