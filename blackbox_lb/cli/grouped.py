"""A command whose options are the fields of a dataclass, and whose help lists them in groups.

A field is an option's one declaration. Where it sets a parameter of the library, the parameter
declares the default and the values, and :func:`arguments_for` hands the option over.
"""

from __future__ import annotations

import functools
import inspect
import pkgutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    TypeVar,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

import click
import cloup

from blackbox_lb.cli.removed import refuse_removed, refuse_removed_value, with_rivals

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")
C = TypeVar("C")
HEADING = "heading"
"""Key of a field's metadata: the group of its option."""
PARAM = "param"
"""Key of a field's metadata: a function that makes the parameter of click."""
SETS = "sets"
"""Key of a field's metadata: target -> the name of its parameter that the option sets."""
RECORDED = "recorded"
"""Key of a field's metadata: whether the record of a run says the option's value."""
PLAIN_KINDS = ("bool", "int", "float", "str", "Path", "tuple")
"""First words of annotations that click needs no values for."""
COUNT = click.IntRange(1)
AMOUNT = click.FloatRange(0, min_open=True)
PATH = click.Path(path_type=Path)


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
    LIMITS = "Limits"
    OUTPUT = "Output"


MOST_USED = (
    *("provider", "model", "base_url", "task", "data", "reward"),
    *("samples_per_prompt", "max_tokens", "save", "rivals", "examples", "max_cost", "out"),
    *("dry_run",),
)
"""Fields under the first heading, in the order in which a newcomer needs them."""


class GroupedOption(cloup.Option):
    """An option whose default may be a function: the help calls it too, shell completion does
    not.
    """

    def get_default(self, ctx: click.Context, call: bool = True) -> Any:
        """The default, or None where a shell completes and a function would be called."""
        completes = call and ctx.resilient_parsing and callable(self.default)
        if completes:
            return None
        return super().get_default(ctx, call=True)

    def type_cast_value(self, ctx: click.Context, value: Any) -> Any:
        """The value as the option's type. Raises InputError: it is a value no more."""
        refuse_removed_value(self, value)
        return super().type_cast_value(ctx, value)


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


def literal(path: str) -> LateChoice:
    """The values of a Literal, "module:name", imported when they are shown or used."""
    return LateChoice(lambda: get_args(pkgutil.resolve_name(path)))


def option(
    group: HelpGroup | None,
    help: str,
    *names: str,
    sets: str | tuple[str, ...] = (),
    parameter: str | None = None,
    recorded: bool = False,
    **more: Any,
) -> Any:
    """A field given by an option.

    The field's annotation sets the kind: a bool is a flag, a tuple can be given several times, a
    Path is one.

    Args:
        group: the heading in the help.
        help: the text in the help, without the default.
        names: the option's names, ``--like-the-field`` by default.
        sets: the classes or functions, each as "module:name", that get the value as a parameter.
            Where the option is always given, its default is that of the first one's parameter; so
            are its values, where the annotation is a Literal. Either is imported when it is shown
            or used.
        parameter: the parameter's name there, the field's by default.
        recorded: whether the record of a run says the value.
        more: for click.
    """
    targets = (sets,) if isinstance(sets, str) else sets

    def make(name: str, annotation: str) -> click.Option:
        kinds = {"Path": PATH, "int": click.INT, "float": click.FLOAT}
        inferred: dict[str, Any] = {
            "type": next((kind for word, kind in kinds.items() if word in annotation), None),
            "is_flag": annotation == "bool" or None,
            "multiple": annotation.startswith("tuple["),
        }
        if targets and not annotation.startswith(PLAIN_KINDS):
            values = functools.partial(values_of, targets[0], parameter or name)
            inferred["type"] = LateChoice(values)
        is_optional = annotation == "bool" or annotation.endswith("| None")
        if targets and not is_optional and not more.get("required"):
            inferred["default"] = functools.partial(default_of, targets[0], parameter or name)
        settings = inferred | more
        settings.setdefault("show_default", "default" in settings)
        return GroupedOption(
            [*(names or [f"--{name.replace('_', '-')}"]), name], help=help, **settings
        )

    metadata = {
        HEADING: group,
        PARAM: make,
        SETS: dict.fromkeys(targets, parameter),
        RECORDED: recorded,
    }
    return field(metadata=metadata)


def argument(**more: Any) -> Any:
    """A field given by an argument of click."""
    return field(metadata={PARAM: lambda name, _annotation: click.Argument([name], **more)})


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(option, argument))
def options(kind: type[C]) -> type[C]:
    """Make a frozen dataclass of a command's options, with fields made by :func:`option` and
    :func:`argument`.
    """
    return dataclass(frozen=True, kw_only=True)(kind)


