"""A command whose options are the fields of a model of settings, and whose help lists them in
groups.

A field is an option's one declaration: of the plan of a fit and of what other commands share with
it in ``jobs.plan``, of a command alone beside it.
"""

from __future__ import annotations

import functools
import inspect
import pkgutil
import types
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import (
    Annotated,
    Any,
    Literal,
    TypeVar,
    Union,
    get_args,
    get_origin,
)

import click
import cloup
from annotated_types import Ge, Gt
from pydantic import Field
from pydantic.fields import FieldInfo

from blackbox_lb.cli.completing import COMPLETERS
from blackbox_lb.jobs.plan.setting import HelpGroup, Option, Settings
from blackbox_lb.safety.printable import wrapped

T = TypeVar("T", bound=Settings)
D = TypeVar("D")
AMOUNT = click.FloatRange(0, min_open=True)
PATH = click.Path(path_type=Path)
PLAIN: dict[type, click.ParamType[Any]] = {
    int: click.INT,
    float: click.FLOAT,
    Path: PATH,
    str: click.STRING,
}
"""How the words of an option of one of these kinds are read."""


MOST_USED = (
    *("provider", "model", "base_url", "task", "data", "prompt_column", "answer_column"),
    "reward",
    *("samples_per_prompt", "max_tokens", "save", "rivals", "examples", "max_cost", "out"),
    *("dry_run",),
)
"""Fields under the first heading, in the order in which a newcomer needs them."""


class NumberOr(click.ParamType["float | str"]):
    """A number above 0, or one of some words."""

    def __init__(self, words: Sequence[str]) -> None:
        self.words = words
        self.name = f"number or {' or '.join(words)}"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float | str:
        """The number, or the word."""
        if value in self.words:
            return str(value)
        return float(AMOUNT.convert(value, param, ctx))


class LateChoice(click.Choice[str]):
    """One of the values that ``find`` returns; it is called when a value is read, listed or
    completed.
    """

    def __init__(self, find: Callable[[], Iterable[str]]) -> None:
        self._find = find
        self.case_sensitive = True

    @property
    def choices(self) -> tuple[str, ...]:  # type: ignore[override]  # a plain attribute of click's
        return tuple(self._find())


def argument(**more: Any) -> Any:
    """A field given by an argument of click."""
    described = Field()
    described.metadata.append(functools.partial(click.Argument, **more))
    return described


def _part(described: FieldInfo, kind: type[D]) -> D | None:
    """The part of a field's description that is of this kind."""
    return next((part for part in described.metadata if isinstance(part, kind)), None)


@dataclass(frozen=True, slots=True)
class _Kind:
    """What an annotation says of an option's values.

    parts: the kinds of one value. bounds: on a number. multiple: whether there can be several.
    """

    parts: tuple[Any, ...]
    bounds: tuple[object, ...]
    multiple: bool

    @classmethod
    def of(cls, described: FieldInfo) -> _Kind:
        """That of a field."""
        parts = _parts(described.annotation)
        values = tuple(part for part in parts if part is not type(None))
        if get_origin(values[0]) not in (tuple, Sequence):
            return cls(values, tuple(described.metadata), multiple=False)
        member = get_args(values[0])[0]
        notes = getattr(member, "__metadata__", ())
        bounds = tuple(bound for note in notes for bound in getattr(note, "metadata", ()))
        return cls(_parts(member), bounds, multiple=True)

    @property
    def is_flag(self) -> bool:
        """Whether the option has no value."""
        return self.parts == (bool,)

    @property
    def words(self) -> list[str]:
        """The values of a Literal."""
        literals = [part for part in self.parts if get_origin(part) is Literal]
        return [word for literal in literals for word in get_args(literal)]

    @property
    def param_type(self) -> click.ParamType[Any] | None:
        """How click reads one value."""
        if self.words and float in self.parts:
            return NumberOr(self.words)
        if self.words:
            return click.Choice(self.words)
        for bound in self.bounds:
            if isinstance(bound, Ge) and int in self.parts:
                return click.IntRange(bound.ge)  # type: ignore[arg-type]  # a whole number
            if isinstance(bound, Ge):
                return click.FloatRange(bound.ge)  # type: ignore[arg-type]  # a number
            if isinstance(bound, Gt):
                return AMOUNT
        return PLAIN.get(self.parts[0])


