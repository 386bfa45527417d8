"""``blb.toml``: the value of any option in a file, below the command line and the environment."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from blackbox_lb.cli.commands import COMMANDS, load_command
from blackbox_lb.cli.found import is_data
from blackbox_lb.errors import InputError
from blackbox_lb.safety.files import exists, expanded
from blackbox_lb.safety.printable import did_you_mean, near_or_listed, shell_line
from blackbox_lb.safety.untrusted import read_settings

FILE = "blb.toml"
SHARED = "defaults"
"""The table of all commands."""
PER_COMMAND = frozenset({"out", "save"})
"""Options whose meaning differs between commands (a folder here, a file there), so that no shared
value can be right.
"""
EITHER_OR = (
    {"task"},
    {
        *("data", "validation_data", "test_data", "field", "prefill"),
        *("prompt_column", "answer_column", "messages_column", "prompt_template"),
    },
)
"""Pairs of options: with one set on the command line, the file's value of the other is ignored."""
OF_THE_PROVIDER = frozenset({"base_url", "model", "endpoint", "tokenizer"})
"""Options that belong to the file's provider: its key must not go to another provider's address."""
ROOT = 0
FILES = (".toml", ".json", ".jsonl", ".ndjson", ".csv", ".tsv", ".txt", ".parquet", ".gguf")
"""Endings of values read as file names, also after = or a colon: mine.toml, judge:judge.toml,
short=b.json.
"""


def key_of(option: click.Option) -> str:
    """The option's name in the file: its long name with underscores, as in ``top_logprobs``."""
    return max(option.opts, key=len).lstrip("-").replace("-", "_")


def keys_of(command: click.Command) -> dict[str, click.Option]:
    """Key -> option, for all options that a file may set; ``--help`` is none."""
    options = [param for param in command.params if isinstance(param, click.Option)]
    return {key_of(option): option for option in options if option.expose_value}


