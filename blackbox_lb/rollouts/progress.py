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

    def detail(self, text: str) -> None:
        """One sentence on how it is done, for the record and for who asks for every number."""

    def expect(self, completions: int, prompts: int, tokens: int, shorter: Shorter) -> None:
        """What the whole command draws: completions, the tokens of their ``prompts``, and their own
        tokens at most.
        """


class Silent:
    """A reporter that shows nothing; the record has every remark."""

    @contextmanager
    def stage(self, title: str, completions: int) -> Iterator[Watcher]:
        yield lambda completion: None

    def notice(self, text: str) -> None:
        """Ignore the remark."""

    def detail(self, text: str) -> None:
        """Ignore the remark."""

    def expect(self, completions: int, prompts: int, tokens: int, shorter: Shorter) -> None:
        """Ignore what is to come."""


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


FIRST = 8
"""Completions by which the time of a command is measured, at least."""
WARM = 5.0
"""Seconds of which the completions are not measured: the first ones of a server are slow."""
SHOWN = 2.0
"""Seconds of stages from which the time that is left is shown."""
AFTER = 20.0
"""Seconds that are measured, at least."""
LONG = 900.0
"""Seconds above which a shorter plan is offered."""


def duration(seconds: float) -> str:
    """Seconds up to two minutes, then minutes, then hours and minutes."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 120:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min"


READ = 8
"""Tokens of a prompt that are read in the time of one that is written, on a processor without an
accelerator.
"""


def work(prompts: float, tokens: float) -> float:
    """What completions cost in units of the time of a written token: for the tokens of their
    ``prompts``, and for their own.
    """
    return prompts / READ + tokens


class Outlook:
    """How long a command takes in all, by what its completions have taken so far."""

    DUE = 30.0

    def __init__(
        self, say: Callable[[str], object], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._say = say
        self._clock = clock
        self._expected = (0, 0, 0)
        self._shorter: Shorter = _no_shorter
        self._begin: float | None = None
        self._stage: float | None = None
        self._drawn = 0.0
        self._due = self.DUE
        self._is_said = False
        self._from = (0.0, 0, 0.0)
        self._done = 0
        self._tokens = 0
        self._sampled = 0
        self._sampled_tokens = 0

    def expect(self, completions: int, prompts: int, tokens: int, shorter: Shorter) -> None:
        """Begin with what is to come; see ``Reporter``."""
        self._expected = (completions, prompts, tokens)
        self._shorter = shorter

    def start(self) -> None:
        """Begin to measure a stage; between stages nothing is drawn."""
        self._stage = self._clock()
        if self._begin is None:
            self._begin = self._stage

    def stop(self) -> None:
        """End the stage."""
        self._drawn = self._spent
        self._stage = None

    def add(self, completion: Completion) -> None:
        """Count a completion; say the time of the whole command after the first ones."""
        self._done += 1
        self._tokens += completion.n_tokens
        if completion.n_tokens > 1:
            self._sampled += 1
            self._sampled_tokens += completion.n_tokens
        if self._done == 1 or self._spent < WARM:
            self._from = (self._spent, self._done, self._finished)
        since, before, _ = self._from
        measured = self._done - before >= FIRST and self._spent - since >= AFTER
        if measured and not self._is_said and self._expected[0] > self._done:
            self._is_said = True
            seconds = self._spent + (self._total - self._finished) * self._second
            text = f"about {duration(seconds)} in all, by the first {self._done:,} completions"
            if self._sampled:
                text += f" ({self._tokens / self._spent:.0f} tokens/s)"
            if seconds > LONG:
                text += self._shorter(self._second, self._share)
            self._say(text)

    @property
    def _spent(self) -> float:
        """Seconds of all stages."""
        if self._stage is None:
            return self._drawn
        return self._drawn + self._clock() - self._stage

    @property
    def _second(self) -> float:
        """Seconds of a unit of work."""
        since, _, finished = self._from
        if self._finished <= finished:
            return self._spent / max(self._finished, 1.0)
        return (self._spent - since) / (self._finished - finished)

    @property
    def _finished(self) -> float:
        """The work that is done."""
        completions, prompts, _ = self._expected
        read = prompts * self._done / max(completions, 1)
        return work(read, self._tokens)

    @property
    def _total(self) -> float:
        _, prompts, tokens = self._expected
        return work(prompts, self._share * tokens)

    @property
    def _share(self) -> float:
        """Tokens of a sampled completion, as a share of those that all have on average at most."""
        completions, _, tokens = self._expected
        if not self._sampled or not tokens:
            return 1.0
        return min(self._sampled_tokens / self._sampled * completions / tokens, 1.0)

    @property
    def left(self) -> str:
        """The time left of the whole command; "" where it is not known yet."""
        rest = self._total - self._finished
        if not self._done or self._spent < SHOWN or rest <= 0:
            return ""
        return f"about {duration(rest * self._second)} left"

    def is_due(self) -> bool:
        """Whether a line on the progress is due: after 30 s, 1 min, 2 min, 4 min, ..."""
        elapsed = self._clock() - (self._begin or 0.0)
        if elapsed < self._due:
            return False
        while self._due <= elapsed:
            self._due *= 2
        return True


def _no_shorter(second: float, share: float) -> str:
    return ""


class Lines:
    """Progress in lines: after 30 s of the command, 1 min, 2 min and so on; and unless it is
    ``brief``, one at the end of the stage.
    """

    def __init__(
        self,
        title: str,
        total: int,
        say: Callable[[str], object],
        clock: Callable[[], float] = time.monotonic,
        outlook: Outlook | None = None,
        brief: bool = False,
    ) -> None:
        self._title = title
        self._total = total
        self._say = say
        self._clock = clock
        self._outlook = outlook or Outlook(say, clock)
        self._brief = brief
        self._done = 0
        self._tokens = 0
        self._begin = clock()
        self._outlook.start()

    def __call__(self, completion: Completion) -> None:
        self._done += 1
        self._tokens += completion.n_tokens
        self._outlook.add(completion)
        if self._outlook.is_due():
            self._tell(f", {self._outlook.left}".rstrip(", "))

    def end(self) -> None:
        self._outlook.stop()
        if self._brief:
            return
        stored = self._total - self._done
        more = ""
        if stored > 0:
            more = f", {stored:,} were stored"
        self._tell(more)

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


class Calling(Silent):
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


class Printing(Silent):
    """A reporter that writes a few lines with ``say``."""

    def __init__(self, say: Callable[[str], object]) -> None:
        self._say = say
        self._outlook = Outlook(say)

    @contextmanager
    def stage(self, title: str, completions: int) -> Iterator[Watcher]:
        """A line now and then."""
        lines = Lines(title, completions, self._say, outlook=self._outlook, brief=True)
        yield lines
        lines.end()

    def notice(self, text: str) -> None:
        """Write the sentence."""
        self._say(text)

    def expect(self, completions: int, prompts: int, tokens: int, shorter: Shorter) -> None:
        """Keep what is to come, to say how long it takes."""
        self._outlook.expect(completions, prompts, tokens, shorter)


Watcher: TypeAlias = "Callable[[Completion], None]"
"""Called with every completion as it arrives, to show progress."""
Shorter: TypeAlias = "Callable[[float, float], str]"
"""Seconds of a unit of work, and the share of a limit that completions have -> the end of a
sentence on a plan that takes less time; "" where there is none.
"""