def _parts(annotation: Any) -> tuple[Any, ...]:
    """The parts of a union, without what is noted beside them."""
    if get_origin(annotation) is Annotated:
        return _parts(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        return tuple(part for member in get_args(annotation) for part in _parts(member))
    return (annotation,)


def _made(name: str, described: FieldInfo, option: Option) -> cloup.Option:
    """The option of click for a field."""
    kind = _Kind.of(described)
    param_type = kind.param_type
    if option.kind is not None:
        param_type = PLAIN[option.kind]
    elif option.choices:
        param_type = LateChoice(lambda: pkgutil.resolve_name(option.choices))
    settings: dict[str, Any] = {
        "type": param_type,
        "is_flag": kind.is_flag or None,
        "multiple": kind.multiple,
        "shell_complete": COMPLETERS.get(name),
    }
    default = described.default
    says_nothing = default is None or default is False or default == ()
    if not described.is_required() and not says_nothing:
        settings["default"] = default
    settings |= option.more
    settings.setdefault("show_default", "default" in settings)
    names = option.names or (f"--{name.replace('_', '-')}",)
    return cloup.Option([*names, name], help=described.description, **settings)


def _params(kind: type[Settings]) -> list[click.Parameter]:
    """The parameters of all fields by heading; below one, those of each class stand before those of
    its bases.
    """
    described = kind.model_fields
    names = dict.fromkeys(
        name for base in kind.__mro__ for name in inspect.get_annotations(base) if name in described
    )
    groups = {heading: cloup.OptionGroup(heading) for heading in HelpGroup}
    ranks = {name: rank for rank, name in enumerate(MOST_USED)}
    order = list(groups)
    params: list[tuple[tuple[int, int], click.Parameter]] = []
    for name in names:
        option = _part(described[name], Option)
        argument = _part(described[name], functools.partial)
        if argument is not None:
            params.append(((-1, 0), argument([name])))
            continue
        if option is None and name not in kind.python_only:
            raise TypeError(
                f"{kind.__name__}.{name} has no option; make it with setting() or argument()"
            )
        if option is None:
            continue
        param = _made(name, described[name], option)
        place = (-1, 0)
        if option.group is not None:
            param.group = groups[option.group]
            is_first = option.group is HelpGroup.FIRST
            rank = ranks.get(name, len(ranks)) if is_first else 0
            place = (order.index(option.group), rank)
        params.append((place, param))
    return [param for _, param in sorted(params, key=lambda placed: placed[0])]


class LayeredCommand(cloup.Command):
    """A command whose help shows the options that most people need; ``--help-all`` shows all."""

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The help with all options, or with those of the first heading and how to see the rest."""
        groups = [] if ctx.meta.get(ALL_OPTIONS) else self._further_groups()
        for group in groups:
            group.hidden = True
        try:
            super().format_help(ctx, formatter)
        finally:
            for group in groups:
                group.hidden = False

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """How many options there are beside these, and the example."""
        if not ctx.meta.get(ALL_OPTIONS):
            further = sum(len(group.options) for group in self._further_groups())
            if further:
                formatter.write_paragraph()
                formatter.write_text(f"--help-all shows {further} more options.")
        if self.epilog:
            # click would break a command at its hyphens.
            formatter.write_paragraph()
            formatter.write(f"{wrapped(self.epilog, formatter.width)}\n")

    def _further_groups(self) -> list[cloup.OptionGroup]:
        """The headings after the first one, where the command has the first."""
        groups = [group for group in self.option_groups if group.options]
        if not any(group.title == HelpGroup.FIRST for group in groups):
            return []
        return [group for group in groups if group.title != HelpGroup.FIRST]


ALL_OPTIONS = "blackbox_lb.help_all"
"""Key of a context's ``meta``: whether the help is to show all options."""


def _show_all(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        ctx.meta[ALL_OPTIONS] = True
        from blackbox_lb.cli.echo import echo

        echo(ctx.get_help())
        ctx.exit()


def _help_all() -> click.Option:
    return click.Option(
        ["--help-all"],
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=_show_all,
        help="Show all options and exit.",
    )


def command(
    name: str, kind: type[T], example: str = ""
) -> Callable[[Callable[[T], None]], click.Command]:
    """Make the command ``name``; its function gets all options and arguments as one object of the
    class ``kind``.

    example: a command line for the end of its help.

    TypeError: a field that neither ``setting`` nor :func:`argument` made.
    """

    def decorate(function: Callable[[T], None]) -> click.Command:
        @functools.wraps(function)
        def callback(**values: Any) -> None:
            function(kind(**values))

        params = _params(kind)
        options = [param for param in params if isinstance(param, cloup.Option)]
        titles = {option.group.title for option in options if option.group is not None}
        if titles == {HelpGroup.OUTPUT}:  # a heading alone divides nothing
            for option in options:
                option.group = None
        if HelpGroup.FIRST in titles and len(titles) > 1:
            params.append(_help_all())
        epilog = f"Example:  {example}" if example else None
        return cloup.command(name, cls=LayeredCommand, params=params, epilog=epilog)(callback)

    return decorate