def default_of(target: str, parameter: str) -> Any:
    """The default of a parameter of ``target``, "module:name" of a class or function."""
    return inspect.signature(pkgutil.resolve_name(target)).parameters[parameter].default


def values_of(target: str, parameter: str) -> tuple[str, ...]:
    """The values of a parameter of ``target`` that is a Literal or None."""
    hint = get_type_hints(pkgutil.resolve_name(target))[parameter]
    for part in (hint, *get_args(hint)):
        if get_origin(part) is Literal:
            return get_args(part)
    raise TypeError(f"{target} has a parameter {parameter} of {hint}, which is no Literal")


def arguments_for(target: Callable[..., Any], options: DataclassInstance) -> dict[str, Any]:
    """The keyword arguments of a class or function that ``options`` set.

    An option that was not given leaves its parameter out, and so at its default.

    Raises:
        TypeError: no option sets any, as where ``target`` has moved.
    """
    name = f"{target.__module__}:{target.__qualname__}"
    setting = [declared for declared in fields(options) if name in declared.metadata.get(SETS, {})]
    if not setting:
        raise TypeError(f"no option of {type(options).__name__} sets a parameter of {name}")
    arguments = {}
    for declared in setting:
        value = getattr(options, declared.name)
        if value is not None:
            arguments[declared.metadata[SETS][name] or declared.name] = value
    return arguments


def recorded_options(options: DataclassInstance) -> dict[str, Any]:
    """The values of the options that the record of a run says, by field."""
    return {
        declared.name: getattr(options, declared.name)
        for declared in fields(options)
        if declared.metadata.get(RECORDED)
    }


def picked(kind: type[T], source: object, **instead: Any) -> T:
    """An object of the dataclass ``kind`` with the fields of ``source`` that have the same names,
    and others ``instead``.
    """
    names = [field.name for field in fields(kind)]
    return kind(
        **{name: instead[name] if name in instead else getattr(source, name) for name in names}
    )


def _params(kind: type[DataclassInstance]) -> list[click.Parameter]:
    """The parameters of all fields by heading; below one, those of each class stand before those of
    its bases.
    """
    fields_by_name = {described.name: described for described in fields(kind)}
    names = dict.fromkeys(
        name for base in kind.__mro__ for name in vars(base).get("__annotations__", ())
    )
    groups = {heading: cloup.OptionGroup(heading) for heading in HelpGroup}
    ranks = {name: rank for rank, name in enumerate(MOST_USED)}
    order = list(groups)

    def place(name: str) -> tuple[int, int]:
        heading = fields_by_name[name].metadata.get(HEADING)
        first = ranks.get(name, len(ranks)) if heading is HelpGroup.FIRST else 0
        return (-1 if heading is None else order.index(heading)), first

    params = []
    for name in sorted(names, key=place):
        if PARAM not in fields_by_name[name].metadata:
            raise TypeError(
                f"{kind.__name__}.{name} has no option; make it with option() or argument()"
            )
        param = fields_by_name[name].metadata[PARAM](name, fields_by_name[name].type)
        if isinstance(param, GroupedOption):
            param.group = groups.get(fields_by_name[name].metadata[HEADING])
        params.append(param)
    return params


class LayeredCommand(cloup.Command):
    """A command whose help shows the options that most people need; ``--help-all`` shows all."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the words. Raises InputError: one of them is an option no more."""
        if not ctx.resilient_parsing:
            for word in args:
                name = word.partition("=")[0]
                refuse_removed(name)
                refuse_removed(f"{self.name} {name}")
            if self.name == "eval":
                args, replaced = with_rivals(args)
                from blackbox_lb.cli.echo import echo

                for sentence in replaced:
                    echo(f"{sentence} now; the older name goes with the next version", err=True)
        return super().parse_args(ctx, args)

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
        super().format_epilog(ctx, formatter)

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

    TypeError: a field that neither :func:`option` nor :func:`argument` made.
    """

    def decorate(function: Callable[[T], None]) -> click.Command:
        @functools.wraps(function)
        def callback(**values: Any) -> None:
            function(kind(**values))

        params = _params(kind)
        titles = {
            param.group.title
            for param in params
            if isinstance(param, GroupedOption) and param.group is not None
        }
        if HelpGroup.FIRST in titles and len(titles) > 1:
            params.append(_help_all())
        epilog = f"Example:  {example}" if example else None
        return cloup.command(name, cls=LayeredCommand, params=params, epilog=epilog)(callback)

    return decorate
