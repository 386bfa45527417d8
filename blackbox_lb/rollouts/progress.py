"""Progress of long work: stages with a known number of completions, and remarks. Silent without a
listener.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
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


def short(value: float) -> str:
    """A number for display: three decimals, or three digits where those would be too few or too
    many.
    """
    return f"{value:.3f}" if value == 0 or 0.01 <= abs(value) < 100_000 else f"{value:.3g}"


def chance(p: float) -> str:
    """A p-value for display."""
    return f"{p:.3f}" if p >= SMALLEST_P else f"<{SMALLEST_P:g}"


Watcher: TypeAlias = "Callable[[Completion], None]"
"""Called with every completion as it arrives, to show progress."""
