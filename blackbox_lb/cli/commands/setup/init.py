"""``blb init``: a few questions, and a blb.toml that answers them for every later command."""

from __future__ import annotations

from pathlib import Path

from blackbox_lb.cli.completing import known, reward_names, task_names
from blackbox_lb.cli.grouped import command, option
from blackbox_lb.cli.options import provider
from blackbox_lb.cli.settings import FILE
from blackbox_lb.jobs.plan.setting import Settings


class InitOptions(Settings):
    """Options of ``blb init``: answers, None for each question to ask."""

    provider: str | None = provider(None, "asked for")
    model: str | None = option(None, "Model name. [default: asked for]")
    base_url: str | None = option(None, "Address of the API, with its /v1. [default: asked for]")
    task: str | None = option(
        None,
        "A built-in task, or what else --task takes. [default: asked for]",
        shell_complete=known(task_names),
    )
    data: Path | None = option(None, "Data file. [default: asked for]")
    reward: str | None = option(
        None, "What a completion is worth. [default: asked for]", shell_complete=known(reward_names)
    )
    out: Path = option(None, "Where to write.", default=FILE)
    yes: bool = option(None, "Ask nothing: defaults for what no option says.")
    force: bool = option(None, "Overwrite the file.")


@command("init", InitOptions, example="blb init")
def init_command(options: InitOptions) -> None:
    """Ask which model, task and reward, check the answers, and write them into blb.toml.

    No key is asked for or written: keys stay in the environment.
    """
    from blackbox_lb.cli.actions.init import execute

    execute(options)
