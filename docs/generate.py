"""Writes docs/cli.md from the commands' own help: ``uv run python docs/generate.py``. A test compares."""

from __future__ import annotations

from pathlib import Path

import click

from blackbox_lb.cli import COMMANDS, main

WIDTH = 100


def reference() -> str:
    """The help of every command, as Markdown."""
    settings = {**main.context_settings, "terminal_width": WIDTH, "max_content_width": WIDTH}
    context = click.Context(main, info_name="blb", **settings)
    pages = [
        "# Command line\n\nThe help of every command, as `blb COMMAND --help` prints it.\n",
        _page("blb", main.get_help(context)),
    ]
    for name in sorted(COMMANDS):
        command = main.get_command(context, name)
        if command is None:
            raise LookupError(name)
        inner = click.Context(command, parent=context, info_name=name, terminal_width=WIDTH, max_content_width=WIDTH)
        pages.append(_page(f"blb {name}", command.get_help(inner)))
    return "\n".join(pages)


def _page(title: str, text: str) -> str:
    return f"## {title}\n\n```text\n{text}\n```\n"


if __name__ == "__main__":
    Path(__file__).with_name("cli.md").write_text(reference(), encoding="utf-8")
