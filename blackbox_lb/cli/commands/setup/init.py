"""``blb init``: a few questions, and a blb.toml that answers them for every later command."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

from blackbox_lb.cli.completers import known, reward_names, task_names
from blackbox_lb.cli.grouped import command
from blackbox_lb.cli.settings import FILE
from blackbox_lb.providers.names import profile_names


@dataclass(frozen=True, kw_only=True)
class InitOptions:
    """Options of ``blb init``: answers, None for each that is asked for.

    out: where to write.
    yes: ask nothing.
    force: overwrite the file.
    """

    provider: str | None
    model: str | None
    base_url: str | None
    task: str | None
    data: Path | None
    reward: str | None
    price: str | None
    out: Path
    yes: bool
    force: bool


@command("init", InitOptions)
@click.option(
    "--provider",
    shell_complete=known(profile_names),
    help=f"{', '.join(profile_names())}, or a path to your own TOML. [default: asked for]",
)
@click.option("--model", help="Model name. [default: asked for]")
@click.option("--base-url", help="Address of the API, with its /v1. [default: asked for]")
@click.option(
    "--task", shell_complete=known(task_names), help="A built-in task, or what else --task takes. [default: asked for]"
)
@click.option("--data", type=click.Path(path_type=Path), help="Data file. [default: asked for]")
@click.option("--reward", shell_complete=known(reward_names), help="What a completion is worth. [default: asked for]")
@click.option("--price", help="PROMPT,COMPLETION in US dollars for a million tokens. [default: asked for]")
@click.option("--out", type=click.Path(path_type=Path), default=FILE, show_default=True, help="Where to write.")
@click.option("--yes", is_flag=True, help="Ask nothing: defaults for what no option says.")
@click.option("--force", is_flag=True, help="Overwrite the file.")
def init_command(options: InitOptions) -> None:
    """Ask which model, task and reward, check the answers, and write them into blb.toml.

    No key is asked for or written: keys stay in the environment.
    """
    from blackbox_lb.cli.actions.init import execute

    execute(options)
