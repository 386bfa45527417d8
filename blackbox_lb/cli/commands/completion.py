"""``blb completion``: the script for a shell that completes commands, options and values."""

from __future__ import annotations

import click
from click.shell_completion import BashComplete, FishComplete, ZshComplete

from blackbox_lb.cli.echo import echo_code
from blackbox_lb.cli.grouped import argument, command
from blackbox_lb.jobs.plan.setting import Settings

SHELLS = {shell.name: shell for shell in (BashComplete, ZshComplete, FishComplete)}
"""Name -> what completes in it."""


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
    echo_code(SHELLS[options.shell](root, {}, "blb", "_BLB_COMPLETE").source())