@dataclass(frozen=True)
class SettingsFile:
    """The contents of a file; ``path`` is None where there is no file. ``tables``: name of the
    table -> key -> value.

    ``named``: by the user, with --config or BLB_CONFIG; a file that is merely found may set only
    data (see ``is_data``).
    """

    path: Path | None = None
    tables: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, repr=False)
    named: bool = True

    def of(
        self, name: str, command: click.Command, arguments: Sequence[str] = ()
    ) -> dict[str, Any]:
        """Parameter name -> value for the command ``name``, its own table before the shared one.

        ``arguments``: those of the command line. Raises InputError: an unknown key or table, or a
        value of the wrong kind.
        """
        self._check_tables()
        options = keys_of(command)
        defaults = dict[str, Any]()
        away = _displaced(name, arguments) | self._of_another_provider(name, arguments)
        for table in (SHARED, name):
            for raw, value in self.tables.get(table, {}).items():
                key = raw.replace("-", "_")
                self._check_key(table, raw, key, options)
                if key in options and key not in away:
                    for rival in _other_side([key]):
                        defaults.pop(rival, None)
                    option = options[key]
                    defaults[option.name or key] = self._converted(table, raw, value, option, name)
        return {key: value for key, value in defaults.items() if value is not None}

    def _of_another_provider(self, name: str, arguments: Sequence[str]) -> frozenset[str]:
        """Options that belong to the file's provider, where the command line names another one."""
        provider = _provider(name, arguments)
        ours = self.tables.get(name, {}).get(
            "provider", self.tables.get(SHARED, {}).get("provider")
        )
        if provider and ours and provider != ours:
            return OF_THE_PROVIDER
        return frozenset()

    def _check_tables(self) -> None:
        tables = [SHARED, *sorted(COMMANDS)]
        for name, table in self.tables.items():
            if not isinstance(table, Mapping):
                raise InputError(
                    f"{self.path}: {name} stands outside a table; put it under [{SHARED}], or under"
                    " [fit] for blb fit alone"
                )
            if name not in tables:
                raise InputError(
                    f"{self.path}: there is no command for the table"
                    f" [{name}]{near_or_listed(name, tables, 'tables are')}"
                )

    def _check_key(self, table: str, raw: str, key: str, options: Collection[str]) -> None:
        if table == SHARED and key in PER_COMMAND:
            raise InputError(
                f"{self.path}: [{table}] {raw} means something else in each command; put it under"
                " the command's own table, as in [fit]"
            )
        keys = set(options) if table != SHARED else set(options).union(*_all_keys())
        if key not in keys:
            where = "no command has an option"
            listed = "blb COMMAND --help-all"
            if table != SHARED:
                where = f"blb {table} has no option"
                listed = f"blb {table} --help-all"
            raise InputError(
                f"{self.path}: [{table}] {raw}: {where}"
                f" --{raw.replace('_', '-')}{did_you_mean(key, keys)}; {listed} lists the options"
            )

    def check_found(self, ctx: click.Context) -> None:
        """Refuse values that a file which is merely found may not set (see ``is_data``).

        What counts is the value that the command is about to get: one that the command line or the
        environment gives instead of the file's is none of its.

        Args:
            ctx: of the command, with its parameters read.

        Raises:
            InputError: names each such value, and how to name the file.
        """
        if self.named or self.path is None:
            return
        refused = []
        for option in ctx.command.params:
            if not isinstance(option, click.Option) or option.name is None:
                continue
            if ctx.get_parameter_source(option.name) is not ParameterSource.DEFAULT_MAP:
                continue
            value = ctx.params[option.name]
            is_choice = isinstance(option.type, click.Choice)
            if not is_choice and not is_data(key_of(option), value, self.path.parent):
                refused.append(f"{key_of(option)} = {_shown(_plain(value))}")
        if refused:
            raise InputError(
                f"{self.path} was found, not named, and may set only data;"
                f" {', '.join(refused)} could reach code, keys, another host or files elsewhere,"
                f" or answer for you: look into it, then {how_to_name(self.path)}, or give the"
                " option yourself"
            )

    def _converted(self, table: str, raw: str, value: Any, option: click.Option, name: str) -> Any:
        try:
            return self._fitted(value, option)
        except (click.BadParameter, TypeError) as error:
            message = str(error)
            if isinstance(error, click.BadParameter):
                message = error.message.rstrip(".")
            advice = ""
            if table == SHARED:
                advice = (
                    "; if it is meant for another command, put it under that command's table, not"
                    f" [{SHARED}]"
                )
            raise InputError(
                f"{self.path}: [{table}] {raw} = {_shown(value)} is no value of blb {name}"
                f" {option.opts[0]}: {message}{advice}"
            ) from error

    def _fitted(self, value: Any, option: click.Option) -> Any:
        """``value`` in click's form. Raises TypeError or click.BadParameter: it is of the wrong
        kind.
        """
        if option.is_flag:
            if not isinstance(value, bool):
                raise TypeError("it takes true or false")
            return value
        if option.multiple:
            values = value if isinstance(value, list) else [value]
            return tuple(self._single(item, option) for item in values)
        return self._single(value, option)

    def _single(self, value: Any, option: click.Option) -> Any:
        if isinstance(value, bool):
            raise TypeError("it takes a value, not true or false")
        types: tuple[type, ...] = (str, int, float)
        if isinstance(option.type, click.types.IntParamType):
            types = (int,)
        elif isinstance(option.type, click.types.FloatParamType):
            types = (int, float)
        elif isinstance(option.type, click.Path | click.Choice):
            types = (str,)
        if not isinstance(value, types):
            raise TypeError(f"it takes {_KINDS[types]}, not {_kind(value)}")
        if isinstance(value, str):
            if "\0" in value:
                raise TypeError("it takes a text without a zero byte")
            value = self._located(value, option)
        elif isinstance(option.type, click.types.StringParamType):
            value = str(value)
        option.type.convert(value, option, None)
        return value

    def _located(self, text: str, option: click.Option) -> str:
        """A path, made relative to the file's folder; any other text, such as a hub name,
        unchanged.
        """
        if self.path is None or self.path.parent.resolve() == Path.cwd():
            if text.startswith("~"):
                return str(expanded(text))
            return text
        folder = self.path.parent
        elsewhere = len(text.partition(":")[0]) > 1 and ":" in text  # hf:name, https://...
        if (isinstance(option.type, click.Path) and not elsewhere) or text.startswith(
            ("./", "../", "~")
        ):
            return str(folder / expanded(text))
        for mark in ("", "=", ":"):
            head, _, rest = text.rpartition(mark) if mark else ("", "", text)
            located = folder / rest
            if located.suffix in FILES and exists(located):
                if head:
                    return f"{head}{mark}{located}"
                return str(located)
        return text


