"""``blb completion``: the script for a shell that completes commands, options and values."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from blackbox_lb.cli.echo import echo_code

SHELLS = ("bash", "zsh", "fish")


@click.command("completion")
@click.argument("shell", type=click.Choice(SHELLS))
def completion_command(shell: str) -> None:
    """Print the script that lets the shell SHELL complete blb's commands, options and their values.

    Put it where the shell reads it: eval "$(blb completion bash)" in ~/.bashrc, eval "$(blb
    completion zsh)" in ~/.zshrc after compinit, blb completion fish >
    ~/.config/fish/completions/blb.fish.
    """
    root = click.get_current_context().find_root().command
    kind = get_completion_class(shell)
    if kind is None:
        raise click.UsageError(
            f"this click knows no completion for {shell}; it knows {', '.join(SHELLS)}"
        )
    echo_code(kind(root, {}, "blb", "_BLB_COMPLETE").source())
