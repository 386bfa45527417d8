"""Commands whose help lists options in groups, and whose function gets all options as one typed object."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import fields
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeVar

import click
import cloup

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T", bound="DataclassInstance")


class HelpGroup(StrEnum):
    """Headings of the options in a command's help, in the order in which they are printed."""

    FIRST = "Most used"
    TASK = "Data and task"
    MODEL = "Model and API"
    SAMPLING = "Sampling"
    BATCHES = "Batches"
    STORED = "Stored completions"
    LEARNING = "Learning"
    CHOOSING = "Choosing"
    JUDGING = "Judging"
    ANALYSIS = "Analysis"
    LIMITS = "Limits"
    OUTPUT = "Output"


class GroupedOption(cloup.Option):
    """An option whose default may be a function, which the help calls too, and which is not called while a shell completes."""

    def get_default(self, ctx: click.Context, call: bool = True) -> Any:
        """The default, or None where a shell completes and a function would be called."""
        completes = call and ctx.resilient_parsing and callable(self.default)
        return None if completes else super().get_default(ctx, call=True)


class LateChoice(click.Choice[str]):
    """One of the values that ``find`` returns, which is called when a value is read, listed or completed."""

    def __init__(self, find: Callable[[], Iterable[str]]) -> None:
        self._find, self.case_sensitive = find, True

    @property
    def choices(self) -> tuple[str, ...]:  # type: ignore[override]  # a plain attribute of click's
        """The values, in their order."""
        return tuple(self._find())


class GroupedCommand(cloup.Command):
    """A command that prints options with the same heading together, wherever they were declared."""

    def __init__(self, *names: Any, params: list[click.Parameter] | None = None, **more: Any) -> None:
        groups = {heading: cloup.OptionGroup(heading) for heading in HelpGroup}
        for param in params or []:
            if isinstance(param, GroupedOption) and param.group is not None:
                param.group = groups[HelpGroup(param.group.title)]
        super().__init__(*names, params=params, **more)
        self.option_groups = [group for group in groups.values() if group.options]


def option(group: HelpGroup, *names: str, **more: Any) -> Callable[[F], F]:
    """An option under the heading ``group``; the rest is as click has it, but for a default that is a function."""
    return cloup.option(*names, cls=GroupedOption, group=cloup.OptionGroup(group), **more)


def picked(kind: type[T], source: object, **instead: Any) -> T:
    """An object of the dataclass ``kind`` with the fields of ``source`` that have the same names, and others ``instead``."""
    names = [each.name for each in fields(kind)]
    return kind(**{name: instead[name] if name in instead else getattr(source, name) for name in names})


def command(name: str, kind: type[T]) -> Callable[[Callable[[T], None]], click.Command]:
    """The command ``name``, whose function gets all of its options and arguments as one object of the dataclass ``kind``.

    TypeError: a field without an option, or an option without a field.
    """

    def decorate(function: Callable[[T], None]) -> click.Command:
        @functools.wraps(function)
        def callback(**values: Any) -> None:
            function(kind(**values))

        made = click.command(name, cls=GroupedCommand)(callback)
        wanted = {each.name for each in fields(kind)}
        differ = wanted.symmetric_difference(param.name or "" for param in made.params)
        if differ:
            raise TypeError(f"blb {name} and {kind.__name__} do not have the same options: {', '.join(sorted(differ))}")
        return made

    return decorate
