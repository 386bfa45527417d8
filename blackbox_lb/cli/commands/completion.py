"""``blb completion``: the script for a shell that completes commands, options and values."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from blackbox_lb.cli.echo import echo_code
from blackbox_lb.cli.grouped import argument, command
from blackbox_lb.jobs.plan.setting import Settings

SHELLS = ("bash", "zsh", "fish")


class CompletionOptions(Settings):
    shell: str = argument(type=click.Choice(SHELLS))


@command("completion", CompletionOptions)
def completion_command(options: CompletionOptions) -> None:
    """Print the script that lets the shell SHELL complete blb's commands, options and their values.

    Put it where the shell reads it: eval "$(blb completion bash)" in ~/.bashrc, eval "$(blb
    completion zsh)" in ~/.zshrc after compinit, blb completion fish >
    ~/.config/fish/completions/blb.fish.
    """
    root = click.get_current_context().find_root().command
    kind = get_completion_class(options.shell)
    if kind is None:
        raise click.UsageError(
            f"this click knows no completion for {options.shell}; it knows {', '.join(SHELLS)}"
        )
    echo_code(kind(root, {}, "blb", "_BLB_COMPLETE").source())
