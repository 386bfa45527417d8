"""``blb completion``: what a shell completes, from a description of all commands, so that no key press waits for an import."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem, get_completion_class

__all__ = ["completion_command", "describe", "described", "light"]

DESCRIPTION = "commands.json"
"""Beside this module, written by docs/generate.py; a test compares it with the commands."""
SHELLS = ("bash", "zsh", "fish")
NO_BIAS = frozenset({"analysis.json", "evaluation.json", "result.json"})
"""What else a run's folder holds."""
STORES = frozenset({"folder", "new", "old", "source", "store", "stores"})
"""Arguments that are rollout stores, or what they are written to and read from."""


@click.command("completion")
@click.argument("shell", type=click.Choice(SHELLS))
def completion_command(shell: str) -> None:
    """Print the script that lets the shell SHELL complete blb's commands, options and their values.

    Put it where the shell reads it: eval "$(blb completion bash)" in ~/.bashrc, eval "$(blb completion zsh)" in ~/.zshrc after
    compinit, blb completion fish > ~/.config/fish/completions/blb.fish.
    """
    root = click.get_current_context().find_root().command
    kind = get_completion_class(shell)
    if kind is None:
        raise click.UsageError(f"this click knows no completion for {shell}; it knows {', '.join(SHELLS)}")
    click.echo(kind(root, {}, "blb", "_BLB_COMPLETE").source())


def describe(commands: dict[str, click.Command], values: dict[str, list[str]]) -> dict[str, Any]:
    """All that completion and blb.toml need to know of the commands without importing them.

    ``values``: option -> the names that are known of it. A group's own commands stand beside it, as in "store check".
    """
    inner = {
        f"{name} {inside}": each
        for name, group in commands.items()
        if isinstance(group, click.Group)
        for inside, each in sorted(group.commands.items())
    }
    rows = {name: [_row(param) for param in each.params] for name, each in {**commands, **inner}.items()}
    return {"commands": rows, "values": values}


def _row(param: click.Parameter) -> dict[str, Any]:
    row: dict[str, Any] = {"opts": param.opts or [param.name]}
    if isinstance(param.type, click.Choice):
        row["choices"] = list(param.type.choices)
    elif isinstance(param.type, click.Path):
        row["path"] = True
    if isinstance(param, click.Option) and param.is_flag:
        row["flag"] = True
    if param.multiple:
        row["multiple"] = True
    return row


@functools.cache
def described() -> dict[str, Any]:
    """The description that :func:`describe` made when the package was built."""
    text = resources.files("blackbox_lb.cli").joinpath(DESCRIPTION).read_text(encoding="utf-8")
    loaded: dict[str, Any] = json.loads(text)
    return loaded


def light(name: str) -> click.Command | None:
    """The command ``name`` with its options and nothing behind them, for completion; None where it is not described."""
    commands = described()["commands"]
    if name not in commands:
        return None
    params = [_param(row) for row in commands[name]]
    inside = [each.removeprefix(f"{name} ") for each in commands if each.startswith(f"{name} ")]
    if not inside:
        return click.Command(name, params=params)
    return click.Group(
        name, params=params, commands={each: light(f"{name} {each}") or click.Command(each) for each in inside}
    )


def _param(row: dict[str, Any]) -> click.Parameter:
    first = row["opts"][0]
    kind: Any = click.Choice(row["choices"]) if "choices" in row else click.Path() if "path" in row else None
    if not first.startswith("-"):
        of_bias = "path" in row and first not in STORES
        return click.Argument([first], type=kind, required=False, shell_complete=_bias_files if of_bias else None)
    if row.get("flag"):
        return click.Option(row["opts"], is_flag=True)
    known = described()["values"].get(first.lstrip("-"))
    complete = _bias_files if first == "--bias" else _known(known) if known else None
    return click.Option(row["opts"], type=kind, multiple=row.get("multiple", False), shell_complete=complete)


Completer = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def _known(names: list[str]) -> Completer:
    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        found = [CompletionItem(name) for name in names if name.startswith(incomplete)]
        return found or [CompletionItem(incomplete, type="file")]

    return complete


def _bias_files(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Bias files here and in the runs below; where none fits, whatever file the shell offers."""
    found = [*Path().glob("*.json"), *Path().glob("runs/*/*.json")]
    names = sorted(path.as_posix() for path in found if path.name not in NO_BIAS)
    fit = [CompletionItem(name) for name in names if name.startswith(incomplete)]
    return fit or [CompletionItem(incomplete, type="file")]
