"""Writes docs/cli.md, the help of every command: ``uv run python docs/generate.py``. A test
compares it with the commands.
"""

from __future__ import annotations

from pathlib import Path

import click

from blackbox_lb.cli import main
from blackbox_lb.cli.commands import COMMANDS
from blackbox_lb.cli.grouped import ALL_OPTIONS

WIDTH = 100
HEAD = """# Command line

The help of every command, as `blb COMMAND --help-all` prints it (`--help` shows the options that most people need). What the commands have in common (blb.toml, exit codes, `--json`,
completion): [settings.md](settings.md).
"""  # noqa: E501


def commands() -> dict[str, click.Command]:
    """Every command, imported."""
    context = click.Context(main, info_name="blb")
    found = {name: main.get_command(context, name) for name in sorted(COMMANDS)}
    return {name: command for name, command in found.items() if command is not None}


def reference() -> str:
    """The help of every command, as Markdown."""
    settings = {**main.context_settings, "terminal_width": WIDTH, "max_content_width": WIDTH}
    context = click.Context(main, info_name="blb", **settings)
    pages = [HEAD, _page("blb", main.get_help(context))]
    for name, command in commands().items():
        inner = command.context_class(
            command, parent=context, info_name=name, terminal_width=WIDTH, max_content_width=WIDTH
        )
        inner.meta[ALL_OPTIONS] = True
        pages.append(_page(f"blb {name}", command.get_help(inner)))
        for inside, each in sorted(getattr(command, "commands", {}).items()):
            within = click.Context(
                each, parent=inner, info_name=inside, terminal_width=WIDTH, max_content_width=WIDTH
            )
            pages.append("#" + _page(f"blb {name} {inside}", each.get_help(within)))
    return "\n".join(pages)


def _page(title: str, text: str) -> str:
    return f"## {title}\n\n```text\n{text}\n```\n"


if __name__ == "__main__":
    Path(__file__).with_name("cli.md").write_text(reference(), encoding="utf-8")