_KINDS: dict[tuple[type, ...], str] = {
    (int,): "a whole number",
    (int, float): "a number",
    (str,): "text",
    (str, int, float): "text or a number",
}


def _kind(value: Any) -> str:
    kinds = {
        str: "text",
        int: "a whole number",
        float: "a number with a fraction",
        list: "a list",
        dict: "a table",
    }
    return kinds.get(type(value), f"a {type(value).__name__}")


def _shown(value: Any) -> str:
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    if len(text) <= 60:
        return text
    return f"{text[:57]}..."


def _plain(value: Any) -> Any:
    """A value that a command gets, as the file would spell it."""
    if isinstance(value, tuple):
        return [_plain(single) for single in value]
    if isinstance(value, Path):
        return str(value)
    return value


def _displaced(name: str, arguments: Sequence[str]) -> set[str]:
    """Keys of the file that the command line or the environment overrules."""
    keys = {
        word.partition("=")[0].lstrip("-").replace("-", "_")
        for word in arguments
        if word.startswith("--")
    }
    keys |= {
        key for side in EITHER_OR for key in side if os.environ.get(f"BLB_{name}_{key}".upper())
    }
    return _other_side(keys)


def _provider(name: str, arguments: Sequence[str]) -> str | None:
    """The provider that the command line or the environment names."""
    for place, word in enumerate(arguments):
        if word == "--provider":
            return "".join(arguments[place + 1 : place + 2])
        if word.startswith("--provider="):
            return word.partition("=")[2]
    return os.environ.get(f"BLB_{name}_PROVIDER".upper())


def _other_side(keys: Collection[str]) -> set[str]:
    """Options of a file that no longer count where one of ``keys`` is given."""
    first, second = EITHER_OR
    away = set[str]()
    if not first.isdisjoint(keys):
        away |= second
    if not second.isdisjoint(keys):
        away |= first
    return away


def _all_keys() -> Iterable[set[str]]:
    for name in COMMANDS:
        command = load_command(name)
        for subcommand in (command, *getattr(command, "commands", {}).values()):
            yield set(keys_of(subcommand))


def find_settings(named: Path | None = None) -> SettingsFile:
    """Find the file ``named``, or the nearest ``blb.toml`` from the working directory upwards, or
    nothing.

    Raises InputError: a given file that is missing, a found one of another user, or one that is no
    TOML.
    """
    path = named
    if named is None:
        here = Path.cwd().resolve()
        paths = (folder / FILE for folder in (here, *here.parents))
        path = next(filter(Path.is_file, paths), None)
    if path is None:
        return SettingsFile()
    tables = read_settings(path, "the settings file", "give another with --config")
    if named is None and hasattr(os, "getuid") and path.stat().st_uid not in (ROOT, os.getuid()):
        raise InputError(f"{path} belongs to another user; look into it, then {how_to_name(path)}")
    return SettingsFile(path, tables, named is not None)


def how_to_name(path: Path) -> str:
    """The command that names the file, for the end of a message."""
    return f"name it with {shell_line('blb', '--config', path)}"
